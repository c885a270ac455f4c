"""Usage on its way from claims into the ledger: the ledger away, slow, replayed; the leader changed in between."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import threading
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from gpuclaim.api import core, model
from gpuclaim.api.core import ObjectMeta
from gpuclaim.controller.binder import Binder
from gpuclaim.controller.bookkeeper import Bookkeeper
from gpuclaim.controller.pod_times import PodTimes
from gpuclaim.ledger.errors import LedgerError
from gpuclaim.ledger.intervals import Key, PodEnd, Record

from .test_binder import World
from .test_catalogue import NOW


def ago(seconds: float) -> dt.datetime:
    return NOW - dt.timedelta(seconds=seconds)


class Store:
    """A ledger that is away when told to be."""

    def __init__(self) -> None:
        self.kept: dict[Key, Record] = {}
        self.away = False
        self.failed = threading.Event()
        self.writes = 0

    def migrate(self) -> None:
        self.check()

    def record(self, records: list[Record]) -> None:
        self.check()
        self.writes += 1
        for record in records:
            self.kept.setdefault(record.key, record)

    def close(self) -> None:
        pass

    def check(self) -> None:
        if self.away:
            self.failed.set()
            raise LedgerError("away")

    def spans(self) -> list[tuple[str, str, float, float]]:
        """(name, kind, start, end) in seconds before now, by name and start."""
        found = [
            (r.name, r.kind.value, (NOW - r.started_at).total_seconds(), (NOW - r.ended_at).total_seconds())
            for r in self.kept.values()
        ]
        return sorted(found, key=lambda span: (span[0], -span[2], span[1]))


class Booked(World):
    """The simulated apiserver, with a leader that has a ledger."""

    def __init__(self) -> None:
        super().__init__()
        self.store = Store()
        self.elect()

    def elect(self) -> None:
        """A new leader, which knows nothing but what is stored."""
        self.keeper = Bookkeeper(self.store, longest_pause=0.01)
        self.binder = Binder(
            self.books,
            self,  # type: ignore[arg-type]
            now=lambda: NOW,
            lease_left=lambda: self.left,
            bookkeeper=self.keeper,
        )

    @contextlib.asynccontextmanager
    async def leading(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.keeper.run())
        try:
            async with self.running():
                yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    def hold(self, name: str, *, attached: bool = False, deleted: bool = False) -> None:
        """A claim that has held for an hour; its pod came half an hour ago; deleted five minutes ago."""
        status: dict[str, Any] = {"nodeName": "gpu-1", "heldSince": ago(3600).isoformat()}
        if attached:
            status["attachment"] = {"podName": "p", "podUID": "uid-p", "since": ago(1800).isoformat()}
        self.add(name, status=status)
        if deleted:
            meta = msgspec.structs.replace(self.stored[name].metadata, deletion_timestamp=ago(300))
            self.stored[name] = msgspec.structs.replace(self.stored[name], metadata=meta)
            self.tell(name)

    def pod(
        self, phase: str = "Running", uid: str = "uid-p", scheduled: float = 1800, ended: float | None = None
    ) -> None:
        """A pod of set `vm` on gpu-1."""
        state = {"terminated": {"finishedAt": ago(ended).isoformat()}} if ended is not None else {}
        plain = {
            "metadata": {"name": uid, "namespace": "tenant-a", "uid": uid, "labels": {"vm.kubevirt.io/name": "vm"}},
            "spec": {"nodeName": "gpu-1"},
            "status": {
                "phase": phase,
                "conditions": [
                    {"type": "PodScheduled", "status": "True", "lastTransitionTime": ago(scheduled).isoformat()}
                ],
                "containerStatuses": [{"state": state}],
            },
        }
        pod = msgspec.convert(plain, core.Pod)
        self.books.apply(pod)
        self.binder.pod_seen(pod)
        self.binder.set_changed("tenant-a", "vm")


def unrecorded(world: Booked, name: str) -> int:
    usage = world.stored[name].status.usage
    return len(usage.unrecorded) if usage is not None else 0


async def test_a_deleted_claim_goes_once_its_usage_is_in_the_ledger() -> None:
    world = Booked()
    world.hold("vm", attached=True, deleted=True)
    world.pod("Succeeded", ended=200)
    async with world.leading():
        await world.until(lambda: "vm" not in world.stored)
    # It was deleted 300 s ago, and its pod ended 200 s ago: what came after is not the tenant's.
    assert world.store.spans() == [("vm", "Held", 3600, 200), ("vm", "Attached", 1800, 200)]


async def test_a_pod_that_ends_while_the_claim_lives_is_recorded_and_the_claim_keeps_the_total_alone() -> None:
    world = Booked()
    world.hold("vm")
    world.pod(scheduled=1700)
    async with world.leading():
        await world.until(lambda: world.stored["vm"].status.attachment is not None)
        world.pod("Failed", scheduled=1700, ended=100)
        await world.until(lambda: world.store.kept and unrecorded(world, "vm") == 0)
        usage = world.stored["vm"].status.usage
        assert usage is not None
        assert (usage.attached_seconds, usage.held_seconds) == (1600, 0)
        writes = world.writes
        world.binder.set_changed("tenant-a", "vm")
        world.hold("other")
        await world.until(lambda: model.condition(world.stored["other"].status.conditions, "Attached"))
        assert world.store.spans() == [("vm", "Attached", 1700, 100)]
        assert world.writes == writes + 1  # the other's: nothing ticks


async def test_pods_that_came_and_went_while_no_controller_ran_are_recorded() -> None:
    world = Booked()
    world.hold("vm", attached=True)
    world.pod("Succeeded", ended=1500)
    world.pod("Succeeded", uid="uid-q", scheduled=1400, ended=900)
    async with world.leading():
        await world.until(lambda: len(world.store.kept) == 2 and unrecorded(world, "vm") == 0)
    assert world.store.spans() == [("vm", "Attached", 1800, 1500), ("vm", "Attached", 1400, 900)]


async def test_while_the_ledger_is_away_orders_go_on_and_a_deleted_claim_waits_and_says_so() -> None:
    world = Booked()
    world.store.away = True
    world.hold("vm", deleted=True)
    async with world.leading():
        await world.until(lambda: unrecorded(world, "vm") == 1)
        await asyncio.to_thread(world.store.failed.wait, 30)
        world.admit("new")
        world.add("new")
        await world.until(lambda: world.stored["new"].status.node_name)
        status = world.stored["vm"].status
        bound = model.condition(status.conditions, "Bound")
        assert bound is not None
        assert (bound.reason, status.node_name, status.held_since) == ("WaitsForLedger", "gpu-1", None)
        assert {record.name for record in world.keeper.waiting()} == {"vm"}
        world.store.away = False
        await world.until(lambda: "vm" not in world.stored)
        assert list(world.keeper.waiting()) == []
    assert world.store.spans() == [("vm", "Held", 3600, 300)]


@pytest.mark.parametrize("written", [False, True])
async def test_a_leader_that_goes_between_ledger_and_claim_leaves_nothing_undone_and_nothing_twice(
    written: bool,
) -> None:
    world = Booked()
    world.store.away = True
    world.hold("vm", attached=True, deleted=True)
    async with world.leading():
        await world.until(lambda: unrecorded(world, "vm") == 2)
    world.store.away = False
    if written:
        world.keeper.offer(world.stored["vm"])
        world.store.record([record for found in world.keeper._todo.values() for record in found])
    before = dict(world.store.kept)
    world.elect()
    async with world.leading():
        await world.until(lambda: "vm" not in world.stored)
    assert world.store.kept.items() >= before.items()
    assert len(world.store.kept) == 2


async def test_without_a_ledger_a_deleted_claim_goes_at_once() -> None:
    world = World()
    world.add("vm", status={"nodeName": "gpu-1", "heldSince": ago(3600).isoformat()})
    meta = msgspec.structs.replace(world.stored["vm"].metadata, deletion_timestamp=NOW)
    world.stored["vm"] = msgspec.structs.replace(world.stored["vm"], metadata=meta)
    world.tell("vm")
    async with world.running():
        await world.until(lambda: "vm" not in world.stored)
    assert world.writes == 1


# --- pods' own times --------------------------------------------------------------------------------------------------


def pod(name: str, uid: str, phase: str, ended: float | None = None, labels: dict[str, str] | None = None) -> core.Pod:
    condition = core.PodCondition(type="PodScheduled", status="True", last_transition_time=ago(500))
    terminated = core.ContainerStateTerminated(finished_at=ago(ended) if ended is not None else None)
    status = core.ContainerStatus(state=core.ContainerState(terminated=terminated))
    return core.Pod(
        metadata=ObjectMeta(
            name=name,
            namespace="tenant-a",
            uid=uid,
            labels={"vm.kubevirt.io/name": "vm"} if labels is None else labels,
        ),
        spec=core.PodSpec(node_name="gpu-1"),
        status=core.PodStatus(phase=phase, conditions=[condition], container_statuses=[status]),
    )


def test_a_pod_s_end_is_known_after_it_is_gone_and_a_new_pod_of_its_name_is_another() -> None:
    times = PodTimes()
    times.seen(pod("p", "u1", "Running"))
    assert (times.scheduled("u1"), times.ended("tenant-a", "vm")) == (ago(500), ())
    times.seen(pod("p", "u1", "Succeeded", ended=90))
    times.seen(pod("p", "u2", "Running"))
    assert times.ended("tenant-a", "vm") == (PodEnd("p", "u1", "gpu-1", ago(500), ago(90)),)
    assert (times.scheduled("u1"), times.scheduled("u2")) == (None, ago(500))
    times.gone("tenant-a", "p")
    times.gone("tenant-a", "p")
    assert times.scheduled("u2") is None
    assert len(times.ended("tenant-a", "vm")) == 1


def test_pods_of_no_set_and_ends_that_nobody_knows_are_not_kept() -> None:
    times = PodTimes()
    times.seen(pod("p", "u1", "Succeeded", ended=90, labels={}))
    times.seen(pod("q", "u2", "Failed"))
    assert times.ended("tenant-a", "vm") == ()


def test_of_pods_that_are_gone_only_the_last_few_thousand_ends_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuclaim.controller.pod_times._GONE_KEPT", 2)
    times = PodTimes()
    for number in range(4):
        times.seen(pod(f"p{number}", f"u{number}", "Succeeded", ended=90))
        times.gone("tenant-a", f"p{number}")
    assert [end.uid for end in times.ended("tenant-a", "vm")] == ["u2", "u3"]
