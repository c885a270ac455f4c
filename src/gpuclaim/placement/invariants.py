"""What must hold of any books, as functions that say what does not: for tests, simulations and a doubtful operator.

Capacity may fall below what is held (a GPU dies), a quota may be lowered, a crash may split a set: `overheld`,
`over_budget` and `split_sets` then say so. In a history without such events all of them stay empty. What must survive
of a claim, from one state to the next, is in `survival`.
"""

from __future__ import annotations

import datetime as dt
from typing import Any

from gpuclaim.api import model
from gpuclaim.api.core import Status
from gpuclaim.api.reasons import ClaimCondition
from gpuclaim.placement import fit
from gpuclaim.placement.books import Books
from gpuclaim.placement.orders import Order, Verdict


def overheld(books: Books) -> list[str]:
    """Nodes on which more is held or used of a resource than there is (R39)."""
    return [
        f"{name}: {resource} is short by {-free}"
        for name, node in sorted(books.nodes.items())
        for resource, free in sorted(node.free.items())
        if free < 0
    ] + [
        f"{name}: {resource} is held and not there"
        for name, node in sorted(books.nodes.items())
        for resource in sorted(books.holds_on(name))
        if resource not in node.agent
    ]


def split_sets(books: Books) -> list[str]:
    """Sets that hold on more than one node, admitted orders included (R31)."""
    nodes: dict[tuple[str, str], set[str]] = {}
    for claim in books.claims():
        if claim.status.node_name:
            key = (claim.metadata.namespace, model.claim_set(claim))
            nodes.setdefault(key, set()).add(claim.status.node_name)
    for reservation in books.reservations():
        if reservation.order is not None and reservation.node is not None:
            nodes.setdefault((reservation.order.namespace, reservation.order.set_name), set()).add(reservation.node)
    return [f"{namespace}/{name} is on {sorted(on)}" for (namespace, name), on in sorted(nodes.items()) if len(on) > 1]


def over_budget(books: Books) -> list[str]:
    """Quota keys that are exceeded (R33)."""
    return [
        f"{limit.namespace}/{limit.quota}: {limit.key} is {limit.used} of {limit.hard}"
        for limit in books.budgets.quotas()
        if limit.used > limit.hard
    ]


def above_max_count(books: Books) -> list[str]:
    """Sets that hold more of a class than one set may (R32)."""
    held: dict[tuple[str, str, str], int] = {}
    for claim in books.claims():
        if claim.status.node_name:
            key = (claim.metadata.namespace, model.claim_set(claim), claim.spec.class_name)
            held[key] = held.get(key, 0) + claim.spec.count
    for reservation in books.reservations():
        if (order := reservation.order) is not None:
            key = (order.namespace, order.set_name, order.class_name)
            held[key] = held.get(key, 0) + order.count
    faults = []
    for (namespace, set_name, class_name), count in sorted(held.items()):
        cls = books.classes.get(class_name)
        limit = model.max_count(cls) if cls is not None else None
        if limit is not None and count > limit:
            faults.append(f"{namespace}/{set_name} holds {count} of {class_name}, at most {limit}")
    return faults


def nodeless(books: Books) -> list[str]:
    """Claims that say that they are bound, and not where."""
    return [
        f"{claim.metadata.namespace}/{claim.metadata.name} says Bound and has no node"
        for claim in books.claims()
        if claim.status.node_name is None
        and (bound := model.condition(claim.status.conditions, ClaimCondition.BOUND)) is not None
        and bound.status == Status.TRUE
    ]


def unsound(books: Books) -> list[str]:
    """All of the above: empty after any history in which no GPU broke, no quota was lowered, nothing crashed."""
    return [
        *overheld(books),
        *split_sets(books),
        *over_budget(books),
        *above_max_count(books),
        *nodeless(books),
    ]


def wrong_index(books: Books) -> list[str]:
    """Where the order of nodes by what they have free is not what the nodes say."""
    faults = []
    for cls in books.classes.values():
        view = books.view(cls)
        for buckets, which in ((view.resources, "free"), (view.loose, "loose")):
            wanted: dict[str, list[tuple[int, str]]] = {}
            for name, node in books.nodes.items():
                if node.eligible and model.untolerated(node.taints, cls.spec.tolerations) is None:
                    for resource, count in getattr(node, which).items():
                        if count > 0:
                            wanted.setdefault(resource, []).append((count, name))
            listed = {resource: found.items() for resource, found in buckets.items() if found.items()}
            if listed != {resource: sorted(entries) for resource, entries in wanted.items()}:
                faults.append(f"{cls.metadata.name}: {which} is {listed}, not {wanted}")
    return faults


def snapshot(books: Books) -> dict[str, Any]:
    """All that decides, as plain data: books of the same objects have the same, whatever order these came in."""
    return {
        "classes": sorted(books.classes),
        "nodes": {
            name: {
                "eligible": node.eligible,
                "free": dict(node.free),
                "loose": dict(node.loose),
                "held": dict(node.held),
                "foreign": dict(node.foreign),
                "claims": sorted((c.metadata.namespace, c.metadata.name) for c in node.claims),
                "pods": sorted(node.pods),
            }
            for name, node in sorted(books.nodes.items())
        },
        "used": {
            namespace: dict(sorted(account.items())) for namespace, account in sorted(books.budgets.accounts().items())
        },
        "quotas": list(books.budgets.quotas()),
        "unbound": [(c.metadata.namespace, c.metadata.name) for c in books.unbound()],
        "reservations": books.reservations(),
        "index": {
            name: (
                {r: b.items() for r, b in sorted(books.view(cls).resources.items()) if b.items()},
                {r: b.items() for r, b in sorted(books.view(cls).loose.items()) if b.items()},
            )
            for name, cls in sorted(books.classes.items())
        },
    }


def reference(books: Books, order: Order, now: dt.datetime) -> list[str]:
    """The nodes that could take the order, and its set with it, without touching others: every node tried. O(nodes).

    `decide` admits where there is one that the rules allow, and picks none but these when it makes no other moves.
    """
    books.advance(now)
    who = fit.party(books, order.namespace, order.set_name, order, now)
    if who.order_class is None:
        return []
    bound = fit.anchored(who)
    names = sorted(books.nodes) if bound is None else bound
    return [name for name in names if fit.fits(books, who, name)]


def wrong_verdict(before: Books, order: Order, verdict: Verdict, now: dt.datetime) -> list[str]:
    """What is wrong with a verdict on these books, as far as every node tried one by one can tell."""
    nodes = reference(before, order, now)
    others = [
        m
        for m in verdict.moves
        if (m.namespace, _set_of(before, m.namespace, m.name)) != (order.namespace, order.set_name)
    ]
    if verdict.admitted and not others and verdict.node not in nodes:
        return [f"{order.name} is sent to {verdict.node}, which is none of {nodes}"]
    if others and nodes:
        return [f"{order.name} moves others though {nodes} would take it"]
    capacity = verdict.reason is not None and verdict.reason.value in ("InsufficientCapacity", "SetAttached")
    if capacity and nodes:
        return [f"{order.name} is refused though {nodes} would take it"]
    return []


def _set_of(books: Books, namespace: str, name: str) -> str:
    claim = books.claim(namespace, name)
    return model.claim_set(claim) if claim is not None else name
