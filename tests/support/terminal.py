"""What a person sees: a program on a pseudo-terminal of a given width."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

KUBECTL_GPU = str(Path(sys.executable).parent / "kubectl-gpu")
GPUCLAIM = str(Path(sys.executable).parent / "gpuclaim")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


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
