"""The HTTPS server that the apiserver calls."""

from __future__ import annotations

import contextlib
import logging
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

import msgspec
from aiohttp import web

from gpuclaim.admission import review

log = logging.getLogger(__name__)

Handler = Callable[[review.Request], Awaitable[review.Response]]
_BODY_MAX = 8 * 2**20  # an apiserver takes objects of 3 MiB at most


class PortInUseError(Exception):
    """Another program listens there."""


@contextlib.asynccontextmanager
async def serve(
    host: str,
    port: int,
    tls: ssl.SSLContext,
    handlers: Mapping[str, Handler],
    ready: Callable[[], str | None],
    remark: Callable[[], str] = lambda: "",
) -> AsyncIterator[int]:
    """Serves while the context is open, and gives the port (a free one where 0 was asked for).

    Args:
        host: the address to listen on.
        port: the port to listen on.
        tls: the certificate to show.
        handlers: path → what answers an AdmissionReview there.
        ready: what keeps this process from answering now, for `/readyz`; None when nothing does.
        remark: what `/readyz` adds though it is ready; empty for nothing.

    Raises:
        PortInUseError: it cannot listen there.
    """
    app = web.Application(client_max_size=_BODY_MAX)
    for path, handler in handlers.items():
        app.router.add_post(path, _endpoint(handler))
    app.router.add_get("/healthz", _healthz)
    app.router.add_get("/readyz", _readyz(ready, remark))
    async with listening(app, host, port, tls) as actual:
        yield actual


@contextlib.asynccontextmanager
async def listening(
    app: web.Application, host: str, port: int, tls: ssl.SSLContext | None = None
) -> AsyncIterator[int]:
    """Serves the application while the context is open, and gives the port; an empty host is every address.

    Raises:
        PortInUseError: it cannot listen there.
    """
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        # Connections wait in the kernel while a burst of orders is worked off, instead of being refused.
        site = web.TCPSite(runner, host or None, port, ssl_context=tls, backlog=1024)
        try:
            await site.start()
        except OSError as error:
            raise PortInUseError(f"cannot listen on {host or 'every address'}:{port}: {error.strerror}") from None
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


def _endpoint(handler: Handler) -> Callable[[web.Request], Awaitable[web.Response]]:
    decoder = msgspec.json.Decoder(review.Review)
    encoder = msgspec.json.Encoder()

    async def answer(http: web.Request) -> web.Response:
        try:
            request = decoder.decode(await http.read()).request
        except msgspec.DecodeError as error:
            raise web.HTTPBadRequest(text=f"no AdmissionReview: {error}") from None
        try:
            response = await handler(request)
        except Exception:
            # The apiserver hears 500 and refuses the request (failurePolicy Fail); the cause is in our log.
            log.exception("the answer to %s %s/%s failed", request.kind.kind, request.namespace, request.name)
            raise
        body = encoder.encode(review.Answer(response=msgspec.structs.replace(response, uid=request.uid)))
        return web.Response(body=body, content_type="application/json")

    return answer


async def _healthz(_: web.Request) -> web.Response:
    return web.Response(text="ok")


def _readyz(
    ready: Callable[[], str | None], remark: Callable[[], str]
) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def answer(_: web.Request) -> web.Response:
        obstacle = ready()
        well = f"ok, but {said}" if (said := remark()) else "ok"
        return web.Response(text=obstacle or well, status=503 if obstacle else 200)

    return answer
