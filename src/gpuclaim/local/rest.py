"""A small blocking client for an apiserver on this machine: for readiness, set-up and tests, not for load."""

from __future__ import annotations

import http.client
import json
import ssl
import threading
from typing import TYPE_CHECKING, Any, Self, TypeAlias
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from pathlib import Path

Object: TypeAlias = "dict[str, Any]"
"""A Kubernetes object or list as it is on the wire."""

_MERGE_PATCH = "application/merge-patch+json"


class RequestError(Exception):
    """The server answered with an error.

    Attributes:
        code: the HTTP status.
        body: the answer, a `Status` object of Kubernetes where it was JSON, else its text.
    """

    def __init__(self, method: str, path: str, code: int, body: Object | str) -> None:
        self.code = code
        self.body = body
        message = body.get("message", body) if isinstance(body, dict) else body
        super().__init__(f"{method} {path}: {code}: {message}")


class Rest:
    """Requests with one client certificate. May be shared by threads; each has its own connection."""

    def __init__(self, url: str, authority: Path, certificate: tuple[Path, Path], timeout: float = 30.0) -> None:
        """Prepare a client; `certificate` is the files of certificate and key, `timeout` in seconds."""
        where = urlsplit(url)
        self._host, self._port = where.hostname or "", where.port or 443
        self._timeout = timeout
        self._context = ssl.create_default_context(cafile=str(authority))
        self._context.load_cert_chain(*map(str, certificate))
        self._local = threading.local()
        self._open: set[http.client.HTTPSConnection] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections of all threads."""
        while self._open:
            self._open.pop().close()

    def get(self, path: str) -> Object:
        """GET; as `request`."""
        return self.request("GET", path)

    def post(self, path: str, body: object) -> Object:
        """POST; as `request`."""
        return self.request("POST", path, body)

    def put(self, path: str, body: object) -> Object:
        """PUT; as `request`."""
        return self.request("PUT", path, body)

    def patch(self, path: str, body: object, content_type: str = _MERGE_PATCH) -> Object:
        """PATCH, a merge patch unless `content_type` says otherwise; as `request`."""
        return self.request("PATCH", path, body, content_type)

    def delete(self, path: str, body: object = None) -> Object:
        """DELETE; as `request`."""
        return self.request("DELETE", path, body)

    def request(self, method: str, path: str, body: object = None, content_type: str = "application/json") -> Object:
        """Return the object that the server answers with.

        Raises:
            RequestError: the server answered with 400 or above.
            OSError, http.client.HTTPException: it did not answer.
        """
        code, raw = self._exchange(method, path, body, content_type)
        if code >= http.client.BAD_REQUEST:
            raise RequestError(method, path, code, _decoded(raw))
        answer: Object = json.loads(raw)
        return answer

    def answers(self, path: str) -> bool:
        """Return whether a GET of `path` is answered with success now."""
        try:
            return self._exchange("GET", path)[0] < http.client.BAD_REQUEST
        except (OSError, http.client.HTTPException):
            return False

    def _exchange(
        self, method: str, path: str, body: object = None, content_type: str = "application/json"
    ) -> tuple[int, bytes]:
        payload = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": content_type, "Accept": "application/json"}
        connection = self._connection()
        try:
            connection.request(method, path, payload, headers)
            response = connection.getresponse()
            return response.status, response.read()
        except BaseException:
            # Half of an answer may be left in it.
            self._open.discard(connection)
            connection.close()
            self._local.connection = None
            raise

    def _connection(self) -> http.client.HTTPSConnection:
        connection: http.client.HTTPSConnection | None = getattr(self._local, "connection", None)
        if connection is None:
            connection = http.client.HTTPSConnection(
                self._host, self._port, timeout=self._timeout, context=self._context
            )
            self._local.connection = connection
            self._open.add(connection)
        return connection


def _decoded(raw: bytes) -> Object | str:
    try:
        answer: Object = json.loads(raw)
    except ValueError:
        return raw.decode(errors="replace")
    return answer
