"""Any history of objects, reservations and time: books that were kept through it are books made anew of what is left.

What is left is held by a model of plain dictionaries, which says in a line each when a reservation ends (R40, R36b).
"""

from __future__ import annotations

import dataclasses
import datetime as dt
from typing import Any

import msgspec
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from gpuclaim.api import core, model
from gpuclaim.api.types import GPUClaim
from gpuclaim.placement import invariants
from gpuclaim.placement.books import Books, Known
from gpuclaim.placement.orders import Move, Order, Verdict
from gpuclaim.placement.scenario import key_of
from gpuclaim.placement.verdict import decide
from unit.placement.build import GPU, NOW, claim, cls, device, node, pod, report
from unit.placement.test_properties import CLASSES, NODES, OTHER, TENANTS, VGPU, nodes, other

RESERVED = dt.timedelta(seconds=30)
SETS = ("vm1", "vm2", "c-0")
NAMES = ("c-0", "c-1", "c-2")
DEVICES = [
    *(device(number, (GPU, 1, 0)) for number in (0, 1)),
    device(2, (GPU, 1, 0), (OTHER, 1, 0)),
    device(3, (VGPU, 4, 0)),
]

things = st.one_of(nodes(), other()).map(lambda found: [one for one in found if not isinstance(one, GPUClaim)])
tenants = st.sampled_from(TENANTS)
named = st.sampled_from(NAMES)


@dataclasses.dataclass(frozen=True)
class Reserved:
    """What `Books.reserve` or `Books.reserve_moves` was given."""

    order: Order | None
    verdict: Verdict
    until: dt.datetime


@dataclasses.dataclass(frozen=True)
class Coming:
    """What `Books.reserve_pod` was given."""

    namespace: str
    set_name: str
    until: dt.datetime


class Histories(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.kept = Books()
        self.now = NOW
        self.objects: dict[tuple[str, str, str], Known] = {}
        self.reserved: dict[str, Reserved] = {}
        self.coming: dict[str, Coming] = {}
        self.number = 0
        # Something to order from, or hardly any order would be taken.
        for obj in (
            cls("whole", GPU),
            cls("twin", OTHER),
            cls("slice", VGPU, mode="vgpu", most=4),
            *(one for name in NODES for one in (node(name, {GPU: 4, OTHER: 4, VGPU: 8}), report(name, DEVICES))),
        ):
            self.apply(obj)
        self.kept.advance(self.now)

    def uid(self) -> str:
        self.number += 1
        return f"uid-{self.number:04d}"

    def stored(self, namespace: str, name: str) -> GPUClaim | None:
        found = self.objects.get(("GPUClaim", namespace, name))
        return found if isinstance(found, GPUClaim) else None

    def plans_go_with(self, gone: GPUClaim) -> None:
        """What was planned for a claim is not for another that takes its name."""
        its = (gone.metadata.namespace, gone.metadata.name)
        for uid, each in list(self.reserved.items()):
            moves = tuple(move for move in each.verdict.moves if (move.namespace, move.name) != its)
            if each.order is None and not moves:
                del self.reserved[uid]
            else:
                self.reserved[uid] = dataclasses.replace(each, verdict=dataclasses.replace(each.verdict, moves=moves))

    def apply(self, obj: Known) -> None:
        old = self.objects.get(key_of(obj))
        if isinstance(old, GPUClaim) and old.metadata.uid != obj.metadata.uid:
            self.plans_go_with(old)
        self.objects[key_of(obj)] = obj
        self.kept.apply(obj)
        if isinstance(obj, GPUClaim) and obj.status.node_name:
            self.reserved.pop(obj.metadata.uid, None)
        if isinstance(obj, core.Pod) and model.is_live(obj):
            its = (obj.metadata.namespace, model.pod_set(obj.metadata.labels))
            self.coming = {uid: each for uid, each in self.coming.items() if (each.namespace, each.set_name) != its}

    @rule(found=things)
    def objects_come(self, found: list[Known]) -> None:
        for obj in found:
            self.apply(obj)

    @rule(index=st.integers(0, 60))
    def an_object_goes(self, index: int) -> None:
        if index < len(self.objects):
            key = sorted(self.objects)[index]
            obj = self.objects.pop(key)
            self.kept.remove(type(obj), obj.metadata.namespace, obj.metadata.name)
            if isinstance(obj, GPUClaim):
                self.reserved.pop(obj.metadata.uid, None)
                self.plans_go_with(obj)

    @rule(
        tenant=tenants,
        name=named,
        on=st.sampled_from([*NODES, None]),
        count=st.integers(1, 3),
        of=st.sampled_from(CLASSES),
        set_name=st.sampled_from([*SETS, None]),
    )
    def a_claim_is_stored(
        self, tenant: str, name: str, on: str | None, count: int, of: str, set_name: str | None
    ) -> None:
        """Another in the place of the one with its name, as an informer that lists anew may find it."""
        new = claim(name, on, count, of=of, set_name=set_name, namespace=tenant)
        meta = msgspec.structs.replace(new.metadata, uid=self.uid())
        self.apply(msgspec.structs.replace(new, metadata=meta))

    @rule(
        tenant=tenants,
        name=named,
        of=st.sampled_from(CLASSES),
        count=st.integers(1, 3),
        set_name=st.sampled_from(SETS),
        again=st.booleans(),
    )
    def an_order_is_admitted(self, tenant: str, name: str, of: str, count: int, set_name: str, again: bool) -> None:
        there = self.stored(tenant, name)
        new = Order(tenant, name, self.uid(), of, count, set_name)
        # What is bound is never decided again.
        if again and there is not None and there.status.node_name is None:
            new = Order.of(there)
        verdict = decide(self.kept, new, self.now)
        if verdict.admitted:
            self.kept.reserve(new, verdict, self.now + RESERVED)
            self.reserved[new.uid] = Reserved(new, verdict, self.now + RESERVED)

    @rule(index=st.integers(0, 9), bound=st.booleans())
    def an_admitted_order_is_stored(self, index: int, bound: bool) -> None:
        waiting = [each.order for each in self.reserved.values() if each.order is not None]
        if waiting:
            new = waiting[index % len(waiting)]
            there = self.stored(new.namespace, new.name)
            # Nobody unbinds a claim.
            bound |= there is not None and there.metadata.uid == new.uid and there.status.node_name is not None
            node = self.reserved[new.uid].verdict.node if bound else None
            stored = claim(new.name, node, new.count, of=new.class_name, set_name=new.set_name, namespace=new.namespace)
            self.apply(msgspec.structs.replace(stored, metadata=msgspec.structs.replace(stored.metadata, uid=new.uid)))

    @rule(index=st.integers(0, 9))
    def a_planned_move_is_stored(self, index: int) -> None:
        moves = [move for each in self.reserved.values() for move in each.verdict.moves]
        if moves:
            self.moves_to(moves[index % len(moves)])

    def moves_to(self, move: Move) -> None:
        there = self.stored(move.namespace, move.name)
        if there is not None and there.status.node_name:
            status = msgspec.structs.replace(there.status, node_name=move.to_node)
            self.apply(msgspec.structs.replace(there, status=status))

    @rule(tenant=tenants, name=named, to=st.sampled_from(NODES), token=st.sampled_from(["token-1", "token-2"]))
    def moves_are_reserved(self, tenant: str, name: str, to: str, token: str) -> None:
        there = self.stored(tenant, name)
        from_node = there.status.node_name if there is not None else None
        moves = (Move(tenant, name, from_node or "", to),)
        self.kept.reserve_moves(token, moves, self.now + RESERVED)
        self.reserved[token] = Reserved(None, Verdict(admitted=True, moves=moves), self.now + RESERVED)

    @rule(index=st.integers(0, 9))
    def a_reservation_is_released(self, index: int) -> None:
        if self.reserved:
            uid = sorted(self.reserved)[index % len(self.reserved)]
            del self.reserved[uid]
            self.kept.release(uid)

    @rule(tenant=tenants, set_name=st.sampled_from(SETS), seconds=st.integers(1, 20))
    def a_pod_is_admitted(self, tenant: str, set_name: str, seconds: int) -> None:
        uid, until = self.uid(), self.now + dt.timedelta(seconds=seconds)
        self.kept.reserve_pod(tenant, set_name, uid, until)
        self.coming[uid] = Coming(tenant, set_name, until)

    @rule(
        tenant=tenants,
        set_name=st.sampled_from(SETS),
        on=st.sampled_from([*NODES, ""]),
        phase=st.sampled_from(["Running", "Failed"]),
    )
    def a_pod_of_a_set_comes(self, tenant: str, set_name: str, on: str, phase: str) -> None:
        self.apply(pod(f"launcher-{set_name}", set_name, on, {GPU: 1}, namespace=tenant, phase=phase))

    @rule(seconds=st.sampled_from([1, 15, 31, 600, 1200, -40]))
    def time_goes_on(self, seconds: int) -> None:
        self.now += dt.timedelta(seconds=seconds)
        self.kept.advance(self.now)
        for uid, each in list(self.reserved.items()):
            there = self.stored(each.order.namespace, each.order.name) if each.order is not None else None
            # One whose claim is stored is about to be bound as it says.
            if each.until <= self.now and not (there is not None and there.metadata.uid == uid):
                del self.reserved[uid]
        self.coming = {uid: each for uid, each in self.coming.items() if each.until > self.now}

    def anew(self) -> Books:
        made = Books()
        for obj in reversed(self.objects.values()):
            made.apply(obj)
        for uid, each in self.reserved.items():
            if each.order is not None:
                made.reserve(each.order, each.verdict, each.until)
            else:
                made.reserve_moves(uid, each.verdict.moves, each.until)
        for uid, awaited in self.coming.items():
            made.reserve_pod(awaited.namespace, awaited.set_name, uid, awaited.until)
        made.advance(self.now)
        return made

    @invariant()
    def the_books_are_as_made_anew(self) -> None:
        made = self.anew()
        self.kept.advance(self.now)
        assert said(self.kept) == said(made)
        assert invariants.wrong_index(self.kept) == []
        assert self.kept.split_sets() == made.split_sets()


def said(books: Books) -> dict[str, Any]:
    """All that can be asked of books about sets and nodes, beside what decides."""
    sets = [(tenant, name) for tenant in TENANTS for name in SETS]
    return invariants.snapshot(books) | {
        "attached": [each for each in sets if books.attached(*each)],
        "moving": [each for each in sets if books.moving(*each)],
        "in flight": [each for each in sets if books.in_flight(*each)],
        "pods": [books.pods_of_set(*each) for each in sets],
        "coming": [books.pod_reservations(*each) for each in sets],
        "of sets": [[c.metadata.uid for c in books.claims_of_set(*each)] for each in sets],
        "set holds": {
            (node, *each): held for node in NODES for each in sets if (held := books.set_holds_on(node, *each))
        },
        "on": {node: [c.metadata.uid for c in books.claims_on(node)] for node in NODES},
        "holds": {node: books.holds_on(node) for node in NODES},
        "in sum": {(r, n): books.in_sum(r, n) for r in sorted(books.resources) for n in (1, 3, 8)},
    }


TestHistories = Histories.TestCase
TestHistories.settings = settings(
    max_examples=40, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
