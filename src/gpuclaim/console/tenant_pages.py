"""A tenant's pages: order, holds, budget, usage."""

from __future__ import annotations

import dataclasses
from typing import Final

from aiohttp import web

from gpuclaim.api import core, names
from gpuclaim.api.core import ObjectMeta
from gpuclaim.api.types import GPUClaim, GPUClaimSpec, GPUClass
from gpuclaim.console.config import ConsoleConfig
from gpuclaim.console.doors import CHECK, word
from gpuclaim.console.pages import SESSION, Pages, Seen, SignedOutError, Stay, View, namespace_of, seen, sentence, shown
from gpuclaim.console.views import chart, tenant
from gpuclaim.console.views.tenant import Machine
from gpuclaim.console.visitors import Visitor
from gpuclaim.kube.client import ApiError, UnreachableError
from gpuclaim.kube.resources import resource_of
from gpuclaim.views import budget as budget_view
from gpuclaim.views import faults, text

CLAIMS: Final = resource_of(GPUClaim)
_ANCESTORS: Final = 8
_CHOICES: Final = 200
_HOLDS: Final = 200


@dataclasses.dataclass(frozen=True, slots=True)
class Wanted:
    """What is in the order form."""

    class_name: str = ""
    count: str = "1"
    name: str = ""
    set_name: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Verdict:
    """What became of an order, or would: `fits` None where nothing has been asked."""

    fits: bool | None = None
    message: str = ""


class TenantPages:
    """What a tenant looks at."""

    def __init__(self, config: ConsoleConfig, pages: Pages) -> None:
        self._config = config
        self._pages = pages

    def routes(self) -> list[web.RouteDef]:
        """Their paths."""
        return [
            web.get("/tenants", self.choose),
            web.get("/tenants/{namespace}", self.desk),
            web.post("/tenants/{namespace}/order", self.order),
            web.post(f"/tenants/{{namespace}}{CHECK}", self.check),
            web.get("/tenants/{namespace}/release/{claim}", self.ask_release),
            web.post("/tenants/{namespace}/release/{claim}", self.release),
            web.get("/tenants/{namespace}/usage", self.usage),
        ]

    # --- which tenant -------------------------------------------------------------------------------------------------

    async def choose(self, request: web.Request) -> web.StreamResponse:
        """Asks for the namespace, or goes to the one that was asked for."""
        if wanted := request.query.get("namespace", "").strip():
            if not names.is_dns_label(wanted):
                request[SESSION].notices.append(f"{shown(wanted, 63)} is no name of a namespace.")
                raise web.HTTPSeeOther(f"{self._config.base}/tenants")
            raise web.HTTPSeeOther(f"{self._config.base}/tenants/{wanted}")

        async def build() -> View:
            visitor = request[SESSION].visitor
            known = await self.choices(visitor)
            return View(
                template="choose.html",
                title="Tenants",
                section="tenant",
                context={"choices": known[:_CHOICES], "more": len(known) > _CHOICES},
            )

        return await self._pages.answer(request, build)

    async def choices(self, visitor: Visitor) -> list[str]:
        """Namespaces to choose from, by name: all that the visitor may list, else those where it may see claims."""
        if await visitor.may("list", resource_of(core.Namespace)):
            listed = seen(await visitor.feeds.of(core.Namespace), "namespaces")
            return sorted({*(each.metadata.name for each in listed.all), *visitor.namespaces})
        guesses = tenant.suggestions(
            visitor.identity.name, visitor.identity.groups, self._config.ancestor_label_prefix.partition(".")[0] + "-"
        )
        asked = list(dict.fromkeys([*visitor.namespaces, *guesses]))[:_ANCESTORS]
        return [each for each in asked if each in visitor.namespaces or await visitor.may("list", CLAIMS, each)]

    # --- the desk -----------------------------------------------------------------------------------------------------

    async def desk(self, request: web.Request) -> web.StreamResponse:
        """The catalogue with the order form, the holds, the budget."""
        wanted = Wanted(class_name=shown(request.query.get("class", "")))
        return await self._desk(request, wanted, Verdict())

    async def _desk(
        self, request: web.Request, wanted: Wanted, verdict: Verdict, status: int = 200
    ) -> web.StreamResponse:
        namespace = namespace_of(request)
        session: Stay = request[SESSION]
        return await self._pages.answer(request, lambda: self._view(session, namespace, wanted, verdict, status))

    async def _view(self, session: Stay, namespace: str, wanted: Wanted, verdict: Verdict, status: int) -> View:
        visitor = session.visitor
        feeds = visitor.feeds
        classes = seen(await feeds.of(GPUClass), "the catalogue")
        claims = seen(await feeds.of(GPUClaim, namespace), f"what {namespace} holds")
        machines = seen(await feeds.of(Machine, namespace), f"the VMs of {namespace}")
        if claims.objects is not None:
            visitor.visited(namespace)
        budgets, notes = await self._budgets(visitor, namespace)
        held = tenant.holds(claims.all, machines.objects, self._pages.now())
        offers = tenant.offers(classes.all)
        if not wanted.class_name and offers:
            wanted = dataclasses.replace(wanted, class_name=offers[0].name)
        return View(
            template="tenant.html",
            title=f"{namespace}: GPUs",
            section="tenant",
            parts={
                "part-catalogue": "parts/catalogue.html",
                "part-holds": "parts/holds.html",
                "part-budget": "parts/budget.html",
            },
            context={
                "namespace": namespace,
                "offers": offers,
                "catalogue_note": classes.note,
                "holds": held[:_HOLDS],
                "more_holds": len(held) - _HOLDS,
                "holds_note": claims.note,
                "machines_note": machines.note,
                "budgets": budgets,
                "budget_notes": notes,
                "may_order": await visitor.may("create", CLAIMS, namespace),
                "may_release": await visitor.may("delete", CLAIMS, namespace),
                "wanted": wanted,
                "verdict": verdict,
            },
            status=status,
        )

    async def _budgets(self, visitor: Visitor, namespace: str) -> tuple[list[tenant.Budget], list[str]]:
        own = seen(await visitor.feeds.of(core.ResourceQuota, namespace), f"the budget of {namespace}")
        quotas, notes = own.all, [own.note] if own.note else []
        for ancestor in (await self._ancestors(visitor, namespace))[:_ANCESTORS]:
            theirs = seen(await visitor.feeds.of(core.ResourceQuota, ancestor), f"the budget of {ancestor}")
            quotas = [*quotas, *theirs.all]
            if theirs.note:
                notes.append(f"The budget of {ancestor} binds too. {theirs.note}")
        return tenant.budgets(quotas, namespace), notes

    async def _ancestors(self, visitor: Visitor, namespace: str) -> list[str]:
        async def find() -> list[str]:
            try:
                found = await visitor.client.get(core.Namespace, namespace)
            except (ApiError, UnreachableError):
                return []
            return budget_view.ancestors(found, self._config.ancestor_label_prefix)

        return await visitor.remembered(("ancestors", namespace), find)

    # --- orders -------------------------------------------------------------------------------------------------------

    async def check(self, request: web.Request) -> web.Response:
        """Says whether the order in the form would fit: a dry run with the visitor's rights."""
        verdict = await self._decide(request, _wanted(await request.post()), dry_run=True)
        return self._pages.part("parts/verdict.html", {"verdict": verdict})

    async def order(self, request: web.Request) -> web.StreamResponse:
        """Places the order, or only asks; refused, the form comes back with the reason."""
        form = await request.post()
        wanted = _wanted(form)
        ask = word(form, "action") == "check"
        verdict = await self._decide(request, wanted, dry_run=ask)
        if ask or not verdict.fits:
            return await self._desk(request, wanted, verdict, 200 if verdict.fits else 422)
        request[SESSION].notices.append(verdict.message)
        raise web.HTTPSeeOther(f"{self._config.base}/tenants/{namespace_of(request)}")

    async def _decide(self, request: web.Request, wanted: Wanted, *, dry_run: bool) -> Verdict:
        namespace = namespace_of(request)
        visitor: Visitor = request[SESSION].visitor
        if fault := tenant.order_fault(wanted.class_name, wanted.count, wanted.name, wanted.set_name):
            return Verdict(fits=False, message=fault)
        claim = GPUClaim(
            metadata=ObjectMeta(
                namespace=namespace,
                name=wanted.name,
                generate_name="" if wanted.name else f"{wanted.class_name[:50]}-",
            ),
            spec=GPUClaimSpec(class_name=wanted.class_name, count=int(wanted.count), set=wanted.set_name or None),
        )
        asked = f"{text.gpus(claim.spec.count)} of {claim.spec.class_name}"
        try:
            made = await visitor.client.create(claim, dry_run=dry_run)
        except ApiError as error:
            if error.code == 401:
                raise SignedOutError from None
            return Verdict(fits=False, message=_why_not(error, wanted, namespace))
        except UnreachableError:
            said = "The apiserver does not answer" + ("." if dry_run else ": whether the order was taken is not known.")
            return Verdict(fits=False, message=said)
        if dry_run:
            return Verdict(fits=True, message=f"It fits: {asked} can be held now. Nothing has been ordered yet.")
        return Verdict(fits=True, message=f"{made.metadata.name} is ordered: {asked}.")

    # --- release ------------------------------------------------------------------------------------------------------

    async def ask_release(self, request: web.Request) -> web.StreamResponse:
        """Asks before anything is given back."""
        namespace, name = namespace_of(request), request.match_info["claim"]
        visitor: Visitor = request[SESSION].visitor

        async def build() -> View:
            claims = seen(await visitor.feeds.of(GPUClaim, namespace), f"what {namespace} holds")
            machines = seen(await visitor.feeds.of(Machine, namespace), f"the VMs of {namespace}")
            held = tenant.holds(claims.all, machines.objects, self._pages.now())
            found = [each for each in held if each.name == name]
            if not found:
                request[SESSION].notices.append(claims.note or f"There is no claim {shown(name)} any more.")
                raise web.HTTPSeeOther(f"{self._config.base}/tenants/{namespace}")
            return View(
                template="release.html",
                title=f"Release {found[0].name}",
                section="tenant",
                context={"namespace": namespace, "hold": found[0]},
            )

        return await self._pages.answer(request, build)

    async def release(self, request: web.Request) -> web.StreamResponse:
        """Gives the GPUs back: of the claim that was shown, not of another that has taken its name."""
        namespace, name = namespace_of(request), request.match_info["claim"]
        form = await request.post()
        session: Stay = request[SESSION]
        try:
            await session.visitor.client.delete(GPUClaim, name, namespace, uid=word(form, "uid"))
            said = f"{shown(name)} is being released. A VM that uses it keeps it until it ends."
        except ApiError as error:
            if error.code == 401:
                raise SignedOutError from None
            gone = error.code == 409
            said = f"{shown(name)} is another claim by now; nothing was released." if gone else sentence(error)
        except UnreachableError:
            said = f"The apiserver does not answer: whether {shown(name)} was released is not known."
        session.notices.append(said)
        raise web.HTTPSeeOther(f"{self._config.base}/tenants/{namespace}")

    # --- usage --------------------------------------------------------------------------------------------------------

    async def usage(self, request: web.Request) -> web.StreamResponse:
        """What was held and used, as a chart and as a table."""
        namespace = namespace_of(request)
        visitor: Visitor = request[SESSION].visitor

        async def build() -> View:
            claims: Seen[GPUClaim] = seen(await visitor.feeds.of(GPUClaim, namespace), f"what {namespace} holds")
            now = self._pages.now()
            known = chart.records([], claims.all, now)
            return View(
                template="usage.html",
                title=f"{namespace}: usage",
                section="tenant",
                parts={"part-usage": "parts/usage.html"},
                context={
                    "namespace": namespace,
                    "note": claims.note,
                    "chart": chart.chart(known, now),
                    "sums": chart.sums(known, now),
                    "claims": chart.by_claim(claims.all, now),
                },
            )

        return await self._pages.answer(request, build)


def _why_not(error: ApiError, wanted: Wanted, namespace: str) -> str:
    if error.reason == "AlreadyExists":
        return f"There is a claim {wanted.name} in {namespace} already: choose another name."
    if error.code == 404 and faults.refusal(error.status) is None and "namespace" in error.status.message:
        return f"There is no namespace {namespace}."
    return sentence(error)


def _wanted(form: object) -> Wanted:
    return Wanted(
        class_name=shown(word(form, "class").strip()),
        count=shown(word(form, "count").strip(), 12),
        name=shown(word(form, "name").strip()),
        set_name=shown(word(form, "set").strip()),
    )
