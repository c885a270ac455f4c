"""In and out: the login form, the link, the proxy's token, the cookie, the end of a session."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable
from typing import Any, Final

import aiohttp
from aiohttp import web

from gpuclaim.console import guard, visitors
from gpuclaim.console.config import ConsoleConfig, Login
from gpuclaim.console.pages import Stay, html
from gpuclaim.console.render import Renderer
from gpuclaim.console.sessions import FullError, Sessions
from gpuclaim.console.throttle import Throttle
from gpuclaim.console.visitors import RejectedError, TooOftenError, Visitor
from gpuclaim.kube.client import ApiError, UnreachableError
from gpuclaim.kube.config import ConfigError

log = logging.getLogger(__name__)

_TRIES, _TRY_SECONDS = 10, 6.0
_ALL_TRIES, _ALL_SECONDS = 100, 0.6
_CHECKS_AT_ONCE: Final = 8
_EVERYBODY: Final = ""
CHECK: Final = "/check"
"""The path of the order form's check ends with this."""
FRESH: Final = web.RequestKey("fresh", str)
"""The key of a session that this request has opened, for its cookie."""


class Doors:
    """Who is in, and how one gets in and out."""

    def __init__(
        self,
        config: ConsoleConfig,
        renderer: Renderer,
        sessions: Sessions[Visitor],
        connector: Callable[[], aiohttp.TCPConnector],
        clock: Callable[[], float],
        tell_link: Callable[[str], None],
    ) -> None:
        """Sets up; `tell_link` is told of each link by which one visitor may come in."""
        self._config = config
        self._renderer = renderer
        self._sessions = sessions
        self._connector = connector
        self._clock = clock
        self._tell_link = tell_link
        self._throttle = Throttle(_TRIES, _TRY_SECONDS)
        self._all = Throttle(_ALL_TRIES, _ALL_SECONDS)
        self._checking = asyncio.Semaphore(_CHECKS_AT_ONCE)
        self._form_key = secrets.token_bytes(32)
        self._link_key = ""

    def routes(self) -> list[web.RouteDef]:
        """The paths that need no session, and those that end one."""
        found = [web.post("/logout", self.logout), web.get("/login", self.form), web.get("/left", self.left)]
        if self._config.login is Login.KUBECONFIG:
            return [*found, web.get("/enter/{key}", self.enter), web.post("/context", self.switch)]
        return [*found, web.post("/login", self.login)] if self._config.login is Login.TOKEN else found

    def new_link(self) -> None:
        """Makes the link by which the next visitor comes in, once."""
        self._link_key = secrets.token_urlsafe(32)
        self._tell_link(f"{self._config.origin}{self._config.base}/enter/{self._link_key}")

    # --- who is in ----------------------------------------------------------------------------------------------------

    async def visiting(self, request: web.Request) -> Stay | None:
        """The session that the request belongs to; None where nobody is in.

        What a page does by itself, its event stream and the check of the order form, is no use: only what the visitor
        does keeps a session.

        Raises:
            web.HTTPException: the proxy's token is none, or cannot be looked at now.
        """
        automatic = "text/event-stream" in request.headers.get("Accept", "") or request.path.endswith(CHECK)
        found = self._sessions.find(request.cookies.get(self._config.cookie, ""), touch=not automatic)
        if self._config.login is not Login.PROXY:
            return found
        token = guard.bearer(request.headers.get("Authorization", ""))
        if fault := guard.token_fault(token):
            raise self._refused(f"No token came from the proxy in front of this page. {fault}", 401)
        if found is not None and found.visitor.knows(visitors.hashed(token)):
            return found
        visitor = await self._admit_proxied(request, token)
        if found is not None and found.visitor.identity.name == visitor.identity.name:
            # The proxy has renewed the token.
            await visitor.leave()
            found.visitor.renew(token)
            return found
        key, session = await self._opened(visitor)
        request[FRESH] = key
        return session

    async def _admit_proxied(self, request: web.Request, token: str) -> Visitor:
        try:
            return await self._admit(request, token)
        except RejectedError as error:
            raise self._refused(str(error), 401) from None
        except TooOftenError as error:
            raise self._refused(str(error), 429, error.seconds) from None
        except (UnreachableError, ApiError):
            raise self._refused("The apiserver does not answer. Try again in a moment.", 503) from None

    async def _opened(self, visitor: Visitor) -> tuple[str, Stay]:
        try:
            return self._sessions.open(visitor, visitor.identity.name)
        except FullError as error:
            await visitor.leave()
            raise self._refused(f"{error}.", 503) from None

    def _refused(self, message: str, status: int, wait: int = 0) -> web.HTTPException:
        body = self._renderer.page("message.html", {"title": "Not in", "message": message})
        kind = {401: web.HTTPUnauthorized, 429: web.HTTPTooManyRequests}.get(status, web.HTTPServiceUnavailable)
        return kind(text=body, content_type="text/html", headers={"Retry-After": str(wait)} if wait else None)

    async def _admit(self, request: web.Request, token: str) -> Visitor:
        address = guard.sender(request.remote or "", request.headers.get("X-Forwarded-For", ""), self._config.proxies)
        now = self._clock()
        if wait := self._throttle.wait(address, now) or self._all.wait(_EVERYBODY, now):
            raise TooOftenError(wait)
        async with self._checking:
            config = visitors.with_token(self._config.server, token)
            try:
                visitor = await visitors.admit(config, self._connector(), self._config.most_objects)
            except RejectedError:
                log.warning("a token was not accepted; it came from %s", address)
                raise
        # Behind a proxy many good tokens come from one address.
        self._throttle.forgive(address)
        self._all.forgive(_EVERYBODY)
        return visitor

    # --- the form -----------------------------------------------------------------------------------------------------

    async def form(self, request: web.Request) -> web.Response:
        """Asks for a token, or says how else one gets in."""
        wanted = guard.local_path(request.query.get("next", ""), self._config.base)
        if self._config.login is Login.PROXY:
            raise web.HTTPSeeOther(wanted)
        return self._form(wanted, "", 200)

    def _form(self, wanted: str, fault: str, status: int) -> web.Response:
        value = secrets.token_urlsafe(16)
        context = {
            "title": "Log in",
            "login": self._config.login.value,
            "next": wanted,
            "fault": fault,
            "token_of_form": guard.signed(value, self._form_key),
        }
        answer = html(self._renderer.page("login.html", context), status)
        self._cookie(answer, self._config.form_cookie, value, 3600)
        return answer

    async def login(self, request: web.Request) -> web.Response:
        """Lets in whom the apiserver knows."""
        form = await request.post()
        wanted = guard.local_path(word(form, "next"), self._config.base)
        value = request.cookies.get(self._config.form_cookie, "")
        if not value or not guard.same(word(form, "csrf"), guard.signed(value, self._form_key)):
            return self._form(wanted, "The form was too old. Try again.", 403)
        token = word(form, "token").strip()
        if fault := guard.token_fault(token):
            return self._form(wanted, fault, 422)
        try:
            visitor = await self._admit(request, token)
        except RejectedError as error:
            return self._form(wanted, str(error), 401)
        except TooOftenError as error:
            answer = self._form(wanted, str(error), 429)
            answer.headers["Retry-After"] = str(error.seconds)
            return answer
        except (UnreachableError, ApiError):
            return self._form(wanted, "The apiserver does not answer. Try again in a moment.", 503)
        # Whoever was in with this browser before is out: no session outlives a login.
        self._sessions.close(request.cookies.get(self._config.cookie, ""))
        key, _ = await self._opened(visitor)
        log.info("%s came in", visitor.identity.name)
        answer = web.Response(status=303, headers={"Location": wanted})
        self.give(answer, key)
        answer.del_cookie(self._config.form_cookie, path=self._config.cookie_path)
        return answer

    # --- the link -----------------------------------------------------------------------------------------------------

    async def enter(self, request: web.Request) -> web.Response:
        """Lets in who has the link, once, and makes another link."""
        if not guard.same(request.match_info["key"], self._link_key):
            raise self._refused(
                "This link has been used, or is of an earlier start. The program that printed it has another.",
                401,
            )
        self.new_link()
        name = next(iter(self._config.contexts))
        visitor = await self._of_context(name)
        key, _ = await self._opened(visitor)
        # A redirect would be followed without the cookie where the link was on another site's page.
        answer = html(self._renderer.page("onward.html", {"title": "Welcome", "to": f"{self._config.base}/"}))
        self.give(answer, key)
        return answer

    async def switch(self, request: web.Request) -> web.Response:
        """Goes on as another of the kubeconfig's contexts, in a new session."""
        name = word(await request.post(), "context")
        if name not in self._config.contexts:
            raise web.HTTPNotFound
        visitor = await self._of_context(name)
        self._sessions.close(request.cookies.get(self._config.cookie, ""))
        key, _ = await self._opened(visitor)
        answer = web.Response(status=303, headers={"Location": f"{self._config.base}/"})
        self.give(answer, key)
        return answer

    async def _of_context(self, name: str) -> Visitor:
        try:
            config = self._config.contexts[name]
            return await visitors.admit(config, self._connector(), self._config.most_objects, name)
        except (RejectedError, ConfigError) as error:
            raise self._refused(f"The kubeconfig's context {name} cannot be used: {error}", 503) from None
        except (UnreachableError, ApiError):
            raise self._refused("The apiserver does not answer. Try again in a moment.", 503) from None

    # --- out ----------------------------------------------------------------------------------------------------------

    async def logout(self, request: web.Request) -> web.Response:
        """Ends the session."""
        self._sessions.close(request.cookies.get(self._config.cookie, ""))
        target = self._config.logout_url or f"{self._config.base}/left"
        answer = web.Response(status=303, headers={"Location": target, "Clear-Site-Data": '"cache", "storage"'})
        self.forget(answer)
        return answer

    async def left(self, _request: web.Request) -> web.Response:
        """Says that one is out."""
        message = "You are out."
        if self._config.login is Login.KUBECONFIG:
            message += " To come in again, open the link that the program printed last."
        again = f"{self._config.base}/" if self._config.login is not Login.KUBECONFIG else ""
        return html(self._renderer.page("message.html", {"title": "Logged out", "message": message, "again": again}))

    # --- cookies ------------------------------------------------------------------------------------------------------

    def give(self, answer: web.StreamResponse, key: str) -> None:
        """Has the browser keep the session's key, as long as the session may last."""
        self._cookie(answer, self._config.cookie, key, int(self._config.longest))

    def give_late(self, answer: web.StreamResponse, key: str) -> None:
        """As `give`, for an answer whose own cookies are among its headers by now."""
        kept = web.Response()
        self.give(kept, key)
        answer.headers.add("Set-Cookie", kept.cookies[self._config.cookie].OutputString())

    def forget(self, answer: web.StreamResponse) -> None:
        """Has the browser forget it."""
        answer.del_cookie(
            self._config.cookie,
            path=self._config.cookie_path,
            secure=self._config.https,
            httponly=True,
            samesite="Strict",
        )

    def _cookie(self, answer: web.StreamResponse, name: str, value: str, seconds: int) -> None:
        answer.set_cookie(
            name,
            value,
            max_age=seconds,
            path=self._config.cookie_path,
            secure=self._config.https,
            httponly=True,
            samesite="Strict",
        )


def form_fault(form: Any, session: Stay) -> str:  # noqa: ANN401 - aiohttp's, of a form
    """Why a form is none of this session's; empty where it is."""
    return "" if guard.same(word(form, "csrf"), session.csrf) else "The form is of another session. Load the page anew."


def word(form: Any, name: str) -> str:  # noqa: ANN401 - aiohttp's, of a form
    """A field of a form that is text; empty where there is none."""
    value = form.get(name, "")
    return value if isinstance(value, str) else ""
