"""The page /metrics over plain HTTP, on a port of its own: who may read it is not who may ask the webhook."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeAlias

from aiohttp import web

from gpuclaim.admission.server import listening

Page: TypeAlias = Callable[[str], Awaitable[tuple[bytes, str]]]
"""From what the reader accepts (an HTTP header) to the page and its media type."""


@contextlib.asynccontextmanager
async def serving(address: tuple[str, int], page: Page) -> AsyncIterator[int]:
    """Serves meanwhile; gives the port, which is a free one where 0 was asked for. An empty host is every address.

    Raises:
        PortInUseError: it cannot listen there.
    """

    async def metrics(request: web.Request) -> web.Response:
        body, media = await page(request.headers.get("Accept", ""))
        return web.Response(body=body, headers={"Content-Type": media})

    app = web.Application()
    app.router.add_get("/metrics", metrics)
    async with listening(app, *address) as port:
        yield port
