"""The machine's clock, watched for being set."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Final

_STEP: Final = dt.timedelta(seconds=0.5)
"""A clock that is slewed, not set, differs by less between two looks: NTP takes half a millisecond a second."""


class WallClock:
    """Tells the time, and before it tells one from after a step, by how much the clock was set."""

    def __init__(
        self, now: Callable[[], dt.datetime], clock: Callable[[], float], stepped: Callable[[dt.timedelta], None]
    ) -> None:
        """Sets up.

        Args:
            now: the clock that may be set.
            clock: seconds that pass evenly, whatever is set.
            stepped: is told of each step; positive where the clock was put forward.
        """
        self._now = now
        self._clock = clock
        self._stepped = stepped
        self._last = (now(), clock())

    def __call__(self) -> dt.datetime:
        """The present moment."""
        now, clock = self._now(), self._clock()
        step = (now - self._last[0]) - dt.timedelta(seconds=clock - self._last[1])
        self._last = (now, clock)
        if abs(step) > _STEP:
            self._stepped(step)
        return now
