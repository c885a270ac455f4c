"""How often somebody may try: a bucket of tries for each address, that fills again with time. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_REMEMBERED: Final = 10_000


@dataclass(slots=True)
class _Bucket:
    left: float
    at: float


class Throttle:
    """At most `tries` at once, and one more each `every` seconds, for each address; a bounded number is remembered."""

    def __init__(self, tries: int, every: float) -> None:
        self._tries = float(tries)
        self._every = every
        self._buckets: dict[str, _Bucket] = {}

    def wait(self, address: str, now: float) -> float:
        """Takes one try; how many seconds to wait instead, 0 where it may go ahead."""
        bucket = self._buckets.pop(address, None) or _Bucket(self._tries, now)
        bucket.left = min(self._tries, bucket.left + max(0.0, now - bucket.at) / self._every)
        bucket.at = now
        # The one that tried last is the last to be forgotten.
        self._buckets[address] = bucket
        while len(self._buckets) > _REMEMBERED:
            del self._buckets[next(iter(self._buckets))]
        if bucket.left < 1:
            return (1 - bucket.left) * self._every
        bucket.left -= 1
        return 0.0

    def forgive(self, address: str) -> None:
        """Gives a try back: it was a good one, and only others are to be slowed down."""
        if (bucket := self._buckets.get(address)) is not None:
            bucket.left = min(self._tries, bucket.left + 1)
