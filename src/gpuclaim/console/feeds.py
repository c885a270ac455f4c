"""What a visitor may see, kept in step with the apiserver by the visitor's own watches while somebody looks."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, Generic, TypeVar, cast

import msgspec

from gpuclaim.api import core
from gpuclaim.console.views.tenant import Machine
from gpuclaim.kube import resources
from gpuclaim.kube.client import ApiError, Client, UnreachableError
from gpuclaim.kube.informer import Informer

T = TypeVar("T", bound=msgspec.Struct)

resources.TYPED.setdefault(Machine, resources.TYPED[core.VirtualMachine])
_OPTIONAL: Final = frozenset({Machine})
"""Kinds that a cluster may be without."""

IDLE_SECONDS: Final = 60.0
"""A feed that no page has asked for in this time ends; a page that is live asks every few seconds."""
MOST_FEEDS: Final = 16
"""Of one visitor; the one that was asked for longest ago makes room."""
_FIRST_SECONDS: Final = 10.0
_UNAUTHORIZED, _FORBIDDEN = 401, 403


class Feed(Generic[T]):
    """All objects of a kind, in one namespace or in all, or the reason why there are none.

    Attributes:
        cut: there are more than are kept.
    """

    def __init__(self, client: Client, type_: type[T], namespace: str, most: int, changed: Callable[[], None]) -> None:
        self.cut = False
        self.asked = 0.0
        self._most = most
        self._changed = changed
        self._objects: dict[tuple[str, str], T] = {}
        self._fault: ApiError | UnreachableError | None = None
        self._answered = asyncio.Event()
        self._informer: Informer[T] = Informer(
            client,
            type_,
            self,
            namespace=namespace,
            optional=type_ in _OPTIONAL,
            # One more than are kept tells that there are more.
            most=most + 1,
            failed=self._failed,
        )
        self._task = asyncio.create_task(self._informer.run())

    @property
    def objects(self) -> Iterable[T]:
        """What there is, in no order; what was known last where the apiserver is away."""
        return self._objects.values()

    @property
    def fault(self) -> ApiError | UnreachableError | None:
        """Why this is not what there is now; None where it is."""
        return None if self._informer.current else self._fault

    @property
    def refused(self) -> bool:
        """Whether the apiserver does not know the visitor by the token that was sent."""
        return isinstance(self.fault, ApiError) and self.fault.code == _UNAUTHORIZED

    async def first(self) -> None:
        """Returns once it is known what there is, or that it is not to be known, or after ten seconds."""
        if self._informer.synced.is_set() or self._answered.is_set():
            return
        waiting = {asyncio.ensure_future(each.wait()) for each in (self._informer.synced, self._answered)}
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED, timeout=_FIRST_SECONDS)
        finally:
            for each in waiting:
                each.cancel()
        if not self._informer.synced.is_set() and self._fault is None:
            self._fault = UnreachableError(f"the apiserver has not answered for {_FIRST_SECONDS:.0f} s")

    def changed(self, obj: T) -> None:
        """An object is new or has changed."""
        meta = cast("Any", obj).metadata
        key = (meta.namespace, meta.name)
        if key not in self._objects and len(self._objects) >= self._most:
            self.cut = True
            return
        self._objects[key] = obj
        self._changed()

    def gone(self, namespace: str, name: str) -> None:
        """An object is no more."""
        if self._objects.pop((namespace, name), None) is not None:
            self._changed()

    def _failed(self, error: ApiError | UnreachableError) -> None:
        self._fault = error
        if isinstance(error, ApiError) and error.code in {_UNAUTHORIZED, _FORBIDDEN}:
            # What was seen with a right that is gone is not shown any more.
            self._objects.clear()
        self._answered.set()
        self._changed()

    async def stop(self) -> None:
        """Ends the watch."""
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await self._task


class Feeds:
    """All feeds of one visitor, shared by the pages that they have open."""

    def __init__(self, client: Client, most: int) -> None:
        """Sets up; `most` objects are kept of each kind."""
        self._client = client
        self._most = most
        self._feeds: dict[tuple[type, str], Feed[Any]] = {}
        self._listeners: set[asyncio.Event] = set()
        self._stopping: set[asyncio.Task[None]] = set()

    async def of(self, type_: type[T], namespace: str = "") -> Feed[T]:
        """The feed of a kind, once it is known what there is."""
        key = (type_, namespace)
        feed = self._feeds.pop(key, None)
        if feed is None:
            while len(self._feeds) >= MOST_FEEDS:
                self._end(next(iter(self._feeds)))
            feed = Feed(self._client, type_, namespace, self._most, self._poke)
        self._feeds[key] = feed
        feed.asked = asyncio.get_running_loop().time()
        await feed.first()
        return cast("Feed[T]", feed)

    def drop_refused(self) -> None:
        """Ends those that the apiserver has turned away for the token they had; there is a newer one now."""
        for key in [key for key, feed in self._feeds.items() if feed.refused]:
            self._end(key)

    def sweep(self) -> None:
        """Ends what nobody looks at any more."""
        now = asyncio.get_running_loop().time()
        for key in [key for key, feed in self._feeds.items() if now - feed.asked >= IDLE_SECONDS]:
            self._end(key)

    @contextlib.contextmanager
    def listening(self) -> Iterator[asyncio.Event]:
        """An event that is set whenever something has changed, while the context is open."""
        event = asyncio.Event()
        self._listeners.add(event)
        try:
            yield event
        finally:
            self._listeners.discard(event)

    @property
    def listeners(self) -> int:
        """How many pages are live."""
        return len(self._listeners)

    def poke(self) -> None:
        """Has every live page look again."""
        self._poke()

    async def stop(self) -> None:
        """Ends all of it."""
        for key in list(self._feeds):
            self._end(key)
        await asyncio.gather(*self._stopping)

    def _end(self, key: tuple[type, str]) -> None:
        task = asyncio.ensure_future(self._feeds.pop(key).stop())
        self._stopping.add(task)
        task.add_done_callback(self._stopping.discard)

    def _poke(self) -> None:
        for event in self._listeners:
            event.set()
