"""Conditions are written after every change of the world that they speak of, and at no other time (R16)."""

from __future__ import annotations

import datetime as dt
import itertools
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from gpuclaim.api import core, model
from gpuclaim.api.types import Condition, GPUClaim, GPUClass, GPUNode
from gpuclaim.kube import config
from gpuclaim.kube.client import Client
from gpuclaim.local.controlplane import ControlPlane
from support import cloud
from support.cloud import claim
from support.versions import Versions

from .test_claim_story import told
from .test_orders import condition, launcher, start

pytestmark = pytest.mark.usefixtures("crds")


async def test_what_is_written_of_a_changing_world(cluster: ControlPlane) -> None:
    async with Client(config.load(cluster.kubeconfig)) as client:
        await client.create(cloud.gpu_class())
        await cloud.add_node(client, "gpu-1", 2)
        await cloud.add_node(client, "gpu-2", 4)
        await cloud.add_namespace(client, "tenant-a")
        await cloud.add_service_account(client, "tenant-a")
        async with cloud.running_controller(cluster.kubeconfig, evacuate_after=dt.timedelta(hours=1)):
            await client.create(claim("vm1", count=2))
            await cloud.until(client, GPUClaim, "vm1", "tenant-a", condition("Healthy", "NodeWell"))
            for name in ("gpu-1", "gpu-2"):
                await cloud.until(client, GPUNode, name, "", reasons("AllHealthy", "WithinCapacity"))
            async with Versions(client, GPUClaim, "tenant-a") as claims, Versions(client, GPUNode) as nodes:
                await goes_on(client, 1)
                await ready(client, "gpu-1", "False")
                await claims.now("vm1", condition("Healthy", "NodeNotReady"))
                await devices(client, "gpu-1", unhealthy=1)
                await nodes.now("gpu-1", reasons("DevicesUnhealthy", "AboveCapacity"))
                await goes_on(client, 2)
                await ready(client, "gpu-1", "True")
                await claims.now("vm1", condition("Healthy", "GPUsMissing"))
                await devices(client, "gpu-1", unhealthy=0)
                await nodes.now("gpu-1", reasons("AllHealthy", "WithinCapacity"))
                await claims.now("vm1", condition("Healthy", "NodeWell"))
                await goes_on(client, 3)
                # Had there been more to write it would have been written before this.
                await client.create(claim("vm2", count=4))
                await claims.now("vm2", condition("Healthy", "NodeWell"))
                await client.patch(GPUNode, "gpu-2", {"status": {"devices": []}}, subresource="status")
                await nodes.now("gpu-2", reasons("AboveCapacity"))
        # Every version of the claim says something new, and nothing else is stored.
        health = [model.condition(found.status.conditions, "Healthy") for found in claims.of("vm1")]
        assert [each and each.reason for each in health] == ["NodeWell", "NodeNotReady", "GPUsMissing", "NodeWell"]
        # So does every version of a node that is not its agent's: two of one, and the last of the other.
        assert written(nodes.of("gpu-1")) == [
            {"Healthy": "DevicesUnhealthy", "Overcommitted": "AboveCapacity"},
            {"Healthy": "AllHealthy", "Overcommitted": "WithinCapacity"},
        ]
        (last,) = written(nodes.of("gpu-2"))
        assert last["Overcommitted"] == "AboveCapacity"
        assert (await told(client, "Unhealthy")).type == "Warning"
        assert (await told(client, "Healthy")).type == "Normal"


def reasons(*wanted: str) -> Callable[[GPUNode], bool]:
    return lambda found: {*wanted} <= {each.reason for each in found.status.conditions}


def written(versions: list[GPUNode]) -> list[dict[str, str]]:
    """Of each write of conditions, the reasons that it changed, by type; none where it changed times alone."""
    return [
        {each.type: each.reason for each in after if said(each) not in map(said, before)}
        for before, after in itertools.pairwise(found.status.conditions for found in versions)
        if before != after
    ]


def said(found: Condition) -> tuple[str, ...]:
    return found.type, found.status, found.reason, found.message


async def goes_on(client: Client, turn: int) -> None:
    """What happens all the time and changes no condition: heartbeats, words, pods of others."""
    now = dt.datetime.now(dt.UTC).isoformat()
    for name in ("gpu-1", "gpu-2"):
        await client.patch(GPUNode, name, {"status": {"reportedAt": now}}, subresource="status")
        node = msgspec.json.decode(await client.request("GET", f"/api/v1/nodes/{name}"))
        (beat,) = node["status"]["conditions"]
        conditions = [beat | {"lastHeartbeatTime": now}]
        await client.patch(core.Node, name, {"status": {"conditions": conditions}}, subresource="status")
    await client.patch(GPUClass, "h200", {"spec": {"description": f"of turn {turn}"}})
    await start(client, launcher(f"plain-{turn}", "other", gpus=0))


async def ready(client: Client, name: str, status: str) -> None:
    conditions = [{"type": "Ready", "status": status}]
    await client.patch(core.Node, name, {"status": {"conditions": conditions}}, subresource="status")


async def devices(client: Client, name: str, unhealthy: int) -> None:
    """What the agent reports when so many of its devices, the first ones, are out of order."""
    node: Any = msgspec.to_builtins(await client.get(GPUNode, name))
    found = node["status"]["devices"]
    for index, device in enumerate(found):
        device["health"] = "Unhealthy" if index < unhealthy else "Healthy"
        device["resources"][0]["allocatable"] = int(index >= unhealthy)
    await client.patch(GPUNode, name, {"status": {"devices": found}}, subresource="status")
