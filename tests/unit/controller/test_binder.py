"""The binder on a simulated apiserver that loses answers, refuses writes, and tells of changes late."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from gpuclaim.admission import fence
from gpuclaim.admission.desk import RESERVED_FOR, MoveError
from gpuclaim.api import core, names
from gpuclaim.api.core import ObjectMeta, Outcome
from gpuclaim.api.types import GPUClaim
from gpuclaim.controller.binder import Binder
from gpuclaim.kube.client import ApiError, UnreachableError
from gpuclaim.placement.books import Books
from gpuclaim.placement.orders import Order, Verdict
from gpuclaim.placement.scenario import merge_patch
from gpuclaim.placement.verdict import decide
from support.cloud import gpu_class

from .test_catalogue import NOW, node, report


class World:
    """Claims as the apiserver stores them, books that mirror them when told to, and a binder between the two."""

    def __init__(self) -> None:
        self.stored: dict[str, GPUClaim] = {}
        self.books = Books()
        self.left = 10.0
        self.fates: list[str] = []
        self.writes = 0
        self.sent: list[tuple[bool, str]] = []
        """Of each write, whether it puts the hold on a node, and as whom."""
        self.version = 0
        self.told = asyncio.Event()
        self.binder = Binder(self.books, self, now=lambda: NOW, lease_left=lambda: self.left, grace=dt.timedelta(0))  # type: ignore[arg-type]
        for name in ("gpu-1", "gpu-2"):
            meta = ObjectMeta(name=name)
            self.books.apply(msgspec.structs.replace(node(), metadata=meta))
            self.books.apply(msgspec.structs.replace(report(), metadata=meta))
        self.books.apply(gpu_class())

    def add(self, name: str, **fields: Any) -> GPUClaim:
        """A claim comes to be stored, and the books learn of it."""
        fields = {"count": 1, "set": None, "status": {}, "finalizers": [names.HOLD_FINALIZER]} | fields
        self.version += 1
        plain = {
            "metadata": {
                "name": name,
                "namespace": "tenant-a",
                "uid": f"uid-{name}",
                "resourceVersion": str(self.version),
                "finalizers": fields["finalizers"],
                "creationTimestamp": (NOW + dt.timedelta(seconds=self.version)).isoformat(),
            },
            "spec": {"className": "h200", "count": fields["count"], "set": fields["set"]},
            "status": fields["status"],
        }
        self.stored[name] = msgspec.convert(plain, GPUClaim)
        self.tell(name)
        return self.stored[name]

    def tell(self, name: str) -> None:
        """The watch delivers what is stored under the name."""
        if name in self.stored:
            self.books.apply(self.stored[name])
            self.binder.claim_changed(self.stored[name])
        else:
            self.books.remove(GPUClaim, "tenant-a", name)
            self.binder.room_changed()

    # What the binder sees of a Client.

    async def get(self, _: type[GPUClaim], name: str, __: str) -> GPUClaim:
        return self.stored[name]

    async def patch(
        self, _: type[GPUClaim], name: str, body: dict[str, Any], namespace: str, *, subresource: str, manager: str
    ) -> GPUClaim:
        fate = self.fates.pop(0) if self.fates else "stored"
        if fate == "lost":
            raise UnreachableError("cut off")
        if manager and fate == "fenced off":
            said = f"ValidatingAdmissionPolicy '{fence.NAME}' denied request"
            raise ApiError(Outcome(code=403, reason="Forbidden", message=said))
        claim = self.stored.get(name)
        if claim is None or namespace != "tenant-a":
            raise ApiError(Outcome(code=404, reason="NotFound"))
        if fate == "conflict" or body["metadata"]["resourceVersion"] != claim.metadata.resource_version:
            raise ApiError(Outcome(code=409, reason="Conflict"))
        assert body["metadata"]["uid"] == claim.metadata.uid
        self.version += 1
        self.writes += 1
        self.sent.append(("nodeName" in body.get("status", {}), manager))
        patch = {key: value for key, value in body.items() if key == ("status" if subresource else "metadata")}
        patch = merge_patch(patch, {"metadata": {"resourceVersion": str(self.version)}})
        self.stored[name] = msgspec.convert(merge_patch(msgspec.to_builtins(claim), patch), GPUClaim)
        if subresource == "" and not self.stored[name].metadata.finalizers:
            deleted = self.stored[name].metadata.deletion_timestamp is not None
            if deleted:
                del self.stored[name]
        if fate == "stored, answer lost":
            raise UnreachableError("cut off")
        if fate != "stored, told late":
            self.tell(name)
        return claim

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        await self.binder.prepare()
        task = asyncio.create_task(self.binder.run())
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    def admit(self, name: str, count: int = 1, set_name: str | None = None) -> Verdict:
        """What the desk does with an order that is taken."""
        order = Order("tenant-a", name, f"uid-{name}", "h200", count, set_name or name)
        verdict = decide(self.books, order, NOW)
        assert verdict.admitted
        self.books.reserve(order, verdict, NOW + RESERVED_FOR)
        return verdict

    async def until(self, holds: Any) -> None:
        async with asyncio.timeout(30):
            while not holds():  # noqa: ASYNC110
                await asyncio.sleep(0)

    def where(self, name: str) -> str | None:
        return self.stored[name].status.node_name


async def test_what_was_reserved_is_what_is_bound() -> None:
    world = World()
    async with world.running():
        verdict = world.admit("a", count=3)
        world.add("a", count=3)
        await world.until(lambda: world.where("a"))
        assert world.where("a") == verdict.node
        assert world.books.reservation("uid-a") is None
        assert world.books.holds_by_node() == {verdict.node: 3}


async def test_a_claim_that_is_not_the_admitted_order_is_decided_anew() -> None:
    world = World()
    async with world.running():
        world.admit("a", count=1)
        world.add("a", count=4)  # another webhook changed it
        await world.until(lambda: world.where("a"))
        assert sum(world.books.holds_by_node().values()) == 4


async def test_a_lost_answer_binds_once() -> None:
    world = World()
    world.fates = ["stored, answer lost", "conflict", "lost"]
    async with world.running():
        world.admit("a")
        world.add("a")
        await world.until(lambda: not world.fates)
        assert world.where("a") == "gpu-1"
        assert world.books.holds_by_node() == {"gpu-1": 1}  # reserved, though the books have not heard of the bind
        world.tell("a")
        assert world.books.holds_by_node() == {"gpu-1": 1}
        assert world.books.reservation("uid-a") is None


async def test_nothing_is_written_without_the_lease() -> None:
    world = World()
    world.left = 0
    async with world.running():
        world.admit("a")
        world.add("a")
        await world.until(lambda: world.binder._queue._failures)
        assert world.where("a") is None
        world.left = 10
        await world.until(lambda: world.where("a"))


async def test_claims_that_waited_are_bound_oldest_first_and_get_their_finalizer() -> None:
    world = World()
    for name in ("first", "second", "third"):
        world.add(name, count=4, finalizers=[])
    async with world.running():
        await world.until(lambda: world.where("first") and world.where("second"))
        await world.until(lambda: world.stored["third"].status.conditions)
        third = world.stored["third"].status
        assert (third.node_name, third.conditions[0].reason) == (None, "InsufficientCapacity")
        assert all(names.HOLD_FINALIZER in claim.metadata.finalizers for claim in world.stored.values())


async def test_a_deleted_claim_is_held_until_its_pod_has_ended() -> None:
    world = World()
    async with world.running():
        world.admit("a")
        claim = world.add("a")
        await world.until(lambda: world.where("a"))
        pod = {
            "metadata": {"name": "p", "namespace": "tenant-a", "uid": "pod", "labels": {names.VM_NAME_LABEL: "a"}},
            "spec": {"nodeName": "gpu-1"},
            "status": {"phase": "Running"},
        }
        world.books.apply(msgspec.convert(pod, core.Pod))
        world.binder.set_changed("tenant-a", "a")
        await world.until(lambda: world.stored["a"].status.attachment)
        claim = world.stored["a"]
        meta = msgspec.structs.replace(claim.metadata, deletion_timestamp=NOW)
        world.stored["a"] = msgspec.structs.replace(claim, metadata=meta)
        world.tell("a")
        await world.until(lambda: world.stored["a"].status.conditions[0].reason == "WaitsForPod")
        world.books.remove(core.Pod, "tenant-a", "p")
        world.binder.set_changed("tenant-a", "a")
        await world.until(lambda: "a" not in world.stored)
        assert world.books.holds_by_node() == {}


async def test_a_deleted_claim_whose_pod_was_let_in_and_never_came_goes_once_it_is_not_awaited_any_more() -> None:
    world = World()
    async with world.running():
        world.admit("a")
        world.add("a")
        await world.until(lambda: world.where("a"))
        world.books.reserve_pod("tenant-a", "a", "pod request", NOW + dt.timedelta(seconds=10))
        claim = world.stored["a"]
        meta = msgspec.structs.replace(claim.metadata, deletion_timestamp=NOW)
        world.stored["a"] = msgspec.structs.replace(claim, metadata=meta)
        world.tell("a")
        await world.until(lambda: not world.binder.waiting())
        assert "a" in world.stored
        # Nothing is stored that would tell of it: time alone does.
        world.books.advance(NOW + dt.timedelta(seconds=10))
        world.binder.sets_let_off(world.books.let_off())
        await world.until(lambda: "a" not in world.stored)


BOUND = {"nodeName": "gpu-1", "heldSince": NOW.isoformat()}


def moving(world: World) -> Verdict:
    """A set of two on gpu-1 that has to move to take a third member of three GPUs."""
    for name in ("one", "two"):
        world.add(name, set="vm", status=BOUND)
    order = Order("tenant-a", "three", "uid-three", "h200", 2, "vm")
    world.add("blocker", status=BOUND)
    verdict = decide(world.books, order, NOW)
    assert verdict.admitted
    assert [move.name for move in verdict.moves] == ["one", "two"]
    world.books.reserve(order, verdict, NOW + RESERVED_FOR)
    return verdict


async def test_moves_are_stored_and_a_conflict_is_looked_at_again() -> None:
    world = World()
    verdict = moving(world)
    world.fates = ["conflict"]
    await world.binder.make_moves("uid-three", verdict.moves)
    assert (world.where("one"), world.where("two")) == ("gpu-2", "gpu-2")


async def test_moves_of_which_none_was_stored_leave_nothing_reserved() -> None:
    world = World()
    verdict = moving(world)
    world.fates = ["conflict", "conflict"]
    with pytest.raises(MoveError):
        await world.binder.make_moves("uid-three", verdict.moves)
    assert (world.where("one"), world.where("two")) == ("gpu-1", "gpu-1")
    assert world.books.holds_by_node() == {"gpu-1": 3}


async def test_a_move_is_not_made_of_another_claim_that_took_the_name() -> None:
    world = World()
    verdict = moving(world)
    for name in ("one", "two"):
        del world.stored[name]
        world.tell(name)
        claim = world.add(name, set="vm", status=BOUND)
        world.stored[name] = msgspec.structs.replace(
            claim, metadata=msgspec.structs.replace(claim.metadata, uid=f"another-{name}")
        )
        world.tell(name)
    with pytest.raises(MoveError):
        await world.binder.make_moves("uid-three", verdict.moves)
    assert (world.where("one"), world.where("two")) == ("gpu-1", "gpu-1")


@pytest.mark.parametrize("fates", [["stored, answer lost"], ["stored, told late", "lost"], ["lost"]])
async def test_while_it_is_not_known_what_moved_both_places_are_taken(fates: list[str]) -> None:
    world = World()
    verdict = moving(world)
    world.fates = fates
    with pytest.raises(MoveError):
        await world.binder.make_moves("uid-three", verdict.moves)
    # However little the books have heard: nothing else may be put where a move may have gone.
    assert world.books.nodes["gpu-2"].free["nvidia.com/GH100_H200"] == 0
    assert not decide(world.books, Order("tenant-b", "x", "uid-x", "h200", 3, "x"), NOW).admitted
    world.books.expire(NOW + RESERVED_FOR)
    for name in ("one", "two"):
        world.tell(name)
    assert sum(world.books.holds_by_node().values()) == 3


async def test_a_claim_is_not_bound_to_room_that_a_move_has_not_made_yet() -> None:
    world = World()
    for name in ("one", "two"):
        world.add(name, set="vm", status=BOUND)
    world.add("blocker", status=BOUND)
    # Stored while no admission ran: it is bound as soon as its set has moved.
    world.add("three", set="vm", count=2)
    world.fates = ["lost"]
    async with world.running():
        for _ in range(200):
            await asyncio.sleep(0)
            assert world.where("three") is None
        assert (world.where("one"), world.where("two")) == ("gpu-1", "gpu-1")
        # Whether it moved is known when its time has run out; then everything is decided anew.
        world.books.expire(NOW + RESERVED_FOR)
        world.binder._sweep_due.set()
        await world.until(lambda: world.where("three"))
        assert {world.where(name) for name in ("one", "two", "three")} == {"gpu-2"}


async def test_a_claim_is_bound_once_the_last_move_that_it_waits_for_is_told() -> None:
    world = World()
    moving(world)
    async with world.running():
        world.add("three", set="vm", count=2)
        for name in ("one", "two"):
            assert world.where("three") is None
            claim = world.stored[name]
            status = msgspec.structs.replace(claim.status, node_name="gpu-2")
            world.stored[name] = msgspec.structs.replace(claim, status=status)
            for _ in range(50):
                await asyncio.sleep(0)
            world.tell(name)
        await world.until(lambda: world.where("three"))
        assert world.where("three") == "gpu-2"


def healthy(claim: GPUClaim) -> tuple[str, str] | None:
    return next(((c.status, c.reason) for c in claim.status.conditions if c.type == "Healthy"), None)


async def test_sets_that_are_off_leave_a_node_that_fails_and_running_ones_stay() -> None:
    world = World()
    world.add("off", set="off", count=2, status=BOUND)
    world.add("on", set="on", status=BOUND)
    pod = {
        "metadata": {"name": "p", "namespace": "tenant-a", "uid": "pod", "labels": {names.VM_NAME_LABEL: "on"}},
        "spec": {"nodeName": "gpu-1"},
        "status": {"phase": "Running"},
    }
    world.books.apply(msgspec.convert(pod, core.Pod))
    async with world.running():
        down = node()
        status = msgspec.structs.replace(down.status, conditions=[core.NodeCondition(type="Ready", status="False")])
        world.books.apply(msgspec.structs.replace(down, status=status))
        await world.until(lambda: world.where("off") == "gpu-2")
        assert world.where("on") == "gpu-1"
        await world.until(lambda: healthy(world.stored["on"]) == ("False", "NodeNotReady"))
        world.books.apply(node())
        await world.until(lambda: healthy(world.stored["on"]) == ("True", "NodeWell"))


async def test_as_few_leave_as_a_lost_device_needs() -> None:
    world = World()
    world.add("big", set="big", count=3, status=BOUND)
    world.add("small", set="small", count=1, status=BOUND)
    async with world.running():
        world.books.apply(report(unhealthy=1))
        await world.until(lambda: world.where("small") == "gpu-2")
        await asyncio.sleep(0)
        assert world.where("big") == "gpu-1"
        assert world.books.nodes["gpu-1"].free["nvidia.com/GH100_H200"] == 0


async def test_a_set_that_stands_on_two_nodes_is_brought_together_before_anything_is_admitted() -> None:
    world = World()
    world.add("one", set="vm", count=2, status=BOUND)
    world.add("two", set="vm", count=1, status=BOUND | {"nodeName": "gpu-2"})
    await world.binder.prepare()
    assert world.where("one") == world.where("two")
    assert world.books.split_sets() == []


async def test_a_set_of_which_half_was_moved_is_brought_together_by_the_leader_that_failed() -> None:
    world = World()
    verdict = moving(world)
    async with world.running():
        world.books.reserve(Order("tenant-a", "three", "uid-three", "h200", 2, "vm"), verdict, NOW + RESERVED_FOR)
        world.fates = ["stored", "lost"]
        with pytest.raises(MoveError):
            await world.binder.make_moves("uid-three", verdict.moves)
        assert world.books.split_sets() == [("tenant-a", "vm")]
        # Where the second went is not known until its time has run out.
        world.books.expire(NOW + RESERVED_FOR)
        world.binder._sweep_due.set()
        await world.until(lambda: not world.books.split_sets())
        assert world.where("one") == world.where("two")


async def test_what_was_reserved_in_an_earlier_term_binds_nothing_once_another_has_led() -> None:
    world = World()
    world.binder.begin(NOW)
    verdict = world.admit("late", count=3)
    assert verdict.node == "gpu-1"
    # Another leads, and gives the same GPUs to somebody else; then this one leads again, and the order is stored.
    world.add("other", count=4, status=BOUND)
    world.binder.begin(NOW + dt.timedelta(seconds=20))
    await world.binder.prepare()
    task = asyncio.create_task(world.binder.run())
    world.add("late", count=3)
    await world.until(lambda: world.where("late"))
    assert world.where("late") == "gpu-2"
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def test_a_lease_that_nobody_else_had_meanwhile_leaves_what_is_reserved() -> None:
    world = World()
    world.binder.begin(NOW)
    world.admit("late", count=3)
    world.binder.begin(NOW)
    assert world.books.reservation("uid-late") is not None


def turned_away(uid: str, created: dt.datetime = NOW) -> core.Pod:
    plain = {
        "metadata": {
            "name": f"p-{uid}",
            "namespace": "tenant-a",
            "uid": uid,
            "labels": {names.VM_NAME_LABEL: "vm1"},
            "creationTimestamp": created.isoformat(),
        },
        "spec": {"nodeName": "gpu-1"},
        "status": {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "Allocate failed"},
    }
    return msgspec.convert(plain, core.Pod)


async def test_what_a_node_refused_is_forgotten_with_the_node_and_not_remembered_of_the_next() -> None:
    world = World()
    world.add("vm1", count=2, status=BOUND)
    world.add("other", count=4, status=BOUND | {"nodeName": "gpu-2"})  # it can go nowhere else
    gpu_1 = msgspec.structs.replace(node(), metadata=ObjectMeta(name="gpu-1"))
    async with world.running():
        world.binder.pod_seen(turned_away("pod"))
        assert world.binder.being_refused("tenant-a", "vm1")
        world.binder.set_changed("tenant-a", "vm1")
        await world.until(lambda: world.stored["vm1"].status.refusals)
        assert not world.binder.being_refused("tenant-a", "vm1")
        world.books.remove(core.Node, "", "gpu-1")
        world.binder.node_gone("gpu-1")
        await world.until(lambda: not world.stored["vm1"].status.refusals)
        # The pod's object is still there, and tells no more of a node that is not: no write calls for another.
        world.binder.pod_seen(turned_away("pod"))
        assert not world.binder.being_refused("tenant-a", "vm1")
        world.binder.set_changed("tenant-a", "vm1")
        await world.until(lambda: not world.binder.waiting())
        writes = world.writes
        world.binder.pod_gone("tenant-a", "p-pod")
        world.books.apply(gpu_1)
        world.binder.set_changed("tenant-a", "vm1")
        await world.until(lambda: not world.binder.waiting())
        assert world.stored["vm1"].status.refusals == []
        assert world.writes <= writes + 1  # that its node is well again


@pytest.mark.parametrize("later", [dt.timedelta(minutes=6), dt.timedelta(0)], ids=["later", "in the same second"])
async def test_two_pods_that_a_node_turned_away_are_two_refusals_and_no_more(later: dt.timedelta) -> None:
    world = World()
    world.add("vm1", count=2, status=BOUND)
    world.add("other", count=4, status=BOUND | {"nodeName": "gpu-2"})  # it can go nowhere else
    first, second = turned_away("z-first"), turned_away("second", NOW + later)
    async with world.running():
        for pod, minutes in ((first, 5), (second, 10)):
            world.binder.pod_seen(pod)
            world.binder.set_changed("tenant-a", "vm1")
            await world.until(lambda: not world.binder.waiting())
            (refusal,) = world.stored["vm1"].status.refusals
            assert refusal.pod_uid == pod.metadata.uid
            assert refusal.expires_at - refusal.refused_at == dt.timedelta(minutes=minutes)
        # Both objects stay, and whatever tells of the first again is no news.
        writes = world.writes
        for pod in (first, second, first) if later else (second, second):
            world.binder.pod_seen(pod)
            world.binder.set_changed("tenant-a", "vm1")
            await world.until(lambda: not world.binder.waiting())
        assert not world.binder.being_refused("tenant-a", "vm1")
        assert world.writes == writes


async def test_only_what_puts_a_hold_on_a_node_says_as_which_leader() -> None:
    world = World()
    world.binder.begin(NOW)
    verdict = moving(world)
    await world.binder.make_moves("uid-three", verdict.moves)
    async with world.running():
        world.add("made while nobody led", finalizers=[])
        await world.until(lambda: world.where("made while nobody led") and not world.binder.waiting())
    leader = "gpuclaim-leader@2026-12-01T12:00:00.000000Z"
    assert {manager for placed, manager in world.sent if placed} == {leader}
    assert {manager for placed, manager in world.sent if not placed} == {""}


@pytest.mark.parametrize("leads", [True, False])
async def test_a_fence_that_knows_an_old_lease_is_asked_past_where_the_stored_one_is_ours(leads: bool) -> None:
    world = World()

    async def confirmed() -> bool:
        return leads

    world.binder = Binder(world.books, world, now=lambda: NOW, lease_left=lambda: 9.0, confirmed=confirmed)  # type: ignore[arg-type]
    world.binder.begin(NOW)
    verdict = moving(world)
    world.fates = ["fenced off"]
    if leads:
        await world.binder.make_moves("uid-three", verdict.moves)
        assert ("", True) in {(manager, placed) for placed, manager in world.sent}
    else:
        with pytest.raises(MoveError, match=fence.NAME):
            await world.binder.make_moves("uid-three", verdict.moves)
        assert world.sent == []
