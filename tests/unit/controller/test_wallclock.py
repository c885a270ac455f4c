"""A clock that is set is noticed."""

from __future__ import annotations

import datetime as dt

from gpuclaim.controller.wallclock import WallClock

HOUR = dt.timedelta(hours=1)


def test_a_step_is_told_before_the_time_is_and_slewing_is_none() -> None:
    wall, even, steps = dt.datetime(2026, 12, 1, 12, tzinfo=dt.UTC), 0.0, list[dt.timedelta]()
    clock = WallClock(lambda: wall, lambda: even, steps.append)
    wall, even = wall + dt.timedelta(seconds=100.04), 100.0
    assert clock() == wall
    assert steps == []
    wall, even = wall + HOUR, even + 1
    assert clock() == wall
    wall, even = wall - HOUR, even + 1
    clock()
    assert steps == [HOUR - dt.timedelta(seconds=1), -HOUR - dt.timedelta(seconds=1)]
