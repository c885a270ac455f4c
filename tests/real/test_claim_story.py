"""What a tenant is told on his claim: why his pod waits, Events, and the history of moves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import msgspec
import pytest

from gpuclaim.api import core, model
from gpuclaim.api.types import GPUClaim
from gpuclaim.kube import config
from gpuclaim.kube.client import Client
from gpuclaim.kube.resources import Event
from gpuclaim.local.controlplane import ControlPlane
from support import cloud
from support.cloud import H200, claim

from .test_orders import bound, condition, launcher, start

pytestmark = pytest.mark.usefixtures("crds")


@pytest.fixture
async def hoster(cluster: ControlPlane) -> AsyncIterator[Client]:
    """Two nodes (1 and 4 GPUs), a controller."""
    async with Client(config.load(cluster.kubeconfig)) as client:
        await client.create(cloud.gpu_class())
        await cloud.add_node(client, "gpu-1", 1)
        await cloud.add_node(client, "gpu-2", 4)
        await cloud.add_namespace(client, "tenant-a")
        await cloud.add_service_account(client, "tenant-a")
        async with cloud.running_controller(cluster.kubeconfig):
            yield client


async def told(client: Client, reason: str, name: str = "vm1") -> Event:
    """The first Event of that reason on the claim; Events come a moment after what they tell of."""
    async with asyncio.timeout(60):
        while True:
            found, version = await client.list(Event, "tenant-a")
            for event in found:
                if (event.reason, event.regarding.name) == (reason, name):
                    return event
            await cloud.changed(client, Event, "tenant-a", version)


async def test_a_pod_that_the_node_has_no_cpu_and_memory_for_is_told_apart(hoster: Client) -> None:
    await hoster.create(claim("vm1"))
    assert (await cloud.until(hoster, GPUClaim, "vm1", "tenant-a", bound)).status.node_name == "gpu-1"
    pod = launcher("virt-launcher-vm1-a", "vm1")
    pod["spec"]["containers"][0]["resources"]["requests"] = {"cpu": "100", "memory": "2Ti"}
    await start(hoster, pod)
    waits = await cloud.until(hoster, GPUClaim, "vm1", "tenant-a", condition("Attached", "NodeLacksRoom"))
    said = model.condition(waits.status.conditions, "Attached")
    assert said is not None
    room = "the GPUs are held, and their node has too little cpu and memory left"
    assert said.message == f"pod virt-launcher-vm1-a waits: {room}"
    assert waits.status.node_name == "gpu-1"  # the hold is as good as before
    event = await told(hoster, "PodWaits")
    assert (event.type, event.note) == ("Warning", said.message)


async def test_a_pod_that_the_node_has_no_gpu_for_is_told_apart(hoster: Client) -> None:
    await hoster.create(claim("vm1"))
    await cloud.until(hoster, GPUClaim, "vm1", "tenant-a", bound)
    # The device plugin is gone, and the agent has not noticed yet.
    for key in ("allocatable", "capacity"):
        await hoster.patch(core.Node, "gpu-1", {"status": {key: {H200: "0"}}}, subresource="status")
    await start(hoster, launcher("virt-launcher-vm1-a", "vm1"))
    waits = await cloud.until(hoster, GPUClaim, "vm1", "tenant-a", condition("Attached", "NodeLacksGPUs"))
    said = model.condition(waits.status.conditions, "Attached")
    assert said is not None
    assert H200 in said.message


async def test_the_story_of_a_claim_in_events_and_history(hoster: Client) -> None:
    await hoster.create(claim("vm1"))
    await cloud.until(hoster, GPUClaim, "vm1", "tenant-a", bound)
    first = await told(hoster, "Bound")
    assert (first.type, first.note) == ("Normal", "1 GPU of class h200 held on node gpu-1")
    await hoster.create(claim("vm1-more", count=2, set="vm1"))
    moved = await cloud.until(hoster, GPUClaim, "vm1", "tenant-a", moved_to("gpu-2"))
    (entry,) = moved.status.history
    text = "moved from node gpu-1 to node gpu-2 to make room for another claim of the set"
    assert (entry.from_node, entry.to_node, entry.reason, entry.message) == ("gpu-1", "gpu-2", "SetGrew", text)
    assert (await told(hoster, "Moved")).note == text
    # kubectl describe asks for core/v1 Events of the object.
    selector = f"involvedObject.name=vm1,involvedObject.uid={moved.metadata.uid}"
    body = await hoster.request("GET", "/api/v1/namespaces/tenant-a/events", params={"fieldSelector": selector})
    assert {item["reason"] for item in msgspec.json.decode(body)["items"]} == {"Bound", "Moved"}
    await hoster.delete(GPUClaim, "vm1", "tenant-a")
    await cloud.until_gone(hoster, GPUClaim, "vm1", "tenant-a")
    assert (await told(hoster, "Released")).note == "1 GPU of class h200 given back"


async def test_a_hold_that_makes_room_for_an_order_says_so_and_nothing_of_the_other(hoster: Client) -> None:
    await hoster.patch(core.Node, "gpu-1", {"spec": {"unschedulable": True}})
    await hoster.create(claim("vm1"))
    assert (await cloud.until(hoster, GPUClaim, "vm1", "tenant-a", bound)).status.node_name == "gpu-2"
    await hoster.patch(core.Node, "gpu-1", {"spec": {"unschedulable": False}})
    await cloud.add_namespace(hoster, "tenant-b")
    await cloud.once_admitted(hoster, claim("big", namespace="tenant-b", count=4))
    moved = await cloud.until(hoster, GPUClaim, "vm1", "tenant-a", moved_to("gpu-1"))
    (entry,) = moved.status.history
    assert (entry.reason, entry.message) == (
        "MadeRoom",
        "moved from node gpu-2 to node gpu-1 to make room for an order",
    )


def moved_to(node: str) -> Callable[[GPUClaim], bool]:
    return lambda found: found.status.node_name == node
