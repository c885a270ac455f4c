"""A queue of keys to look at: a key is queued once however often it is named, and never worked on twice at a time.

The rules are those of k8s.io/client-go/util/workqueue.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Hashable
from typing import Final, Generic, TypeVar

K = TypeVar("K", bound=Hashable)

log = logging.getLogger(__name__)

_FIRST_PAUSE: Final = 0.05
_LONGEST_PAUSE: Final = 30.0
_PUZZLING: Final = 4
"""After so many failures of one key its traceback is logged, once."""


class WorkQueue(Generic[K]):
    """Keys on their way to a handler. A handler that raises has its key back after a pause that doubles."""

    def __init__(self) -> None:
        self._ready: asyncio.Queue[K] = asyncio.Queue()
        self._queued: set[K] = set()
        self._working: set[K] = set()
        self._again: set[K] = set()
        self._failures: dict[K, int] = {}

    def __len__(self) -> int:
        """How many keys wait or are worked on."""
        return len(self._queued) + len(self._working)

    def add(self, key: K) -> None:
        """Have the key looked at, after what is being done for it now."""
        if key in self._working:
            self._again.add(key)
        elif key not in self._queued:
            self._queued.add(key)
            self._ready.put_nowait(key)

    async def work(self, handler: Callable[[K], Awaitable[None]], workers: int) -> None:
        """Hands keys to `handler`, up to `workers` at a time, until cancelled.

        Args:
            handler: does the work of one key; a key that it raises on comes back after a pause.
            workers: how many keys at once.
        """
        async with asyncio.TaskGroup() as group:
            for _ in range(workers):
                group.create_task(self._worker(handler))

    async def _worker(self, handler: Callable[[K], Awaitable[None]]) -> None:
        while True:
            key = await self._ready.get()
            self._queued.discard(key)
            self._working.add(key)
            try:
                await handler(key)
                self._failures.pop(key, None)
            except Exception as error:
                failures = self._failures[key] = self._failures.get(key, 0) + 1
                pause = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2 ** min(failures - 1, 16))
                level = logging.DEBUG if failures == 1 else logging.WARNING
                log.log(level, "%s: %s; again in %.2g s", key, repr(error), pause, exc_info=failures == _PUZZLING)
                asyncio.get_running_loop().call_later(pause, self.add, key)
            finally:
                self._working.discard(key)
                if key in self._again:
                    self._again.discard(key)
                    self.add(key)
