"""VMs get their claims once, whatever fails in between (R45): on an apiserver that a test plays."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from gpuclaim.api import core, names
from gpuclaim.api.core import ObjectMeta, Outcome
from gpuclaim.api.types import GPUClaim, GPUClaimSpec
from gpuclaim.controller.machines import Machines
from gpuclaim.kube.client import ApiError, UnreachableError
from gpuclaim.placement.books import Books
from gpuclaim.placement.orders import Move, Order
from gpuclaim.placement.verdict import decide
from support.cloud import gpu_class

from .test_catalogue import NOW, node, report


def vm(name: str = "vm1", count: int = 1, uid: str = "", created: int = 0, **meta: Any) -> core.VirtualMachine:
    labels = {names.CLASS_LABEL: "h200", names.COUNT_LABEL: str(count)}
    fields: dict[str, Any] = {"labels": labels, "creation_timestamp": NOW + dt.timedelta(seconds=created)} | meta
    return core.VirtualMachine(metadata=ObjectMeta(name=name, namespace="tenant-a", uid=uid or f"uid-{name}", **fields))


class World:
    """Books of one node of four GPUs, and an apiserver whose fate for each request a test may say."""

    def __init__(self) -> None:
        self.books = Books()
        self.fates: list[str] = []
        self.stored: dict[str, GPUClaim] = {}
        self.tries = 0
        self.made = asyncio.Event()
        self.left = 10.0
        self.machines = Machines(
            self.books,
            self,  # type: ignore[arg-type]
            now=lambda: NOW,
            lease_left=lambda: self.left,
            make_moves=self._no_moves,
        )
        self.books.apply(node())
        self.books.apply(report())
        self.books.apply(gpu_class())

    async def _no_moves(self, token: str, moves: tuple[Move, ...]) -> None:
        raise AssertionError("nothing has to move")

    def admit(self, machine: core.VirtualMachine) -> None:
        """As the webhook does when the VM is made."""
        meta = machine.metadata
        count = int(meta.labels[names.COUNT_LABEL])
        order = Order(meta.namespace, meta.name, meta.uid, "h200", count, meta.name)
        verdict = decide(self.books, order, NOW)
        assert verdict.admitted
        self.books.reserve(order, verdict, NOW + dt.timedelta(seconds=30))

    async def create(self, claim: GPUClaim) -> GPUClaim:
        """The apiserver, whose webhook hands the reservation of the VM over, as the desk does."""
        self.tries += 1
        fate = self.fates.pop(0) if self.fates else "stored"
        uid = f"claim-{self.tries}"
        owner = claim.metadata.owner_references[0].uid
        claim = msgspec.structs.replace(claim, metadata=msgspec.structs.replace(claim.metadata, uid=uid))
        if fate == "unreachable":
            raise UnreachableError("cut off")
        if claim.metadata.name in self.stored:
            raise ApiError(Outcome(code=409, reason="AlreadyExists"))
        if self.books.reservation(owner) is not None and fate != "unasked":
            self.books.hand_over(owner, Order.of(claim), NOW + dt.timedelta(seconds=30))
        if fate == "refused":
            raise ApiError(Outcome(code=403, reason="Forbidden"))
        self.stored[claim.metadata.name] = claim
        self.made.set()
        if fate == "lost":
            raise UnreachableError("cut off")
        return claim

    def tell(self, name: str) -> None:
        """The claims' informer."""
        self.books.apply(self.stored[name])
        self.machines.claim_seen(self.stored[name])

    def held(self) -> int:
        return sum(self.books.holds_by_node().values())


@pytest.fixture
def world() -> World:
    return World()


@contextlib.asynccontextmanager
async def leading(world: World) -> AsyncIterator[None]:
    await world.machines.prepare()
    task = asyncio.create_task(world.machines.run())
    try:
        async with asyncio.timeout(30):
            yield
    finally:
        task.cancel()
        await asyncio.wait({task})


async def test_an_admitted_vm_gets_its_claim_and_the_claim_its_reservation(world: World) -> None:
    async with leading(world):
        world.admit(vm(count=2))
        world.machines.changed(vm(count=2))
        await world.made.wait()
    claim = world.stored["vm1"]
    assert (claim.spec.count, claim.metadata.owner_references[0].uid) == (2, "uid-vm1")
    assert world.books.reservation("uid-vm1") is None
    assert world.books.reservation(claim.metadata.uid) is not None
    assert world.held() == 2


@pytest.mark.parametrize("fate", ["unreachable", "refused", "lost"])
async def test_whatever_becomes_of_a_try_there_is_one_claim_and_one_hold(world: World, fate: str) -> None:
    world.fates = [fate, fate]
    async with leading(world):
        world.admit(vm())
        world.machines.changed(vm())
        await world.made.wait()
        world.tell("vm1")
    assert list(world.stored) == ["vm1"]
    assert world.held() == 1


async def test_a_claim_that_admission_was_not_asked_about_takes_the_reservation_over(world: World) -> None:
    world.fates = ["unasked"]
    async with leading(world):
        world.admit(vm())
        world.machines.changed(vm())
        await world.made.wait()
        world.tell("vm1")
    assert world.books.reservation("uid-vm1") is None
    assert world.books.reservation(world.stored["vm1"].metadata.uid) is not None
    assert world.held() == 1


async def test_a_new_leader_reserves_for_stored_vms_before_anything_else_the_oldest_first(world: World) -> None:
    for machine in (vm("late", 3, created=2), vm("early", 3, created=1), vm("small", 1, created=3)):
        world.machines.changed(machine)
    await world.machines.prepare()
    reserved = {r.order.name for r in world.books.reservations() if r.order is not None}
    assert reserved == {"early", "small"}
    assert world.stored == {}


async def test_without_the_lease_no_claim_is_made(world: World) -> None:
    world.left = 0.0
    async with leading(world):
        world.machines.changed(vm())
        for _ in range(20):
            await asyncio.sleep(0)
    assert world.tries == 0


async def test_a_vm_that_goes_gives_back_what_its_claim_did_not_take(world: World) -> None:
    for last in (vm(deletion_timestamp=NOW), vm(labels={})):
        world.admit(vm())
        world.machines.changed(vm())
        world.machines.changed(last)
        assert world.held() == 0
        assert world.machines.order("tenant-a", "vm1") is None
    world.admit(vm())
    world.machines.changed(vm())
    world.machines.gone("tenant-a", "vm1")
    assert world.held() == 0


async def test_anothers_claim_under_the_vms_name_is_used_as_it_is(world: World) -> None:
    async with leading(world):
        world.admit(vm())
        mine = GPUClaim(
            metadata=ObjectMeta(name="vm1", namespace="tenant-a", uid="mine"), spec=GPUClaimSpec(class_name="h200")
        )
        world.stored["vm1"] = mine
        world.tell("vm1")
        world.machines.changed(vm())
        for _ in range(20):
            await asyncio.sleep(0)
    assert world.tries == 0


async def test_a_claim_that_names_another_tenants_vm_takes_nothing_from_it(world: World) -> None:
    world.admit(vm())
    world.machines.changed(vm())
    owner = core.OwnerReference(
        api_version="kubevirt.io/v1", kind="VirtualMachine", name="vm1", uid="uid-vm1", controller=True
    )
    forged = GPUClaim(
        metadata=ObjectMeta(name="vm1", namespace="tenant-b", uid="forged", owner_references=[owner]),
        spec=GPUClaimSpec(class_name="h200"),
    )
    world.books.apply(forged)
    world.machines.claim_seen(forged)
    assert world.books.reservation("uid-vm1") is not None
    assert world.books.reservation("forged") is None


async def test_a_claim_that_is_gone_is_ordered_anew_while_its_vm_is_there(world: World) -> None:
    async with leading(world):
        world.machines.changed(vm())
        await world.made.wait()
        world.tell("vm1")
        world.made.clear()
        del world.stored["vm1"]
        world.books.remove(GPUClaim, "tenant-a", "vm1")
        world.machines.claim_gone("tenant-a", "vm1")
        await world.made.wait()
    assert list(world.stored) == ["vm1"]
    assert world.tries == 2
