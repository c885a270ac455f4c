"""Informers: what the apiserver stores of one kind, handed on as it changes.

List, then watch from there, for ever. No object is kept: the receiver keeps what it needs of each.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Final, Generic, NotRequired, Protocol, TypedDict, TypeVar

import msgspec
import tenacity

from gpuclaim.api.core import Struct
from gpuclaim.kube.client import ApiError, Client, UnreachableError
from gpuclaim.kube.resources import resource_of

log = logging.getLogger(__name__)

T = TypeVar("T", bound=msgspec.Struct)
T_contra = TypeVar("T_contra", contravariant=True)
_Key = tuple[str, str]
_ABSENT_SECONDS: Final = 5
_OPENS_SECONDS: Final = 1.0
"""A watch that follows another is open within this time, or changes may be missed."""


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
        self._known: dict[_Key, str] = {}
        self._stale = True
        self._failing = False
        self._watching: asyncio.Task[None] | None = None
        self._listed = asyncio.Condition()
        self._started = 0
        self._finished = 0

    async def run(self) -> None:
        """Runs until it is cancelled; what fails is tried again, soon at first, then every half minute."""
        retrying = tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception_type((ApiError, UnreachableError)),
            wait=tenacity.wait_random_exponential(multiplier=0.2, max=30),
            before_sleep=self._say,
        )
        while True:
            await retrying(self._cycle)

    async def resync(self) -> None:
        """Lists anew, and returns once the receiver has all that was stored when this was called."""
        wanted = self._started + 1
        self._stale = True
        if self._watching is not None:
            self._watching.cancel()
        async with self._listed:
            await self._listed.wait_for(lambda: self._finished >= wanted)

    async def _cycle(self) -> None:
        """A list where one is due, and the watch that follows it, to its end."""
        try:
            if self._stale:
                await self._list()
            if self._stale:
                return  # resync() came while the list was under way, and wants another
            self._watching = asyncio.create_task(self._watch())
            await self._watching
        except ApiError as error:
            if error.code not in {410, 504} and not (self._optional and error.code == 404):
                raise
            self._stale = True
            self._lose()
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            # It was resync() that ended the watch.

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
        self._stale = False
        self._started += 1
        number = self._started
        try:
            items, version = await self._fetch()
        except BaseException:
            self._stale = True
            raise
        self._works()
        metas = [self._peek.decode(item).metadata for item in items]
        present = {(meta.namespace, meta.name): meta.uid for meta in metas}
        # What is gone first: it frees what the rest may already be using.
        for key in [key for key, uid in self._known.items() if present.get(key) != uid]:
            self._forget(key)
        for meta, item in zip(metas, items, strict=True):
            self._hand_over(meta, item)
        self.version = version
        self.synced.set()
        async with self._listed:
            self._finished = number
            self._listed.notify_all()

    async def _fetch(self) -> tuple[list[msgspec.Raw], str]:
        try:
            return await self._client.list_raw(self._resource, self._namespace, most=self._most, **self._selection)
        except ApiError as error:
            if not (self._optional and error.code == 404):
                raise
            return [], ""

    async def _watch(self) -> None:
        if not self.version:
            # The kind is not served; nothing tells when it is.
            await asyncio.sleep(_ABSENT_SECONDS)
            self._stale = True
            return
        late = asyncio.get_running_loop().call_later(_OPENS_SECONDS, self._lose)

        def opened() -> None:
            late.cancel()
            self._works()

        events = self._client.watch(
            self._resource, self._namespace, since=self.version, opened=opened, **self._selection
        )
        try:
            async with contextlib.aclosing(events):
                async for kind, item in events:
                    meta = self._peek.decode(item).metadata
                    if kind == "DELETED":
                        self._forget((meta.namespace, meta.name))
                    elif kind != "BOOKMARK":
                        self._hand_over(meta, item)
                    self.version = meta.resource_version
        finally:
            late.cancel()

    def _hand_over(self, meta: _Meta, item: msgspec.Raw) -> None:
        key = (meta.namespace, meta.name)
        if self._known.get(key, meta.uid) != meta.uid:
            self._forget(key)
        try:
            obj = self._decoder.decode(item)
        except msgspec.ValidationError as error:
            # One object that this version cannot read must not hide the others.
            log.warning("%s %s/%s is left out: %s", self._resource.plural, *key, error)
            self._forget(key)
            return
        self._known[key] = meta.uid
        self._receiver.changed(obj)

    def _forget(self, key: _Key) -> None:
        if self._known.pop(key, None) is not None:
            self._receiver.gone(*key)
