"""The apiserver for a command that asks a few questions and ends: blocking, on urllib3, quick to import.

The aiohttp client takes 0.3 s to import, all that a command may need to its table (docs/why/dependencies.md).
"""

from __future__ import annotations

import builtins
import contextlib
import json
import urllib.parse
from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeVar

import msgspec
import urllib3

from gpuclaim import __version__
from gpuclaim.api.core import Outcome, Struct
from gpuclaim.kube.config import Config
from gpuclaim.kube.resources import Resource, resource_of

T = TypeVar("T", bound=msgspec.Struct)
Object = dict[str, Any]

MERGE: Final = "application/merge-patch+json"
_TIMEOUT: Final = urllib3.Timeout(connect=10, read=30)
_PAGE: Final = 500
_GONE: Final = 410


class AnswerError(Exception):
    """The apiserver refused a request; `status` is its answer, its code set."""

    def __init__(self, status: Outcome) -> None:
        super().__init__(status.message or f"HTTP {status.code}")
        self.status = status


class NoAnswerError(Exception):
    """No answer came; the message says from where and why."""


class Event(Struct, frozen=True, kw_only=True):
    """One line of a watch."""

    type: str
    object: msgspec.Raw


class Blocking:
    """One connection pool to one apiserver."""

    def __init__(self, config: Config, *, seconds: float | None = None) -> None:
        """Prepare; `seconds` is how long an answer may take, where it may not take as long as ever."""
        self.config = config
        self._timeout = _TIMEOUT if seconds is None else urllib3.Timeout(connect=seconds, read=seconds)
        self._pool = urllib3.PoolManager(retries=False, timeout=self._timeout, maxsize=8, ssl_context=config.tls)
        self._headers = {"User-Agent": f"gpuclaim/{__version__}", "Accept": "application/json"}

    def get(self, resource: Resource, name: str, namespace: str = "") -> Object:
        """One object.

        Raises:
            AnswerError: code 404 where there is none.
            NoAnswerError: no answer came.
        """
        return self.request("GET", resource.path(namespace, name))

    def list(self, resource: Resource, namespace: str = "", *, labels: str = "", fields: str = "") -> Object:
        """All objects of a kind as one list object, read page by page; errors as `get`."""
        items: builtins.list[Object] = []
        token = ""
        while True:
            params = {"labelSelector": labels, "fieldSelector": fields, "limit": str(_PAGE), "continue": token}
            listed = self.request("GET", resource.path(namespace), params=params)
            items += listed.get("items") or ()
            token = listed.get("metadata", {}).get("continue", "")
            if not token:
                return listed | {"items": items}

    def objects(self, type_: type[T], namespace: str = "", *, labels: str = "", fields: str = "") -> builtins.list[T]:
        """As `list`, decoded; what this version cannot read is left out."""
        listed = self.list(resource_of(type_), namespace, labels=labels, fields=fields)
        return decoded(type_, listed["items"])

    def create(self, resource: Resource, body: Object, namespace: str = "", *, dry_run: bool = False) -> Object:
        """Create an object and return it as stored, or, dry, as it would be; errors as `get`."""
        params = {"dryRun": "All"} if dry_run else {}
        return self.request("POST", resource.path(namespace), body, params=params)

    def patch(self, resource: Resource, name: str, body: Object, namespace: str = "") -> Object:
        """Merge-patch an object and return it as stored; errors as `get`."""
        return self.request("PATCH", resource.path(namespace, name), body, content=MERGE)

    def delete(self, resource: Resource, name: str, namespace: str = "", *, uid: str = "") -> Object:
        """Delete an object, only the one with this UID where one is given; errors as `get`."""
        options = {"preconditions": {"uid": uid}} if uid else {}
        return self.request("DELETE", resource.path(namespace, name), options)

    def watch(
        self, resource: Resource, namespace: str = "", *, since: str, fields: str = "", seconds: float = 300
    ) -> Iterator[tuple[str, Object]]:
        """Changes since a resourceVersion, as (ADDED, MODIFIED or DELETED, object), for about `seconds`.

        Raises:
            AnswerError: code 410 where the apiserver no longer has the changes since then.
            NoAnswerError: the connection broke.
        """
        params = {
            "watch": "1",
            "resourceVersion": since,
            "fieldSelector": fields,
            "timeoutSeconds": str(max(1, int(seconds))),
        }
        path = resource.path(namespace)
        timeout = urllib3.Timeout(connect=10, read=seconds + 10)
        answer = self._open("GET", path, None, params, "application/json", timeout=timeout, stream=True)
        rest = b""
        try:
            if answer.status >= 400:
                raise AnswerError(_status(answer.status, answer.data))
            # read1 returns with what has come; stream() would wait for a full block.
            while chunk := answer.read1():
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    event = json.loads(line)
                    if event["type"] == "ERROR":
                        raise AnswerError(msgspec.convert(event["object"], Outcome))
                    yield event["type"], event["object"]
        except urllib3.exceptions.HTTPError as error:
            raise NoAnswerError(f"the watch of {self.config.server}{path} broke off: {error}") from None
        finally:
            answer.close()

    def follow(
        self, resource: Resource, namespace: str, name: str, seconds: float
    ) -> Iterator[tuple[str, Object | None]]:
        """One object as it is, then each change of it; None once it is gone. Ends after about `seconds`."""
        import time

        end = time.monotonic() + seconds
        fields = f"metadata.name={name}"
        while (left := end - time.monotonic()) > 0:
            listed = self.list(resource, namespace, fields=fields)
            yield "LISTED", (listed["items"][0] if listed["items"] else None)
            changes = self.watch(
                resource, namespace, since=listed["metadata"]["resourceVersion"], fields=fields, seconds=left
            )
            try:
                with contextlib.closing(changes):  # type: ignore[type-var]
                    for kind, obj in changes:
                        yield kind, None if kind == "DELETED" else obj
            except AnswerError as error:
                if error.status.code != _GONE:
                    raise

    def request(
        self,
        method: str,
        path: str,
        body: Object | None = None,
        *,
        params: Mapping[str, str] | None = None,
        content: str = "application/json",
    ) -> Object:
        """One request; the object of the answer.

        Raises:
            AnswerError: the answer is no 2xx.
            NoAnswerError: no answer came.
        """
        answer = self._open(method, path, body, params or {}, content)
        if answer.status >= 400:
            raise AnswerError(_status(answer.status, answer.data))
        try:
            found: Object = json.loads(answer.data)
        except ValueError:
            raise NoAnswerError(f"what answers at {self.config.server} is no apiserver") from None
        return found

    def _open(
        self,
        method: str,
        path: str,
        body: Object | None,
        params: Mapping[str, str],
        content: str,
        *,
        timeout: urllib3.Timeout | None = None,
        stream: bool = False,
    ) -> urllib3.BaseHTTPResponse:
        query = urllib.parse.urlencode({key: value for key, value in params.items() if value})
        try:
            return self._pool.request(
                method,
                f"{self.config.server}{path}" + (f"?{query}" if query else ""),
                body=None if body is None else json.dumps(body).encode(),
                headers=self._headers | {"Content-Type": content} | self.config.headers_now(),
                timeout=timeout or self._timeout,
                preload_content=not stream,
                redirect=False,
            )
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise NoAnswerError(f"no answer from the apiserver at {self.config.server}: {_say(error)}") from None


def decoded(type_: type[T], items: list[Object]) -> list[T]:
    """Objects as their type; what this version cannot read is left out."""
    found = []
    for item in items:
        with contextlib.suppress(msgspec.ValidationError):
            # The items of a list carry no apiVersion and kind of their own; the type has them.
            found.append(msgspec.convert(item, type_))
    return found


def _say(error: Exception) -> str:
    """The reason within urllib3's wrapping."""
    reason = getattr(error, "reason", None) or error
    text = str(reason)
    return text.rpartition(": ")[2] if "object at 0x" in text or text.startswith("HTTP") else text


def _status(code: int, body: bytes) -> Outcome:
    try:
        status = msgspec.json.decode(body, type=Outcome)
    except msgspec.DecodeError:
        status = Outcome(message=body[:200].decode(errors="replace").strip())
    return msgspec.structs.replace(status, code=code)
