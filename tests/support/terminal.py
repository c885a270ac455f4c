"""What a person sees: a program on a pseudo-terminal of a given width."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

KUBECTL_GPU = str(Path(sys.executable).parent / "kubectl-gpu")
GPUCLAIM = str(Path(sys.executable).parent / "gpuclaim")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


@dataclass(frozen=True)
class Seen:
    """How a program ended, and what stood on the terminal, its colours apart."""

    code: int
    raw: str

    @property
    def text(self) -> str:
        """Without colours."""
        return _COLOUR.sub("", self.raw).replace("\r\n", "\n")

    @property
    def lines(self) -> list[str]:
        """The lines that are not empty."""
        return [line for line in self.text.splitlines() if line.strip()]


class Session:
    """A program on a terminal that is looked at, and typed into, while it runs; a context manager that ends it."""

    def __init__(
        self, arguments: Sequence[str], *, columns: int = 80, rows: int = 24, program: str = KUBECTL_GPU
    ) -> None:
        self.raw = ""
        self._master, self._slave = pty.openpty()
        self.resize(columns, rows)
        self.before = termios.tcgetattr(self._slave)
        surroundings = {key: value for key, value in os.environ.items() if key not in {"NO_COLOR", "COLUMNS", "LINES"}}
        self.process = subprocess.Popen(
            [program, *arguments],
            stdin=self._slave,
            stdout=self._slave,
            stderr=self._slave,
            env=surroundings | {"TERM": "xterm"},
            start_new_session=True,
            preexec_fn=_controls_it,  # noqa: PLW1509 - one system call
        )

    def resize(self, columns: int, rows: int) -> None:
        """The window gets another size."""
        fcntl.ioctl(self._slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, keys: str) -> None:
        """Press keys."""
        os.write(self._master, keys.encode())

    def page(self) -> list[str]:
        """The lines of the page that was drawn last."""
        drawn = self.raw.rpartition("\x1b[H")[2]
        return [_CONTROL.sub("", line) for line in drawn.split("\r\n")]

    def until(self, holds: Callable[[list[str]], object], what: str) -> list[str]:
        """The first whole page that `holds` is true of. Blocks for a minute at most."""
        end = time.monotonic() + 60
        while time.monotonic() < end:
            if select.select([self._master], [], [], 0.05)[0]:
                self.raw += os.read(self._master, 65536).decode(errors="replace")
            if self.raw.endswith("\x1b[J") and holds(page := self.page()):
                return page
        raise AssertionError(f"never on the terminal: {what}; last was\n" + "\n".join(self.page()))

    def ended(self) -> int:
        """How it ended; what it left of the terminal is in `raw` and `modes`."""
        code = self.process.wait(60)
        while select.select([self._master], [], [], 0.05)[0]:
            self.raw += os.read(self._master, 65536).decode(errors="replace")
        return code

    @property
    def modes(self) -> list[object]:
        """The terminal's settings now."""
        return list(termios.tcgetattr(self._slave))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._master)
        os.close(self._slave)


def _controls_it() -> None:
    # Ctrl-C is a signal to who has the terminal only.
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def run(
    arguments: Sequence[str],
    *,
    columns: int = 80,
    answer: str = "",
    env: Mapping[str, str] | None = None,
    program: str = KUBECTL_GPU,
) -> Seen:
    """Run `kubectl-gpu` on a terminal; `answer` is typed before it asks. May block its thread for a minute."""
    master, slave = pty.openpty()
    try:
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        surroundings = {key: value for key, value in os.environ.items() if key not in {"NO_COLOR", "COLUMNS", "LINES"}}
        process = subprocess.Popen(
            [program, *arguments],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=surroundings | {"TERM": "xterm"} | dict(env or {}),
        )
    finally:
        os.close(slave)
    if answer:
        os.write(master, answer.encode())
    seen = b""
    try:
        while True:
            try:
                part = os.read(master, 65536)
            except OSError:  # Linux: every other end is closed
                break
            if not part:
                break
            seen += part
    finally:
        os.close(master)
    return Seen(process.wait(60), seen.decode())
