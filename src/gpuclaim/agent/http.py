"""The agent's three pages over HTTP: /healthz, /readyz and /metrics (R52).

On asyncio's streams, since aiohttp's server would cost 2.9 MiB of the agent's 45 (docs/how-to/deploy-agent.md). It
reads no body, keeps no connection, and bounds what a stranger may cost it: a request's size, its time, and how many
there are at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import http
from collections.abc import AsyncIterator, Callable
from typing import Final, TypeAlias

from gpuclaim.agent.pulse import Pulse

Answer: TypeAlias = tuple[http.HTTPStatus, str, str]
"""Status, media type and text."""

_HEAD_MAX: Final = 8192
_PATIENCE_SECONDS: Final = 5.0
_AT_ONCE: Final = 32
_PLAIN: Final = "text/plain; charset=utf-8"
_METRICS: Final = "text/plain; version=0.0.4; charset=utf-8"


class ListenError(Exception):
    """The address cannot be listened on; the message is a sentence."""


@contextlib.asynccontextmanager
async def serving(address: tuple[str, int], pulse: Pulse, clock: Callable[[], float]) -> AsyncIterator[int]:
    """Serves meanwhile; gives the port, which is a free one where 0 was asked for. An empty host is every address.

    Raises:
        ListenError: the address cannot be listened on.
    """
    host, port = address
    pages = _Pages(pulse, clock)
    try:
        server = await asyncio.start_server(pages.serve, host or None, port, limit=_HEAD_MAX)
    except OSError as error:
        raise ListenError(f"cannot listen on {host or 'every address'}, port {port}: {error.strerror}") from None
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        pages.hang_up()


def answer(pulse: Pulse, now: float, method: str, target: str) -> Answer:
    """What one request gets."""
    path = target.partition("?")[0]
    if path not in ("/healthz", "/readyz", "/metrics"):
        return http.HTTPStatus.NOT_FOUND, _PLAIN, "there is /healthz, /readyz and /metrics"
    if method not in ("GET", "HEAD"):
        return http.HTTPStatus.METHOD_NOT_ALLOWED, _PLAIN, "only GET and HEAD"
    if path == "/metrics":
        return http.HTTPStatus.OK, _METRICS, pulse.metrics()
    good, said = pulse.health(now) if path == "/healthz" else pulse.readiness(now)
    return http.HTTPStatus.OK if good else http.HTTPStatus.SERVICE_UNAVAILABLE, _PLAIN, said


class _Pages:
    def __init__(self, pulse: Pulse, clock: Callable[[], float]) -> None:
        self._pulse = pulse
        self._clock = clock
        self._open: set[asyncio.StreamWriter] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._open) >= _AT_ONCE:
            writer.transport.abort()
            return
        self._open.add(writer)
        try:
            # What comes is a stranger's: whatever is wrong with it ends the connection, and nothing else.
            with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError):
                async with asyncio.timeout(_PATIENCE_SECONDS):
                    head = await reader.readuntil(b"\r\n\r\n")
                    method, target, _ = head.partition(b"\r\n")[0].decode("ascii").split(" ")
                    writer.write(_response(method, answer(self._pulse, self._clock(), method, target)))
                    await writer.drain()
                    writer.close()
                    await writer.wait_closed()
        finally:
            self._open.discard(writer)
            writer.transport.abort()

    def hang_up(self) -> None:
        for writer in self._open:
            writer.transport.abort()


def _response(method: str, answered: Answer) -> bytes:
    status, media, text = answered
    body = text.encode() if text.endswith("\n") else f"{text}\n".encode()
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\n"
        f"Content-Type: {media}\r\n"
        f"Content-Length: {len(body)}\r\n"
        + ("Allow: GET, HEAD\r\n" if status is http.HTTPStatus.METHOD_NOT_ALLOWED else "")
        + "Connection: close\r\n\r\n"
    )
    return head.encode() + (b"" if method == "HEAD" else body)
