"""A hoster's pages: the map of nodes and devices, one node, the whole cloud.

What is made of every node of a cloud takes half a second where there are 5,000: a thread makes it, from values that
nobody changes, and other visitors are answered meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from aiohttp import web

from gpuclaim.api import core, names
from gpuclaim.api.types import GPUClaim, GPUClass, GPUNode
from gpuclaim.console.config import ConsoleConfig
from gpuclaim.console.pages import SESSION, Pages, Seen, View, seen, shown
from gpuclaim.console.views import drain, fleet, overview, tenant
from gpuclaim.console.visitors import Visitor
from gpuclaim.placement.books import Known

_ROWS: Final = 200


class HosterPages:
    """What a hoster looks at."""

    def __init__(self, config: ConsoleConfig, pages: Pages) -> None:
        self._config = config
        self._pages = pages

    def routes(self) -> list[web.RouteDef]:
        """Their paths."""
        return [
            web.get("/nodes", self.nodes),
            web.get("/nodes/{node}", self.node),
            web.get("/nodes/{node}/drain", self.drain),
            web.get("/cloud", self.cloud),
        ]

    async def nodes(self, request: web.Request) -> web.StreamResponse:
        """The map."""
        visitor: Visitor = request[SESSION].visitor
        wanted, trouble = shown(request.query.get("q", "").strip()), request.query.get("show") == "trouble"
        number = request.query.get("page", "")
        page = int(number) if number.isascii() and number.isdigit() and len(number) < 7 else 1

        async def build() -> View:
            reports, claims, classes, nodes, notes = await _world(visitor)
            by_name = {node.metadata.name: node for node in nodes.all} if nodes.objects is not None else None
            found = await asyncio.to_thread(
                fleet.fleet,
                reports.all,
                claims.all,
                classes.all,
                by_name,
                self._pages.now(),
                wanted=wanted,
                trouble=trouble,
                page=page,
            )
            return View(
                template="nodes.html",
                title="Nodes",
                section="nodes",
                parts={"part-fleet": "parts/fleet.html"},
                context={
                    "fleet": found,
                    "notes": notes,
                    "seen": reports.objects is not None,
                    "wanted": wanted,
                    "trouble": trouble,
                },
            )

        return await self._pages.answer(request, build)

    async def node(self, request: web.Request) -> web.StreamResponse:
        """One node: its devices, what it holds, what its conditions say."""
        visitor: Visitor = request[SESSION].visitor
        name = _node_name(request)

        async def build() -> View:
            reports, claims, classes, nodes, notes = await _world(visitor)
            report = next((each for each in reports.all if each.metadata.name == name), None)
            node = next((each for each in nodes.all if each.metadata.name == name), None)
            found = None
            if report is not None:
                found = fleet.detail(report, claims.all, classes.all, node, self._pages.now())
            return View(
                template="node.html",
                title=name,
                section="nodes",
                parts={"part-node": "parts/node.html"},
                context={"name": name, "node": found, "notes": notes, "seen": reports.objects is not None},
                status=200 if found is not None else 404 if reports.objects is not None else 403,
            )

        return await self._pages.answer(request, build)

    async def drain(self, request: web.Request) -> web.StreamResponse:
        """What would move if the node were emptied; nothing is moved."""
        visitor: Visitor = request[SESSION].visitor
        name = _node_name(request)

        async def build() -> View:
            reports, claims, classes, nodes, notes = await _world(visitor)
            blind = [each for each in (reports, claims, classes, nodes) if each.objects is None]
            rows: Sequence[drain.LeavingRow] | None = None
            if not blind:
                state: list[Known] = [*classes.all, *nodes.all, *reports.all, *claims.all]
                rows = await asyncio.to_thread(drain.plan, state, name, self._pages.now())
            return View(
                template="drain.html",
                title=f"Drain of {name}",
                section="nodes",
                parts={"part-drain": "parts/drain.html"},
                context={"name": name, "rows": rows, "notes": notes, "blind": bool(blind)},
            )

        return await self._pages.answer(request, build)

    async def cloud(self, request: web.Request) -> web.StreamResponse:
        """Classes, budgets, refusals, claims that wait, agents that are silent."""
        visitor: Visitor = request[SESSION].visitor

        async def build() -> View:
            reports, claims, classes, _, notes = await _world(visitor)
            quotas = seen(await visitor.feeds.of(core.ResourceQuota), "tenants' budgets")
            now = self._pages.now()
            budgets = tenant.budgets(quotas.all)
            refused, troubled = overview.refusals(claims.all, now), overview.troubled(claims.all)
            return View(
                template="cloud.html",
                title="Cloud",
                section="cloud",
                parts={
                    "part-classes": "parts/classes.html",
                    "part-silent": "parts/silent.html",
                    "part-refusals": "parts/refusals.html",
                    "part-waiting": "parts/waiting.html",
                    "part-budgets": "parts/budgets.html",
                },
                context={
                    "notes": [note for note in dict.fromkeys([*notes, quotas.note]) if note],
                    "classes": await asyncio.to_thread(overview.classes, classes.all, claims.all, reports.all),
                    "silent": overview.silent_agents(reports.all, now)[:_ROWS],
                    "refusals": refused[:_ROWS],
                    "waiting": troubled[:_ROWS],
                    "budgets": budgets[:_ROWS],
                    "left_out": max(0, max(len(refused), len(troubled), len(budgets)) - _ROWS),
                },
            )

        return await self._pages.answer(request, build)


async def _world(
    visitor: Visitor,
) -> tuple[Seen[GPUNode], Seen[GPUClaim], Seen[GPUClass], Seen[core.Node], list[str]]:
    feeds = visitor.feeds
    reports = seen(await feeds.of(GPUNode), "the nodes' GPUs")
    claims = seen(await feeds.of(GPUClaim), "tenants' claims")
    classes = seen(await feeds.of(GPUClass), "the catalogue")
    nodes = seen(await feeds.of(core.Node), "Kubernetes' nodes")
    notes = [each.note for each in (reports, claims, classes, nodes) if each.note]
    return reports, claims, classes, nodes, list(dict.fromkeys(notes))


def _node_name(request: web.Request) -> str:
    found = request.match_info["node"]
    if not names.is_dns_subdomain(found):
        raise web.HTTPNotFound
    return found
