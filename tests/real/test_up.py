"""`gpuclaim up` as its users run it: the tour goes as told, what it prints works, and nothing is left behind."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from gpuclaim.local import build, kubevirt
from support.wait import until

_UP: Final = (sys.executable, "-m", "gpuclaim", "up")
_PATIENCE: Final = 180.0


class Run:
    """A `gpuclaim up` with a run folder of its own."""

    def __init__(self, directory: Path, *arguments: str) -> None:
        self.directory = directory
        self.printed = ""
        self._process = subprocess.Popen(
            [*_UP, f"--directory={directory}", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout
        with self._process.stdout as lines:
            for line in lines:
                self.printed += line

    def until_stands(self) -> None:
        def look() -> bool:
            assert self._process.poll() is None, self.printed
            return "Ctrl-C ends all of it" in self.printed

        until(look, "it stands", _PATIENCE)

    def end(self, number: signal.Signals | None = None) -> int:
        if number is not None:
            self._process.send_signal(number)
        code = self._process.wait(_PATIENCE)
        self._reader.join(_PATIENCE)
        return code

    def kubectl(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [str(self.directory / "bin" / "kubectl"), f"--kubeconfig={self.directory / 'kubeconfig'}", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    def processes(self) -> list[str]:
        """The command lines of all processes that name the run folder, its own aside."""
        found = []
        for each in Path("/proc").iterdir():
            if not each.name.isdigit() or int(each.name) in (self._process.pid, os.getpid()):
                continue
            try:
                line = (each / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
            if str(self.directory) in line:
                found.append(line)
        return found

    def nothing_is_left(self) -> None:
        until(lambda: not self.processes(), "every process has ended")


@pytest.fixture(autouse=True)
def _built() -> None:
    build.command("etcd")
    build.ensure(kubevirt.component())


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Run]:
    """One that stands."""
    run = Run(tmp_path / "up")
    try:
        run.until_stands()
        yield run
    finally:
        run.end(signal.SIGKILL)


def test_the_tour_goes_as_told_and_nothing_is_left(tmp_path: Path) -> None:
    run = Run(tmp_path / "up", "--scenario=tour", "--exit")
    assert run.end() == 0, run.printed
    for sentence in (
        "Bound to gpu-1",
        "Error from server (InsufficientCapacity)",
        "The largest order of 'h200' that would be taken now is 4.",
        "Error from server (OverBudget)",
        "No order of 'h200' would be taken now.",
        "Error from server (Forbidden)",
        "belongs to no set",
        "all of it went as told",
    ):
        assert sentence in " ".join(run.printed.split()), run.printed
    told = run.printed.replace(str(run.directory), "~/.cache/gpuclaim/up")
    assert [line for line in told.splitlines() if len(line) > 80] == []
    run.nothing_is_left()


class Visitor:
    """A browser, as far as forms go: it keeps cookies, and sends what is hidden in a form."""

    def __init__(self) -> None:
        self._opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())

    def get(self, url: str) -> str:
        with self._opener.open(url) as answer:
            return str(answer.read().decode())

    def post(self, url: str, page: str, **fields: str) -> str:
        (csrf, *_) = re.findall(r'name="csrf" value="([^"]+)"', page)
        origin = "/".join(url.split("/")[:3])
        body = urllib.parse.urlencode({"csrf": csrf, **fields}).encode()
        with self._opener.open(urllib.request.Request(url, body, {"Origin": origin})) as answer:
            return str(answer.read().decode())


def the_page_shows_what_there_is(running: Run) -> None:
    (link,) = re.findall(r"^  (http://127.0.0.1:\S+)$", running.printed, re.MULTILINE)
    place = link.partition("/enter/")[0]
    visitor = Visitor()
    visitor.get(link)
    until(lambda: "A link for another browser" in running.printed, "the next link is told")
    with pytest.raises(urllib.error.HTTPError, match="401"):
        Visitor().get(link)
    page = visitor.get(f"{place}/")
    assert {"gpu-1", "gpu-2", "gpu-3"} <= set(re.findall(r"gpu-\d", page)), "the hoster sees the map"
    visitor.post(f"{place}/context", page, context="tenant-a")
    page = visitor.get(f"{place}/")
    assert "NVIDIA H200 141 GB" in page
    assert "gpu-1" not in page
    form = {"class": "h200", "action": "check"}
    desk = f"{place}/tenants/tenant-a/order"
    assert "It fits: 2 GPUs of h200" in visitor.post(desk, page, count="2", **form)
    with pytest.raises(urllib.error.HTTPError) as refused:
        visitor.post(desk, page, count="3", **form)
    assert "budget" in refused.value.read().decode()
    assert "You may not see what tenant-b holds." in visitor.get(f"{place}/tenants/tenant-b")


def test_what_it_prints_can_be_typed(running: Run) -> None:
    the_page_shows_what_there_is(running)
    commands = [line.strip() for line in running.printed.splitlines() if line.startswith(("  kubectl ", "  gpuclaim "))]
    assert {"kubectl gpu classes", "kubectl gpu top", "kubectl gpu doctor -n tenant-a"} <= set(commands)
    assert len(commands) >= 11
    environment = {**os.environ, "KUBECONFIG": str(running.directory / "kubeconfig")}
    environment["PATH"] = f"{running.directory / 'bin'}:{environment['PATH']}"
    (ledger,) = re.findall(r"export GPUCLAIM_LEDGER=(\S+)", running.printed)
    environment["GPUCLAIM_LEDGER"] = shlex.split(ledger)[0]
    for command in commands:
        answer = subprocess.run(command, shell=True, env=environment, capture_output=True, text=True, check=False)
        if "too-many" in command:
            assert "InsufficientCapacity" in answer.stderr
        else:
            assert answer.returncode == 0, f"{command}\n{answer.stderr}"
    running_on = "jsonpath={.items[?(@.status.phase=='Running')].spec.nodeName}"
    node = running.kubectl("get", "gpuclaim", "train", "-n", "tenant-a", "-o", "jsonpath={.status.nodeName}").stdout
    until(
        lambda: running.kubectl("get", "pods", "-n", "tenant-a", "-o", running_on).stdout == node,
        f"the VM's pod runs on {node}",
    )
    # What has ended is in the ledger, when its claim is gone.
    assert running.kubectl("delete", "vm", "train", "-n", "tenant-a").returncode == 0
    released = "kubectl gpu release train --yes --wait -n tenant-a && kubectl gpu usage --output json"
    answer = subprocess.run(released, shell=True, env=environment, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
    report = json.loads(answer.stdout[answer.stdout.index("{") :])
    assert not [note for note in report["notes"] if "missing" in note]
    (line,) = report["lines"]
    assert (line["namespace"], line["class"]) == ("tenant-a", "h200")
    assert line["heldGPUSeconds"] >= line["attachedGPUSeconds"] > 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_all_of_it(tmp_path: Path, number: signal.Signals) -> None:
    run = Run(tmp_path / "up", "--nodes=1")
    run.until_stands()
    assert len(run.processes()) >= 4
    assert run.end(number) == 0
    run.nothing_is_left()


@pytest.mark.parametrize("read", ["scheduler", "Ctrl-C ends all of it."])
def test_it_ends_without_a_word_when_nobody_reads_it(tmp_path: Path, read: str) -> None:
    # `gpuclaim up | head` ends at its next line; `gpuclaim up | tee FILE` by Ctrl-C, which ends tee first.
    errors = tmp_path / "errors"
    with errors.open("w") as stderr:
        command = [*_UP, f"--directory={tmp_path / 'up'}", "--nodes=1"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True)
    assert process.stdout
    with process.stdout as lines:
        assert any(read in line for line in lines)
    if read.startswith("Ctrl-C"):
        process.send_signal(signal.SIGINT)
    assert process.wait(_PATIENCE) == (0 if read.startswith("Ctrl-C") else 1)
    assert errors.read_text() == ""


def test_a_signal_during_the_start_ends_all_of_it(tmp_path: Path) -> None:
    run = Run(tmp_path / "up")
    until(lambda: any("kube-apiserver" in each for each in run.processes()), "the apiserver starts", _PATIENCE)
    assert run.end(signal.SIGINT) == 130
    run.nothing_is_left()


def test_a_crash_leaves_nothing_and_the_next_start_is_clean(tmp_path: Path) -> None:
    run = Run(tmp_path / "up", "--nodes=1")
    run.until_stands()
    run.end(signal.SIGKILL)
    run.nothing_is_left()
    again = Run(tmp_path / "up", "--nodes=1", "--exit")
    assert again.end() == 0, again.printed


def test_a_component_that_dies_is_named_with_its_log_and_ends_all_of_it(running: Run) -> None:
    (pid,) = [
        int(each.name)
        for each in Path("/proc").iterdir()
        if each.name.isdigit()
        and "kube-scheduler" in (line := (each / "cmdline").read_text())
        and str(running.directory) in line
    ]
    os.kill(pid, signal.SIGSEGV)
    assert running.end() == 1
    assert "Error: kube-scheduler ended" in running.printed
    assert str(running.directory / "logs" / "kube-scheduler.log") in running.printed
    running.nothing_is_left()


def test_a_second_one_is_told_where_the_first_is(running: Run) -> None:
    second = Run(running.directory)
    assert second.end() == 1
    assert "gpuclaim up runs already" in second.printed
    assert len(second.printed.splitlines()) == 1
    assert running.kubectl("get", "nodes").returncode == 0


def test_a_taken_port_is_told_in_one_sentence(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        run = Run(tmp_path / "up", f"--port={port}")
        assert run.end() == 1
    assert f"port {port} of 127.0.0.1" in run.printed
    assert "Traceback" not in run.printed
