"""Informers: what the apiserver stores of one kind, handed on as it changes.

List, then watch from there, for ever. No object is kept: the receiver keeps what it needs of each.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Callable
from typing import Any, Final, Generic, NotRequired, Protocol, TypedDict, TypeVar, cast

import msgspec
import tenacity

from gpuclaim.api.core import ObjectMeta, Struct
from gpuclaim.kube.client import ApiError, Client, UnreachableError
from gpuclaim.kube.resources import resource_of

log = logging.getLogger(__name__)

T = TypeVar("T", bound=msgspec.Struct)
T_contra = TypeVar("T_contra", contravariant=True)
_Key = tuple[str, str]
_ABSENT_SECONDS: Final = 5
_OPENS_SECONDS: Final = 1.0
"""A watch that follows another is open within this time, or changes may be missed."""
_WATCH_SECONDS: Final = 300
_BRIEF_SECONDS: Final = 3
"""Two seconds before a watch ends by itself the apiserver says in a bookmark how far it has come."""
_STRIDE: Final = 50
"""Objects of a first list handed over in one go; the next page comes in between two."""


class _Selection(TypedDict):
    """What of a kind is asked for, as the client's parameters."""

    field_selector: str
    label_selector: NotRequired[str]
    metadata_only: NotRequired[bool]


class Receiver(Protocol[T_contra]):
    """Takes changes, one at a time, in the order in which they happened."""

    def changed(self, obj: T_contra) -> None:
        """An object is new or has changed."""

    def gone(self, namespace: str, name: str) -> None:
        """An object is no more; also said before another object takes the same name."""


class _Meta(Struct, frozen=True, kw_only=True):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""


class _Named(Struct, frozen=True, kw_only=True):
    """What is read of every object, readable by this version or not."""

    metadata: _Meta


class Informer(Generic[T]):
    """Keeps a receiver in step with one kind; `synced` is set once the first list is handed over.

    Attributes:
        synced: set once the receiver has the whole kind.
        version: the resourceVersion up to which the receiver knows it.
        current: whether changes come in as they happen; not while a watch is broken and no other is open yet.
    """

    def __init__(
        self,
        client: Client,
        type_: type[T],
        receiver: Receiver[T],
        *,
        namespace: str = "",
        field_selector: str = "",
        label_selector: str = "",
        metadata_only: bool = False,
        optional: bool = False,
        most: int = 0,
        failed: Callable[[ApiError | UnreachableError], None] | None = None,
    ) -> None:
        """Sets up.

        Args:
            client: how the apiserver is asked.
            type_: the kind; `metadata` is all that is read of it where `metadata_only`.
            receiver: is told of every change.
            namespace: only objects of this namespace.
            field_selector: only objects that it selects.
            label_selector: only objects that it selects; one that no longer is selected is gone.
            metadata_only: ask for the objects' metadata alone.
            optional: the cluster may not serve the kind (now): that is as if it had no objects, and is asked again.
            most: no further pages of the kind are read once there are so many objects; 0 reads all.
            failed: told of each failure, instead of the log.
        """
        self.synced = asyncio.Event()
        self.version = ""
        self.current = False
        self._client = client
        self._type = type_
        self._resource = resource_of(type_)
        self._receiver = receiver
        self._namespace = namespace
        self._selection: _Selection = {"field_selector": field_selector}
        if label_selector:
            self._selection["label_selector"] = label_selector
        if metadata_only:
            self._selection["metadata_only"] = True
        self._optional = optional
        self._most = most
        self._failed = failed
        self._decoder = msgspec.json.Decoder(type_)
        self._peek = msgspec.json.Decoder(_Named)
        # UID and resourceVersion, in one string each: there may be a hundred thousand.
        self._known: dict[_Key, str] = {}
        self._stale = True
        self._failing = False
        self._watching: asyncio.Task[None] | None = None
        self._awaited: list[tuple[int, asyncio.Event]] = []

    async def run(self) -> None:
        """Runs until it is cancelled; what fails is tried again, soon at first, then every half minute."""
        retrying = _retrying(self._say)
        while True:
            await retrying(self._cycle)

    async def catch_up(self) -> None:
        """Returns once the receiver has all that was stored when this was called; within seconds, without a new list.

        A watch does not tell how far it has come while nothing happens; one that is about to end does.
        """
        stored: str = await _retrying(self._doubt)(self._stored)
        if not stored or self._reached(int(stored)):
            return
        awaited = (int(stored), asyncio.Event())
        self._awaited.append(awaited)
        # Of a kind that was not served until now there is no watch.
        self._stale |= not self.version
        if self._watching is not None:
            self._watching.cancel()
        try:
            await awaited[1].wait()
        finally:
            self._awaited.remove(awaited)

    async def _stored(self) -> str:
        """How far the apiserver has come with the kind; empty where it does not serve it."""
        # One name in one namespace: that is one key, also where a list is read from etcd.
        namespace = (self._namespace or "default") if self._resource.namespaced else ""
        selection: _Selection = {**self._selection, "field_selector": "metadata.name=none"}
        try:
            return (await self._client.list_raw(self._resource, namespace, **selection))[1]
        except ApiError as error:
            if not self._absent(error):
                raise
            return ""

    def _reached(self, version: int) -> bool:
        return bool(self.version) and int(self.version) >= version

    def _behind(self) -> bool:
        return not all(come.is_set() for _, come in self._awaited)

    def _come_to(self, version: str) -> None:
        self.version = version
        for wanted, come in self._awaited:
            if self._reached(wanted):
                come.set()

    async def _cycle(self) -> None:
        """A list where one is due, and the watch that follows it, to its end."""
        try:
            if self._stale:
                await self._list()
            self._watching = asyncio.create_task(self._watch())
            await self._watching
        except ApiError as error:
            if error.code not in {410, 504} and not self._absent(error):
                raise
            self._stale = True
            self._lose()
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            # It was catch_up() that ended the watch.

    def _absent(self, error: ApiError) -> bool:
        return self._optional and error.code == 404

    def _doubt(self, state: tenacity.RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        log.debug("how far the apiserver is with %s: %s; asking again", self._resource.plural, error)

    def _say(self, state: tenacity.RetryCallState) -> None:
        self._lose()
        error = state.outcome.exception() if state.outcome else None
        if self._failed is not None and isinstance(error, ApiError | UnreachableError):
            self._failed(error)
            return
        # Once for each outage: every kind has an informer, and each tries again for as long as it takes.
        log.log(
            logging.DEBUG if self._failing else logging.WARNING, "%s: %s; trying again", self._resource.plural, error
        )
        self._failing = True

    def _lose(self) -> None:
        self.current = False

    def _works(self) -> None:
        self.current = True
        if self._failing:
            log.info("%s: answered again", self._resource.plural)
            self._failing = False

    async def _list(self) -> None:
        try:
            version = await (self._list_anew() if self._known else self._list_first())
        except ApiError as error:
            if not self._absent(error):
                raise
            version = ""
            self._strike(set())
        self._stale = False
        self._works()
        self.synced.set()
        self._come_to(version)

    async def _list_first(self) -> str:
        """Hands over page by page: nobody relies on a kind before it is `synced`."""
        version = ""
        async with contextlib.aclosing(self._pages()) as pages:
            async for items, version in pages:  # noqa: B007 - the last page's is the list's
                for start in range(0, len(items), _STRIDE):
                    for item in items[start : start + _STRIDE]:
                        self._hand_over(item)
                    await asyncio.sleep(0)
        return version

    async def _list_anew(self) -> str:
        """Hands over what differs from what is known, in one go: half of it would be a state that never was."""
        version = ""
        stay: set[_Key] = set()
        differ: list[msgspec.Raw] = []
        async with contextlib.aclosing(self._pages()) as pages:
            async for items, version in pages:  # noqa: B007
                for item in items:
                    meta = self._peek.decode(item).metadata
                    key = (meta.namespace, meta.name)
                    known = self._known.get(key, "")
                    if _uid(known) == meta.uid:
                        stay.add(key)
                    if known != _mark(meta):
                        differ.append(item)
        # What is gone first: it frees what the rest may already be using.
        self._strike(stay)
        for item in differ:
            self._hand_over(item)
        return version

    def _strike(self, stay: set[_Key]) -> None:
        for key in [key for key in self._known if key not in stay]:
            self._forget(key)

    def _pages(self) -> AsyncGenerator[tuple[list[msgspec.Raw], str]]:
        return self._client.pages(self._resource, self._namespace, most=self._most, **self._selection)

    async def _watch(self) -> None:
        if not self.version:
            # The kind is not served; nothing tells when it is.
            await asyncio.sleep(_ABSENT_SECONDS)
            self._stale = True
            return
        brief = self._behind()
        late = asyncio.get_running_loop().call_later(_OPENS_SECONDS, self._lose)

        def opened() -> None:
            late.cancel()
            self._works()

        events = self._client.watch(
            self._resource,
            self._namespace,
            since=self.version,
            seconds=_BRIEF_SECONDS if brief else _WATCH_SECONDS,
            opened=opened,
            **self._selection,
        )
        try:
            async with contextlib.aclosing(events):
                async for kind, item in events:
                    if kind in {"ADDED", "MODIFIED"}:
                        version = self._hand_over(item)
                    else:
                        meta = self._peek.decode(item).metadata
                        version = meta.resource_version
                        if kind == "DELETED":
                            self._forget((meta.namespace, meta.name))
                    self._come_to(version)
        finally:
            late.cancel()
        # The apiserver that was asked may be behind the one that told how far it should be.
        self._stale |= brief and self._behind()

    def _hand_over(self, item: msgspec.Raw) -> str:
        """Gives an object to the receiver; its resourceVersion."""
        try:
            obj = self._decoder.decode(item)
        except msgspec.ValidationError as error:
            # One object that this version cannot read must not hide the others.
            unread = self._peek.decode(item).metadata
            key = (unread.namespace, unread.name)
            log.warning("%s %s/%s is left out: %s", self._resource.plural, *key, error)
            self._forget(key)
            return unread.resource_version
        meta: ObjectMeta = cast("Any", obj).metadata
        key = (meta.namespace, meta.name)
        if _uid(self._known.get(key, meta.uid)) != meta.uid:
            self._forget(key)
        self._known[key] = _mark(meta)
        self._receiver.changed(obj)
        return meta.resource_version

    def _forget(self, key: _Key) -> None:
        if self._known.pop(key, None) is not None:
            self._receiver.gone(*key)


def _retrying(say: Callable[[tenacity.RetryCallState], None]) -> tenacity.AsyncRetrying:
    return tenacity.AsyncRetrying(
        retry=tenacity.retry_if_exception_type((ApiError, UnreachableError)),
        wait=tenacity.wait_random_exponential(multiplier=0.2, max=30),
        before_sleep=say,
    )


def _mark(meta: _Meta | ObjectMeta) -> str:
    return f"{meta.uid} {meta.resource_version}"


def _uid(mark: str) -> str:
    return mark.partition(" ")[0]
