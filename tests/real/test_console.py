"""The page in a real browser, on the real apiserver with the running controller."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime as dt
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from playwright.async_api import Browser, Request, Route, ViewportSize, expect

from gpuclaim.api import core, names
from gpuclaim.api.core import ObjectMeta
from gpuclaim.api.types import Availability, GPUClaim, GPUClass, GPUNode
from gpuclaim.console.config import Login
from gpuclaim.kube import config, identity
from gpuclaim.kube.client import Client
from gpuclaim.kube.resources import resource_of
from gpuclaim.local.controlplane import ControlPlane
from gpuclaim.placement.books import Settings
from support import accounts, browser, cloud, consoles
from support.browser import Visitor
from support.chart import Helm
from support.wait import until_awaited

CLAIMS = resource_of(GPUClaim)
HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)> \u202egnorw\u202c {{7*7}} مرحبا"
BUDGET = 4


@dataclasses.dataclass
class World:
    """A console over a cluster with nodes of 2 and 4 GPUs, two tenants and a hoster."""

    url: str
    admin: Client
    tokens: dict[str, str]

    async def enter(self, visitor: Visitor, who: str, path: str = "/") -> None:
        """Logs in by the form, from the page that is wanted."""
        page = visitor.page
        await page.goto(self.url + path)
        await page.get_by_label("Token").fill(self.tokens[who])
        await page.get_by_role("button", name="Log in").click()
        await expect(page.get_by_role("button", name="Log out")).to_be_visible()


@pytest.fixture
async def world(
    cluster: ControlPlane, crds: None, tmp_path: Path, progress: Callable[[str], None]
) -> AsyncIterator[World]:
    helm = Helm.build(tmp_path, progress)
    async with Client(config.load(cluster.kubeconfig)) as admin:
        for obj in helm.objects("--show-only", "templates/roles/roles.yaml"):
            await admin.apply(obj)
        for namespace in ("tenant-a", "tenant-b", "hosting"):
            await cloud.add_namespace(admin, namespace)
        for namespace, name, role in (("tenant-a", "anna", "edit"), ("tenant-b", "ben", "edit")):
            await consoles.add_account(admin, namespace, name, role)
        await consoles.add_account(admin, "hosting", "hoster", "gpuclaim-hoster", everywhere=True)
        hard: dict[str, str | int] = {names.budget_key("h200"): str(BUDGET)}
        quota = core.ResourceQuota(
            metadata=ObjectMeta(name="gpus", namespace="tenant-a"), spec=core.ResourceQuotaSpec(hard=hard)
        )
        await admin.create(quota)
        await admin.create(cloud.gpu_class(display_name="NVIDIA H200", description="A whole H200."))
        await admin.create(cloud.gpu_class("odd", "vendor.example/odd", display_name=HOSTILE[:63], description=HOSTILE))
        await cloud.add_node(admin, "gpu-1", 2)
        await cloud.add_node(admin, "gpu-2", 4)
        tokens = {
            name: await accounts.token(admin, namespace, name)
            for namespace, name in (("tenant-a", "anna"), ("tenant-b", "ben"), ("hosting", "hoster"))
        }
        settings = Settings(silent_after=dt.timedelta(seconds=3600))
        async with cloud.running_controller(cluster.kubeconfig, settings=settings):
            await cloud.until(
                admin, GPUClass, "h200", "", lambda found: found.status.availability is Availability.AVAILABLE
            )
            server = config.load(cluster.kubeconfig, anonymous=True)
            async with consoles.running(server) as console:
                there = World(console.url, admin, tokens)
                await _until_the_roles_stand(there, server)
                yield there


async def _until_the_roles_stand(world: World, server: config.Config) -> None:
    """Kubernetes has put the claims' rights into `edit`."""
    for name, namespace in (("anna", "tenant-a"), ("ben", "tenant-b")):
        async with Client(dataclasses.replace(server, token=world.tokens[name])) as tenant:

            async def stand(tenant: Client = tenant, namespace: str = namespace) -> bool | None:
                return await identity.may(tenant, "create", CLAIMS, namespace) or None

            await until_awaited(stand, f"{name} may order")


@pytest.fixture
async def chromium() -> AsyncIterator[Browser]:
    async with browser.running() as found:
        yield found


@pytest.fixture
async def visitor(chromium: Browser) -> AsyncIterator[Visitor]:
    async with browser.visiting(chromium) as found:
        yield found


async def test_a_tenant_orders_is_refused_with_the_reason_and_releases(world: World, visitor: Visitor) -> None:
    await world.enter(visitor, "anna")
    page = visitor.page
    # A ServiceAccount has one namespace: there is nothing to choose.
    await expect(page).to_have_url(f"{world.url}/tenants/tenant-a")
    await expect(page.get_by_text("Nothing is held.")).to_be_visible()
    await expect(page.get_by_role("link", name="Nodes", exact=True)).to_have_count(0)

    # It says at once whether it fits, without a click; nothing is ordered by that.
    await page.get_by_role("radio", name="NVIDIA H200").check()
    await page.get_by_label("How many").fill("3")
    await expect(page.locator("#verdict")).to_contain_text("It fits: 3 GPUs of h200 can be held now.")
    await page.get_by_label("How many").fill("5")
    await expect(page.locator("#verdict")).to_contain_text("4")
    await expect(page.locator("#verdict .fits-not")).to_contain_text("5 GPUs of class 'h200' cannot be ordered")
    listed, _ = await world.admin.list(GPUClaim)
    assert listed == []

    await page.get_by_role("button", name="Order", exact=True).click()
    await expect(page.locator("#verdict .fits-not")).to_contain_text("5 GPUs of class 'h200' cannot be ordered")
    await expect(page.get_by_label("How many")).to_have_value("5")

    await page.get_by_label("How many").fill("3")
    await page.get_by_label("Name (of the VM that will use it)").fill("train")
    await page.get_by_role("button", name="Order", exact=True).click()
    await expect(page.get_by_role("status").first).to_contain_text("train is ordered: 3 GPUs of h200.")
    held = page.get_by_role("row", name="train")
    await expect(held).to_contain_text("3 × h200")
    await expect(held).to_contain_text("Held")
    await expect(page.locator("#part-budget")).to_contain_text("3 of 4")
    bound = await world.admin.get(GPUClaim, "train", "tenant-a")
    assert bound.status.node_name == "gpu-2"

    await page.get_by_role("link", name="Usage").click()
    await expect(page.get_by_role("row", name="train")).to_contain_text("3 × h200")
    await page.go_back()

    await held.get_by_role("link", name="Release").click()
    await expect(page.get_by_role("heading", name="Release train?")).to_be_visible()
    await page.get_by_role("button", name="Release").click()
    await expect(page.get_by_role("status").first).to_contain_text("train is being released")
    await expect(page.get_by_text("Nothing is held.")).to_be_visible()
    await cloud.until_gone(world.admin, GPUClaim, "train", "tenant-a")


async def test_another_tenant_sees_nothing_of_it(world: World, visitor: Visitor) -> None:
    await world.admin.create(cloud.claim("secret-work", "tenant-a", count=2))
    await world.enter(visitor, "ben")
    page = visitor.page
    await expect(page).to_have_url(f"{world.url}/tenants/tenant-b")
    for path in ("/", "/tenants", "/tenants/tenant-a", "/tenants/tenant-a/usage", "/nodes", "/nodes/gpu-2", "/cloud"):
        await page.goto(world.url + path)
        content = await page.content()
        assert "secret-work" not in content, path
        # What names a node, or one of its devices, where the visitor has not written it himself.
        assert "gpu-1" not in content, path
        assert "0000:1" not in content, path
    await page.goto(f"{world.url}/tenants/tenant-a")
    await expect(page.get_by_text("You may not see what tenant-a holds.")).to_be_visible()
    await expect(page.get_by_role("button", name="Order", exact=True)).to_be_disabled()
    await page.goto(f"{world.url}/nodes")
    await expect(page.get_by_text("You may not see the nodes' GPUs.")).to_be_visible()
    # What the page does not offer is refused by the apiserver too.
    answer = await page.goto(f"{world.url}/tenants/tenant-a/release/secret-work")
    assert answer is not None
    await expect(page.get_by_role("status").first).to_contain_text("You may not see what tenant-a holds.")
    await page.goto(f"{world.url}/tenants/tenant-b")
    csrf = await page.locator("#order input[name=csrf]").input_value()
    post = "async ([url, csrf]) => (await fetch(url, {method: 'POST', body: new URLSearchParams({csrf})})).text()"
    posted = await page.evaluate(
        post,
        [f"{world.url}/tenants/tenant-a/release/secret-work", csrf],
    )
    assert "You may not" in posted
    await world.admin.get(GPUClaim, "secret-work", "tenant-a")


async def test_a_hoster_watches_a_node_go_silent(world: World, visitor: Visitor) -> None:
    claim = cloud.claim("train", "tenant-a", count=2)
    await world.admin.create(claim)
    await world.enter(visitor, "hoster")
    page = visitor.page
    await expect(page).to_have_url(f"{world.url}/nodes")
    await expect(page.get_by_text("Live: changes show by themselves.")).to_be_visible()
    row = page.locator("#node-gpu-1")
    await expect(row).to_contain_text("well")
    await expect(row.get_by_text("held, no VM: tenant-a/train")).to_have_count(2)
    await page.evaluate("() => { window.sameDocument = true; }")

    long_ago = (dt.datetime.now(dt.UTC) - dt.timedelta(hours=2)).isoformat()
    await world.admin.patch(GPUNode, "gpu-1", {"status": {"reportedAt": long_ago}}, subresource="status")
    await expect(row).to_contain_text("Silent")
    await expect(page.locator("#announce")).to_contain_text("gpu-1: Silent")
    await expect(page.get_by_text("1 silent")).to_be_visible()
    assert await page.evaluate("() => window.sameDocument")

    await page.get_by_role("link", name="gpu-1").click()
    await expect(page.get_by_role("row", name="0000:10:00.0")).to_contain_text("tenant-a/train")
    await page.get_by_role("link", name="What would a drain do?").click()
    await expect(page.get_by_role("row", name="tenant-a/train")).to_contain_text("to gpu-2")
    await page.get_by_role("link", name="Cloud").click()
    await expect(page.locator("#part-silent").get_by_role("row", name="gpu-1")).to_be_visible()
    await expect(page.locator("#part-budgets").get_by_role("row", name="tenant-a")).to_contain_text("2 of 4")
    await expect(page.locator("#part-classes").get_by_role("row", name="h200")).to_contain_text("Available")


async def test_a_hostile_class_does_no_harm(world: World, visitor: Visitor) -> None:
    await world.enter(visitor, "anna")
    page = visitor.page
    card = page.locator("label[for=class-odd]")
    await expect(card).to_contain_text("<script>alert(1)</script>")
    await expect(card).to_contain_text("<img src=x onerror=alert(2)>")
    await expect(card).to_contain_text("{{7*7}} مرحبا")
    assert "\u202e" not in await page.content()
    assert await page.locator("#part-catalogue script, #part-catalogue img").count() == 0
    # The same by the live part, which a script puts in.
    patch = {"spec": {"description": f"now {HOSTILE}"}}
    await world.admin.patch(GPUClass, "odd", patch)
    await expect(card).to_contain_text("now <script>alert(1)</script>")
    assert await page.locator("#part-catalogue script, #part-catalogue img").count() == 0


async def test_by_the_keyboard_alone(world: World, visitor: Visitor) -> None:
    page = visitor.page
    await page.goto(world.url)
    await expect(page.get_by_label("Token")).to_be_focused()
    await page.keyboard.insert_text(world.tokens["anna"])
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("heading", name="tenant-a")).to_be_visible()
    await page.keyboard.press("Tab")
    await expect(page.get_by_role("link", name="To the content")).to_be_focused()
    await page.keyboard.press("Enter")
    await _tab_to(visitor, "input[name=class]")
    await page.keyboard.press("ArrowDown")
    await page.keyboard.press("ArrowUp")
    await expect(page.get_by_role("radio", name="NVIDIA H200")).to_be_checked()
    await _tab_to(visitor, "#count")
    await page.keyboard.press("ArrowUp")
    await _tab_to(visitor, "#name")
    await page.keyboard.insert_text("keys")
    # The page is live meanwhile, and does not take the focus away.
    await world.admin.create(cloud.claim("other", "tenant-a"))
    await expect(page.get_by_role("row", name="other")).to_be_visible()
    await expect(page.locator("#name")).to_be_focused()
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("row", name="keys")).to_contain_text("2 × h200")


async def _tab_to(visitor: Visitor, selector: str) -> None:
    for _ in range(40):
        if await visitor.page.evaluate("(selector) => document.activeElement.matches(selector)", selector):
            return
        await visitor.page.keyboard.press("Tab")
    raise AssertionError(f"the keyboard does not reach {selector}")


PATHS = (
    "/tenants",
    "/tenants/tenant-a",
    "/tenants/tenant-a/usage",
    "/nodes",
    "/nodes/gpu-1",
    "/nodes/gpu-1/drain",
    "/cloud",
)


TELEPHONE: ViewportSize = {"width": 360, "height": 740}
DESK: ViewportSize = {"width": 1200, "height": 900}
GROUND = {"light": "rgb(255, 255, 255)", "dark": "rgb(11, 18, 32)"}


async def test_for_everybody_on_a_telephone_too(world: World, chromium: Browser) -> None:
    for name, count in (("train", 2), ("a-long-name-of-a-claim-that-somebody-gave-it-without-a-thought", 1)):
        await world.admin.create(cloud.claim(name, "tenant-a", count=count))
    for scheme, ground in GROUND.items():
        async with browser.visiting(chromium, color_scheme=scheme, viewport=TELEPHONE, has_touch=True) as visitor:
            page = visitor.page
            await page.goto(f"{world.url}/login")
            faults = {"/login": await visitor.faults_of_access()}
            await world.enter(visitor, "hoster")
            for path in PATHS:
                await page.goto(world.url + path)
                await expect(page.get_by_role("main")).to_be_visible()
                assert await visitor.overflow() == 0, path
                faults[path] = await visitor.faults_of_access()
                if scheme == "light":  # the other differs in its colours alone
                    await page.set_viewport_size(DESK)
                    faults[f"{path} wide"] = await visitor.faults_of_access()
                    await page.set_viewport_size(TELEPHONE)
            assert {path: found for path, found in faults.items() if found} == {}
            shown = await page.evaluate("() => getComputedStyle(document.documentElement).backgroundColor")
            assert shown == ground


async def test_without_scripts(world: World, chromium: Browser) -> None:
    async with browser.visiting(chromium, java_script_enabled=False) as visitor:
        await world.enter(visitor, "anna")
        page = visitor.page
        await page.get_by_role("radio", name="NVIDIA H200").check()
        await page.get_by_label("How many").fill("2")
        await page.get_by_role("button", name="Does it fit?").click()
        await expect(page.locator("#verdict")).to_contain_text("It fits: 2 GPUs of h200 can be held now.")
        await page.get_by_role("button", name="Order", exact=True).click()
        await expect(page.get_by_role("row", name="h200-")).to_contain_text("2 × h200")
        await page.get_by_role("button", name="Log out").click()
        await expect(page.get_by_text("You are out.")).to_be_visible()
        await page.goto(f"{world.url}/tenants/tenant-a")
        await expect(page.get_by_label("Token")).to_be_visible()


async def test_a_token_that_ends_ends_the_visit(world: World, visitor: Visitor) -> None:
    await world.enter(visitor, "anna")
    page = visitor.page
    await expect(page.get_by_text("Live: changes show by themselves.")).to_be_visible()
    path = "/api/v1/namespaces/tenant-a/serviceaccounts/anna"
    await world.admin.request("DELETE", path)

    # Watches that are open go on to their end; whatever is asked anew is refused.
    async def out() -> bool | None:
        await page.goto(f"{world.url}/tenants/tenant-a")
        return await page.get_by_label("Token").is_visible() or None

    await until_awaited(out, "the visit has ended")


async def test_one_acts_as_another_and_is_there_at_once(world: World, chromium: Browser, cluster: ControlPlane) -> None:
    server = config.load(cluster.kubeconfig, anonymous=True)
    contexts = {
        name: dataclasses.replace(server, token=world.tokens[who], namespace=namespace)
        for name, who, namespace in (("hoster", "hoster", "hosting"), ("tenant-a", "anna", "tenant-a"))
    }
    async with (
        consoles.running(server, Login.KUBECONFIG, contexts, base="/secret") as console,
        browser.visiting(chromium) as visitor,
    ):
        page = visitor.page
        await page.goto(console.links[0])
        await expect(page.get_by_role("heading", name="Nodes")).to_be_visible()
        await expect(page.get_by_text("Live: changes show by themselves.")).to_be_visible()
        # The session that the live page belongs to ends before the answer is there: it must not load itself anew then.
        ended = asyncio.Event()

        def over(request: Request) -> None:
            if request.resource_type == "eventsource":
                ended.set()

        async def late(route: Route) -> None:
            answer = await route.fetch(max_redirects=0)
            async with asyncio.timeout(60):
                await ended.wait()
            await route.fulfill(response=answer)

        page.on("requestfinished", over)
        page.on("requestfailed", over)
        await page.route("**/context", late)
        await page.get_by_label("Act as").select_option("tenant-a")
        await expect(page).to_have_url(f"{console.url}/tenants/tenant-a")
        await expect(page.get_by_text("Nothing is held.")).to_be_visible()
        await page.get_by_role("button", name="Log out").click()
        await expect(page).to_have_url(f"{console.url}/left")
