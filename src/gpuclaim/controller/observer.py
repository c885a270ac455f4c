"""What a replica says of itself and, while it leads, of the cloud, when it is asked for its metrics (R52)."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime as dt
import itertools
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from gpuclaim.controller import gauges
from gpuclaim.controller.gauges import Census, Values
from gpuclaim.controller.telemetry import CERTIFICATE, LEADER, LOOP_LAG, QUEUE, READY, WATCH_BROKEN, Telemetry
from gpuclaim.ledger.intervals import Record
from gpuclaim.placement.books import Books

_AT_A_TIME: Final = 500
"""Claims that are counted in one go: about a millisecond. Orders are answered in between."""


@dataclasses.dataclass(kw_only=True)
class Observer:
    """Composes the page of metrics from what it may ask.

    Attributes:
        telemetry: what is counted.
        books: what is known.
        now: the present moment.
        clock: seconds that pass evenly.
        leads: whether this replica leads, and has taken over.
        ready: whether it would take an order.
        queues: how much work waits, by queue.
        current: whether changes come in, by kind.
        waiting: what the ledger does not have yet.
        tenants: whether each tenant's budget is told of.
    """

    telemetry: Telemetry
    books: Books
    now: Callable[[], dt.datetime]
    clock: Callable[[], float]
    leads: Callable[[], bool]
    ready: Callable[[], bool]
    queues: Mapping[str, Callable[[], int]]
    current: Mapping[str, Callable[[], bool]]
    waiting: Callable[[], Iterable[Record]]
    tenants: bool = False
    certificate_ends: Callable[[], dt.datetime | None] = lambda: None
    _broken: dict[str, float] = dataclasses.field(default_factory=dict)
    _lag: float = 0.0

    def looked(self, late: float) -> None:
        """Comes every second; `late` is by how many seconds too late it came."""
        self._lag = max(0.0, late)
        for kind, current in self.current.items():
            if current():
                self._broken.pop(kind, None)
            else:
                self._broken.setdefault(kind, self.clock())

    async def page(self, accept: str = "") -> tuple[bytes, str]:
        """The page and its media type. What the cloud has is said by the leader alone, so that sums are right."""
        values = self._of_replica()
        if self.leads():
            values |= await self._of_cloud()
        return self.telemetry.page(values, accept)

    def _of_replica(self) -> Values:
        ends, clock = self.certificate_ends(), self.clock()
        return {
            LEADER: {(): self.leads()},
            READY: {(): self.ready()},
            QUEUE: {(name,): depth() for name, depth in self.queues.items()},
            WATCH_BROKEN: {
                (kind,): 0.0 if current() else clock - self._broken.get(kind, clock)
                for kind, current in self.current.items()
            },
            LOOP_LAG: {(): self._lag},
            CERTIFICATE: {(): ends.timestamp()} if ends is not None else {},
        }

    async def _of_cloud(self) -> Values:
        census, claims = Census(), list(self.books.claims())
        for start in itertools.count(0, _AT_A_TIME):
            if start >= len(claims):
                break
            census.count(self.books, claims[start : start + _AT_A_TIME], self.now())
            await asyncio.sleep(0)
        books, classes = self.books, sorted(self.books.classes)
        of_classes: Values = {}
        for name in classes:
            for gauge, found in gauges.of_class(books, name, self.now()).items():
                of_classes.setdefault(gauge, {}).update(found)
            await asyncio.sleep(0)
        now = self.now()
        books.advance(now)
        return {
            **gauges.of_claims(census, classes),
            **of_classes,
            **gauges.of_nodes(books, now),
            **gauges.of_budgets(books.budgets.quotas(), books.classes, tenants=self.tenants),
            **gauges.of_reservations(books),
            **gauges.of_ledger(self.waiting(), now),
        }
