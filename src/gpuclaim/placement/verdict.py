"""The answer to an order (R31-R35, R42)."""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Sequence

from gpuclaim.api import model
from gpuclaim.api.types import GPUClass
from gpuclaim.placement import fit, messages, repack
from gpuclaim.placement.books import Books
from gpuclaim.placement.budget import Limit
from gpuclaim.placement.orders import Cause, Move, Order, Verdict

__all__ = ["Cause", "Move", "Order", "Verdict", "decide", "largest_order", "largest_with_moves", "place_set"]


def decide(books: Books, order: Order, now: dt.datetime) -> Verdict:
    """Take the order or refuse it; nothing is reserved. The same books and order always give the same verdict.

    An order whose UID is stored or reserved already does not count against itself. O(log nodes + quotas + claims of the
    set) where nothing has to move.
    """
    books.advance(now)
    cls = books.classes.get(order.class_name)
    if cls is None:
        return messages.unknown_class(order)
    if not _is_open(cls):
        return messages.class_closed(order)
    limits = tuple(books.budgets.limits(order.namespace, order.class_name, _own(books, order)))
    limit = model.max_count(cls)
    if limit is not None:
        held = _held_in_set(books, order)
        if held + order.count > limit:
            largest = _largest(books, order, cls, limits, now)
            return messages.above_max_count(order, limit, held, largest, limits)
    over = [bound for bound in limits if bound.left < order.count]
    if over:
        return messages.over_budget(order, over, _largest(books, order, cls, limits, now))
    who = fit.party(books, order.namespace, order.set_name, order, now)
    node = fit.place(books, who)
    if node is not None:
        return Verdict(admitted=True, node=node, moves=fit.moves_to(who, node) if who.members else ())
    if books.settings.repack and (plan := repack.plan(books, who, now)) is not None:
        return Verdict(admitted=True, node=plan.node, moves=plan.moves)
    largest = _largest(books, order, cls, limits, now)
    if who.attached:
        return messages.set_attached(order, largest, limits)
    return messages.no_capacity(order, largest, limits, in_set=not who.empty)


def place_set(
    books: Books, namespace: str, set_name: str, now: dt.datetime, avoid: frozenset[str] = frozenset()
) -> Verdict:
    """Where the set, as it is bound, should stand now: for a node that fails, drains or refuses (R36, R37).

    Admitted without moves, it stands well: on one node that would take it anew. Admitted with moves, it is to be
    brought to `node`. Refused, nothing takes it (or a running pod keeps it). Nodes in `avoid` are out.
    """
    books.advance(now)
    who = fit.party(books, namespace, set_name, None, now)
    if avoid:
        who = dataclasses.replace(who, out=who.out | avoid)
    node = fit.place(books, who)
    if node is not None:
        return Verdict(admitted=True, node=node, moves=fit.moves_to(who, node))
    return messages.nowhere(attached=who.attached)


def largest_order(books: Books, class_name: str, now: dt.datetime) -> int:
    """The largest order of the class that a tenant without budget could get on one node: O(1) (GPUClass.status)."""
    books.advance(now)
    cls = books.classes.get(class_name)
    if cls is None or cls.spec.closed:
        return 0
    free = books.view(cls).of(model.resource_name(cls)).largest()
    limit = model.max_count(cls)
    return free if limit is None else min(free, limit)


def largest_with_moves(books: Books, class_name: str, now: dt.datetime) -> int:
    """The same where holds that are off may move to make room (R35): what `decide` would take of such a tenant."""
    books.advance(now)
    cls = books.classes.get(class_name)
    if cls is None or not _is_open(cls):
        return 0
    return _largest(books, Order("", "", "", class_name, 1, ""), cls, (), now)


def _is_open(cls: GPUClass) -> bool:
    return not cls.spec.closed and cls.metadata.deletion_timestamp is None


def _own(books: Books, order: Order) -> int:
    """What is counted already under the order's own UID."""
    if not order.uid:
        return 0
    if books.reservation(order.uid) is not None:
        reserved = books.reservation(order.uid)
        return reserved.order.count if reserved is not None and reserved.order is not None else 0
    claim = books.claim(order.namespace, order.name)
    bound = claim is not None and claim.metadata.uid == order.uid and claim.status.node_name is not None
    return order.count if bound else 0


def _held_in_set(books: Books, order: Order) -> int:
    """GPUs of the order's class that the rest of its set holds (R32)."""
    held = sum(
        claim.spec.count
        for claim in books.claims_of_set(order.namespace, order.set_name)
        if claim.spec.class_name == order.class_name
        and claim.status.node_name
        and not (order.uid and claim.metadata.uid == order.uid)
    )
    return held + sum(
        r.order.count
        for r in books.reserved_of_set(order.namespace, order.set_name)
        if r.order is not None and r.order.class_name == order.class_name and r.uid != order.uid
    )


def _largest(books: Books, order: Order, cls: GPUClass, limits: Sequence[Limit], now: dt.datetime) -> int:
    """The largest order in the place of this one that would be taken now; 0 for none."""
    limit = model.max_count(cls)
    most = [bound.left for bound in limits]
    if limit is not None:
        most.append(limit - _held_in_set(books, order))
    if most and min(most) <= 0:
        return 0
    who = fit.party(books, order.namespace, order.set_name, order, now)
    fitting = fit.largest(books, who)
    if books.settings.repack and fitting < min(most, default=fitting + 1):
        fitting = repack.largest(books, who, now, fitting)
    return min((*most, fitting))
