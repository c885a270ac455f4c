"""Reservations, planned moves, and books as objects come and go (R36a, R38, R40)."""

import datetime as dt

import msgspec
import pytest

from gpuclaim.api import core, types
from gpuclaim.placement import invariants
from gpuclaim.placement.books import Books
from gpuclaim.placement.orders import Move, Verdict
from gpuclaim.placement.verdict import decide
from unit.placement.build import GPU, NOW, SOON, ask, books, claim, cls, gpus, order, pod


def reserved(into: Books, count: int = 1, until: dt.datetime = SOON, **more: str) -> Verdict:
    verdict = ask(into, count, NOW, **more)
    into.reserve(order(count, **more), verdict, until)
    return verdict


def test_a_reservation_holds_until_its_claim_is_bound() -> None:
    seen = books(cls(), gpus("n", 2))
    reserved(seen, 2)
    assert not ask(seen, 1, name="other").admitted
    assert seen.holds_by_node() == {"n": 2}
    seen.apply(claim("new", None, 2))
    assert seen.reservation("uid-tenant-a-new") is not None
    assert seen.holds_by_node() == {"n": 2}
    seen.apply(claim("new", "n", 2))
    assert seen.reservation("uid-tenant-a-new") is None
    assert seen.holds_by_node() == {"n": 2}


def test_a_reservation_ends_with_its_time_unless_its_claim_is_stored() -> None:
    seen = books(cls(), gpus("n", 2))
    reserved(seen)
    reserved(seen, name="stored")
    seen.apply(claim("stored", None))
    seen.advance(SOON - dt.timedelta(seconds=1))
    assert len(seen.reservations()) == 2
    seen.advance(SOON)
    assert [r.uid for r in seen.reservations()] == ["uid-tenant-a-stored"]
    seen.remove(types.GPUClaim, "tenant-a", "stored")
    assert seen.reservations() == ()
    assert seen.holds_by_node() == {}


def test_a_reservation_ends_with_its_time_where_nobody_binds() -> None:
    seen = books(cls(), gpus("n", 2))
    reserved(seen, name="stored")
    seen.apply(claim("stored", None))
    seen.expire(SOON - dt.timedelta(seconds=1), binds=False)
    assert len(seen.reservations()) == 1
    seen.expire(SOON, binds=False)
    assert seen.reservations() == ()
    assert seen.holds_by_node() == {}


def test_reserving_again_replaces_and_releasing_twice_is_nothing() -> None:
    seen = books(cls(), gpus("n", 2))
    reserved(seen, until=SOON)
    reserved(seen, until=SOON + dt.timedelta(minutes=1))
    assert seen.holds_by_node() == {"n": 1}
    seen.advance(SOON)
    assert seen.holds_by_node() == {"n": 1}
    seen.release("uid-tenant-a-new")
    seen.release("uid-tenant-a-new")
    assert seen.holds_by_node() == {}


def test_a_refused_order_reserves_nothing() -> None:
    seen = books(cls(), gpus("n", 2))
    with pytest.raises(ValueError, match="reserves nothing"):
        seen.reserve(order(3), ask(seen, 3), SOON)


def test_a_planned_move_takes_room_on_both_nodes_until_it_is_stored() -> None:
    seen = books(cls(), gpus("n-1", 2), gpus("n-2", 4), claim("a", "n-1", 2, set_name="vm"))
    verdict = reserved(seen, 2, set_name="vm")
    assert (verdict.node, verdict.moves) == ("n-2", (Move("tenant-a", "a", "n-1", "n-2"),))
    assert seen.holds_by_node() == {"n-1": 2, "n-2": 4}
    assert seen.budgets.used("tenant-a", "h200") == 4
    assert seen.moving("tenant-a", "vm")
    seen.apply(claim("a", "n-2", 2, set_name="vm"))
    assert seen.holds_by_node() == {"n-2": 4}
    assert not seen.moving("tenant-a", "vm")
    seen.release("uid-tenant-a-new")
    assert seen.holds_by_node() == {"n-2": 2}


def test_moves_that_fail_give_their_room_back() -> None:
    seen = books(cls(), gpus("n-1", 2), gpus("n-2", 4), claim("a", "n-1", 2))
    before = invariants.snapshot(seen)
    moves = [Move("tenant-a", "a", "n-1", "n-2")]
    seen.reserve_moves("one", moves, SOON)
    seen.reserve_moves("two", moves, SOON)
    assert seen.holds_by_node() == {"n-1": 2, "n-2": 2}
    seen.release("one")
    assert seen.holds_by_node() == {"n-1": 2, "n-2": 2}
    seen.advance(SOON)
    assert invariants.snapshot(seen) == before


@pytest.mark.parametrize("seen_going", [True, False])
def test_what_was_planned_for_a_claim_is_not_for_another_that_takes_its_name(seen_going: bool) -> None:
    seen = books(cls(), gpus("n-1", 2), gpus("n-2", 2), claim("a", "n-1", 2))
    seen.reserve_moves("token", [Move("tenant-a", "a", "n-1", "n-2")], SOON)
    if seen_going:
        seen.remove(types.GPUClaim, "tenant-a", "a")
        assert seen.holds_by_node() == {}
    other = claim("a", None, 2)
    seen.apply(msgspec.structs.replace(other, metadata=msgspec.structs.replace(other.metadata, uid="another")))
    assert seen.holds_by_node() == {}
    assert seen.set_holds_on("n-2", "tenant-a", "a") == {}
    seen.apply(claim("b", "n-2", 2))
    seen.release("token")
    assert seen.holds_by_node() == {"n-2": 2}
    assert ask(seen, 2, name="c").node == "n-1"


def test_unbound_claims_come_in_the_order_of_their_creation() -> None:
    late = NOW + dt.timedelta(seconds=1)
    seen = books(
        claim("c", created=late), claim("b"), claim("a", created=late), claim("z", namespace="a"), claim("d", "n")
    )
    assert [c.metadata.name for c in seen.unbound()] == ["z", "b", "a", "c"]
    seen.apply(claim("b", "n"))
    assert [c.metadata.name for c in seen.unbound()] == ["z", "a", "c"]


def test_sets_claims_and_pods_can_be_read() -> None:
    seen = books(
        claim("b", "n", set_name="vm"), claim("a", set_name="vm"), pod("p2", "vm"), pod("p1", "vm", requests={})
    )
    assert [c.metadata.name for c in seen.claims_of_set("tenant-a", "vm")] == ["a", "b"]
    assert [p.name for p in seen.pods_of_set("tenant-a", "vm")] == ["p1", "p2"]
    assert [c.metadata.name for c in seen.claims_on("n")] == ["b"]
    assert seen.attached("tenant-a", "vm")
    assert not seen.attached("tenant-b", "vm")
    assert {c.metadata.name for c in seen.claims()} == {c.metadata.name for c in seen.claims("tenant-a")} == {"a", "b"}


def test_a_pod_may_change_its_set_and_node() -> None:
    seen = books(cls(), gpus("n-1", 2), gpus("n-2", 2), pod("p", "a"))
    seen.apply(pod("p", "b", "n-1"))
    assert (seen.pods_of_set("tenant-a", "a"), len(seen.pods_of_set("tenant-a", "b"))) == ((), 1)
    seen.apply(pod("p", "b", "n-2"))
    assert [seen.nodes[n].free[GPU] for n in ("n-1", "n-2")] == [2, 1]


def test_a_claim_made_anew_under_its_name() -> None:
    seen = books(cls(), gpus("n", 4), claim("a", "n", 2))
    spec = types.GPUClaimSpec(class_name="h200", count=1)
    seen.apply(types.GPUClaim(metadata=core.ObjectMeta(namespace="tenant-a", name="a", uid="other"), spec=spec))
    assert seen.holds_by_node() == {}
    assert seen.budgets.used("tenant-a") == 0


def test_what_the_books_do_not_take() -> None:
    seen = Books()
    with pytest.raises(TypeError, match="no dict"):
        seen.apply({})  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="no dict"):
        seen.remove(dict, "", "x")
    for kind in (
        types.GPUClaim,
        types.GPUClass,
        types.GPUNode,
        core.Node,
        core.Pod,
        core.Namespace,
        core.ResourceQuota,
    ):
        seen.remove(kind, "none", "none")
    assert invariants.snapshot(seen) == invariants.snapshot(Books())


def test_the_revision_tells_whether_a_decision_may_have_changed() -> None:
    refused = {"n": NOW + dt.timedelta(minutes=1)}
    seen = books(cls(), gpus("n", 4), claim("a", None, 2, refused=refused))
    decide(seen, order(), NOW)
    revision = seen.revision
    decide(seen, order(), NOW)
    seen.advance(NOW + dt.timedelta(seconds=59))
    assert seen.revision == revision
    seen.advance(NOW + dt.timedelta(minutes=1))
    assert seen.revision > revision
    revision = seen.revision
    seen.advance(NOW + dt.timedelta(minutes=16))
    assert seen.revision > revision, "the node fell silent"


def test_a_dry_run_changes_nothing() -> None:
    seen = books(cls(), gpus("n", 4), claim("a", "n", 2))
    seen.advance(NOW)
    before, revision = invariants.snapshot(seen), seen.revision
    for count in (1, 2, 3, 9):
        ask(seen, count)
    assert (invariants.snapshot(seen), seen.revision) == (before, revision)
