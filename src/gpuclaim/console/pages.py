"""A page and its live parts: once as HTML, then as server-sent events, from the same view and the same templates."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeAlias, TypeVar

import msgspec
from aiohttp import web

from gpuclaim.api import names
from gpuclaim.console.feeds import Feed
from gpuclaim.console.render import Renderer
from gpuclaim.console.sessions import Session, Sessions
from gpuclaim.console.visitors import Visitor
from gpuclaim.kube.client import ApiError, UnreachableError
from gpuclaim.views import faults, text

T = TypeVar("T", bound=msgspec.Struct)

Stay: TypeAlias = Session[Visitor]
SESSION: Final = web.RequestKey("session", Session)
MOST_STREAMS: Final = 16
"""Of one visitor."""
_LOOK_SECONDS: Final = 10.0
"""A live page is made anew at least this often: time passes without any event."""
_GATHER_SECONDS: Final = 0.2
"""Changes come in bursts; they are shown together."""
_REST: Final = 4.0
"""A live page pauses for so many times as long as it took to make."""
_UNAUTHORIZED, _FORBIDDEN = 401, 403


class SignedOutError(Exception):
    """The apiserver does not know the visitor any more."""


@dataclass(kw_only=True)
class View:
    """What a page shows.

    Attributes:
        template: the whole page; it includes the parts.
        title: of the window.
        section: which entry of the menu it belongs to.
        parts: element ID → template, of what changes while one looks.
        context: what the templates name.
        status: the HTTP status.
    """

    template: str
    title: str
    section: str
    parts: Mapping[str, str] = field(default_factory=dict)
    context: dict[str, Any] = field(default_factory=dict)
    status: int = 200


Builder: TypeAlias = Callable[[], Awaitable[View]]


@dataclass(frozen=True, slots=True)
class Seen(Generic[T]):
    """What of a kind the visitor may see: the objects, None where there are not even old ones, and why not."""

    objects: list[T] | None
    note: str = ""

    @property
    def all(self) -> list[T]:
        """The objects, none where they cannot be seen."""
        return self.objects or []


def seen(feed: Feed[T], what: str) -> Seen[T]:
    """What a feed has.

    Raises:
        SignedOutError: its apiserver does not know the visitor any more.
    """
    fault = feed.fault
    if isinstance(fault, ApiError) and fault.code == _UNAUTHORIZED:
        raise SignedOutError
    if isinstance(fault, ApiError) and fault.code == _FORBIDDEN:
        return Seen(None, f"You may not see {what}.")
    found = list(feed.objects)
    if fault is not None:
        said = sentence(fault)
        return Seen(found or None, f"{said} What is shown may be old." if found else said)
    return Seen(found, f"Of {what} only {len(found)} are read; there are more." if feed.cut else "")


def sentence(error: ApiError | UnreachableError) -> str:
    """What an answer of the apiserver, or its absence, means to who looks at the page."""
    if isinstance(error, UnreachableError):
        return "The apiserver does not answer; the page tries again by itself."
    status = error.status
    words = faults.said(status)
    if faults.refusal(status) is not None:
        return words
    if error.code == _FORBIDDEN and status.reason == "Forbidden":
        return f"You may not do that: {words}"
    if error.code == 404 and (status.details is None or not status.details.name):
        return "The cluster does not serve gpuclaim's API: it is not installed there."
    if "failed calling webhook" in words or "failed to call webhook" in words:
        return "No gpuclaim controller answers, so orders are refused for now. Try again in a moment."
    return words or f"The apiserver answered with {error.code}."


class Pages:
    """Answers with views."""

    def __init__(
        self, renderer: Renderer, sessions: Sessions[Visitor], now: Callable[[], dt.datetime], stopping: asyncio.Event
    ) -> None:
        """Sets up; `stopping` is set when live pages must end."""
        self._renderer = renderer
        self._sessions = sessions
        self.now = now
        self._stopping = stopping
        self.frame: Callable[[web.Request, Stay], Awaitable[dict[str, Any]]] = _no_frame
        """What the frame around every page names."""

    async def answer(self, request: web.Request, builder: Builder) -> web.StreamResponse:
        """The page, or, to who asks for events, its live parts whenever they change."""
        if "text/event-stream" in request.headers.get("Accept", ""):
            return await self._stream(request, builder)
        session = request[SESSION]
        view = await builder()
        context = await self._context(request, session, view)
        context["notices"], session.notices = session.notices, []
        return html(self._renderer.page(view.template, context), view.status)

    def part(self, template: str, context: Mapping[str, Any]) -> web.Response:
        """A part of a page alone."""
        return html(self._renderer.page(template, {"now": self.now(), **context}))

    async def _context(self, request: web.Request, session: Stay, view: View) -> dict[str, Any]:
        frame = await self.frame(request, session)
        return {
            **frame,
            **view.context,
            "now": self.now(),
            "csrf": session.csrf,
            "title": view.title,
            "section": view.section,
            "live": bool(view.parts),
            "notices": [],
        }

    async def _stream(self, request: web.Request, builder: Builder) -> web.StreamResponse:
        session = request[SESSION]
        feeds = session.visitor.feeds
        if feeds.listeners >= MOST_STREAMS:
            raise web.HTTPTooManyRequests(text="too many live pages")
        stream = web.StreamResponse(headers={"Content-Type": "text/event-stream", "X-Accel-Buffering": "no"})
        with feeds.listening() as changed:
            await stream.prepare(request)
            sent: dict[str, str] = {}
            try:
                while not self._stopping.is_set():
                    changed.clear()
                    began = asyncio.get_running_loop().time()
                    if self._sessions.over(session):
                        await stream.write(_event("end", ""))
                        break
                    fresh: Iterable[bytes] = ()
                    with contextlib.suppress(UnreachableError):  # what is shown stays, and is tried again
                        fresh = await self._fresh(request, session, builder, sent)
                    await stream.write(b"".join(fresh) or b":\n\n")
                    took = asyncio.get_running_loop().time() - began
                    await _first(changed, self._stopping)
                    # What is large takes long to make, and must leave room for others.
                    await asyncio.sleep(max(_GATHER_SECONDS, _REST * took))
            except SignedOutError:
                await stream.write(_event("end", ""))
            except ApiError as error:
                if error.code == _UNAUTHORIZED:
                    await stream.write(_event("end", ""))
            except ConnectionError:
                pass  # who looked has gone
        return stream

    async def _fresh(
        self, request: web.Request, session: Stay, builder: Builder, sent: dict[str, str]
    ) -> Iterable[bytes]:
        view = await builder()
        context = await self._context(request, session, view)
        found = []
        for name, template in view.parts.items():
            body = self._renderer.page(template, context)
            if sent.get(name) != body:
                sent[name] = body
                found.append(_event("part", msgspec.json.encode({"id": name, "html": body}).decode()))
        return found


async def _no_frame(_request: web.Request, _session: Stay) -> dict[str, Any]:
    return {}


async def _first(*events: asyncio.Event) -> None:
    waiting = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED, timeout=_LOOK_SECONDS)
    finally:
        for each in waiting:
            each.cancel()


def _event(kind: str, data: str) -> bytes:
    # JSON has no line breaks; these would end the event.
    return f"event: {kind}\ndata: {data}\n\n".encode()


def html(body: str, status: int = 200) -> web.Response:
    """An HTML answer."""
    return web.Response(text=body, content_type="text/html", charset="utf-8", status=status)


def namespace_of(request: web.Request) -> str:
    """The namespace in the path, where it can be one.

    Raises:
        web.HTTPNotFound: it cannot.
    """
    found = request.match_info["namespace"]
    if not names.is_dns_label(found):
        raise web.HTTPNotFound
    return found


def shown(value: str, most: int = 253) -> str:
    """A word of a query or a form, safe to show and no longer than any name."""
    return text.safe(value[:most])
