"""What waits for a time waits as long as before when the clock is set."""

from __future__ import annotations

import datetime as dt

from gpuclaim.placement.evacuation import Watch

from . import build

HOUR = dt.timedelta(hours=1)


def test_what_is_reserved_stays_so_for_as_long_as_it_would_have_been() -> None:
    books = build.books(build.cls(), build.gpus("one", 1))
    order = build.order()
    books.reserve(order, build.ask(books), build.SOON)
    books.reserve_pod("tenant-a", "vm", "pod", build.SOON)
    for step in (HOUR, -HOUR, -HOUR):
        books.clock_stepped(step)
    books.advance(build.SOON - 2 * HOUR)
    books.clock_stepped(HOUR)
    books.advance(build.SOON - dt.timedelta(seconds=1))
    assert books.reserved_of_set("tenant-a", "new") == books.reservations() != ()
    assert books.attached("tenant-a", "vm")
    books.advance(build.SOON)
    assert books.reservations() == ()
    assert not books.attached("tenant-a", "vm")


def test_a_step_neither_ends_nor_extends_the_grace_of_a_node() -> None:
    books = build.books(build.cls(), build.gpus("one", 1), build.claim("a", "one"))
    books.apply(build.node("one", {build.GPU: 1}, ready=False))
    watch = Watch(dt.timedelta(minutes=1))
    assert watch.leaving(books, build.NOW) == []
    watch.clock_stepped(HOUR)
    assert watch.leaving(books, build.NOW + HOUR) == []
    watch.clock_stepped(-HOUR)
    assert [each.node for each in watch.leaving(books, build.NOW + dt.timedelta(minutes=1))] == ["one"]
