"""Where a set can stand: the whole of it on one node (R31), as tight as it goes (R34), without touching others."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from dataclasses import dataclass

from gpuclaim.api import model
from gpuclaim.api.types import GPUClaim, GPUClass
from gpuclaim.placement.books import Books
from gpuclaim.placement.facts import NodeFacts
from gpuclaim.placement.orders import Move, Order


@dataclass(frozen=True, slots=True)
class Party:
    """A set as it stands, with the order that would join it (none where the set alone is to be placed).

    `members` are the bound claims but the order's own; `pinned` the nodes that admitted orders of the set are about to
    be stored on; `out` the nodes under a refusal of any of its claims; `homes` the nodes that its members stand on, the
    one with the most GPUs first; `own` where the order itself stands or is reserved already.
    """

    namespace: str
    set_name: str
    order: Order | None
    order_class: GPUClass | None
    members: tuple[GPUClaim, ...] = ()
    pinned: frozenset[str] = frozenset()
    out: frozenset[str] = frozenset()
    attached: bool = False
    has_pods: bool = False
    homes: tuple[str, ...] = ()
    own: tuple[str, ...] = ()

    @property
    def empty(self) -> bool:
        """Nothing of the set holds anything yet."""
        return not (self.members or self.pinned)

    @property
    def alone(self) -> bool:
        """Nothing but what the order asks for bears on its place."""
        return self.empty and not (self.has_pods or self.own or self.out)

    @property
    def uid(self) -> str:
        """The UID of the order, which does not count against itself."""
        return self.order.uid if self.order is not None else ""


def party(books: Books, namespace: str, set_name: str, order: Order | None, now: dt.datetime) -> Party:
    """Gather what bears on where the set may stand. O(claims of the set)."""
    cls = books.classes.get(order.class_name) if order is not None else None
    claims = books.claims_of_set(namespace, set_name)
    reserved = books.reserved_of_set(namespace, set_name)
    pods = bool(books.pods_of_set(namespace, set_name))
    if not (claims or reserved or pods):
        return Party(namespace, set_name, order, cls)
    uid = order.uid if order is not None else ""
    members = tuple(c for c in claims if c.status.node_name and not (uid and c.metadata.uid == uid))
    others = [r for r in reserved if r.uid != uid]
    own = {c.status.node_name for c in claims if uid and c.metadata.uid == uid}
    own |= {r.node for r in reserved if r.uid == uid}
    weight: dict[str, int] = {}
    for claim in members:
        weight[claim.status.node_name or ""] = weight.get(claim.status.node_name or "", 0) + claim.spec.count
    out = frozenset(r.node_name for c in claims for r in c.status.refusals if r.expires_at > now)
    return Party(
        namespace=namespace,
        set_name=set_name,
        order=order,
        order_class=cls,
        members=members,
        pinned=frozenset(r.node for r in others if r.node is not None),
        out=out,
        attached=bool(members or others or own) and books.attached(namespace, set_name),
        has_pods=pods,
        homes=tuple(sorted(weight, key=lambda node: (-weight[node], node))),
        own=tuple(sorted(node for node in own if node)),
    )


def place(books: Books, who: Party) -> str | None:
    """The node for the whole set, None where it fits nowhere as things stand (R31, R34).

    In this order: where an admitted order of it is about to be stored; where its pod is; where it stands; the best fit.
    O(log nodes) for a set of one claim; for one that must move, a step for each node that has room for the order.
    """
    if who.order_class is not None and who.empty and not (who.has_pods or who.own):
        cls, order = who.order_class, who.order
        assert order is not None
        return books.view(cls).best(model.resource_name(cls), order.count, who.out)
    return next(candidates(books, who), None)


def candidates(books: Books, who: Party) -> Iterator[str]:
    """The nodes that can take the whole set, in order of preference."""
    bound = anchored(who)
    if bound is not None:
        yield from (node for node in bound if fits(books, who, node))
        return
    first = preferred(books, who)
    yield from (node for node in first if fits(books, who, node))
    classes = classes_of(books, who)
    need = need_of(books, who)
    if classes is None or not need:
        return
    resource = model.resource_name(classes[0])
    for node in books.view(classes[0]).of(resource).ascending(need[resource]):
        if node not in first and fits(books, who, node):
            yield node


def anchored(who: Party) -> tuple[str, ...] | None:
    """The only nodes that the set may stand on, None where it is free to go.

    An order on its way to a node, and a running pod, cannot follow (R36b). Of a set that is attached and stands on
    several nodes, only the part at the pod's node may take a member.
    """
    if who.pinned:
        nodes = who.pinned if len(who.pinned) == 1 else frozenset()
        return tuple(n for n in nodes if not who.attached or all(c.status.node_name == n for c in who.members))
    if who.attached:
        stands = {*who.homes, *who.own}
        return tuple(stands) if len(stands) == 1 else ()
    return None


def preferred(books: Books, who: Party) -> tuple[str, ...]:
    """The nodes to try before the best fit: where the set, or the order itself, stands.

    Where pods of a set that holds nothing yet use GPUs counts too: an order for a running VM is best taken there.
    """
    if who.members:
        return tuple(dict.fromkeys((*who.homes, *who.own)))
    pods = books.pods_of_set(who.namespace, who.set_name)
    return tuple(dict.fromkeys((*who.own, *sorted({pod.node for pod in pods if pod.node and pod.requests}))))


def classes_of(books: Books, who: Party) -> list[GPUClass] | None:
    """The classes of the order and of all members, the order's first; None where one is not known and so stays put."""
    found = [who.order_class] if who.order_class is not None else []
    for claim in who.members:
        cls = books.classes.get(claim.spec.class_name)
        if cls is None:
            return None
        if cls not in found:
            found.append(cls)
    return found


def need_of(books: Books, who: Party) -> dict[str, int]:
    """What the order and all members need together, by resource, the order's first."""
    need: dict[str, int] = {}
    if who.order is not None and who.order_class is not None:
        need[model.resource_name(who.order_class)] = who.order.count
    for claim in who.members:
        resource = books.resource(claim.spec.class_name)
        if resource is not None:
            need[resource] = need.get(resource, 0) + claim.spec.count
    return need


def fits(books: Books, who: Party, node: str) -> bool:
    """Whether the node can take the order and all members that are not there. O(claims of the set)."""
    facts = books.nodes.get(node)
    return facts is not None and may_stand(books, who, facts) and facts.takes(growth(books, who, facts))


def largest(books: Books, who: Party) -> int:
    """The largest count of the order's class that would fit in its place, with the set as it is; 0 for none.

    O(1) for a set of one claim; else a step for each node that has more free than the best so far.
    """
    if who.order is None or who.order_class is None:
        return 0
    bound = anchored(who)
    first = preferred(books, who) if bound is None else bound
    most = max((_room(books, who, node) for node in first), default=0)
    if bound is not None or classes_of(books, who) is None:
        return most
    resource = model.resource_name(who.order_class)
    others = need_of(books, who)[resource] - who.order.count
    for free, node in books.view(who.order_class).of(resource).descending():
        if free - others <= most:
            break
        if node not in first:
            most = max(most, _room(books, who, node))
    return most


def _room(books: Books, who: Party, node: str) -> int:
    facts = books.nodes.get(node)
    assert who.order is not None
    assert who.order_class is not None
    if facts is None or not may_stand(books, who, facts):
        return 0
    resource = model.resource_name(who.order_class)
    without = growth(books, who, facts, count=0)
    if not facts.takes({name: count for name, count in without.items() if name != resource}):
        return 0
    requested = facts.requests_of(who.namespace, who.set_name).get(resource, 0) if who.has_pods else 0
    rest = books.set_holds_on(node, who.namespace, who.set_name, without=who.uid).get(resource, 0)
    rest += need_elsewhere(books, who, node).get(resource, 0)
    return max(0, requested - rest) + max(0, facts.room(resource, without))


def may_stand(books: Books, who: Party, facts: NodeFacts) -> bool:
    """Whether the node takes new holds of every class that would come to it."""
    if not facts.eligible or facts.name in who.out:
        return False
    coming = [who.order_class] if who.order_class is not None else []
    for claim in who.members:
        if claim.status.node_name != facts.name:
            cls = books.classes.get(claim.spec.class_name)
            if cls is None:
                return False
            coming.append(cls)
    return all(model.untolerated(facts.taints, cls.spec.tolerations) is None for cls in coming)


def growth(books: Books, who: Party, facts: NodeFacts, count: int | None = None) -> dict[str, int]:
    """By how much demand on the node grows when the whole set, with the order (or `count` in its place), stands there.

    Of a set with pods on the node only what goes beyond their requests is new: an order may cover what they take.
    """
    node = facts.name
    before = books.set_holds_on(node, who.namespace, who.set_name)
    after = books.set_holds_on(node, who.namespace, who.set_name, without=who.uid) if who.uid else dict(before)
    for resource, coming in need_elsewhere(books, who, node).items():
        after[resource] = after.get(resource, 0) + coming
    if who.order is not None and who.order_class is not None:
        resource = model.resource_name(who.order_class)
        after[resource] = after.get(resource, 0) + (who.order.count if count is None else count)
    requests = facts.requests_of(who.namespace, who.set_name) if who.has_pods else {}
    credit = facts.credit.get((who.namespace, who.set_name, ""), {})
    return {
        resource: max(after.get(resource, 0), requests.get(resource, 0))
        - max(before.get(resource, 0), requests.get(resource, 0))
        + credit.get(resource, 0)
        for resource in before.keys() | after.keys()
    }


def need_elsewhere(books: Books, who: Party, node: str) -> dict[str, int]:
    """What the members that take no room on the node would bring to it, by resource."""
    need: dict[str, int] = {}
    for claim in who.members:
        if not books.has_place(claim, node):
            resource = books.resource(claim.spec.class_name)
            if resource is not None:
                need[resource] = need.get(resource, 0) + claim.spec.count
    return need


def moves_to(who: Party, node: str) -> tuple[Move, ...]:
    """The moves that bring the set's members to the node, sorted."""
    return tuple(
        sorted(
            Move(c.metadata.namespace, c.metadata.name, c.status.node_name or "", node)
            for c in who.members
            if c.status.node_name != node
        )
    )
