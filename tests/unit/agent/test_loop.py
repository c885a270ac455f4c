"""The running agent, driven by a clock that does not wait (R14, R28)."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime as dt
import logging
from collections.abc import Awaitable, Callable

import msgspec
import pytest

from gpuclaim.agent import pciids
from gpuclaim.agent.loop import Agent, AgentConfig, Clock
from gpuclaim.agent.machine import KubeletRun, Reading
from gpuclaim.agent.podresources import PodResourcesError
from gpuclaim.agent.pulse import Result
from gpuclaim.agent.registry import RegistryError
from gpuclaim.agent.report import Phases
from gpuclaim.agent.sysfs import SysfsError
from gpuclaim.agent.values import Answers, Function, Functions, PodDevices
from gpuclaim.api.types import Device, GPUNodeStatus, Health, ResourceCount

A = "0000:3b:00.0"
R = "nvidia.com/GH100_H200"
START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
OFFERED = Answers({R: [A]})
CONFIG = AgentConfig(node="node-a", interval=10, heartbeat=300, settle=20, phases_every=30)
COUNT = ResourceCount(name=R, allocatable=1, used=0)
OF_BEFORE = GPUNodeStatus(
    devices=[Device(address=A, driver="vfio-pci", health=Health.HEALTHY, resources=[COUNT])], boot_id="boot-1"
)


def made_ns(time: float) -> int:
    """When a socket was made, by the clock of the tests."""
    return int((START.timestamp() + time) * 1e9)


class FakeClock(Clock):
    def __init__(self) -> None:
        self.time = 1000.0
        self.at: dict[float, Callable[[], object]] = {}

    def monotonic(self) -> float:
        return self.time

    def now(self) -> dt.datetime:
        return START + dt.timedelta(seconds=self.time)

    async def sleep(self, seconds: float) -> None:
        self.time += seconds
        for moment in sorted(self.at):
            if moment <= self.time:
                self.at.pop(moment)()
        await asyncio.sleep(0)


class FakeNode:
    def __init__(self) -> None:
        self.gpus = {A: Function(address=A, vendor="10de", device="2335", driver="vfio-pci")}
        self.answers = OFFERED
        self.error: Exception | None = None
        self.boot_id = "boot-1"
        self.folder: int | None = 1
        self.socket: KubeletRun | None = KubeletRun(1, made_ns(0))
        self.faults: tuple[str, ...] = ()
        self.reads: list[bool] = []

    async def read(self, *, afresh: bool = False) -> Reading:
        self.reads.append(afresh)
        if self.error is not None:
            raise self.error
        return Reading(Functions(gpus=self.gpus, faults=self.faults), self.answers, self.boot_id)

    def kubelet(self) -> KubeletRun | None:
        return self.socket

    def plugins(self) -> int | None:
        return self.folder


class FakeStore:
    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.before: GPUNodeStatus | None = None
        self.known: dict[tuple[str, str], str] = {}
        self.away = False
        self.phases_fail = False
        self.asked: list[float] = []
        self.written: list[tuple[float, GPUNodeStatus]] = []
        self.lost_answers = 0
        self.deleted = False
        self.tries = 0

    def _check(self) -> None:
        self.tries += 1
        if self.away:
            raise RegistryError("the apiserver is away")

    async def stored(self) -> GPUNodeStatus | None:
        self._check()
        return self.before

    async def phases(self) -> Phases:
        if self.phases_fail:
            raise RegistryError("pods is forbidden")
        self._check()
        self.asked.append(self.clock.time)
        return dict(self.known)

    async def write(self, status: GPUNodeStatus) -> bool:
        self._check()
        self.written.append((self.clock.time, status))
        if self.lost_answers:
            self.lost_answers -= 1
            raise RegistryError("no answer")
        made, self.deleted = self.deleted, False
        return made

    @property
    def health(self) -> list[Health]:
        return [status.devices[0].health for _, status in self.written]


class World:
    def __init__(self, chance: float = 0.0, config: AgentConfig = CONFIG) -> None:
        self.clock = FakeClock()
        self.node = FakeNode()
        self.store = FakeStore(self.clock)
        self.agent = Agent(config, self.node, self.store, pciids.namer({}), clock=self.clock, chance=lambda: chance)

    async def run(self, seconds: float) -> None:
        end = self.clock.time + seconds
        running = asyncio.ensure_future(self.agent.run())
        while self.clock.time < end:
            assert not running.done()
            await asyncio.sleep(0)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running


@pytest.fixture
def world() -> World:
    return World()


async def test_nothing_changes_nothing_is_written_but_the_heartbeat(world: World) -> None:
    await world.run(1000)
    assert [moment - 1000 for moment, _ in world.store.written] == [0, 300, 600, 900]
    assert len(world.node.reads) == 100
    assert world.node.reads.count(True) == 4


async def test_heartbeats_spread() -> None:
    world = World(chance=0.5)
    await world.run(600)
    assert [moment - 1000 for moment, _ in world.store.written] == [0, 270, 540]


async def test_a_change_is_written_with_the_next_reading(world: World) -> None:
    world.clock.at[1015] = lambda: setattr(world.node, "answers", Answers({}))
    await world.run(100)
    assert [moment - 1000 for moment, _ in world.store.written] == [0, 20]
    assert world.store.health == [Health.HEALTHY, Health.UNHEALTHY]


@pytest.mark.parametrize("error", [PodResourcesError("there is no socket"), SysfsError("cannot list")])
async def test_a_failed_reading_writes_nothing(
    world: World, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    world.clock.at[1015] = lambda: setattr(world.node, "error", error)
    world.clock.at[2000] = lambda: setattr(world.node, "error", None)
    with caplog.at_level(logging.INFO, "gpuclaim.agent"):
        await world.run(1100)
    # Not even a heartbeat while nothing is known.
    assert [moment - 1000 for moment, _ in world.store.written] == [0, 1000]
    assert [record.message for record in caplog.records] == [f"node-a: {error}", "node-a: reading works again"]


async def test_nothing_is_written_before_the_first_reading(world: World) -> None:
    world.node.error = PodResourcesError("there is no socket")
    await world.run(1000)
    assert world.store.written == []


async def test_backs_off_while_the_apiserver_is_away(world: World) -> None:
    world.store.away = True
    await world.run(1000)
    assert 15 < world.store.tries < 45
    world.store.away = False
    await world.run(61)
    assert len(world.store.written) == 1


async def test_a_write_of_unknown_outcome_is_made_again(world: World) -> None:
    world.clock.at[1005] = lambda: setattr(world.node, "answers", Answers({}))
    world.clock.at[1006] = lambda: setattr(world.store, "lost_answers", 1)
    # When the answer is lost the node is as it was before: the stored report must become so too.
    world.clock.at[1010.2] = lambda: setattr(world.node, "answers", OFFERED)
    await world.run(60)
    assert world.store.health == [Health.HEALTHY, Health.UNHEALTHY, Health.HEALTHY]


async def test_a_new_kubelet_is_read_at_once_and_given_time(world: World) -> None:
    def restart() -> None:
        world.node.socket, world.node.answers = KubeletRun(2, made_ns(world.clock.time)), Answers({})

    world.clock.at[1013] = restart
    world.clock.at[1022] = lambda: setattr(world.node, "answers", OFFERED)
    await world.run(100)
    assert world.store.health == [Health.HEALTHY]  # plugins had registered again before the loss was believed
    assert len(world.node.reads) > 12


async def test_a_loss_that_lasts_is_reported(world: World) -> None:
    def restart() -> None:
        world.node.socket, world.node.answers = KubeletRun(2, made_ns(world.clock.time)), Answers({})

    world.clock.at[1013] = lambda: setattr(world.node, "socket", None)
    world.clock.at[1017] = restart
    await world.run(100)
    assert world.store.health == [Health.HEALTHY, Health.UNHEALTHY]
    assert 1037 <= world.store.written[1][0] <= 1040


async def test_after_a_reboot_plugins_get_time_too(world: World) -> None:
    world.store.before = msgspec.structs.replace(OF_BEFORE, boot_id="boot-0")
    world.node.answers = Answers({})
    world.clock.at[1005] = lambda: setattr(world.node, "answers", OFFERED)
    await world.run(60)
    assert world.store.health == [Health.HEALTHY]
    assert 1005 <= world.store.written[0][0] <= 1007


async def test_after_a_reboot_a_lasting_loss_is_reported(world: World) -> None:
    world.store.before = msgspec.structs.replace(OF_BEFORE, boot_id="boot-0")
    world.node.answers = Answers({})
    await world.run(60)
    assert world.store.health == [Health.UNMANAGED]
    assert world.store.written[0][0] >= 1020


async def test_the_report_of_before_is_remembered(world: World) -> None:
    world.store.before = OF_BEFORE
    world.node.answers = Answers({})
    await world.run(5)
    assert world.store.health == [Health.UNHEALTHY]


async def test_an_agent_that_starts_together_with_kubelet_gives_plugins_their_time(world: World) -> None:
    world.store.before = OF_BEFORE
    world.node.answers, world.node.socket = Answers({}), KubeletRun(2, made_ns(995))
    world.clock.at[1010] = lambda: setattr(world.node, "answers", OFFERED)
    await world.run(60)
    assert world.store.health == [Health.HEALTHY]
    assert world.agent.pulse.passes[Result.SETTLING] > 0


@pytest.mark.parametrize(("made", "at"), [(900, 1000), (979, 1000), (995, 1015), (999, 1019), (5000, 1020)])
async def test_a_loss_is_believed_once_kubelet_is_old_enough(world: World, made: float, at: float) -> None:
    # The last one is of the future: a clock was set back. It may be young.
    world.store.before = OF_BEFORE
    world.node.answers, world.node.socket = Answers({}), KubeletRun(2, made_ns(made))
    await world.run(60)
    assert world.store.health == [Health.UNHEALTHY]
    assert at <= world.store.written[0][0] <= at + 2


async def test_a_kubelet_that_starts_after_the_agent_is_young_as_well(world: World) -> None:
    world.store.before = OF_BEFORE
    world.node.socket, world.node.error = None, PodResourcesError("there is no socket")

    def start() -> None:
        world.node.socket, world.node.error = KubeletRun(2, made_ns(world.clock.time)), None
        world.node.answers = Answers({})

    world.clock.at[1035] = start
    world.clock.at[1047] = lambda: setattr(world.node, "answers", OFFERED)
    await world.run(100)
    assert world.store.health == [Health.HEALTHY]


async def test_a_plugin_that_comes_or_goes_is_read_at_once() -> None:
    world = World(config=dataclasses.replace(CONFIG, interval=60))
    world.clock.at[1022.5] = lambda: setattr(world.node, "folder", 2)
    # It registers some seconds after it has made its socket.
    world.clock.at[1027] = lambda: setattr(world.node, "answers", Answers({}))
    await world.run(59)
    assert [moment - 1000 for moment, _ in world.store.written] == [0, 27]
    # The start, and every two seconds for ten once the folder has changed.
    assert len(world.node.reads) == 1 + 1 + 5
    await world.run(60)
    assert len(world.node.reads) == 8


@pytest.mark.parametrize("sights", [(None, None), (1, None), (None, 1)])
async def test_the_plugins_folder_need_not_be_in_sight(sights: tuple[int | None, int | None]) -> None:
    world = World(config=dataclasses.replace(CONFIG, interval=60))
    world.node.folder = sights[0]
    world.clock.at[1022.5] = lambda: setattr(world.node, "folder", sights[1])
    await world.run(250)
    assert len(world.node.reads) < 14
    assert len(world.store.written) == 1


async def test_a_function_that_is_gone_is_forgotten_with_the_gpunode(world: World) -> None:
    world.store.before = OF_BEFORE
    world.node.gpus, world.node.answers = {}, Answers({})
    await world.run(400)
    assert {len(status.devices) for _, status in world.store.written} == {1}
    assert set(world.store.health) == {Health.UNHEALTHY}
    world.store.deleted = True
    await world.run(400)
    assert world.store.written[-1][1].devices == []


async def test_a_function_that_is_there_is_not_forgotten_with_the_gpunode(world: World) -> None:
    world.store.before, world.store.deleted = OF_BEFORE, True
    world.node.answers = Answers({})
    await world.run(700)
    assert set(world.store.health) == {Health.UNHEALTHY}
    assert world.store.written[-1][1].devices[0].resources == [ResourceCount(name=R, allocatable=0, used=0)]


async def test_phases_are_asked_only_where_a_gpu_is_used(world: World) -> None:
    await world.run(100)
    assert world.store.asked == []
    world.node.answers = Answers({R: [A]}, (PodDevices("t", "p", {R: [A]}),))
    world.store.known = {("t", "p"): "Running"}
    await world.run(100)
    assert 4 <= len(world.store.asked) <= 5
    world.store.known = {("t", "p"): "Succeeded"}
    await world.run(40)
    assert world.store.written[-1][1].devices[0].resources[0].used == 0


async def test_a_pod_that_had_ended_is_not_alive_because_it_is_deleted(world: World) -> None:
    # Kubelet lists it for a moment after the apiserver has forgotten it.
    world.node.answers = Answers({R: [A]}, (PodDevices("t", "p", {R: [A]}),))
    world.store.known = {("t", "p"): "Succeeded"}
    await world.run(20)
    world.store.known = {}
    await world.run(100)
    assert {status.devices[0].resources[0].used for _, status in world.store.written} == {0}
    # One of the same name is another pod; and one that is not known to have ended counts.
    world.store.known = {("t", "p"): "Pending"}
    await world.run(40)
    assert world.store.written[-1][1].devices[0].resources[0].used == 1
    world.store.known = {}
    await world.run(40)
    assert world.store.written[-1][1].devices[0].resources[0].used == 1


async def test_phases_that_are_refused_count_every_pod(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.node.answers = Answers({R: [A]}, (PodDevices("t", "p", {R: [A]}),))
    world.store.phases_fail = True
    await world.run(100)
    assert world.store.written[0][1].devices[0].resources[0].used == 1
    assert [record.message for record in caplog.records] == ["node-a: pods is forbidden"]


async def test_faults_are_said_once(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.node.faults = ("0000:5e:00.0 does not say what it is",)
    await world.run(100)
    assert [record.message for record in caplog.records] == ["node-a: 0000:5e:00.0 does not say what it is"]


async def test_it_ends_at_once(world: World) -> None:
    async def forever(*, afresh: bool = False) -> Reading:
        await asyncio.Event().wait()
        raise AssertionError

    world.node.read = forever  # type: ignore[method-assign]
    running: Awaitable[None] = asyncio.ensure_future(world.agent.run())
    await asyncio.sleep(0)
    running.cancel()  # type: ignore[attr-defined]
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(running, 1)
