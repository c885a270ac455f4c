from __future__ import annotations

from gpuclaim.console import throttle
from gpuclaim.console.throttle import Throttle


def test_so_many_tries_at_once_and_then_one_at_a_time() -> None:
    tries = Throttle(3, 10)
    assert [tries.wait("a", 0) for _ in range(4)] == [0, 0, 0, 10]
    assert tries.wait("b", 0) == 0, "another address has tries of its own"
    assert tries.wait("a", 4) == 6
    assert tries.wait("a", 10) == 0
    assert tries.wait("a", 10) == 10
    assert [tries.wait("a", 1000) for _ in range(4)] == [0, 0, 0, 10], "never more than at first"


def test_a_good_try_costs_nothing() -> None:
    tries = Throttle(2, 10)
    for _ in range(20):
        assert tries.wait("a", 0) == 0
        tries.forgive("a")
    assert [tries.wait("a", 0) for _ in range(3)] == [0, 0, 10]
    tries.forgive("never seen")


def test_a_clock_that_stands_or_steps_back_gives_no_tries() -> None:
    tries = Throttle(1, 10)
    assert [tries.wait("a", 100), tries.wait("a", 50), tries.wait("a", 50)] == [0, 10, 10]


def test_a_flood_of_addresses_does_not_fill_the_memory() -> None:
    tries = Throttle(1, 10)
    for number in range(throttle._REMEMBERED + 5):
        tries.wait(str(number), 0)
    assert len(tries._buckets) == throttle._REMEMBERED
    assert tries.wait(str(throttle._REMEMBERED), 0) == 10, "the last are remembered"
