"""The models that `make bench` compares with: what they must do for the comparison to be fair."""

import pytest
from bench.openb import ByFree, Gpuclaim, Node, Run, Scheduler, Task, room_exists


@pytest.mark.parametrize(
    ("nodes", "orders", "fit"),
    [
        ({8: 1}, {4: 1, 2: 1, 1: 2}, True),
        ({8: 1}, {4: 1, 2: 1, 1: 3}, False),
        ({4: 2}, {8: 1}, False),
        ({8: 2, 2: 1}, {4: 4, 2: 1}, True),
        ({8: 1, 4: 1}, {4: 3, 1: 1}, False),
        ({8: 3}, {8: 1, 2: 8}, True),
        ({1: 3, 2: 1}, {1: 5}, True),
        ({}, {1: 1}, False),
    ],
)
def test_room_exists_in_some_arrangement(nodes: dict[int, int], orders: dict[int, int], fit: bool) -> None:
    assert room_exists(nodes, orders) is fit


def _nodes(*gpus: int) -> list[Node]:
    return [Node(f"n{number}", 8000, 8000, each) for number, each in enumerate(gpus)]


def _task(gpus: int) -> Task:
    return Task(cpu=1000, memory=1000, gpus=gpus)


def test_worst_fit_spreads_and_so_refuses_what_best_fit_takes() -> None:
    nodes = _nodes(8, 8)
    stream = [_task(1), _task(1), _task(8)]
    worst = Run(nodes, ByFree(nodes, best=False)).play(stream, ends=0, seed=1)
    best = Run(nodes, ByFree(nodes, best=True)).play(stream, ends=0, seed=1)
    assert (worst.fits_sum, worst.needless, worst.refused) == (2 / 16, 2 / 16, 1)
    assert (best.fits_sum, best.refused, best.final) == (None, 0, 10 / 16)


def test_the_model_of_the_scheduler_spreads_by_cpu_and_memory() -> None:
    nodes = _nodes(8, 8)
    outcome = Run(nodes, Scheduler(nodes)).play([_task(1), _task(1), _task(8)], ends=0, seed=1)
    assert outcome.needless == 2 / 16


def test_a_refusal_that_no_arrangement_helps_is_not_needless() -> None:
    nodes = _nodes(4, 4)
    outcome = Run(nodes, ByFree(nodes, best=True)).play([_task(8)], ends=0, seed=1)
    assert (outcome.fits_sum, outcome.needless) == (0, None)


def test_repacking_takes_what_holds_that_ended_left_in_pieces() -> None:
    nodes = _nodes(2, 2)
    for repack, refused in ((True, False), (False, True)):
        policy = Gpuclaim(nodes, repack=repack)
        assert all(policy.take(number, _task(1)) for number in range(4))
        policy.end(0)
        policy.end(2)
        assert policy.take(4, _task(2)) is not refused


def test_a_running_vm_is_not_moved_in_the_model_either() -> None:
    nodes = _nodes(2, 2)
    policy = Gpuclaim(nodes, repack=True, running=1.0)
    assert all(policy.take(number, _task(1)) for number in range(4))
    policy.end(0)
    policy.end(2)
    assert not policy.take(4, _task(2))
