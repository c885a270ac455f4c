"""What the agent's probes and a Prometheus get from it (R28, R52)."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import re
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from gpuclaim.agent import http, loop, pciids
from gpuclaim.agent.machine import KubeletRun, Reading
from gpuclaim.agent.podresources import PodResourcesError
from gpuclaim.agent.pulse import STUCK_SECONDS, Problem, Pulse, Result
from gpuclaim.agent.registry import RegistryError
from gpuclaim.agent.report import Phases
from gpuclaim.agent.values import Answers, Function, Functions, PodDevices
from gpuclaim.api.types import GPUNodeStatus
from gpuclaim.cli.agent import agent
from gpuclaim.local.sysfs_tree import SysfsTree

A = "0000:3b:00.0"
SAMPLE = re.compile(r'(gpuclaim_agent_\w+)(\{\w+="[^"\\\n]*"\})? ([-+0-9.e]+)')


def samples(text: str) -> dict[str, float]:
    """The samples by name and label, after a strict look at the format: HELP, TYPE, then that family's samples."""
    found: dict[str, float] = {}
    family = ""
    assert text.endswith("\n")
    for line in text.splitlines():
        if line.startswith("# HELP "):
            family = line.split()[2]
        elif line.startswith("# TYPE "):
            assert line.split()[2] == family
            assert line.split()[3] == ("counter" if family.endswith("_total") else "gauge")
        else:
            sample = SAMPLE.fullmatch(line)
            assert sample, line
            assert sample[1] == family
            key = sample[1] + (sample[2] or "")
            assert key not in found
            found[key] = float(sample[3])
    return found


class World:
    """A kubelet and an apiserver that fail as a test says."""

    def __init__(self) -> None:
        self.faults: tuple[str, ...] = ()
        self.reading_fails = self.writing_fails = self.phases_fail = False
        self.allocatable = [A]

    async def read(self, *, afresh: bool = False) -> Reading:
        if self.reading_fails:
            raise PodResourcesError("there is no socket")
        gpu = Function(address=A, vendor="10de", device="2335", driver="vfio-pci")
        answers = Answers({"r": self.allocatable}, (PodDevices("ns", "p", {"r": [A]}),))
        return Reading(Functions(gpus={A: gpu}, faults=self.faults), answers, "boot")

    def kubelet(self) -> KubeletRun | None:
        return KubeletRun(1, 0)

    def plugins(self) -> int | None:
        return None

    async def stored(self) -> GPUNodeStatus | None:
        return None

    async def phases(self) -> Phases:
        if self.phases_fail:
            raise RegistryError("pods is forbidden")
        return {}

    async def write(self, status: GPUNodeStatus) -> bool:
        if self.writing_fails:
            raise RegistryError("no answer")
        return False


class StoppedClock(loop.Clock):
    def __init__(self) -> None:
        self.time = 1000.0

    def monotonic(self) -> float:
        return self.time

    def now(self) -> dt.datetime:
        return dt.datetime.fromtimestamp(1_700_000_000 + self.time, dt.UTC)


@pytest.fixture
def clock() -> StoppedClock:
    return StoppedClock()


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def running(world: World, clock: StoppedClock) -> loop.Agent:
    config = loop.AgentConfig(node="node-a", phases_every=0)
    return loop.Agent(config, world, world, pciids.namer({}), clock=clock, chance=lambda: 0.0)


async def test_an_agent_is_ready_once_it_has_reported(running: loop.Agent, clock: StoppedClock) -> None:
    assert running.pulse.readiness(clock.time) == (False, "nothing is reported yet")
    assert running.pulse.health(clock.time) == (True, "ok")
    await running.step()
    assert running.pulse.readiness(clock.time) == (True, "ok")


async def test_a_problem_stands_until_it_is_gone(running: loop.Agent, world: World, clock: StoppedClock) -> None:
    await running.step()
    world.reading_fails = True
    await running.step()
    assert running.pulse.readiness(clock.time) == (False, "reading: there is no socket")
    assert running.pulse.health(clock.time)[0]
    world.reading_fails, world.writing_fails = False, True
    clock.time += 1000  # a report is due
    await running.step()
    assert running.pulse.readiness(clock.time) == (False, "writing: no answer")
    world.reading_fails = True
    await running.step()
    assert running.pulse.readiness(clock.time) == (False, "reading: there is no socket\nwriting: no answer")
    world.reading_fails = world.writing_fails = False
    await running.step()
    assert running.pulse.readiness(clock.time) == (True, "ok")


async def test_metrics(running: loop.Agent, world: World, clock: StoppedClock) -> None:
    await running.step()
    await running.step()
    world.faults, world.phases_fail = ("a says nothing", "b says nothing"), True
    await running.step()
    found = samples(running.pulse.metrics())
    name = "gpuclaim_agent_"
    assert found[f'{name}passes_total{{result="reported"}}'] == 1
    assert found[f'{name}passes_total{{result="unchanged"}}'] == 2
    assert found[f"{name}last_report_timestamp_seconds"] == 1_700_001_000
    assert found[f'{name}devices{{health="Healthy"}}'] == 1
    assert found[f'{name}devices{{health="Unhealthy"}}'] == 0
    assert found[f'{name}problems{{source="functions"}}'] == 2
    assert found[f'{name}problems{{source="phases"}}'] == 1
    assert found[f'{name}problems{{source="writing"}}'] == 0
    assert found[f"{name}write_errors_total"] == 0
    world.faults, world.phases_fail, world.allocatable, world.writing_fails = (), False, [], True
    await running.step()
    world.reading_fails = True
    await running.step()
    found = samples(running.pulse.metrics())
    assert found[f'{name}problems{{source="functions"}}'] == 0
    assert found[f'{name}problems{{source="phases"}}'] == 0
    assert found[f'{name}problems{{source="writing"}}'] == 1
    assert found[f'{name}problems{{source="reading"}}'] == 1
    assert found[f'{name}passes_total{{result="reading_failed"}}'] == 1
    assert found[f'{name}passes_total{{result="writing_failed"}}'] == 1
    assert found[f"{name}write_errors_total"] == 1
    assert found[f'{name}devices{{health="Unhealthy"}}'] == 1
    assert running.pulse.passes.keys() <= set(Result)


async def test_a_problem_is_in_the_log_once(
    running: loop.Agent, world: World, caplog: pytest.LogCaptureFixture
) -> None:
    await running.step()
    world.reading_fails = True
    for _ in range(5):
        await running.step()
    world.reading_fails, world.faults, world.phases_fail = False, ("a says nothing",), True
    for _ in range(5):
        await running.step()
    assert [each.getMessage() for each in caplog.records if each.levelname == "WARNING"] == [
        "node-a: there is no socket",
        "node-a: a says nothing",
        "node-a: pods is forbidden",
    ]


async def test_phases_are_not_asked_for_where_they_are_not_wanted(world: World) -> None:
    world.phases_fail = True
    silent = loop.Agent(loop.AgentConfig(node="node-a", pod_phases=False), world, world, pciids.namer({}))
    await silent.step()
    assert silent.pulse.problems == {}


def test_a_loop_that_does_not_move() -> None:
    pulse = Pulse(beat=0, ready=True)
    assert pulse.health(STUCK_SECONDS) == (True, "ok")
    said = f"the loop has not moved for {STUCK_SECONDS + 1:.0f} s"
    assert pulse.health(STUCK_SECONDS + 1) == (False, said)
    assert pulse.readiness(STUCK_SECONDS + 1) == (False, said)


# --- over HTTP ---


@pytest.fixture
async def port() -> AsyncIterator[int]:
    pulse = Pulse(beat=0)
    pulse.stands(Problem.READING, ["there is no söcket"])
    async with http.serving(("127.0.0.1", 0), pulse, lambda: 1.0) as port:
        yield port


async def exchange(port: int, sent: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(sent)
    got = b""
    with contextlib.suppress(ConnectionError):
        got = await asyncio.wait_for(reader.read(), 10)
    writer.close()
    return got


def request(line: str) -> bytes:
    return f"{line} HTTP/1.1\r\nHost: a\r\n\r\n".encode()


@pytest.mark.parametrize(
    ("line", "status", "begins"),
    [
        ("GET /healthz", b"200 OK", b"ok\n"),
        ("GET /healthz?verbose", b"200 OK", b"ok\n"),
        ("GET /readyz", b"503 Service Unavailable", "reading: there is no söcket\n".encode()),
        ("GET /metrics", b"200 OK", b"# HELP gpuclaim_agent_info"),
        ("HEAD /metrics", b"200 OK", b""),
        ("POST /metrics", b"405 Method Not Allowed", b"only GET and HEAD\n"),
        ("GET /", b"404 Not Found", b"there is /healthz, /readyz and /metrics\n"),
        ("GET /metrics/../healthz", b"404 Not Found", b"there is"),
    ],
)
async def test_a_page(port: int, line: str, status: bytes, begins: bytes) -> None:
    head, _, body = (await exchange(port, request(line))).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 " + status + b"\r\n")
    assert body.startswith(begins)
    length = re.search(rb"Content-Length: (\d+)", head)
    assert length
    if not line.startswith("HEAD"):
        assert int(length[1]) == len(body)


@pytest.mark.parametrize(
    "sent", [b"\r\n\r\n", b"GET\r\n\r\n", b"\xff /healthz x\r\n\r\n", b"G" * 100_000, b"\0\r\n\r\n"]
)
async def test_junk_ends_the_connection_only(port: int, sent: bytes) -> None:
    assert await exchange(port, sent) == b""
    assert (await exchange(port, request("GET /healthz"))).endswith(b"ok\n")


async def test_who_says_nothing_is_not_waited_for(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "_PATIENCE_SECONDS", 0.1)
    assert await exchange(port, b"GET /healthz") == b""


async def test_too_many_at_once(port: int) -> None:
    waiting = [await asyncio.open_connection("127.0.0.1", port) for _ in range(40)]
    for reader, _ in waiting[32:]:
        with contextlib.suppress(ConnectionError):
            assert await asyncio.wait_for(reader.read(), 10) == b""
    for _, writer in waiting:
        writer.close()
    async with asyncio.timeout(10):
        while not (await exchange(port, request("GET /healthz"))).endswith(b"ok\n"):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def test_a_taken_port(tmp_path: Path) -> None:
    tree = SysfsTree(tmp_path / "sys").root
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(
        "{current-context: a, contexts: [{name: a, context: {cluster: a, user: a}}],"
        " clusters: [{name: a, cluster: {server: 'http://127.0.0.1:1'}}], users: [{name: a, user: {}}]}"
    )
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        argv = ["--node", "a", "--sysfs", str(tree), "--kubeconfig", str(kubeconfig), "--listen", f"127.0.0.1:{port}"]
        result = CliRunner().invoke(agent, argv)
    assert result.exit_code == 1
    assert f"Error: cannot listen on 127.0.0.1, port {port}: " in result.output


@pytest.mark.parametrize("value", ["8080", "a:b", "a:", "127.0.0.1:70000", "a:-1"])
def test_no_address(tmp_path: Path, value: str) -> None:
    result = CliRunner().invoke(agent, ["--node", "a", "--sysfs", str(SysfsTree(tmp_path).root), "--listen", value])
    assert result.exit_code == 2
    assert "must be ADDRESS:PORT" in result.output
