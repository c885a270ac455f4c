"""The tutorial, followed word by word: every command of its blocks is run, and must show what stands below it.

What differs from run to run (ages, the ends of generated names, addresses of pods) may differ; lines may be broken
elsewhere. A question (get, describe, kubectl gpu …) is asked again until the world has come so far.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import select
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from gpuclaim.local import build, kubevirt
from support.wait import until

ROOT: Final = Path(__file__).parents[2]
TUTORIAL: Final = ROOT / "docs" / "tutorial" / "first-order.md"
FOLDER: Final = "~/.cache/gpuclaim/up"
"""Where the tutorial's cloud is; the test's has a folder of its own."""
_PATIENCE: Final = 300.0
_ASKS: Final = re.compile(r"kubectl (get|describe|gpu (classes|claims|nodes|doctor))\b")
_DIFFERS: Final = (
    (r"\d+(?:\\\.\d+)?(?:ms|s|m|h)(?:\d+s)?", r"\\d+(\\.\\d+)?(ms|s|m|h)(\\d+s)?"),
    (r"virt\\-launcher\\-train\\-\w{5}", r"virt-launcher-train-\\w{5}"),
    # Who types faster than the controller takes up a new class is refused by the policy about new classes.
    (r"gpuclaim\\-guard", r"gpuclaim-guard(-new-classes)?"),
    (r"10\\\.64\\\.\d+\\\.\d+", r"10\\.64\\.\\d+\\.\\d+"),
)


@dataclasses.dataclass(frozen=True)
class Command:
    """What one types, and what one must see."""

    line: int
    typed: str
    shown: str

    def agrees(self, seen: str) -> bool:
        """Whether what was seen is what is shown, but for what differs from run to run."""
        return re.fullmatch(_pattern(self.shown), " ".join(seen.split())) is not None


def _pattern(shown: str) -> str:
    pattern = re.escape(" ".join(shown.split())).replace(r"\ ", " ")
    for found, instead in _DIFFERS:
        pattern = re.sub(rf"(?<![\w-]){found}(?![\w-])", instead, pattern)
    return pattern


def commands(text: str) -> list[Command]:
    """The commands of the console blocks, a here-document with its end."""
    found: list[Command] = []
    inside, end = False, ""
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("```"):
            inside = line == "```console"
        elif not inside:
            continue
        elif end:
            found[-1] = dataclasses.replace(found[-1], typed=f"{found[-1].typed}\n{line}")
            end = "" if line == end else end
        elif line.startswith("$ "):
            found.append(Command(number, line.removeprefix("$ "), ""))
            end = line.partition("<<")[2].strip()
        else:
            found[-1] = dataclasses.replace(found[-1], shown=f"{found[-1].shown}\n{line}")
    return found


class Terminal:
    """A shell that stays: what one command exports holds for the next. An output is whole once its end is printed."""

    _END: Final = "the end of an output"

    def __init__(self, environment: dict[str, str]) -> None:
        self._shell = subprocess.Popen(
            ["bash", "--norc"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment,
            cwd=ROOT,
            start_new_session=True,
        )

    def says(self, typed: str) -> str:
        """The output of a command; blocks until it has ended."""
        assert self._shell.stdin
        self._shell.stdin.write(f"{typed}\necho '{self._END}'\n".encode())
        self._shell.stdin.flush()
        return self.until(f"{self._END}\n").removesuffix(f"{self._END}\n")

    def starts(self, typed: str, until: str) -> str:
        """What a command that goes on prints, up to these words."""
        assert self._shell.stdin
        self._shell.stdin.write(f"{typed}\n".encode())
        self._shell.stdin.flush()
        return self.until(until)

    def until(self, words: str) -> str:
        """Everything up to these words, which must come."""
        assert self._shell.stdout
        seen, deadline = b"", time.monotonic() + _PATIENCE
        while words.encode() not in seen:
            left = deadline - time.monotonic()
            assert left > 0, f"never said: {words}\n{seen.decode()}"
            if select.select([self._shell.stdout], [], [], left)[0]:
                part = os.read(self._shell.stdout.fileno(), 65536)
                assert part, f"the shell ended\n{seen.decode()}"
                seen += part
        return seen.decode()

    def interrupt(self) -> None:
        """Ctrl-C: to everything that runs in the terminal; the shell ends when that has."""
        os.killpg(self._shell.pid, signal.SIGINT)

    def close(self) -> int:
        """Ends the shell, once what it runs has ended; its exit code."""
        assert self._shell.stdin
        assert self._shell.stdout
        with contextlib.suppress(BrokenPipeError):
            self._shell.stdin.close()
        try:
            return self._shell.wait(_PATIENCE)
        finally:
            self._shell.stdout.close()
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._shell.pid, signal.SIGKILL)


@pytest.fixture
def terminals(tmp_path: Path) -> Iterator[tuple[Terminal, Terminal]]:
    """Two terminals, as the tutorial has them: one for the cloud, one to type in."""
    build.command("etcd")
    build.ensure(kubevirt.component())
    hidden = {"KUBECONFIG", "MAKEFLAGS", "MAKELEVEL"}
    environment = {key: value for key, value in os.environ.items() if key not in hidden}
    pair = (
        Terminal(environment | {"GPUCLAIM_RUN": str(tmp_path / "up"), "PYTHONUNBUFFERED": "1"}),
        Terminal(environment),
    )
    try:
        yield pair
    finally:
        pair[0].interrupt()
        for each in pair:
            each.close()


def test_the_tutorial_is_true(terminals: tuple[Terminal, Terminal], tmp_path: Path) -> None:
    cloud, typed_into = terminals
    first, *rest = commands(TUTORIAL.read_text().replace(FOLDER, str(tmp_path / "up")))
    assert first.typed == "make up"
    cloud.starts(first.typed, "Ctrl-C ends all of it")
    assert len(rest) > 15
    for command in rest:
        seen = ""

        def follow(command: Command = command) -> bool:
            nonlocal seen
            seen = typed_into.says(command.typed)
            return command.agrees(seen) or not _ASKS.match(command.typed)

        with contextlib.suppress(AssertionError):  # said below, with what was seen
            until(follow, command.typed)
        where = f"{TUTORIAL.name}:{command.line}: {command.typed}"
        assert command.agrees(seen), f"{where}\nshows\n{seen}\nand not{command.shown}"


@pytest.mark.parametrize(
    ("shown", "seen", "agrees"),
    [
        ("NAME   AGE\ntrain  10s", "NAME AGE\ntrain 2m5s\n", True),
        ("train 10s", "train never", False),
        ("pod virt-launcher-train-tvrs5 10.64.1.2", "pod virt-launcher-train-x7k2p 10.64.3.77", True),
        ("a sentence that\nis folded", "a sentence that is folded", True),
        ("by 'gpuclaim-guard' with", "by 'gpuclaim-guard-new-classes' with", True),
        ("by 'gpuclaim-guard' with", "by 'gpuclaim-vm-orders' with", False),
        ("4 GPUs", "5 GPUs", False),
        ("gpu-1s", "gpu-2s", False),
        ("", "a warning", False),
    ],
)
def test_what_agrees(shown: str, seen: str, agrees: bool) -> None:
    assert Command(1, "", shown).agrees(seen) is agrees
