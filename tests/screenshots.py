"""Writes the pictures of the page into docs/pictures: `make screenshots`.

They are of the cloud of `gpuclaim up` with some orders on it, in a real browser.
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any, Final

import click
import pytest
from playwright.async_api import Browser, Page, ViewportSize

from gpuclaim.api import core
from gpuclaim.api.core import ObjectMeta
from gpuclaim.api.types import GPUClaim, GPUClaimSpec, GPUNode, Health
from gpuclaim.kube.client import Client
from gpuclaim.local import build, cloud, kubevirt, offers
from gpuclaim.local.simulated_node import UNHEALTHY
from support import browser
from support.cloud import until

PICTURES: Final = Path(__file__).parents[1] / "docs" / "pictures"
NODES: Final = 6
ORDERS: Final = (
    ("tenant-a", "train", "h200", 1),
    ("tenant-a", "desktop", "a16", 1),
    ("tenant-b", "research", "h200", 4),
    ("tenant-b", "render", "h200", 3),
    ("tenant-b", "inference", "h200", 2),
    ("tenant-b", "office-1", "a16", 1),
    ("tenant-b", "office-2", "a16", 1),
)
RUNNING: Final = {("tenant-a", "train"), ("tenant-b", "research"), ("tenant-b", "office-1")}
DESK: Final[ViewportSize] = {"width": 1000, "height": 600}
TELEPHONE: Final[ViewportSize] = {"width": 360, "height": 740}


async def main() -> None:
    """Takes all of them."""
    with tempfile.TemporaryDirectory() as folder, cloud.run_folder(Path(folder) / "up") as directory:
        plans = offers.layout(NODES)
        async with cloud.running(directory, plans, done=lambda stage: click.echo(stage.name)) as stands:
            await _fill(stands.client)
            async with browser.running() as chromium:
                await _hoster(chromium, stands.link)
                await _tenant(chromium, stands.link)
                await _telephone(chromium, stands.link)


async def _fill(admin: Client) -> None:
    resources = {offer.name: offer.resource for offer in offers.CATALOGUE}
    for namespace, name, class_name, count in ORDERS:
        meta = ObjectMeta(namespace=namespace, name=name)
        await admin.create(GPUClaim(metadata=meta, spec=GPUClaimSpec(class_name=class_name, count=count)))
        await until(admin, GPUClaim, name, namespace, lambda claim: claim.status.node_name)
        if (namespace, name) in RUNNING:
            await admin.apply(_machine(namespace, name, resources[class_name], count))
            await until(admin, GPUClaim, name, namespace, lambda claim: claim.status.attachment)
    await admin.patch(core.Node, "gpu-5", {"metadata": {"annotations": {UNHEALTHY: "0000:18:00.0"}}})
    await admin.patch(GPUNode, "gpu-5", {"spec": {"excluded": [{"address": "0000:5d:00.0", "reason": "its fan"}]}})
    await until(admin, GPUNode, "gpu-5", "", _has_an_unhealthy_gpu)


def _has_an_unhealthy_gpu(node: GPUNode) -> bool:
    return any(device.health is Health.UNHEALTHY for device in node.status.devices)


def _machine(namespace: str, name: str, resource: str, count: int) -> dict[str, Any]:
    gpus = [{"name": f"gpu-{number}", "deviceName": resource} for number in range(count)]
    domain = {"cpu": {"cores": 8}, "memory": {"guest": "32Gi"}, "devices": {"gpus": gpus}}
    return {
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachine",
        "metadata": {"namespace": namespace, "name": name},
        "spec": {"runStrategy": "Always", "template": {"spec": {"architecture": "amd64", "domain": domain}}},
    }


async def _hoster(chromium: Browser, link: str) -> None:
    async with browser.visiting(chromium, viewport=DESK) as visitor:
        page = visitor.page
        await page.goto(link)
        await page.locator("#node-gpu-5 .is-unhealthy").wait_for()
        await page.locator(".is-attached").nth(5).wait_for()
        await _take(page, "console-nodes")


async def _tenant(chromium: Browser, link: str) -> None:
    async with browser.visiting(chromium, viewport=DESK) as visitor:
        page = visitor.page
        await _act_as(page, link, "tenant-a")
        await page.get_by_text("train: Running").wait_for()
        await page.get_by_role("radio", name="NVIDIA H200").check()
        await page.get_by_label("How many").fill("2")
        await page.locator("#verdict .fits-not").wait_for()
        await _take(page, "console-tenant")


async def _telephone(chromium: Browser, link: str) -> None:
    async with browser.visiting(chromium, viewport=TELEPHONE, color_scheme="dark", has_touch=True) as visitor:
        page = visitor.page
        await _act_as(page, link, "tenant-b")
        await page.get_by_text("research: Running").wait_for()
        await page.locator("#part-budget").get_by_text("No budget").wait_for()
        await _take(page, "console-telephone", whole=False)


async def _act_as(page: Page, link: str, name: str) -> None:
    await page.goto(link)
    await page.get_by_label("Act as").select_option(name)
    await page.get_by_role("heading", name=name).wait_for()


async def _take(page: Page, name: str, *, whole: bool = True) -> None:
    picture = await page.screenshot(full_page=whole, animations="disabled", caret="hide")
    (PICTURES / f"{name}.png").write_bytes(picture)
    click.echo(f"{name}.png: {len(picture) // 1024} KiB")


if __name__ == "__main__":
    build.command("etcd", progress=click.echo)
    build.ensure(kubevirt.component(), click.echo)
    try:
        asyncio.run(main())
    except* pytest.skip.Exception as group:
        raise click.ClickException(str(group.exceptions[0])) from None
