"""An order sent again under its name, as by a client that got no answer: decided once, reserved once."""

from __future__ import annotations

import dataclasses
import datetime as dt

import msgspec
import pytest

from gpuclaim.admission import review
from gpuclaim.admission.desk import Desk
from gpuclaim.api import core
from gpuclaim.api.types import GPUClaim
from gpuclaim.controller.binder import Binder
from gpuclaim.placement.books import Books
from gpuclaim.placement.orders import Order
from unit.placement import build
from unit.placement.build import NOW


@dataclasses.dataclass
class Tried:
    """A desk and the binder that share books of one node with two GPUs, and a budget of two."""

    desk: Desk
    books: Books
    binder: Binder

    async def order(self, claim: GPUClaim, *, dry_run: bool = False) -> core.Outcome | None:
        """What is said to the claim's creation; None where it is let in."""
        answer = await self.desk.order(
            review.Request(
                uid="request",
                namespace=claim.metadata.namespace,
                name=claim.metadata.name,
                dry_run=dry_run,
                object=msgspec.Raw(msgspec.json.encode(core.wire(claim))),
            )
        )
        return answer.status

    def stored(self, claim: GPUClaim) -> None:
        """The watch tells of the claim."""
        self.books.apply(claim)
        self.binder.claim_changed(claim)

    def gone(self, claim: GPUClaim) -> None:
        """The watch tells that the claim is no more."""
        self.books.remove(GPUClaim, claim.metadata.namespace, claim.metadata.name)
        self.binder.claim_gone()

    @property
    def reserved(self) -> list[tuple[str, str]]:
        return [(found.uid, found.node or "") for found in self.books.reservations()]


@pytest.fixture
def tried() -> Tried:
    books = build.books(build.cls(most=2), build.gpus("a", 2), build.quota({"h200": 2}))
    binder = Binder(books, None, now=lambda: NOW, lease_left=lambda: 10.0)  # type: ignore[arg-type]
    desk = Desk(
        books=books,
        now=lambda: NOW,
        obstacle=lambda: None,
        make_moves=binder.make_moves,
        being_refused=binder.being_refused,
        settled=binder.settled,
        machine_order=lambda _namespace, _name: None,
        gone=binder.gone,
    )
    return Tried(desk, books, binder)


def order(uid: str, count: int = 2, node: str | None = None) -> GPUClaim:
    claim = build.claim("vm1", node, count=count)
    return msgspec.structs.replace(claim, metadata=msgspec.structs.replace(claim.metadata, uid=uid))


async def test_a_name_that_is_stored_is_said_to_be_taken_and_reserves_nothing(tried: Tried) -> None:
    tried.stored(order("first", node="a"))
    for again in (order("second"), order("third", count=1)):
        for dry_run in (False, True):
            said = await tried.order(again, dry_run=dry_run)
            assert said is not None
            # What the apiserver would have said, had it not asked us first; neither budget nor room is the reason.
            assert (said.code, said.reason) == (409, "AlreadyExists")
            assert said.message == 'gpuclaims.gpu.cozystack.io "vm1" already exists'
    assert tried.reserved == []


async def test_the_same_order_again_takes_over_what_the_first_was_given(tried: Tried) -> None:
    assert await tried.order(order("first")) is None
    # Its answer is lost. There is room and budget for one of the two.
    assert await tried.order(order("second"), dry_run=True) is None
    assert tried.reserved == [("first", "a")]
    assert await tried.order(order("second")) is None
    assert tried.reserved == [("second", "a")]
    assert tried.books.budgets.accounts()["tenant-a"]["h200"] == 2
    tried.stored(order("second"))
    assert tried.reserved == [("second", "a")]


async def test_whichever_of_the_tries_is_stored_has_what_was_given(tried: Tried) -> None:
    assert await tried.order(order("first")) is None
    assert await tried.order(order("second")) is None
    tried.stored(order("first"))  # it was only its answer that was lost
    assert tried.reserved == [("first", "a")]
    tried.stored(order("first", node="a"))
    assert tried.reserved == []


async def test_a_try_that_cannot_be_stored_any_more_keeps_nothing(tried: Tried) -> None:
    assert await tried.order(order("first", count=1)) is None
    tried.books.hand_over("first", Order.of(order("second", count=1)), NOW + dt.timedelta(seconds=30))
    tried.stored(order("first", count=1, node="a"))
    assert tried.reserved == []


async def test_another_order_under_the_name_is_decided_for_itself(tried: Tried) -> None:
    assert await tried.order(order("first", count=1)) is None
    assert await tried.order(order("second", count=1)) is None
    said = await tried.order(order("third", count=2))
    assert said is not None
    assert said.reason == "AboveMaxCount"
    assert tried.reserved == [("second", "a")]


async def test_a_name_that_is_just_being_given_back_is_waited_for(tried: Tried) -> None:
    old = order("first", node="a")
    leaving = msgspec.structs.replace(old, metadata=msgspec.structs.replace(old.metadata, deletion_timestamp=NOW))
    tried.stored(leaving)

    async def told_meanwhile(namespace: str, name: str) -> bool:
        tried.gone(leaving)
        return await tried.binder.gone(namespace, name)

    tried.desk.gone = told_meanwhile
    assert await tried.order(order("second")) is None
    assert tried.reserved == [("second", "a")]


async def test_a_claim_whose_pod_runs_on_is_not_waited_for(tried: Tried) -> None:
    old = order("first", node="a")
    tried.stored(msgspec.structs.replace(old, metadata=msgspec.structs.replace(old.metadata, deletion_timestamp=NOW)))
    tried.books.apply(build.pod("launcher", "vm1", "a"))
    said = await tried.order(order("second"))
    assert said is not None
    assert said.reason == "AlreadyExists"
