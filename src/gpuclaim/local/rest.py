"""A small blocking client for an apiserver on this machine: for readiness, set-up and tests, not for load."""

from __future__ import annotations

import json
import ssl
from typing import TYPE_CHECKING, Any, Self, TypeAlias
from urllib.parse import urlsplit

import urllib3

if TYPE_CHECKING:
    from pathlib import Path

Object: TypeAlias = "dict[str, Any]"
"""A Kubernetes object or list as it is on the wire."""

_MERGE_PATCH = "application/merge-patch+json"
_ERRORS = 400


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


class NoAnswerError(Exception):
    """The server could not be reached, or broke off."""


class Rest:
    """Requests with one client certificate. May be shared by threads."""

    def __init__(self, url: str, authority: Path, certificate: tuple[Path, Path], timeout: float = 30.0) -> None:
        """Prepare a client; `certificate` is the files of certificate and key, `timeout` in seconds."""
        where = urlsplit(url)
        context = ssl.create_default_context(cafile=str(authority))
        context.load_cert_chain(*map(str, certificate))
        # It notices a connection that the server has closed while nothing was asked, and opens another.
        self._pool = urllib3.HTTPSConnectionPool(
            where.hostname or "", where.port or 443, timeout=timeout, maxsize=8, retries=False, ssl_context=context
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections."""
        self._pool.close()

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
            NoAnswerError: it did not answer.
        """
        code, raw = self._exchange(method, path, body, content_type)
        if code >= _ERRORS:
            raise RequestError(method, path, code, _decoded(raw))
        answer: Object = json.loads(raw)
        return answer

    def answers(self, path: str) -> bool:
        """Return whether a GET of `path` is answered with success now."""
        try:
            return self._exchange("GET", path)[0] < _ERRORS
        except NoAnswerError:
            return False

    def _exchange(
        self, method: str, path: str, body: object = None, content_type: str = "application/json"
    ) -> tuple[int, bytes]:
        payload = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": content_type, "Accept": "application/json"}
        try:
            answer = self._pool.urlopen(method, path, body=payload, headers=headers)
        except urllib3.exceptions.HTTPError as error:
            raise NoAnswerError(f"{method} {path}: {error}") from error
        return answer.status, answer.data


def _decoded(raw: bytes) -> Object | str:
    try:
        answer: Object = json.loads(raw)
    except ValueError:
        return raw.decode(errors="replace")
    return answer
