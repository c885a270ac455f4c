"""Programs that gpuclaim.local starts: nothing is left behind, and what goes wrong is told with its reason."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from gpuclaim.local.controlplane import ControlPlane
from gpuclaim.local.process import (
    EarlyExitError,
    NotReadyError,
    PortInUseError,
    Process,
    ProcessError,
    free_ports,
)
from support.wait import until

if TYPE_CHECKING:
    from pathlib import Path

PARENT = """
import sys, time
from pathlib import Path
from gpuclaim.local.controlplane import CONTROLLERS, ControlPlane

cluster = ControlPlane(Path(sys.argv[1]), scheduler=True, controllers=CONTROLLERS).start()
print(*(process.pid for process in cluster.processes.values()), flush=True)
time.sleep(3600)
"""


def shell(tmp_path: Path, script: str) -> Process:
    return Process("program", ["sh", "-c", script], tmp_path / "program.log")


def ends(descriptor: int) -> bool:
    """Whether the process of a pidfd ends; waits for that."""
    readable, _, _ = select.select([descriptor], [], [], 60)
    return bool(readable)


def test_a_program_is_stopped_while_another_thread_looks_whether_it_runs(tmp_path: Path) -> None:
    process = shell(tmp_path, "exec sleep 60")
    over = threading.Event()

    def look() -> None:
        while not over.is_set():
            assert process.running in (True, False)

    looking = threading.Thread(target=look)
    looking.start()
    try:
        for _ in range(10):
            process.start()
            process.stop()
            assert not process.running
    finally:
        over.set()
        looking.join()


def test_nothing_outlives_a_killed_parent(tmp_path: Path, control_plane: ControlPlane) -> None:
    # `control_plane`: what there is to build is built by now.
    with subprocess.Popen([sys.executable, "-c", PARENT, tmp_path], stdout=subprocess.PIPE, text=True) as parent:
        try:
            assert parent.stdout
            children = [os.pidfd_open(int(each)) for each in parent.stdout.readline().split()]
        finally:
            parent.kill()
    assert len(children) == 4
    for child in children:
        assert ends(child)
        os.close(child)


def test_a_process_outlives_the_thread_that_started_it(tmp_path: Path) -> None:
    program = shell(tmp_path, "sleep 3600 & echo up; wait")
    thread = threading.Thread(target=program.start)
    thread.start()
    thread.join()
    try:
        program.wait_until(lambda: "up" in program.tail())
        assert program.running
    finally:
        program.stop()


def test_stop_ends_grandchildren_and_what_ignores_sigterm(tmp_path: Path) -> None:
    program = shell(tmp_path, "trap '' TERM; sleep 3600 & echo $!; while :; do wait; done").start()
    program.wait_until(lambda: bool(program.tail()))
    grandchild = os.pidfd_open(int(program.tail()))
    program.stop(grace=0.1)
    assert not program.running
    assert ends(grandchild)
    os.close(grandchild)


def test_starts_again_after_a_stop(tmp_path: Path) -> None:
    program = shell(tmp_path, "echo up; exec sleep 3600").start()
    first = program.pid
    assert program.start().pid == first
    program.stop()
    program.start()
    try:
        assert program.pid != first
        assert program.running
    finally:
        program.kill()
    assert not program.running


def test_early_exit_shows_the_log(tmp_path: Path) -> None:
    program = shell(tmp_path, "echo the disk is full >&2; exit 3").start()
    with pytest.raises(EarlyExitError, match=r"(?s)program ended with exit code 3\..*the disk is full"):
        program.wait_until(lambda: False)


def test_end_by_a_signal_is_named(tmp_path: Path) -> None:
    program = shell(tmp_path, "kill -SEGV $$").start()
    with pytest.raises(EarlyExitError, match="by signal SIGSEGV"):
        program.wait_until(lambda: False)


def test_not_ready_shows_the_log(tmp_path: Path) -> None:
    program = shell(tmp_path, "echo waiting for etcd; exec sleep 3600").start()
    try:
        until(program.tail, "its first line")
        with pytest.raises(NotReadyError, match="waiting for etcd"):
            program.wait_until(lambda: False, timeout=0)
    finally:
        program.stop()


def test_missing_program_is_named(tmp_path: Path) -> None:
    with pytest.raises(ProcessError, match="no program gpuclaim-no-such-program"):
        Process("program", ["gpuclaim-no-such-program"], tmp_path / "log").start()


def test_a_wrong_argument_of_a_component_is_shown(tmp_path: Path) -> None:
    with pytest.raises(EarlyExitError, match="no-such-flag"):
        ControlPlane(tmp_path, apiserver_arguments=["--no-such-flag"]).start()


def test_a_taken_port_is_told_before_anything_starts(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        cluster = ControlPlane(tmp_path, port=port)
        with pytest.raises(PortInUseError, match=f"port {port} of 127.0.0.1, for kube-apiserver"):
            cluster.start()
    assert not cluster.processes


def test_a_port_that_is_taken_meanwhile_is_told(tmp_path: Path) -> None:
    program = shell(tmp_path, "echo listen tcp 127.0.0.1:6443: bind: address already in use; exit 1").start()
    with pytest.raises(PortInUseError, match=r"127.0.0.1:6443: bind: address already in use"):
        program.wait_until(lambda: False)


def test_free_ports_differ() -> None:
    assert len(set(free_ports(20))) == 20
