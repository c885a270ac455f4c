"""The books: everything that placement knows, kept incrementally as objects come and go."""

from __future__ import annotations

import dataclasses
import datetime as dt
import heapq
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias, TypeVar, cast

from gpuclaim.api import core, model
from gpuclaim.api.types import GPUClaim, GPUClass, GPUNode
from gpuclaim.placement import unscheduled
from gpuclaim.placement.budget import Budgets
from gpuclaim.placement.facts import NodeFacts, PodFacts
from gpuclaim.placement.index import View
from gpuclaim.placement.inventory import Inventory
from gpuclaim.placement.orders import Move, Order, PodReservation, Reservation, Verdict

Known: TypeAlias = (
    GPUClass | GPUClaim | GPUNode | core.Node | core.Pod | core.Namespace | core.ResourceQuota | core.DeviceClass
)
"""The kinds that the books take."""

T = TypeVar("T")

_BEGINNING = dt.datetime.min.replace(tzinfo=dt.UTC)


@dataclass(frozen=True, slots=True)
class Settings:
    """What the hoster may set."""

    silent_after: dt.timedelta = dt.timedelta(minutes=15)
    """A GPUNode whose last report is older takes no new hold (R30)."""
    ancestor_label_prefix: str = "tenant.cozystack.io/"
    """A namespace label with this prefix names a tenant that the namespace is inside of (R33)."""
    exempt_namespaces: frozenset[str] = frozenset()
    """Namespaces whose pods may ask for a class's resource without a claim (R44)."""
    repack: bool = True
    """Whether holds that are not attached are moved to make room for an order (R35)."""


class _Tenant:
    """What one namespace has."""

    __slots__ = ("claims", "pods", "reserved", "sets")

    def __init__(self) -> None:
        self.claims: dict[str, GPUClaim] = {}
        self.sets: dict[str, tuple[GPUClaim, ...]] = {}
        self.pods: dict[str, dict[str, PodFacts]] = {}
        self.reserved: dict[str, dict[str, Reservation]] = {}


_NO_TENANT = _Tenant()


class Books:
    """Everything that placement knows. Single-threaded; no I/O; objects may come in any order.

    Applying an object costs O(what it changes); what follows for the nodes it touches is derived when next asked for,
    so a cold start derives every node once. The same objects give the same books, whatever order they came in: nothing
    is remembered of an object that is gone. A hold of a class that is gone (or not seen yet) therefore counts against
    every resource of its node, as it may be any of them.

    Times must be aware of their zone.
    """

    def __init__(self, settings: Settings = Settings()) -> None:
        self.settings = settings
        self.budgets = Budgets(settings.ancestor_label_prefix)
        self._inventory = Inventory(self, settings.silent_after)
        self._revision = 0
        self._tenants: dict[str, _Tenant] = {}
        self._pods: dict[tuple[str, str], PodFacts] = {}
        self._requests: dict[tuple[tuple[str, int], ...], tuple[tuple[str, int], ...]] = {}
        self._unbound: set[tuple[str, str]] = set()
        self._reservations: dict[str, Reservation] = {}
        self._pending: dict[tuple[str, str], dict[str, str]] = {}
        self._pod_reservations: dict[str, PodReservation] = {}
        self._let_off: set[tuple[str, str]] = set()
        self._turns: list[dt.datetime] = []
        self._memo: dict[Hashable, object] = {}
        self._memo_revision = 0
        self._expiries: list[tuple[dt.datetime, str]] = []

    @property
    def revision(self) -> int:
        """Grows with every change, those that `advance` finds included: until then a decision stays as it is."""
        return self._revision + self._inventory.revision

    # --- objects in and out -------------------------------------------------------------------------------------------

    def apply(self, obj: Known) -> None:
        """Insert the object, or put it in the place of the one with its name.

        Raises:
            TypeError: it is of a kind that the books do not take.
        """
        # The most frequent first. functools.singledispatchmethod makes a closure at each call: a quarter of the time to
        # read 100,000 claims.
        if isinstance(obj, GPUClaim):
            self._apply_claim(obj)
        elif isinstance(obj, core.Pod):
            self._apply_pod(obj)
        elif isinstance(obj, GPUNode):
            self._inventory.apply_report(obj)
        elif isinstance(obj, core.Node):
            self._inventory.apply_node(obj)
        elif isinstance(obj, core.Namespace):
            self._apply_namespace(obj)
        elif isinstance(obj, core.ResourceQuota):
            self._apply_quota(obj)
        elif isinstance(obj, GPUClass):
            self._inventory.put_class(obj.metadata.name, obj)
        elif isinstance(obj, core.DeviceClass):
            self._inventory.put_device_class(obj.metadata.name, obj)
        else:
            raise TypeError(f"the books take no {type(obj).__name__}")

    def remove(self, kind: type, namespace: str, name: str) -> None:
        """The object is gone; one that was never there is no error.

        Raises:
            TypeError: the books do not take that kind.
        """
        self._revision += 1
        if kind is GPUClaim:
            self._remove_claim(namespace, name)
        elif kind is GPUClass:
            self._inventory.put_class(name, None)
        elif kind is GPUNode:
            self._inventory.forget(name, NodeFacts.forget_report)
        elif kind is core.Node:
            self._inventory.forget(name, NodeFacts.forget_node)
        elif kind is core.Pod:
            self._replace_pod((namespace, name), None)
        elif kind is core.Namespace:
            self.budgets.remove_namespace(name)
        elif kind is core.ResourceQuota:
            self.budgets.remove_quota(namespace, name)
        elif kind is core.DeviceClass:
            self._inventory.put_device_class(name, None)
        else:
            raise TypeError(f"the books take no {kind.__name__}")

    def _apply_pod(self, pod: core.Pod) -> None:
        meta = pod.metadata
        facts = pod_facts(pod) if model.is_live(pod) else None
        if facts is not None and facts.set_name is not None:
            # A pod has no UID yet when it is admitted: the set's live pod is the one that was awaited.
            for awaited in self.pod_reservations(facts.namespace, facts.set_name):
                self._drop_pod_reservation(awaited.uid)
        if facts is not None and not facts.requests and facts.set_name is None:
            facts = None
        self._replace_pod((meta.namespace, meta.name), facts)

    def _replace_pod(self, key: tuple[str, str], pod: PodFacts | None) -> None:
        old = self._pods.get(key)
        if old == pod:
            return
        self._revision += 1
        if old is not None:
            del self._pods[key]
            self._pod_of_set(old, None)
        if pod is not None:
            requests = self._requests.setdefault(pod.requests, pod.requests)
            pod = PodFacts(pod.namespace, pod.name, pod.uid, pod.set_name, pod.node, requests, pod.lacks)
            self._pods[key] = pod
            self._pod_of_set(pod, pod)

    def _pod_of_set(self, pod: PodFacts, new: PodFacts | None) -> None:
        if pod.set_name is not None:
            self._touch_set(pod.namespace, pod.set_name)
            tenant = self._tenant(pod.namespace)
            pods = tenant.pods.setdefault(pod.set_name, {})
            if new is None:
                del pods[pod.name]
                if not pods:
                    del tenant.pods[pod.set_name]
            else:
                pods[pod.name] = new
        if pod.node and pod.requests:
            facts = self._inventory.facts(pod.node)
            if new is None:
                del facts.pods[(pod.namespace, pod.name)]
            else:
                facts.pods[(pod.namespace, pod.name)] = new
            self._inventory.touch(pod.node)

    def _apply_namespace(self, namespace: core.Namespace) -> None:
        self._revision += 1
        self.budgets.apply_namespace(namespace)

    def _apply_quota(self, quota: core.ResourceQuota) -> None:
        self._revision += 1
        self.budgets.apply_quota(quota)

    def _apply_claim(self, claim: GPUClaim) -> None:
        self._revision += 1
        for refusal in claim.status.refusals:
            heapq.heappush(self._turns, refusal.expires_at)
        meta = claim.metadata
        tenant = self._tenant(meta.namespace)
        old = tenant.claims.get(meta.name)
        if old is not None and _place(old) == _place(claim):
            tenant.claims[meta.name] = claim
            if claim.status.node_name:
                on_node = self._inventory.facts(claim.status.node_name).claims
                _forget_claim(on_node, old)
                on_node.append(claim)
            name = model.claim_set(claim)
            tenant.sets[name] = tuple(claim if c is old else c for c in tenant.sets[name])
            return
        if old is not None:
            self._count_claim(tenant, old, -1)
            if old.metadata.uid != meta.uid:
                self._drop_plans(meta.namespace, meta.name)
        if claim.status.node_name:
            self.release(meta.uid)
        self._count_claim(tenant, claim, 1)

    def _remove_claim(self, namespace: str, name: str) -> None:
        tenant = self._tenants.get(namespace)
        claim = tenant.claims.get(name) if tenant is not None else None
        if tenant is not None and claim is not None:
            self._count_claim(tenant, claim, -1)
            self._drop_plans(namespace, name)
            self.release(claim.metadata.uid)

    def _count_claim(self, tenant: _Tenant, claim: GPUClaim, sign: int) -> None:
        """Enter the claim everywhere, or (-1) take it out."""
        namespace, name = key = (claim.metadata.namespace, claim.metadata.name)
        class_name, count = claim.spec.class_name, claim.spec.count
        for node in self._places(claim):
            self._inventory.hold(node, class_name, sign * count)
        if claim.status.node_name:
            self.budgets.add(namespace, class_name, sign * count)
            on_node = self._inventory.facts(claim.status.node_name).claims
            if sign > 0:
                on_node.append(claim)
            else:
                _forget_claim(on_node, claim)
        set_name = model.claim_set(claim)
        others = tuple(c for c in tenant.sets.get(set_name, ()) if c.metadata.name != name)
        if sign > 0:
            tenant.claims[name] = claim
            tenant.sets[set_name] = tuple(sorted((*others, claim), key=_name)) if others else (claim,)
            if not claim.status.node_name:
                self._unbound.add(key)
            return
        del tenant.claims[name]
        self._unbound.discard(key)
        if others:
            tenant.sets[set_name] = others
        else:
            del tenant.sets[set_name]

    def _places(self, claim: GPUClaim) -> set[str]:
        """Where the claim takes room: where it is stored, and where a planned move of it goes."""
        places = {claim.status.node_name} if claim.status.node_name else set()
        if self._pending:
            places.update(self._pending.get((claim.metadata.namespace, claim.metadata.name), {}).values())
        return places

    def has_place(self, claim: GPUClaim, node: str) -> bool:
        """Whether the stored claim takes room on the node, by its status or by a planned move."""
        return node in self._places(claim)

    # --- reservations -------------------------------------------------------------------------------------------------

    def reserve(self, order: Order, verdict: Verdict, until: dt.datetime) -> None:
        """Hold what an admitted order was given, under its UID, before its claim is stored (R40).

        It counts everywhere as a hold; so do the targets of the verdict's moves, until the moved claims are stored
        there. It is dropped when a claim with the UID comes bound, when that claim is removed, by `release`, or when
        its time runs out while no claim with the UID is stored. Reserving under the same UID again replaces it.

        Raises:
            ValueError: the verdict admits nothing.
        """
        if not verdict.admitted or verdict.node is None:
            raise ValueError("a refused order reserves nothing")
        self.release(order.uid)
        stored = self.claim(order.namespace, order.name)
        bound = stored is not None and stored.metadata.uid == order.uid and stored.status.node_name is not None
        self._reserve(Reservation(order.uid, until, None if bound else order, verdict.node, verdict.moves))

    def reserve_moves(self, token: str, moves: Iterable[Move], until: dt.datetime) -> None:
        """Keep room for planned moves alone, under a token that `release` takes; dropped when the time runs out."""
        self.release(token)
        self._reserve(Reservation(token, until, None, None, tuple(moves)))

    def _reserve(self, reservation: Reservation) -> None:
        self._revision += 1
        uid = reservation.uid
        self._reservations[uid] = reservation
        heapq.heappush(self._expiries, (reservation.until, uid))
        order = reservation.order
        if order is not None and reservation.node is not None:
            self._inventory.hold(reservation.node, order.class_name, order.count)
            self.budgets.add(order.namespace, order.class_name, order.count)
            self._tenant(order.namespace).reserved.setdefault(order.set_name, {})[uid] = reservation
        for move in reservation.moves:
            self._plan_move(uid, move, move.to_node)

    def _plan_move(self, uid: str, move: Move, to_node: str | None) -> None:
        key = (move.namespace, move.name)
        claim = self.claim(*key)
        before = self._places(claim) if claim is not None else set()
        plans = self._pending.setdefault(key, {})
        if to_node is not None:
            plans[uid] = to_node
        else:
            plans.pop(uid, None)
        if not plans:
            del self._pending[key]
        if claim is not None:
            after = self._places(claim)
            for node in after - before:
                self._inventory.hold(node, claim.spec.class_name, claim.spec.count)
            for node in before - after:
                self._inventory.hold(node, claim.spec.class_name, -claim.spec.count)

    def _drop_plans(self, namespace: str, name: str) -> None:
        """The claim is gone, and taken out: what was planned for it is not for another one that takes its name."""
        for token in self._pending.pop((namespace, name), {}):
            reservation = self._reservations[token]
            moves = tuple(move for move in reservation.moves if (move.namespace, move.name) != (namespace, name))
            left = dataclasses.replace(reservation, moves=moves)
            if left.order is None and not moves:
                del self._reservations[token]
                continue
            self._reservations[token] = left
            if left.order is not None and left.node is not None:
                self._tenant(left.order.namespace).reserved[left.order.set_name][token] = left

    def release(self, uid: str) -> None:
        """Drop the reservation under this UID; nothing happens when there is none."""
        reservation = self._reservations.pop(uid, None)
        if reservation is None:
            return
        self._revision += 1
        order = reservation.order
        if order is not None and reservation.node is not None:
            self._inventory.hold(reservation.node, order.class_name, -order.count)
            self.budgets.add(order.namespace, order.class_name, -order.count)
            reserved = self._tenants[order.namespace].reserved
            del reserved[order.set_name][uid]
            if not reserved[order.set_name]:
                del reserved[order.set_name]
        for move in reservation.moves:
            self._plan_move(uid, move, None)

    def hand_over(self, uid: str, order: Order, until: dt.datetime) -> None:
        """What is reserved under `uid` goes on under the order's own UID, until then: nothing is free in between.

        Raises:
            KeyError: nothing is reserved under `uid`.
        """
        reservation = self._reservations[uid]
        self.release(uid)
        self._reserve(Reservation(order.uid, until, order, reservation.node, reservation.moves))

    def reserve_pod(self, namespace: str, set_name: str, uid: str, until: dt.datetime) -> None:
        """An admitted pod of the set is on its way: the set counts as attached until the pod comes or time runs out."""
        self._revision += 1
        self._pod_reservations[uid] = PodReservation(uid, namespace, set_name, until)
        self._touch_set(namespace, set_name)

    def release_pod(self, uid: str) -> None:
        """The pod does not come."""
        self._drop_pod_reservation(uid)

    def _drop_pod_reservation(self, uid: str) -> None:
        reservation = self._pod_reservations.pop(uid, None) if self._pod_reservations else None
        if reservation is not None:
            self._touch_set(reservation.namespace, reservation.set_name)
            self._let_off.add((reservation.namespace, reservation.set_name))

    def let_off(self) -> set[tuple[str, str]]:
        """The sets (namespace, name) that a pod was on its way to and is no more, since the last call.

        It is there, or does not come: nothing else tells of the latter.
        """
        let_off, self._let_off = self._let_off, set()
        return let_off

    def expire(self, now: dt.datetime, *, binds: bool = True) -> None:
        """Drop the reservations whose time ran out.

        One whose claim is stored, though not bound yet, stays: the binder is about to write what it says. Where nobody
        `binds`, as in a replica that no longer leads, it goes too, and so it does where the moves that it waits for
        have not been made.
        """
        late: list[tuple[dt.datetime, str]] = []
        while self._expiries and self._expiries[0][0] <= now:
            until, uid = heapq.heappop(self._expiries)
            reservation = self._reservations.get(uid)
            if reservation is None or reservation.until != until:
                continue
            order = reservation.order
            claim = self.claim(order.namespace, order.name) if order is not None else None
            stored = claim is not None and claim.metadata.uid == uid
            if binds and stored and not self.outstanding(reservation):
                late.append((until, uid))
            else:
                self.release(uid)
        for entry in late:
            heapq.heappush(self._expiries, entry)
        for uid in [uid for uid, pod in self._pod_reservations.items() if pod.until <= now]:
            self._drop_pod_reservation(uid)

    def clock_stepped(self, step: dt.timedelta) -> None:
        """The clock was set, by `step`: what is reserved stays reserved for as long as it would have been."""
        for uid, reservation in self._reservations.items():
            self._reservations[uid] = dataclasses.replace(reservation, until=reservation.until + step)
        for uid, pod in self._pod_reservations.items():
            self._pod_reservations[uid] = dataclasses.replace(pod, until=pod.until + step)
        for tenant in self._tenants.values():
            for reserved in tenant.reserved.values():
                reserved.update({uid: self._reservations[uid] for uid in reserved})
        self._expiries = [(until + step, uid) for until, uid in self._expiries]

    # --- time and derived state ---------------------------------------------------------------------------------------

    def advance(self, now: dt.datetime) -> None:
        """Bring the books to `now`: silent nodes (R30), reservations that ran out, and what changed since last asked.

        Idempotent; a clock that was set back is followed. O(what changed).
        """
        if now < self.now:
            self._turns = sorted(r.expires_at for claim in self.claims() for r in claim.status.refusals)
        self._inventory.advance(now)
        while self._turns and self._turns[0] <= now:
            heapq.heappop(self._turns)
            self._revision += 1
        if (self._expiries and self._expiries[0][0] <= now) or self._pod_reservations:
            self.expire(now)
        self._inventory.settle()

    def _touch_set(self, namespace: str, set_name: str) -> None:
        """Whether the set may be moved has changed."""
        self._revision += 1
        for claim in self.claims_of_set(namespace, set_name):
            if claim.status.node_name:
                self._inventory.touch(claim.status.node_name)

    def _tenant(self, namespace: str) -> _Tenant:
        tenant = self._tenants.get(namespace)
        if tenant is None:
            tenant = self._tenants[namespace] = _Tenant()
        return tenant

    # --- reading ------------------------------------------------------------------------------------------------------

    def remembered(self, key: Hashable, find: Callable[[], T]) -> T:
        """What `find` gives, found once for each key as long as nothing changes; `find` must ask the books alone."""
        if self._memo_revision != self.revision:
            self._memo.clear()
            self._memo_revision = self.revision
        if key not in self._memo:
            self._memo[key] = find()
        return cast("T", self._memo[key])

    @property
    def now(self) -> dt.datetime:
        """The time that the books were last brought to."""
        return self._inventory.now

    @property
    def classes(self) -> Mapping[str, GPUClass]:
        """Every class by name."""
        return self._inventory.classes

    @property
    def nodes(self) -> Mapping[str, NodeFacts]:
        """Every node that anything is known of, up to date with all that was applied."""
        return self._inventory.nodes

    def take_changed_nodes(self) -> set[str]:
        """The nodes of which anything may have changed since this was last asked; there is one who asks."""
        return self._inventory.take_changed_nodes()

    def resource(self, class_name: str) -> str | None:
        """The class's resource name; None where there is no such class, or its source is of a kind unknown here."""
        return self._inventory.resource(class_name)

    @property
    def resources(self) -> frozenset[str]:
        """The resource names that classes offer."""
        return self._inventory.resources

    def asked(self, name: str) -> str | None:
        """The resource of a class that a pod asks for by this name (`Inventory.asked`); None where it is no class's."""
        return self._inventory.asked(name)

    @property
    def resource_names(self) -> frozenset[str]:
        """Every name by which pods ask for a resource of a class."""
        return self._inventory.resource_names

    def view(self, cls: GPUClass) -> View:
        """The nodes that take holds of the class, by what they have free."""
        return self._inventory.view(cls)

    def in_sum(self, resource: str, count: int) -> bool:
        """Whether that many are free of the resource over all nodes (`Inventory.in_sum`): O(classes)."""
        return self._inventory.in_sum(resource, count)

    @property
    def has_unbound(self) -> bool:
        """Whether any stored claim has no node: O(1)."""
        return bool(self._unbound)

    def pod(self, namespace: str, name: str) -> PodFacts | None:
        """The pod, where it is live and names a set or asks for an extended resource."""
        return self._pods.get((namespace, name))

    def split_sets(self) -> list[tuple[str, str]]:
        """The sets, as (namespace, set), whose bound claims stand on more than one node (R36a): O(all claims)."""
        return sorted(
            (namespace, name)
            for namespace, tenant in self._tenants.items()
            for name, claims in tenant.sets.items()
            if len({c.status.node_name for c in claims if c.status.node_name}) > 1
        )

    def claim(self, namespace: str, name: str) -> GPUClaim | None:
        """The stored claim."""
        return self._tenants.get(namespace, _NO_TENANT).claims.get(name)

    def claims(self, namespace: str | None = None) -> Iterator[GPUClaim]:
        """The claims of a namespace, or all; in no particular order."""
        if namespace is not None:
            yield from self._tenants.get(namespace, _NO_TENANT).claims.values()
        else:
            for tenant in self._tenants.values():
                yield from tenant.claims.values()

    def claims_of_set(self, namespace: str, set_name: str) -> tuple[GPUClaim, ...]:
        """The stored claims of the set, bound or not, by name: O(1)."""
        return self._tenants.get(namespace, _NO_TENANT).sets.get(set_name, ())

    def claims_on(self, node: str) -> list[GPUClaim]:
        """The claims that are stored as bound to the node, by namespace and name: O(n log n) of these."""
        facts = self._inventory.known(node)
        return sorted(facts.claims, key=_key) if facts is not None else []

    def unbound(self) -> list[GPUClaim]:
        """The stored claims that have no node, in the order of their creation (R38): O(n log n) of these."""
        found = [claim for key in self._unbound if (claim := self.claim(*key)) is not None]
        return sorted(found, key=lambda c: (c.metadata.creation_timestamp or _BEGINNING, *_key(c)))

    def reservation(self, uid: str) -> Reservation | None:
        """What is reserved under the UID."""
        return self._reservations.get(uid)

    def reservations(self) -> tuple[Reservation, ...]:
        """All reservations, by UID."""
        return tuple(self._reservations[uid] for uid in sorted(self._reservations))

    def reserved_of_set(self, namespace: str, set_name: str) -> tuple[Reservation, ...]:
        """Orders of the set that are admitted and not stored as bound yet, by UID."""
        reserved = self._tenants.get(namespace, _NO_TENANT).reserved.get(set_name)
        return tuple(reserved[uid] for uid in sorted(reserved)) if reserved else ()

    def in_flight(self, namespace: str, set_name: str) -> bool:
        """Whether an order or a move of the set is admitted and not stored yet: the set can not be moved meanwhile."""
        return set_name in self._tenants.get(namespace, _NO_TENANT).reserved or self.moving(namespace, set_name)

    def moving(self, namespace: str, set_name: str) -> bool:
        """Whether moves of the set are planned and not all stored: no pod of it may be pinned meanwhile."""
        return bool(self._pending) and any(
            node != claim.status.node_name
            for claim in self.claims_of_set(namespace, set_name)
            for node in self._pending.get((namespace, claim.metadata.name), {}).values()
        )

    def planning(self, namespace: str, name: str) -> list[Reservation]:
        """The reservations that plan a move of the claim of this name."""
        return [self._reservations[token] for token in self._pending.get((namespace, name), ())]

    def outstanding(self, reservation: Reservation) -> bool:
        """Whether a move that it plans is not known to be stored: the room that the move makes is not there yet."""
        return any(
            claim.status.node_name == move.from_node
            for move in reservation.moves
            if (claim := self.claim(move.namespace, move.name)) is not None
        )

    def pods_of_set(self, namespace: str, set_name: str) -> tuple[PodFacts, ...]:
        """The live pods of the set, by name."""
        pods = self._tenants.get(namespace, _NO_TENANT).pods.get(set_name)
        return tuple(pods[name] for name in sorted(pods)) if pods else ()

    def pod_reservations(self, namespace: str, set_name: str) -> tuple[PodReservation, ...]:
        """Pods of the set that are admitted and not stored yet."""
        if not self._pod_reservations:
            return ()
        mine = (p for p in self._pod_reservations.values() if (p.namespace, p.set_name) == (namespace, set_name))
        return tuple(sorted(mine, key=lambda p: p.uid))

    def attached(self, namespace: str, set_name: str) -> bool:
        """Whether the set has a live pod, or one on its way: then it is not moved (R36b)."""
        tenant = self._tenants.get(namespace, _NO_TENANT)
        return set_name in tenant.pods or bool(self.pod_reservations(namespace, set_name))

    def set_holds_on(self, node: str, namespace: str, set_name: str, without: str = "") -> dict[str, int]:
        """What the set's claims, reservations and planned moves take on the node, by resource (of known classes).

        The claim or reservation with the UID `without` is left out.
        """
        holds: dict[str, int] = {}
        tenant = self._tenants.get(namespace, _NO_TENANT)
        for claim in tenant.sets.get(set_name, ()):
            if node in self._places(claim) and not (without and claim.metadata.uid == without):
                resource = self.resource(claim.spec.class_name)
                if resource is not None:
                    holds[resource] = holds.get(resource, 0) + claim.spec.count
        for uid, reservation in tenant.reserved.get(set_name, {}).items():
            order = reservation.order
            if order is not None and reservation.node == node and uid != without:
                resource = self.resource(order.class_name)
                if resource is not None:
                    holds[resource] = holds.get(resource, 0) + order.count
        return holds

    def holds_on(self, node: str) -> dict[str, int]:
        """GPUs held on the node by resource, reservations included; those of a class that is gone under ''."""
        facts = self._inventory.known(node)
        holds: dict[str, int] = {}
        if facts is not None:
            for class_name, count in facts.held.items():
                resource = self.resource(class_name) or ""
                holds[resource] = holds.get(resource, 0) + count
        return holds

    def holds_by_node(self) -> dict[str, int]:
        """GPUs held on every node that has any, reservations included."""
        return {name: sum(f.held.values()) for name, f in sorted(self._inventory.nodes.items()) if f.held}


def pod_facts(pod: core.Pod) -> PodFacts:
    """What counts of a pod."""
    meta = pod.metadata
    try:
        requests = model.pod_requests(pod)
    except ValueError:
        # No apiserver stores a pod that asks for half a device.
        requests = {}
    counted = tuple(sorted((name, count) for name, count in requests.items() if count > 0))
    set_name = model.pod_set(meta.labels)
    # Only a claim says so, and only a set has claims: of other pods it would cost memory and look-ups.
    lacking = unscheduled.lacks(pod) if set_name is not None else None
    return PodFacts(meta.namespace, meta.name, meta.uid, set_name, pod.spec.node_name, counted, lacking)


def _forget_claim(claims: list[GPUClaim], claim: GPUClaim) -> None:
    """Take the very object out; comparing claims field by field would cost more than the search."""
    del claims[next(index for index, other in enumerate(claims) if other is claim)]


def _place(claim: GPUClaim) -> tuple[object, ...]:
    return (claim.metadata.uid, claim.status.node_name, claim.spec)


def _name(claim: GPUClaim) -> str:
    return claim.metadata.name


def _key(claim: GPUClaim) -> tuple[str, str]:
    return (claim.metadata.namespace, claim.metadata.name)
