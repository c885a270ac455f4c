"""Child processes that are started, watched and ended as a unit, and that never outlive this one."""

from __future__ import annotations

import json
import os
import queue
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_POLL = 0.02  # seconds between two looks at something that has no event to wait for
_IN_USE = re.compile(r"\S*:\d+: bind: address already in use|address already in use")


class ProcessError(Exception):
    """A child process did not do what it should; the message shows the end of its log."""


class EarlyExitError(ProcessError):
    """A child process ended before it was ready."""


class NotReadyError(ProcessError):
    """A child process runs but did not become ready in the time it was given."""


class PortInUseError(ProcessError):
    """Another program listens on the port."""


class Process:
    """One child process, in a session of its own, with its output in a file.

    It is killed when this process ends, however it ends. It can be started again after it was stopped.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        log: Path,
        *,
        environment: Mapping[str, str] | None = None,
        binds: Sequence[tuple[Path, Path]] = (),
    ) -> None:
        """Prepare a process; nothing starts yet.

        Args:
            name: how messages call it.
            command: the program and its arguments; a program without a slash is looked up on PATH.
            log: the file that its output is added to.
            environment: variables to set beside those of this process.
            binds: (source, target) pairs; with any, it gets a mount namespace of its own, where each source
                is mounted on its target. Needs root.
        """
        self.name = name
        self.command = tuple(command)
        self.log = log
        self._environment = dict(environment or {})
        self._binds = tuple((str(source), str(target)) for source, target in binds)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The process ID.

        Raises:
            ProcessError: it was not started.
        """
        if self._process is None:
            raise ProcessError(f"{self.name} was not started")
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether it was started and has not ended."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> Self:
        """Start it, unless it runs.

        Raises:
            ProcessError: there is no such program.
        """
        if self.running:
            return self
        program = shutil.which(self.command[0])
        if program is None:
            raise ProcessError(f"{self.name}: no program {self.command[0]}")
        self.log.parent.mkdir(parents=True, exist_ok=True)
        order = json.dumps({"parent": os.getpid(), "binds": self._binds})
        starter = str(Path(__file__).with_name("_exec.py"))
        command = (sys.executable, "-I", "-S", starter, order, program, *self.command[1:])
        with self.log.open("ab") as log:
            self._process = _spawn(
                lambda: subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, **self._environment},
                    start_new_session=True,
                )
            )
        return self

    def wait_until(self, ready: Callable[[], bool], timeout: float = 60.0) -> None:
        """Return as soon as `ready()` is true; `timeout` is in seconds.

        Raises:
            PortInUseError: it ended, and its log says that it could not listen.
            EarlyExitError: it ended.
            NotReadyError: the time is over.
        """
        deadline = time.monotonic() + timeout
        while not ready():
            self.check()
            if time.monotonic() > deadline:
                raise NotReadyError(f"{self.name} was not ready after {timeout:g} s.{self._ending()}")
            time.sleep(_POLL)

    def check(self) -> None:
        """Do nothing if it runs.

        Raises:
            PortInUseError, EarlyExitError: as `wait_until`.
        """
        if self.running:
            return
        ending = self._ending()
        if in_use := _IN_USE.search(ending):
            raise PortInUseError(f"{self.name} ended: {in_use[0]}.{ending}")
        code = self._process.returncode if self._process else None
        how = f"by signal {signal.Signals(-code).name}" if code is not None and code < 0 else f"with exit code {code}"
        raise EarlyExitError(f"{self.name} ended {how}.{ending}")

    def stop(self, grace: float = 5.0) -> None:
        """End it and what it started: SIGTERM, and SIGKILL for what still runs after `grace` seconds."""
        if not self.running:
            return
        self._signal(signal.SIGTERM)
        deadline = time.monotonic() + grace
        # Looked at, not reaped: until then its ID is its own, and the last signal meets nobody else.
        look = os.WEXITED | os.WNOHANG | os.WNOWAIT
        with suppress(ChildProcessError):  # another thread looked whether it runs, and reaped it
            while os.waitid(os.P_PID, self.pid, look) is None and time.monotonic() < deadline:
                time.sleep(_POLL)
        self.kill()

    def kill(self) -> None:
        """End it and what it started at once with SIGKILL, as a crash would."""
        if self._process is None or self._process.returncode is not None:
            return
        self._signal(signal.SIGKILL)
        self._process.wait()

    def tail(self, lines: int = 30) -> str:
        """Return the last lines of its log."""
        return tail(self.log, lines)

    def _signal(self, number: signal.Signals) -> None:
        # It leads its session, so its ID is its group's.
        with suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def _ending(self) -> str:
        text = self.tail()
        return f" The end of {self.log}:\n{text}" if text else f" {self.log} is empty."


def tail(file: Path, lines: int = 30) -> str:
    """Return the last lines of a text file, indented; empty when there is none."""
    try:
        with file.open(errors="replace") as opened:
            return "".join(f"  {line}" for line in deque(opened, maxlen=lines))
    except FileNotFoundError:
        return ""


def free_ports(count: int) -> list[int]:
    """Return `count` ports of 127.0.0.1 that nobody listens on now."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


def check_port(port: int, purpose: str) -> None:
    """Do nothing if `port` of 127.0.0.1 can be listened on.

    Raises:
        PortInUseError: it cannot; the message names `purpose`.
    """
    with socket.socket() as attempt:
        attempt.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            attempt.bind(("127.0.0.1", port))
        except OSError as error:
            raise PortInUseError(
                f"port {port} of 127.0.0.1, for {purpose}, cannot be used: {error.strerror}."
                f" End the program that has it (ss -ltnp shows which), or choose another port."
            ) from None


_requests: queue.SimpleQueue[tuple[Callable[[], subprocess.Popen[bytes]], queue.SimpleQueue[object]]]
_requests = queue.SimpleQueue()
_spawner_lock = threading.Lock()
_spawner: threading.Thread | None = None


def _spawn(start: Callable[[], subprocess.Popen[bytes]]) -> subprocess.Popen[bytes]:
    """Start a process from the one thread that lives as long as this process.

    The kernel's "parent has ended" means the thread that forked: a process started
    from a thread of a pool would be killed when that thread goes.
    """
    global _spawner  # noqa: PLW0603
    with _spawner_lock:
        if _spawner is None or not _spawner.is_alive():
            _spawner = threading.Thread(target=_serve, name="gpuclaim-spawner", daemon=True)
            _spawner.start()
    reply: queue.SimpleQueue[object] = queue.SimpleQueue()
    _requests.put((start, reply))
    result = reply.get()
    if isinstance(result, BaseException):
        raise result
    assert isinstance(result, subprocess.Popen)
    return result


def _serve() -> None:
    while True:
        start, reply = _requests.get()
        try:
            reply.put(start())
        except BaseException as error:  # noqa: BLE001 - raised again where it was asked for
            reply.put(error)
