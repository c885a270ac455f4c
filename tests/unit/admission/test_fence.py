"""R39: as whom a leader writes is what the apiserver makes of its Lease's acquireTime."""

from __future__ import annotations

import datetime as dt

import pytest

from gpuclaim.admission import fence

BERLIN = dt.timezone(dt.timedelta(hours=1))


@pytest.mark.parametrize(
    ("acquired", "written"),
    [
        (dt.datetime(2026, 12, 1, 12, 0, 0, 120000, tzinfo=dt.UTC), "2026-12-01T12:00:00.120000Z"),
        (dt.datetime(2026, 12, 1, 12, 0, 0, 1, tzinfo=dt.UTC), "2026-12-01T12:00:00.000001Z"),
        (dt.datetime(2026, 12, 1, 0, 30, 0, 5, tzinfo=BERLIN), "2026-11-30T23:30:00.000005Z"),
    ],
)
def test_the_moment_is_written_as_the_apiserver_writes_it(acquired: dt.datetime, written: str) -> None:
    assert fence.manager(acquired) == f"gpuclaim-leader@{written}"
    assert len(fence.manager(acquired)) <= 128  # the most that a fieldManager may have
