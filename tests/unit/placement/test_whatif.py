"""What is supposed of a state: nodes that come, GPUs that fail, a node that is emptied (R36, R74)."""

from __future__ import annotations

import pytest

from gpuclaim.placement import invariants, whatif
from gpuclaim.placement.books import Known
from gpuclaim.placement.scenario import NewOrder, Scenario, Simulation, Step
from gpuclaim.placement.whatif import WhatIfError
from unit.placement.build import GPU, NOW, claim, cls, device, gpus, node, pod, report


def simulation(*objects: Known | list[Known]) -> Simulation:
    flat = [each for obj in objects for each in (obj if isinstance(obj, list) else [obj])]
    return Simulation(Scenario(now=NOW, state=[(obj, 0, "") for obj in flat]))


def held(state: Simulation) -> dict[str, int]:
    return {name: count for name, count in state.books.holds_by_node().items() if count}


def order(state: Simulation, count: int, name: str = "o") -> str | None:
    found: str | None = state.step(Step(NewOrder("t", name, "h200", count)))["node"]
    return found


def test_more_nodes_take_what_did_not_fit() -> None:
    state = simulation(cls(), gpus("n-1", 4), claim("a", "n-1", 3), pod("p", "a", "n-1"))
    assert order(state, 4) is None
    assert whatif.add(state, "n-1", 2) == ["n-1-new-1", "n-1-new-2"]
    # They are empty, whatever the one that they are like holds.
    assert order(state, 4) in ("n-1-new-1", "n-1-new-2")
    assert order(state, 4, "o-2") in ("n-1-new-1", "n-1-new-2")
    assert order(state, 4, "o-3") is None
    with pytest.raises(WhatIfError, match="there is a node n-1-new-1 already"):
        whatif.add(state, "n-1", 1)


def test_what_waited_is_bound_when_nodes_come() -> None:
    state = simulation(cls(), gpus("n-1", 2), claim("a", None, 2), claim("b", None, 2))
    assert held(state) == {"n-1": 2}
    whatif.add(state, "n-1", 1)
    assert held(state) == {"n-1": 2, "n-1-new-1": 2}


@pytest.mark.parametrize("state", [simulation(), simulation(node("n-1"))], ids=["none", "no agent"])
def test_a_node_that_nothing_is_known_of_cannot_be_copied(state: Simulation) -> None:
    with pytest.raises(WhatIfError, match="n-1"):
        whatif.add(state, "n-1", 1)


def test_a_gpu_that_nobody_needs_moves_nothing() -> None:
    state = simulation(cls(), gpus("n-1", 4), claim("a", "n-1", 3))
    name, loss = whatif.lose(state, device(0).address)
    assert (name, loss.leaving, loss.short) == ("n-1", (), 0)
    assert whatif.largest(state) == {"h200": 0}


def test_holds_leave_a_node_that_is_short_of_gpus_the_fewest_first() -> None:
    state = simulation(
        cls(), gpus("n-1", 4), gpus("n-2", 4), claim("big", "n-1", 3), claim("small", "n-1", 1), claim("x", "n-2", 2)
    )
    _, loss = whatif.lose(state, device(1).address, "n-1")
    assert [(each.set_name, each.gpus, each.verdict.node) for each in loss.leaving] == [("small", 1, "n-2")]
    assert (loss.short, held(state)) == (0, {"n-1": 3, "n-2": 3})
    assert invariants.overheld(state.books) == []


def test_a_running_vm_keeps_what_is_not_there_any_more() -> None:
    state = simulation(cls(), gpus("n-1", 2), gpus("n-2", 2), claim("a", "n-1", 2), pod("p", "a", "n-1"))
    _, loss = whatif.lose(state, device(0).address, "n-1")
    assert (loss.leaving, loss.short, held(state)) == ((), 1, {"n-1": 2})


def test_a_set_that_finds_no_room_stays_and_says_so() -> None:
    state = simulation(cls(), gpus("n-1", 2), gpus("n-2", 1), claim("a", "n-1", 2))
    _, loss = whatif.lose(state, device(0).address, "n-1")
    assert [(each.set_name, each.verdict.node, str(each.verdict.reason)) for each in loss.leaving] == [
        ("a", None, "InsufficientCapacity")
    ]
    assert loss.short == 1


def test_a_gpu_fails_once() -> None:
    state = simulation(cls(), gpus("n-1", 3))
    for _ in range(2):
        whatif.lose(state, device(0).address, "n-1")
        assert whatif.largest(state) == {"h200": 2}


def test_which_gpu_is_meant() -> None:
    state = simulation(cls(), gpus("n-1", 2), gpus("n-2", 2))
    with pytest.raises(WhatIfError, match="nodes n-1, n-2 have a GPU"):
        whatif.lose(state, device(0).address)
    with pytest.raises(WhatIfError, match="no node has a GPU 0000:ff"):
        whatif.lose(state, "0000:ff:00.0")
    with pytest.raises(WhatIfError, match="node n-3 has no GPU"):
        whatif.lose(state, device(0).address, "n-3")


def test_an_mdev_parent_takes_all_its_devices_along() -> None:
    parent = device(0, (GPU, 4, 0))
    state = simulation(cls(), node("n-1", {GPU: 5}), report("n-1", [parent, device(1, (GPU, 1, 0))]))
    assert whatif.largest(state) == {"h200": 5}
    whatif.lose(state, parent.address)
    assert whatif.largest(state) == {"h200": 1}


def test_an_emptied_node_takes_nothing_more() -> None:
    state = simulation(
        cls(), gpus("n-1", 4), gpus("n-2", 4), claim("a", "n-1", 2), claim("b", "n-1", 1), pod("p", "b", "n-1")
    )
    found = whatif.drain(state, "n-1")
    assert [(each.set_name, each.verdict.node) for each in found] == [("a", "n-2"), ("b", None)]
    assert held(state) == {"n-1": 1, "n-2": 2}
    assert whatif.largest(state) == {"h200": 2}
    with pytest.raises(WhatIfError, match="there is no node nope"):
        whatif.drain(state, "nope")


def test_the_largest_order_counts_moves_and_obeys_the_class() -> None:
    state = simulation(
        cls(),
        cls("few", most=2),
        cls("none", closed=True),
        gpus("n-1", 4),
        gpus("n-2", 4),
        claim("a", "n-1", 1),
        claim("b", "n-2", 1),
    )
    found = whatif.largest(state)
    assert found == {"few": 2, "h200": 4, "none": 0}
    # It is the answer that admission gives.
    assert order(state, 4) is not None
    assert held(state) in ({"n-1": 4, "n-2": 2}, {"n-1": 2, "n-2": 4})
