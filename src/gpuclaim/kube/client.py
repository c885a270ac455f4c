"""The apiserver over HTTP: typed objects in and out, one connection pool.

On aiohttp, which costs a tenth of the CPU per request of the clients built on httpx (docs/why/dependencies.md).
"""

from __future__ import annotations

import asyncio
import builtins
import contextlib
import enum
import ssl
from collections.abc import AsyncGenerator, Callable, Mapping
from types import TracebackType
from typing import Any, Final, Self, TypeVar, cast

import aiohttp
import msgspec
import tenacity

from gpuclaim import __version__
from gpuclaim.api.core import ObjectMeta, Outcome, Struct, wire
from gpuclaim.kube.config import Config
from gpuclaim.kube.resources import Resource, from_discovery, resource_of

T = TypeVar("T", bound=msgspec.Struct)
Body = bytes | Mapping[str, Any] | msgspec.Struct | list[Any]

_TIMEOUT: Final = aiohttp.ClientTimeout(total=30, sock_connect=10)
# A bookmark comes every minute or so: a watch that says nothing for this long is dead.
_WATCH_SILENCE_SECONDS: Final = 150
_RETRIES: Final = 5
_GOODBYE_SECONDS: Final = 0.1
_JSON: Final = "application/json"
_METADATA: Final = "application/json;as={};g=meta.k8s.io;v=v1"


class Content(enum.StrEnum):
    """What a patch's body is."""

    MERGE = "application/merge-patch+json"
    JSON = "application/json-patch+json"
    APPLY = "application/apply-patch+yaml"


class ApiError(Exception):
    """The apiserver refused a request; `status` is its answer."""

    def __init__(self, status: Outcome) -> None:
        super().__init__(status.message or f"HTTP {status.code}")
        self.status = status

    @property
    def code(self) -> int:
        """The HTTP status."""
        return self.status.code

    @property
    def reason(self) -> str:
        """The machine-readable reason, such as NotFound or Conflict."""
        return self.status.reason


class UnreachableError(Exception):
    """No answer came; whether a write happened is not known."""


class ListMeta(Struct, frozen=True, kw_only=True):
    """metav1.ListMeta."""

    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")


class _RawList(Struct, frozen=True, kw_only=True):
    metadata: ListMeta = ListMeta()
    items: list[msgspec.Raw] | None = None  # a PartialObjectMetadataList of nothing says null


class _RawEvent(Struct, frozen=True, kw_only=True):
    type: str
    object: msgspec.Raw


def _retry_after(error: BaseException) -> bool:
    if not isinstance(error, ApiError) or error.code not in {429, 503}:
        return False
    # Only where the apiserver itself asks for another try: then nothing was done.
    return error.status.details is not None and error.status.details.retry_after_seconds > 0


def _asked_wait(state: tenacity.RetryCallState) -> float:
    error = state.outcome.exception() if state.outcome else None
    details = error.status.details if isinstance(error, ApiError) else None
    return float(details.retry_after_seconds) if details else 1.0


def pool() -> aiohttp.TCPConnector:
    """Connections that clients may share; close it when they are."""
    return aiohttp.TCPConnector(limit=0, keepalive_timeout=60)


class Client:
    """One identity's view of one apiserver; an async context manager."""

    def __init__(self, config: Config, connector: aiohttp.TCPConnector | None = None) -> None:
        """Sets up; `connector` is a pool that several clients share, closed by whoever made it.

        Who we are goes with each request (a token) or with the TLS context (a certificate), and a connection is only
        used again under the same context: clients that share a pool never act as each other.
        """
        self.config = config
        self._tls: ssl.SSLContext | bool = config.tls if config.tls is not None else True
        self._shared = connector
        self._encoder = msgspec.json.Encoder()
        self._decoders: dict[type, msgspec.json.Decoder[Any]] = {}
        self._discovered: dict[tuple[str, str], Resource] = {}
        self._session: aiohttp.ClientSession | None = None
        self._cut_off = False

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            connector=self._shared or pool(),
            connector_owner=self._shared is None,
            headers={"User-Agent": f"gpuclaim/{__version__}", "Accept": "application/json"},
            timeout=_TIMEOUT,
            auto_decompress=True,
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None
            if self._cut_off:
                # TLS says goodbye on its own time, and asyncio has no way to wait for that.
                await asyncio.sleep(_GOODBYE_SECONDS)

    # --- objects ------------------------------------------------------------------------------------------------------

    async def get(self, type_: type[T], name: str, namespace: str = "") -> T:
        """One object.

        Raises:
            ApiError: code 404 where there is none.
            UnreachableError: no answer came.
        """
        return self._decode(type_, await self.request("GET", resource_of(type_).path(namespace, name)))

    async def list(
        self,
        type_: type[T],
        namespace: str = "",
        *,
        field_selector: str = "",
        label_selector: str = "",
        page: int = 1000,
    ) -> tuple[builtins.list[T], str]:
        """All objects of a kind, page by page, and the resourceVersion to watch from.

        An object that does not decode fails the list.
        """
        raw, version = await self.list_raw(
            resource_of(type_), namespace, field_selector=field_selector, label_selector=label_selector, page=page
        )
        return [self._decode(type_, item) for item in raw], version

    async def list_raw(
        self,
        resource: Resource,
        namespace: str = "",
        *,
        field_selector: str = "",
        label_selector: str = "",
        page: int = 1000,
        metadata_only: bool = False,
        most: int = 0,
    ) -> tuple[builtins.list[msgspec.Raw], str]:
        """As `list`, each object still as JSON, or its metadata alone; no further pages once there are `most`."""
        items: builtins.list[msgspec.Raw] = []
        version = ""
        pages = self.pages(
            resource,
            namespace,
            field_selector=field_selector,
            label_selector=label_selector,
            page=page,
            metadata_only=metadata_only,
            most=most,
        )
        async with contextlib.aclosing(pages):
            async for found, version in pages:  # noqa: B007 - the last page's is the list's
                items += found
        return items, version

    async def pages(
        self,
        resource: Resource,
        namespace: str = "",
        *,
        field_selector: str = "",
        label_selector: str = "",
        page: int = 1000,
        metadata_only: bool = False,
        most: int = 0,
    ) -> AsyncGenerator[tuple[builtins.list[msgspec.Raw], str]]:
        """As `list_raw`, page by page, each with the list's resourceVersion; the next is on its way while one is used.

        Leave it before its end with `contextlib.aclosing`.

        Raises:
            ApiError: code 410 where the list took so long that the apiserver no longer has its version.
            UnreachableError: no answer came.
        """
        selectors = {"fieldSelector": field_selector, "labelSelector": label_selector, "limit": str(page)}
        accept = _METADATA.format("PartialObjectMetadataList") if metadata_only else _JSON

        def ask(token: str) -> asyncio.Task[bytes]:
            params = selectors | {"continue": token}
            return asyncio.create_task(self.request("GET", resource.path(namespace), params=params, accept=accept))

        coming = ask("")
        read = 0
        try:
            while True:
                listed = self._decode(_RawList, await coming)
                read += len(listed.items or ())
                token = "" if 0 < most <= read else listed.metadata.continue_
                if token:
                    coming = ask(token)
                yield listed.items or [], listed.metadata.resource_version
                if not token:
                    return
        finally:
            coming.cancel()

    async def create(self, obj: T, *, dry_run: bool = False) -> T:
        """Creates an object in the namespace that its metadata name, and returns it as stored.

        Raises:
            ApiError: refused; for a GPUClaim `status.reason` says why the order does not fit.
            UnreachableError: no answer came.
        """
        meta = cast("Any", obj).metadata
        path = resource_of(type(obj)).path(meta.namespace)
        params = {"dryRun": "All"} if dry_run else {}
        return self._decode(type(obj), await self.request("POST", path, body=wire(obj), params=params))

    async def replace(self, obj: T, *, subresource: str = "") -> T:
        """Writes an object as it is; its resourceVersion must be the stored one's."""
        meta: ObjectMeta = cast("Any", obj).metadata
        path = resource_of(type(obj)).path(meta.namespace, meta.name, subresource)
        return self._decode(type(obj), await self.request("PUT", path, body=wire(obj)))

    async def patch(
        self,
        type_: type[T],
        name: str,
        body: Mapping[str, Any] | builtins.list[Any],
        namespace: str = "",
        *,
        subresource: str = "",
        content: Content = Content.MERGE,
        manager: str = "",
    ) -> T:
        """Patches one object; a merge patch that names metadata.resourceVersion fails with 409 on a changed object.

        `manager` is as whom it is written, in the object's managedFields; by default the program.
        """
        path = resource_of(type_).path(namespace, name, subresource)
        params = {"fieldManager": manager}
        return self._decode(type_, await self.request("PATCH", path, body=body, params=params, content=content))

    async def delete(self, type_: type[T], name: str, namespace: str = "", *, uid: str = "") -> None:
        """Deletes an object, only the one with this UID where one is given; that it is gone already is no error."""
        options = {"preconditions": {"uid": uid}} if uid else {}
        try:
            await self.request("DELETE", resource_of(type_).path(namespace, name), body=options)
        except ApiError as error:
            if error.code != 404:
                raise

    async def apply(
        self, obj: Mapping[str, Any], *, manager: str = "gpuclaim", subresource: str = ""
    ) -> dict[str, Any]:
        """Server-side apply of an object of any kind, conflicts taken over."""
        meta = obj["metadata"]
        resource = await self.discover(obj["apiVersion"], obj["kind"])
        path = resource.path(meta.get("namespace", self.config.namespace), meta["name"], subresource)
        params = {"fieldManager": manager, "force": "true"}
        body = await self.request("PATCH", path, body=obj, params=params, content=Content.APPLY)
        return cast("dict[str, Any]", msgspec.json.decode(body))

    async def discover(self, api_version: str, kind: str) -> Resource:
        """The resource that serves a kind, asked of the apiserver once.

        Raises:
            ApiError: code 404 where the cluster has no such kind.
        """
        key = (api_version, kind)
        if key not in self._discovered:
            prefix = "/apis" if "/" in api_version else "/api"
            listed = msgspec.json.decode(await self.request("GET", f"{prefix}/{api_version}"))
            found = from_discovery(api_version, listed, kind)
            if found is None:
                message = f"the cluster has no kind {kind} in {api_version}"
                raise ApiError(Outcome(code=404, reason="NotFound", message=message))
            self._discovered[key] = found
        return self._discovered[key]

    async def watch(
        self,
        resource: Resource,
        namespace: str = "",
        *,
        since: str,
        field_selector: str = "",
        label_selector: str = "",
        metadata_only: bool = False,
        seconds: int = 300,
        opened: Callable[[], None] = lambda: None,
    ) -> AsyncGenerator[tuple[str, msgspec.Raw]]:
        """Changes of a kind since a resourceVersion, as (ADDED, MODIFIED, DELETED or BOOKMARK, object as JSON).

        `opened` is called when the apiserver has begun to answer. An object that a selector no longer selects is
        DELETED. Ends after about `seconds`, as the apiserver ends it.
        Leave it before that with `contextlib.aclosing`.

        Raises:
            ApiError: code 410 where the apiserver no longer has the changes since then.
            UnreachableError: the connection broke, or nothing came for minutes.
        """
        params = {
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": since,
            "timeoutSeconds": str(seconds),
            "fieldSelector": field_selector,
            "labelSelector": label_selector,
        }
        accept = _METADATA.format("PartialObjectMetadata") if metadata_only else _JSON
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=_WATCH_SILENCE_SECONDS)
        decoder = self._decoder(_RawEvent)
        session = self._open()
        try:
            async with session.get(
                self.config.server + resource.path(namespace),
                params={key: value for key, value in params.items() if value},
                headers={"Accept": accept} | await self.config.headers(),
                timeout=timeout,
                ssl=self._tls,
            ) as answer:
                if answer.status >= 400:
                    raise ApiError(self._status(answer.status, await answer.read()))
                rest = b""
                opened()
                try:
                    async for chunk in answer.content.iter_any():
                        *lines, rest = (rest + chunk).split(b"\n")
                        for line in lines:
                            event = decoder.decode(line)
                            if event.type == "ERROR":
                                raise ApiError(self._decode(Outcome, event.object))
                            yield event.type, event.object
                finally:
                    # A watch that is left before its end cannot be used again, and has nothing to say goodbye for.
                    if answer.connection is not None and answer.connection.transport is not None:
                        answer.connection.transport.abort()
        except asyncio.CancelledError:
            self._cut_off = True
            raise
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise UnreachableError(f"watch of {resource.plural} at {self.config.server}: {_say(error)}") from error

    # --- requests -----------------------------------------------------------------------------------------------------

    async def request(
        self,
        method: str,
        path: str,
        *,
        body: Body | None = None,
        params: Mapping[str, str] | None = None,
        content: str = "application/json",
        accept: str = _JSON,
    ) -> bytes:
        """One request; repeated only where the apiserver asks for that (429 or 503 with retryAfterSeconds).

        Raises:
            ApiError: the answer is no 2xx.
            UnreachableError: no answer came.
        """
        data = body if isinstance(body, bytes) or body is None else self._encoder.encode(body)
        trying = tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception(_retry_after),
            wait=_asked_wait,
            stop=tenacity.stop_after_attempt(_RETRIES),
            reraise=True,
        )
        return await trying(self._once, method, path, data, params or {}, {"Content-Type": content, "Accept": accept})

    async def _once(
        self, method: str, path: str, data: bytes | None, params: Mapping[str, str], headers: dict[str, str]
    ) -> bytes:
        session = self._open()
        try:
            async with session.request(
                method,
                self.config.server + path,
                params={key: value for key, value in params.items() if value},
                data=data,
                headers=headers | await self.config.headers(),
                ssl=self._tls,
            ) as answer:
                body = await answer.read()
        except asyncio.CancelledError:
            self._cut_off = True
            raise
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise UnreachableError(f"no answer from the apiserver at {self.config.server}: {_say(error)}") from error
        if answer.status >= 400:
            raise ApiError(self._status(answer.status, body))
        return body

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            raise RuntimeError("use `async with Client(config)`")
        return self._session

    def _status(self, code: int, body: bytes) -> Outcome:
        try:
            status = self._decode(Outcome, body)
        except msgspec.DecodeError:
            status = Outcome(message=body[:200].decode(errors="replace").strip())
        return msgspec.structs.replace(status, code=code)

    def _decoder(self, type_: type[T]) -> msgspec.json.Decoder[T]:
        if type_ not in self._decoders:
            self._decoders[type_] = msgspec.json.Decoder(type_)
        return cast("msgspec.json.Decoder[T]", self._decoders[type_])

    def _decode(self, type_: type[T], body: bytes | msgspec.Raw) -> T:
        return self._decoder(type_).decode(body)


def _say(error: BaseException) -> str:
    return str(error) or type(error).__name__
