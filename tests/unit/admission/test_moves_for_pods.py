"""A pod whose node turned the last one away has its set moved first; what a move may take is kept (R37, R35a)."""

from __future__ import annotations

import dataclasses
import datetime as dt

import msgspec

from gpuclaim.admission import review
from gpuclaim.admission.desk import POD_RESERVED_FOR, RESERVED_FOR, Desk, MoveError
from gpuclaim.api import core
from gpuclaim.placement.books import Books
from gpuclaim.placement.orders import Move, Order
from gpuclaim.placement.verdict import decide
from unit.placement import build
from unit.placement.build import NOW


async def _never(_namespace: str, _name: str) -> bool:
    return False


@dataclasses.dataclass
class Lossy:
    """Moves of which no answer comes."""

    tried: list[Move] = dataclasses.field(default_factory=list)

    async def __call__(self, _token: str, moves: tuple[Move, ...]) -> None:
        self.tried += moves
        raise MoveError("no answer")


def desk(books: Books, moves: Lossy) -> Desk:
    """A desk whose moves get no answer."""
    return Desk(
        books=books,
        now=lambda: NOW,
        obstacle=lambda: None,
        make_moves=moves,
        being_refused=lambda _namespace, _set: False,
        settled=_never,
        machine_order=lambda _namespace, _name: None,
        gone=_never,
    )


async def test_where_a_move_without_an_answer_may_have_gone_nothing_else_is_put() -> None:
    refused = {"a": NOW + dt.timedelta(minutes=5)}
    books = build.books(
        build.cls(), build.gpus("a", 2), build.gpus("b", 2), build.claim("vm1", "a", count=2, refused=refused)
    )
    lossy = Lossy()
    pod = msgspec.json.encode(core.wire(build.pod("launcher", "vm1", requests={build.GPU: 2})))
    request = review.Request(uid="r", namespace="tenant-a", name="launcher", object=msgspec.Raw(pod))
    answer = await desk(books, lossy).pod(request)
    assert not answer.allowed
    assert [(move.from_node, move.to_node) for move in lossy.tried] == [("a", "b")]
    # The pod will not come any more; the write may, for as long as a bind may.
    books.expire(NOW + POD_RESERVED_FOR)
    assert books.nodes["b"].free[build.GPU] == 0
    books.expire(NOW + RESERVED_FOR)
    assert books.nodes["b"].free[build.GPU] == 2


async def test_a_set_that_is_bound_meanwhile_where_its_last_pod_was_turned_away_is_looked_at_again() -> None:
    books = build.books(build.cls(), build.gpus("a", 2))
    order = build.claim("vm1", count=2)
    books.apply(order)
    books.reserve(Order.of(order), decide(books, Order.of(order), NOW), NOW + RESERVED_FOR)
    bound = False

    async def settled(_namespace: str, _set: str) -> bool:
        nonlocal bound
        books.apply(build.claim("vm1", "a", count=2))
        bound = True
        return True

    at = desk(books, Lossy())
    at.settled = settled
    # Under an earlier claim of the name a pod was turned away, and is there still; the claim does not say so yet.
    at.being_refused = lambda _namespace, _set: bound
    pod = msgspec.json.encode(core.wire(build.pod("launcher", "vm1", requests={build.GPU: 2})))
    request = review.Request(uid="r", namespace="tenant-a", name="launcher", object=msgspec.Raw(pod))
    answer = await at.pod(request)
    assert bound
    assert answer.status is not None
    assert answer.status.code == 503
    assert books.pod_reservations("tenant-a", "vm1") == ()
