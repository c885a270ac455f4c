"""Room for an order by moving holds that are not attached (R35)."""

import itertools
import random

import pytest

from gpuclaim.api import core, types
from gpuclaim.placement import invariants
from gpuclaim.placement.books import Books, Settings
from gpuclaim.placement.orders import Move, Verdict
from unit.placement.build import GPU, SOON, ask, books, claim, cls, gpus, node, pod, report


def names(verdict: Verdict) -> list[str]:
    return [move.name for move in verdict.moves]


def test_the_fewest_gpus_move() -> None:
    seen = books(
        cls(),
        gpus("n-1", 4),
        gpus("n-2", 4),
        gpus("n-3", 4),
        claim("a", "n-1", 2),
        claim("b", "n-1", 1),
        claim("c", "n-2", 1),
        claim("d", "n-3", 3),
    )
    verdict = ask(seen, 4)
    assert (verdict.node, names(verdict)) == ("n-2", ["c"])
    assert verdict.moves[0].to_node == "n-1", "the tightest place that is left"


def test_a_running_set_is_never_moved_nor_one_in_flight_or_leaving() -> None:
    seen = books(cls(), gpus("n-1", 4), gpus("n-2", 4), claim("a", "n-1", 1), claim("b", "n-2", 1))
    assert ask(seen, 4).admitted
    seen.apply(pod("p", "a", "n-1"))
    assert ask(seen, 4).node == "n-2"
    seen.reserve_pod("tenant-a", "b", "uid", SOON)
    assert ask(seen, 4).reason == "InsufficientCapacity"
    seen.release_pod("uid")
    seen.reserve_moves("t", [Move("tenant-a", "b", "n-2", "n-1")], SOON)
    assert ask(seen, 4).reason == "InsufficientCapacity"
    seen.release("t")
    assert ask(seen, 4).node == "n-2"
    seen.apply(claim("b", "n-2", 1, deleted=True))
    assert ask(seen, 4).reason == "InsufficientCapacity"


def test_sets_move_whole() -> None:
    seen = books(
        cls(), gpus("n-1", 4), gpus("n-2", 4), claim("a", "n-1", 1, set_name="vm"), claim("b", "n-1", 1, set_name="vm")
    )
    seen.apply(claim("c", "n-2", 1))
    seen.apply(pod("p", "c", "n-2"))
    verdict = ask(seen, 4)
    assert (verdict.node, names(verdict)) == ("n-1", ["a", "b"])


def test_the_sets_own_claims_move_last() -> None:
    seen = books(
        cls(),
        gpus("n-1", 2),
        gpus("n-2", 4),
        gpus("n-3", 1),
        claim("own", "n-1", 2, set_name="vm"),
        claim("x", "n-2", 1),
    )
    seen.apply(claim("y", "n-3", 1))
    seen.remove(types.GPUClaim, "tenant-a", "y")
    verdict = ask(seen, 2, set_name="vm")
    assert (verdict.node, names(verdict)) == ("n-2", ["x", "own"])


def test_room_is_made_on_the_node_of_a_running_set() -> None:
    seen = books(cls(), gpus("n-1", 2), gpus("n-2", 1), claim("vm", "n-1"), pod("p", "vm", "n-1"), claim("x", "n-1"))
    verdict = ask(seen, 1, set_name="vm")
    assert (verdict.node, names(verdict)) == ("n-1", ["x"])


def test_a_further_hop_where_one_does_not_do() -> None:
    # Four must leave n-1; only n-2 could have four free, once its one goes to n-3.
    seen = books(
        cls(),
        gpus("n-1", 8),
        gpus("n-2", 4),
        gpus("n-3", 1),
        claim("four", "n-1", 4),
        claim("one", "n-2", 1),
    )
    verdict = ask(seen, 8)
    assert verdict.node == "n-1"
    assert verdict.moves == (Move("tenant-a", "one", "n-2", "n-3"), Move("tenant-a", "four", "n-1", "n-2"))


def test_tolerations_and_refusals_of_those_that_move_count() -> None:
    taint = core.Taint(key="d", effect="NoSchedule")
    toleration = types.Toleration(key="d", operator=types.TolerationOperator.EXISTS)
    seen = books(
        cls(),
        cls("tolerant", tolerations=[toleration]),
        gpus("n-1", 4),
        node("n-2", {GPU: 4}, taints=[taint]),
        report("n-2", 4),
        claim("a", "n-1", 1),
        claim("c", "n-2", 1, of="tolerant"),
    )
    verdict = ask(seen, 4)
    assert not verdict.admitted
    seen.apply(claim("a", "n-1", 1, of="tolerant"))
    assert names(ask(seen, 4)) == ["a"]
    seen.apply(claim("a", "n-1", 1, of="tolerant", refused={"n-2": SOON}))
    assert not ask(seen, 4).admitted
    assert names(ask(seen, 4, SOON)) == ["a"]


def test_the_largest_order_counts_moves_too() -> None:
    seen = books(cls(), gpus("n-1", 4), gpus("n-2", 4), claim("a", "n-1", 2), claim("b", "n-2", 2))
    refused = ask(seen, 5)
    assert next(c.message for c in refused.causes if c.reason == "LargestOrder") == "4"
    without = books(
        cls(),
        gpus("n-1", 4),
        gpus("n-2", 4),
        claim("a", "n-1", 2),
        claim("b", "n-2", 2),
        settings=Settings(repack=False),
    )
    refused = ask(without, 4)
    assert next(c.message for c in refused.causes if c.reason == "LargestOrder") == "2"


def test_nothing_is_searched_where_the_sum_does_not_do() -> None:
    seen = books(cls(), gpus("n-1", 4), gpus("n-2", 4), claim("a", "n-1", 3), claim("b", "n-2", 3))
    assert ask(seen, 3).reason == "InsufficientCapacity"
    assert not seen.in_sum(GPU, 3)


def cheapest(seen: Books, sizes: dict[str, int], count: int, *, one_hop: bool) -> int | None:
    """The fewest GPUs that must move, by trying every assignment of every hold.

    With `one_hop` all that moves comes from the node that the order goes to.
    """
    names_ = sorted(sizes)
    claims = sorted(seen.claims(), key=lambda c: c.metadata.name)
    best = None
    for assigned in itertools.product(names_, repeat=len(claims)):
        load = dict.fromkeys(names_, 0)
        for one, where in zip(claims, assigned, strict=True):
            load[where] += one.spec.count
        moved = [one for one, where in zip(claims, assigned, strict=True) if where != one.status.node_name]
        if any(seen.attached("tenant-a", one.metadata.name) for one in moved):
            continue
        targets = {n for n in names_ if load[n] + count <= sizes[n]}
        if one_hop:
            targets = {n for n in targets if all(one.status.node_name == n for one in moved)}
        if targets and all(load[n] <= sizes[n] for n in names_):
            gpus_moved = sum(one.spec.count for one in moved)
            best = gpus_moved if best is None else min(best, gpus_moved)
    return best


@pytest.mark.parametrize("seed", range(100))
def test_against_every_assignment(seed: int) -> None:
    rng = random.Random(seed)
    sizes = {f"n-{n}": rng.choice((2, 3, 4)) for n in range(3)}
    seen = books(cls(), *(gpus(name, size) for name, size in sizes.items()))
    for number in range(6):
        count = rng.choice((1, 1, 2))
        where = [n for n in sizes if seen.nodes[n].free[GPU] >= count]
        if where:
            seen.apply(claim(f"x{number}", on := rng.choice(where), count))
            if rng.random() < 0.25:
                seen.apply(pod(f"p{number}", f"x{number}", on, {GPU: count}))
    for count in (2, 3, 4):
        verdict = ask(seen, count)
        one_hop = cheapest(seen, sizes, count, one_hop=True)
        best = cheapest(seen, sizes, count, one_hop=False)
        moved = [one for m in verdict.moves if (one := seen.claim(m.namespace, m.name)) is not None]
        if one_hop is not None:
            assert sum(one.spec.count for one in moved) == one_hop
        assert verdict.admitted or best is None
        for move, one in zip(verdict.moves, moved, strict=True):
            assert seen.nodes[move.to_node].free[GPU] >= one.spec.count, "each goes into room that is free by then"
            seen.apply(claim(move.name, move.to_node, one.spec.count))
        if verdict.node is not None:
            assert seen.nodes[verdict.node].free[GPU] >= count
        assert not invariants.overheld(seen)
