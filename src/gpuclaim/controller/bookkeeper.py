"""Brings what claims keep for the ledger into it (R50). The claims wait; orders do not."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import Final, Protocol, TypeAlias

import tenacity

from gpuclaim.api.types import GPUClaim
from gpuclaim.ledger import intervals
from gpuclaim.ledger.errors import LedgerError
from gpuclaim.ledger.intervals import Record

log = logging.getLogger(__name__)

Key: TypeAlias = tuple[str, str]

_BATCH: Final = 500
_LONGEST_PAUSE: Final = 30.0


class Store(Protocol):
    """What it needs of a `ledger.store.Ledger`; the calls may block, and are made in a thread."""

    def migrate(self) -> None:
        """Brings the schema up to date."""

    def record(self, records: list[Record]) -> None:
        """Has the records in the ledger, once however often it is asked."""

    def close(self) -> None:
        """Closes the connections that it keeps; the next call opens new ones."""


class Bookkeeper:
    """Records intervals that have ended, and knows which it has recorded until their claim says so too.

    Nothing of it has to survive: what a claim's status keeps is recorded again by the next leader, and that changes
    nothing.
    """

    def __init__(self, store: Store, *, longest_pause: float = _LONGEST_PAUSE) -> None:
        """Sets up.

        Args:
            store: the ledger.
            longest_pause: seconds between two tries while it is away, at most.
        """
        self._store = store
        self._longest_pause = longest_pause
        self._todo: dict[Key, list[Record]] = {}
        self._done: dict[Key, set[Record]] = {}
        self._under_way: dict[Key, list[Record]] = {}
        self._work = asyncio.Event()
        self.tell: Callable[[Key], None] = lambda _key: None
        """Hears of claims whose records the ledger has now."""

    def offer(self, claim: GPUClaim) -> None:
        """Takes what the claim keeps for the ledger; any number of times."""
        key = (claim.metadata.namespace, claim.metadata.name)
        waiting = intervals.unrecorded(claim)
        done = self._done.get(key, set()).intersection(waiting)
        if done:
            self._done[key] = done
        else:
            self._done.pop(key, None)
        todo = [record for record in waiting if record not in done]
        if todo:
            self._todo[key] = todo
            self._work.set()
        else:
            self._todo.pop(key, None)

    def forget(self, namespace: str, name: str) -> None:
        """The claim is gone."""
        self._done.pop((namespace, name), None)

    def recorded(self, claim: GPUClaim) -> set[Record]:
        """What the ledger has of the claim that the claim still keeps."""
        return self._done.get((claim.metadata.namespace, claim.metadata.name), set())

    def settled(self, claim: GPUClaim) -> bool:
        """Whether the ledger has all that the claim keeps for it."""
        done = self.recorded(claim)
        return all(record in done for record in intervals.unrecorded(claim))

    def waiting(self) -> Iterator[Record]:
        """What the ledger does not have yet, in no particular order."""
        for found in (*self._under_way.values(), *self._todo.values()):
            yield from found

    async def run(self) -> None:
        """Records until cancelled; while the ledger is away it tries again and again."""
        trying = tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception_type(LedgerError),
            wait=tenacity.wait_random_exponential(multiplier=0.5, max=self._longest_pause),
            before_sleep=_say_that_it_waits,
        )
        try:
            await self._work_off(trying)
        finally:
            self._under_way = {}
            self._store.close()

    async def _work_off(self, trying: tenacity.AsyncRetrying) -> None:
        await trying(asyncio.to_thread, self._store.migrate)
        while True:
            await self._work.wait()
            batch = self._under_way = {key: self._todo.pop(key) for key in list(self._todo)[:_BATCH]}
            if not batch:
                self._work.clear()
                continue
            await trying(
                asyncio.to_thread, self._store.record, [record for found in batch.values() for record in found]
            )
            for key, found in batch.items():
                self._done.setdefault(key, set()).update(found)
                self.tell(key)
            self._under_way = {}


def _say_that_it_waits(state: tenacity.RetryCallState) -> None:
    error = state.outcome.exception() if state.outcome is not None else None
    log.warning("the ledger is away, records wait in their claims: %s", error)
