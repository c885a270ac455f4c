"""`kubectl gpu top` (R75): a live view; I/O only, `views.top` makes its lines."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import sys
import termios
import threading
import time
import tty
from collections.abc import Callable, Iterator
from typing import Any, Final

import click

from gpuclaim.api.types import GPUClaim, GPUClass, GPUNode
from gpuclaim.cli import desk
from gpuclaim.cli.desk import Desk
from gpuclaim.kube.blocking import AnswerError, NoAnswerError
from gpuclaim.kube.follow import Follower
from gpuclaim.views import faults, text
from gpuclaim.views import top as view
from gpuclaim.views.top import Scene

_FORBIDDEN: Final = 403
_TICK_SECONDS: Final = 0.1
_DUE_SECONDS: Final = 2.0
_ALTERNATE, _BACK = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
_HOME, _END_OF_LINE, _REST = "\x1b[H", "\x1b[K", "\x1b[J"
_KEYS: Final = {b"\x1b[A": -1, b"k": -1, b"\x1b[B": 1, b"j": 1, b"\x1b[5~": -10, b"\x1b[6~": 10, b" ": 10}
_QUIT: Final = (b"q", b"Q", b"\x1b", b"\x04")


@click.command()
@desk.cluster(everywhere=True)
def top(at: Desk) -> None:
    """Watch the GPUs: by class, and every node's, as they change; q ends it.

    Who may not read nodes sees the claims of the namespace. Where the output is no terminal it prints one moment and
    ends.
    """
    changed = threading.Event()
    found = _Everything(at, changed)
    if not sys.stdout.isatty() or os.environ.get("TERM", "dumb") == "dumb":
        click.echo("\n".join(view.lines(found.scene(), None)))
        return
    found.start()
    with _screen():
        _run(found, changed)


class _Everything:
    """What the view is made of, kept up to date; what may not be read is left out."""

    def __init__(self, at: Desk, changed: threading.Event) -> None:
        """Read all of it once.

        Raises:
            AnswerError, NoAnswerError: as the first of them did, rights apart.
        """
        self._reports = _allowed(Follower(at.client, GPUNode, "", changed))
        self._classes = _allowed(Follower(at.client, GPUClass, "", changed))
        everywhere = Follower(at.client, GPUClaim, "", changed)
        self._place = at.namespace
        if self._reports is not None:
            # The cells of a node are those of all tenants.
            self._claims = _allowed(everywhere)
        if self._reports is None or self._claims is None:
            self._reports = None
            self._claims = Follower(at.client, GPUClaim, at.namespace, changed)
            self._claims.first()

    def start(self) -> None:
        """Follow all of it."""
        for each in (self._reports, self._classes, self._claims):
            if each is not None:
                each.start()

    def scene(self) -> Scene:
        """What is known now."""
        followers: list[Follower[Any]] = [each for each in (self._reports, self._classes, self._claims) if each]
        fault = next((each.fault for each in followers if each.fault is not None), None)
        return Scene(
            now=desk.now(),
            classes=self._classes.objects() if self._classes is not None else None,
            reports=self._reports.objects() if self._reports is not None else None,
            claims=self._claims.objects() if self._claims is not None else None,
            place=self._place,
            fault=f"This may be old: {_sentence(fault)}" if fault is not None else "",
        )


def _allowed(follower: Follower[Any]) -> Follower[Any] | None:
    try:
        follower.first()
    except AnswerError as error:
        if error.status.code != _FORBIDDEN:
            raise
        return None
    return follower


def _sentence(fault: AnswerError | NoAnswerError) -> str:
    return faults.sentence(fault.status) if isinstance(fault, AnswerError) else text.safe(str(fault))


def _run(found: _Everything, changed: threading.Event) -> None:
    skip, size, due, rest = 0, os.terminal_size((0, 0)), 0.0, 0.0
    key = _reader()
    while True:
        now, moment = shutil.get_terminal_size(), time.monotonic()
        pressed = key()
        if pressed in _QUIT:
            return
        skip = max(0, skip + _KEYS.get(pressed, 0))
        if now != size or pressed or moment >= due or (changed.is_set() and moment >= rest):
            changed.clear()
            size = now
            shown = view.lines(found.scene(), size.columns, size.lines, skip, desk.paint)
            # The last line without a line feed, which would scroll.
            click.echo(_HOME + f"{_END_OF_LINE}\r\n".join(shown) + _END_OF_LINE + _REST, nl=False, color=True)
            ended = time.monotonic()
            # Of a large cluster that changes all the time a page may cost a sixth of a processor.
            due, rest = ended + _DUE_SECONDS, ended + 5 * (ended - moment)


def _reader() -> Callable[[], bytes]:
    """What reads one key, or b"" where none was pressed for a moment."""
    if not sys.stdin.isatty():
        pause = threading.Event()

        def nothing() -> bytes:
            pause.wait(_TICK_SECONDS)
            return b""

        return nothing
    descriptor = sys.stdin.fileno()

    def key() -> bytes:
        ready, _, _ = select.select([descriptor], [], [], _TICK_SECONDS)
        # An escape sequence comes in one piece.
        return os.read(descriptor, 8) or b"q" if ready else b""

    return key


@contextlib.contextmanager
def _screen() -> Iterator[None]:
    """The terminal's other screen, keys as they are pressed; all as it was at the end, however that comes."""

    def end(number: int, _frame: object) -> None:
        raise SystemExit(128 + number)

    handlers = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    descriptor = sys.stdin.fileno() if sys.stdin.isatty() else None
    before = termios.tcgetattr(descriptor) if descriptor is not None else None
    try:
        if descriptor is not None:
            tty.setcbreak(descriptor)
        click.echo(_ALTERNATE, nl=False, color=True)
        yield
    except KeyboardInterrupt:
        pass  # Ctrl-C is how one ends it
    finally:
        with contextlib.suppress(OSError):
            click.echo(_BACK, nl=False, color=True)
        if descriptor is not None and before is not None:
            with contextlib.suppress(termios.error):
                termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
        for number, handler in handlers.items():
            signal.signal(number, handler)
