"""R36: which sets have to leave their node, and when."""

from __future__ import annotations

import datetime as dt

from gpuclaim.placement.evacuation import Leaving, Watch

from . import build
from .build import NOW

MINUTE = dt.timedelta(minutes=1)


def test_a_node_has_a_minute_and_a_node_that_is_well_again_starts_anew() -> None:
    watch = Watch(MINUTE)
    books = build.books([build.cls(), build.node("n"), build.gpus("n", 4)[1], build.claim("a", on="n")])
    assert watch.leaving(books, NOW) == []
    books.apply(build.node("n", ready=False))
    assert watch.leaving(books, NOW) == []
    assert watch.leaving(books, NOW + MINUTE / 2) == []
    books.apply(build.node("n"))
    assert watch.leaving(books, NOW + MINUTE) == []
    books.apply(build.node("n", unschedulable=True))
    assert watch.leaving(books, NOW + 2 * MINUTE) == []
    assert watch.leaving(books, NOW + 3 * MINUTE) == [Leaving("tenant-a", "a", "n", 1)]


def test_of_a_node_that_lacks_some_the_smallest_set_that_is_enough() -> None:
    holds = [build.claim(name, on="n", count=count) for name, count in (("one", 1), ("two", 2), ("three", 3))]
    well = build.books([build.cls(), build.node("n", {build.GPU: 6}), build.gpus("n", 6)[1]], holds)
    assert Watch(0 * MINUTE).leaving(well, NOW) == []
    for left, leaves in ((5, "one"), (4, "two"), (3, "three"), (1, "three")):
        books = build.books([build.cls(), build.node("n", {build.GPU: left}), build.gpus("n", 6)[1]], holds)
        assert [each.set_name for each in Watch(0 * MINUTE).leaving(books, NOW)] == [leaves]


def test_a_running_vm_stays() -> None:
    books = build.books(
        [build.cls(), build.node("n", ready=False), build.gpus("n", 4)[1], build.claim("a", on="n")],
        [build.pod("p", set_name="a", on="n")],
    )
    assert Watch(0 * MINUTE).leaving(books, NOW) == []
