"""As much of an apiserver as the page asks of one: who a token is, what they may do, lists, and watches that wait."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from gpuclaim.kube.config import Config


@dataclass
class Apiserver:
    """What it knows, which a test may change while it runs.

    Attributes:
        users: token → user name.
        lists: path → the items of that list; a path that is not here is forbidden.
        asked: method and path of each request, in order.
        refusal: what an order gets, a Status; None: it is taken.
    """

    users: dict[str, str] = field(default_factory=dict)
    lists: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    may: set[tuple[str, str, str]] = field(default_factory=set)
    asked: list[tuple[str, str]] = field(default_factory=list)
    refusal: dict[str, Any] | None = None
    config: Config = field(default_factory=lambda: Config(server="", tls=None))
    _watches: dict[asyncio.Queue[bytes], str] = field(default_factory=dict)

    def end_watches(self) -> None:
        """Ends every watch; who follows asks anew."""
        for watch in self._watches:
            watch.put_nowait(b"")

    def add(self, path: str, item: dict[str, Any]) -> None:
        """An object more in a list, told to who watches it."""
        self.lists[path].append(item)
        item["metadata"]["resourceVersion"] = str(len(self.asked) + 1)
        for watch, watched in self._watches.items():
            if watched == path:
                watch.put_nowait(json.dumps({"type": "ADDED", "object": item}).encode() + b"\n")

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        self.asked.append((request.method, request.path))
        user = self.users.get(request.headers.get("Authorization", "").removeprefix("Bearer "))
        if user is None:
            return _status(401, "Unauthorized", "Unauthorized")
        if request.path.endswith("/selfsubjectreviews"):
            return web.json_response({"status": {"userInfo": {"username": user, "groups": []}}})
        if request.path.endswith("/selfsubjectaccessreviews"):
            asked = (await request.json())["spec"]["resourceAttributes"]
            allowed = (asked["verb"], asked["resource"], asked["namespace"]) in self.may
            return web.json_response({"status": {"allowed": allowed}})
        if request.method == "POST":
            if self.refusal is not None:
                return web.json_response(self.refusal, status=int(self.refusal["code"]))
            return web.json_response(await request.json(), status=201)
        if request.path not in self.lists:
            return _status(403, "Forbidden", f"{user} cannot get {request.path}")
        if request.query.get("watch"):
            return await self._watch(request)
        return web.json_response({"metadata": {"resourceVersion": "1"}, "items": self.lists[request.path]})

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        stream = web.StreamResponse()
        await stream.prepare(request)
        told: asyncio.Queue[bytes] = asyncio.Queue()
        self._watches[told] = request.path
        try:
            while event := await told.get():
                await stream.write(event)
        finally:
            del self._watches[told]
        return stream


def _status(code: int, reason: str, message: str) -> web.Response:
    body = {"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": message}
    return web.json_response(body, status=code)


@contextlib.asynccontextmanager
async def running(**known: Any) -> AsyncIterator[Apiserver]:
    """An apiserver on a free port of this machine; `known` as its attributes."""
    apiserver = Apiserver(**known)
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", apiserver._answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        apiserver.config = Config(server=f"http://{host}:{port}", tls=None)
        yield apiserver
    finally:
        apiserver.end_watches()
        await runner.cleanup()
