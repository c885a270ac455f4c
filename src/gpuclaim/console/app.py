"""The console as a web application: routes, what every request must pass, what every answer carries."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import logging
import time
import urllib.parse
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

import aiohttp
from aiohttp import web

from gpuclaim.api.types import GPUNode
from gpuclaim.console import guard
from gpuclaim.console.config import ConsoleConfig, Login
from gpuclaim.console.doors import FRESH, Doors, form_fault
from gpuclaim.console.hoster_pages import HosterPages
from gpuclaim.console.pages import SESSION, Pages, SignedOutError, Stay, html, sentence
from gpuclaim.console.render import Renderer
from gpuclaim.console.sessions import Session, Sessions
from gpuclaim.console.tenant_pages import TenantPages
from gpuclaim.console.visitors import Visitor
from gpuclaim.kube.client import ApiError, UnreachableError, pool
from gpuclaim.kube.resources import resource_of

log = logging.getLogger(__name__)

_BODY_MAX: Final = 64 * 1024
_SWEEP_SECONDS: Final = 10.0
_EACH: Final = 8
"""So many browsers one visitor may be in with."""
_KEEP: Final = "public, max-age=31536000, immutable"
_HEALTH: Final = frozenset({"/healthz", "/readyz"})
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def _utc_now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)


class Console:
    """One console.

    Attributes:
        sessions: who is in.
    """

    def __init__(
        self,
        config: ConsoleConfig,
        *,
        tell_link: Callable[[str], None] = lambda _: None,
        now: Callable[[], dt.datetime] = _utc_now,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Sets up.

        Args:
            config: what it is told.
            tell_link: told of each link by which a visitor may come in, with `Login.KUBECONFIG`.
            now: the present moment.
            clock: seconds that pass evenly; sessions and tries are counted by it.
        """
        self.config = config
        self._connector: aiohttp.TCPConnector | None = None
        self._leaving: set[asyncio.Task[None]] = set()
        self._stopping = asyncio.Event()
        self.sessions: Sessions[Visitor] = Sessions(
            idle=config.idle,
            longest=config.longest,
            most=config.most_visitors,
            each=_EACH,
            clock=clock,
            ended=self._ended,
        )
        self._renderer = Renderer(config.base)
        self._pages = Pages(self._renderer, self.sessions, now, self._stopping)
        self._pages.frame = self._frame
        self._doors = Doors(config, self._renderer, self.sessions, self._pool, clock, tell_link)
        self._tenant = TenantPages(config, self._pages)
        self._hoster = HosterPages(config, self._pages)
        # Whatever needs no session; everything else does.
        self._open_paths = {f"{config.base}{path}" for path in ("/login", "/left", "/logout")}

    def application(self) -> web.Application:
        """The application, to be run once."""
        app = web.Application(middlewares=[self._errors, self._gate], client_max_size=_BODY_MAX)
        base = self.config.base
        routes = [
            web.get("/", self._first_page),
            web.get("/static/{name}", self._static),
            *self._doors.routes(),
            *self._tenant.routes(),
            *self._hoster.routes(),
        ]
        app.add_routes([web.RouteDef(each.method, base + each.path, each.handler, each.kwargs) for each in routes])
        for path in _HEALTH:
            app.router.add_get(path, _well)
        app.on_response_prepare.append(self._prepare)
        app.on_shutdown.append(self._shut)
        app.cleanup_ctx.append(self._running)
        return app

    async def _running(self, _app: web.Application) -> AsyncIterator[None]:
        self._connector = pool()
        sweeping = asyncio.create_task(self._sweep())
        try:
            yield
        finally:
            sweeping.cancel()
            self.sessions.clear()
            await asyncio.gather(*self._leaving, return_exceptions=True)
            await self._connector.close()

    def open_doors(self) -> None:
        """Tells of the first link, once somebody answers there."""
        if self.config.login is Login.KUBECONFIG:
            self._doors.new_link()

    async def _shut(self, _app: web.Application) -> None:
        self._stopping.set()

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_SECONDS)
            self.sessions.sweep()
            for session in self.sessions:
                session.visitor.feeds.sweep()

    def _ended(self, session: Session[Visitor]) -> None:
        session.visitor.feeds.poke()
        task = asyncio.ensure_future(session.visitor.leave())
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    def _pool(self) -> aiohttp.TCPConnector:
        assert self._connector is not None, "not started"
        return self._connector

    # --- what every request must pass, and every answer carries -------------------------------------------------------

    async def _prepare(self, request: web.Request, answer: web.StreamResponse) -> None:
        if (key := request.get(FRESH)) is not None and not answer.cookies:
            self._doors.give_late(answer, key)
        for name, value in guard.headers(https=self.config.https).items():
            if name != "Cache-Control" or name not in answer.headers:
                answer.headers[name] = value

    @web.middleware
    async def _errors(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            return await handler(request)
        except SignedOutError:
            return self._out(request)
        except web.HTTPException as error:
            if error.status < 400 or error.content_type == "text/html":
                raise
            said = {404: "There is no such page.", 405: "That cannot be done here.", 413: "That is too much."}
            return self._message(said.get(error.status, error.text or error.reason), error.status)
        except ApiError as error:
            return self._out(request) if error.code == 401 else self._message(sentence(error), 502)
        except UnreachableError as error:
            return self._message(sentence(error), 503)
        except ConnectionError:
            raise
        except Exception:
            log.exception("%s %s failed", request.method, request.path)
            return self._message("Something went wrong here; the console's log says what.", 500)

    @web.middleware
    async def _gate(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path in _HEALTH:
            return await handler(request)
        if fault := guard.host_fault(request.host, self.config.origin):
            return self._message(f"This page answers by another name: {fault}.", 421)
        if fault := guard.origin_fault(request.method, request.headers, self.config.origin):
            log.warning("%s %s is refused: %s", request.method, request.path, fault)
            return self._message(f"That was refused: {fault}.", 403)
        path = request.path
        if path.startswith((f"{self.config.base}/static/", f"{self.config.base}/enter/")):
            return await handler(request)
        if not path.startswith(f"{self.config.base}/"):
            raise web.HTTPNotFound
        if path in self._open_paths and not (path.endswith("/logout") and request.method == "POST"):
            return await handler(request)
        session = await self._doors.visiting(request)
        if session is None:
            return await handler(request) if path.endswith("/logout") else self._nobody(request)
        request[SESSION] = session
        if request.method == "POST" and (fault := form_fault(await request.post(), session)):
            return self._message(fault, 403)
        return await handler(request)

    def _nobody(self, request: web.Request) -> web.StreamResponse:
        """What somebody gets who is not in, or whose browser does not say so yet."""
        accepts = request.headers.get("Accept", "")
        if request.method != "GET" or "text/event-stream" in accepts:
            return self._message("Your session is over.", 401)
        if request.headers.get("Sec-Fetch-Site") == "cross-site":
            # A strict cookie does not come with a link from another site; it does with this page's own.
            to = guard.local_path(request.path_qs, self.config.base)
            return html(self._renderer.page("onward.html", {"title": "One moment", "to": to}))
        return self._to_login(request)

    def _to_login(self, request: web.Request) -> web.StreamResponse:
        wanted = urllib.parse.urlencode({"next": request.path_qs})
        return web.Response(status=303, headers={"Location": f"{self.config.base}/login?{wanted}"})

    def _out(self, request: web.Request) -> web.StreamResponse:
        """The apiserver does not know the visitor any more: so do we not."""
        self.sessions.close(request.cookies.get(self.config.cookie, ""))
        if request.method == "GET" and self.config.login is Login.TOKEN:
            answer = self._to_login(request)
        else:
            answer = self._message("The apiserver does not accept your credentials any more. Log in again.", 401)
        self._doors.forget(answer)
        return answer

    def _message(self, message: str, status: int) -> web.Response:
        context = {"title": "Not this way" if status < 500 else "Not now", "message": message}
        return html(self._renderer.page("message.html", context), status)

    # --- what belongs to no one ---------------------------------------------------------------------------------------

    async def _frame(self, request: web.Request, session: Stay) -> dict[str, Any]:
        visitor = session.visitor
        with contextlib.suppress(UnreachableError):
            hoster = await visitor.may("list", resource_of(GPUNode))
            return self._framed(request, visitor, hoster=hoster)
        return self._framed(request, visitor, hoster=False)

    def _framed(self, request: web.Request, visitor: Visitor, *, hoster: bool) -> dict[str, Any]:
        return {
            "visitor": visitor.identity.name,
            "context": visitor.context,
            "contexts": list(self.config.contexts),
            "hoster": hoster,
            "here": request.path_qs,
            "desks": visitor.namespaces[:6],
        }

    async def _first_page(self, request: web.Request) -> web.StreamResponse:
        visitor = request[SESSION].visitor
        base = self.config.base
        if await visitor.may("list", resource_of(GPUNode)):
            raise web.HTTPSeeOther(f"{base}/nodes")
        known = await self._tenant.choices(visitor)
        raise web.HTTPSeeOther(f"{base}/tenants/{known[0]}" if len(known) == 1 else f"{base}/tenants")

    async def _static(self, request: web.Request) -> web.StreamResponse:
        found = self._renderer.statics.get(request.match_info["name"])
        if found is None:
            raise web.HTTPNotFound
        return web.Response(
            body=found.body,
            content_type=found.content_type,
            charset="utf-8",
            headers={"Cache-Control": _KEEP},
        )


async def _well(_: web.Request) -> web.Response:
    return web.Response(text="ok")
