"""Sets and shared budgets when things break or come at once, on the real apiserver (R31, R33, R36a)."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gpuclaim.api import core, names
from gpuclaim.api.types import GPUClaim
from gpuclaim.kube import config
from gpuclaim.kube.client import ApiError, Client
from gpuclaim.kube.lease import Timing
from gpuclaim.local.controlplane import ControlPlane
from gpuclaim.placement import invariants
from support import audit, cloud, roads
from support.cloud import claim
from support.roads import SlowRoad
from support.versions import Versions

from .test_orders import bound, condition, launcher, refusal, start

pytestmark = pytest.mark.usefixtures("crds")


@pytest.fixture
async def client(cluster: ControlPlane) -> AsyncIterator[Client]:
    """Two nodes (2 and 4 GPUs), a tenant."""
    async with Client(config.load(cluster.kubeconfig)) as opened:
        await opened.create(cloud.gpu_class())
        await cloud.add_node(opened, "gpu-1", 2)
        await cloud.add_node(opened, "gpu-2", 4)
        await cloud.add_namespace(opened, "tenant-a")
        await cloud.add_service_account(opened, "tenant-a")
        yield opened


def on(node: str) -> Any:
    return lambda found: found.status.node_name == node


async def test_a_leader_that_dies_between_the_two_writes_of_a_move_loses_no_hold(
    client: Client, cluster: ControlPlane
) -> None:
    count = 0

    def second_move(method: str, data: bytes | None) -> bool:
        nonlocal count
        count += roads.moves(method, data)
        return count == 2

    timing = Timing(duration=3, retry=0.3, margin=1)
    api = config.load(cluster.kubeconfig)
    async with Versions(client, GPUClaim, "tenant-a") as seen, contextlib.AsyncExitStack() as stack:
        road = await stack.enter_async_context(SlowRoad(api, second_move, for_ever=True))
        await stack.enter_async_context(
            cloud.running_controller(cluster.kubeconfig, "first", client=road, timing=timing)
        )
        for name in ("one", "two"):
            await client.create(claim(name, set="vm1"))
            assert (await cloud.until(client, GPUClaim, name, "tenant-a", bound)).status.node_name == "gpu-1"
        # A third member has the set move; of its two writes one is stored when the leader dies.
        growing = asyncio.create_task(client.create(claim("three", set="vm1")))
        await road.stuck.wait()
        assert invariants.split_sets(await audit.stored_books(client)) == ["tenant-a/vm1 is on ['gpu-1', 'gpu-2']"]
        # Its lease ends by itself: it can neither renew it nor give it back.
        async with cloud.running_controller(cluster.kubeconfig, "second", timing=timing):
            growing.cancel()
            # It was brought together before anything was let in; only then is a pod pinned.
            assert await audit.faults(client) == []
            together = [await client.get(GPUClaim, name, "tenant-a") for name in ("one", "two")]
            (node,) = {each.status.node_name for each in together}
            assert "SetUnited" in [each.reason for found in together for each in found.status.history]
            await start(client, launcher("virt-launcher-vm1-a", "vm1", gpus=2))
            pod = await cloud.until(client, core.Pod, "virt-launcher-vm1-a", "tenant-a", lambda p: p.spec.node_name)
            assert pod.spec.node_name == node
        # In no version that was ever stored had either lost its hold.
        for name in ("one", "two"):
            held = [found.status.node_name for found in seen.of(name)]
            assert None not in held[held.index("gpu-1") :]


async def test_a_node_that_fails_between_two_members_does_not_get_the_second(
    client: Client, cluster: ControlPlane
) -> None:
    async with cloud.running_controller(cluster.kubeconfig, evacuate_after=dt.timedelta(hours=1)):
        await client.create(claim("one", set="vm1"))
        assert (await cloud.until(client, GPUClaim, "one", "tenant-a", bound)).status.node_name == "gpu-1"
        await _fails(client, "gpu-1")
        await cloud.until(client, GPUClaim, "one", "tenant-a", condition("Healthy", "NodeNotReady"))
        # The VM is off: the first member follows the second to a node that is well.
        await client.create(claim("two", set="vm1"))
        for name in ("one", "two"):
            await cloud.until(client, GPUClaim, name, "tenant-a", on("gpu-2"))
        # It is on when the next node fails: nothing may move, and a third member is refused.
        await start(client, launcher("virt-launcher-vm1-a", "vm1", gpus=2))
        await cloud.until(client, GPUClaim, "one", "tenant-a", condition("Attached", "PodRuns"))
        await _fails(client, "gpu-2")
        for name in ("one", "two"):
            await cloud.until(client, GPUClaim, name, "tenant-a", condition("Healthy", "NodeNotReady"))
        error = await refusal(client.create(claim("three", set="vm1")))
        assert error.reason == "SetAttached"
        stored, _ = await client.list(GPUClaim)
        assert {(found.metadata.name, found.status.node_name) for found in stored} == {
            ("one", "gpu-2"),
            ("two", "gpu-2"),
        }


async def _fails(client: Client, node: str) -> None:
    conditions = [{"type": "Ready", "status": "False"}]
    await client.patch(core.Node, node, {"status": {"conditions": conditions}}, subresource="status")


async def test_of_two_tenants_orders_for_the_last_unit_of_their_ancestor_one_is_taken(
    client: Client, cluster: ControlPlane
) -> None:
    tenants = ("tenant-root-a", "tenant-root-b")
    for name in ("tenant-root", *tenants):
        labels = {"tenant.cozystack.io/tenant-root": ""} if name in tenants else {}
        await client.create(core.Namespace(metadata=core.ObjectMeta(name=name, labels=labels)))
    key = f"{names.GROUP}/h200"
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "gpus", "namespace": "tenant-root"},
        "spec": {"hard": {key: "3"}},
    }
    await client.request("POST", "/api/v1/namespaces/tenant-root/resourcequotas", body=quota)
    async with cloud.running_controller(cluster.kubeconfig):
        await client.create(claim("held", namespace=tenants[0], count=2))
        orders = [claim(f"vm{n}", namespace=tenants[n % 2]) for n in range(24)]
        results = await cloud.all_of(client.create(order) for order in orders)
        taken = [result for result in results if isinstance(result, GPUClaim)]
        refused = [result for result in results if isinstance(result, ApiError)]
        assert (len(taken), len(refused)) == (1, 23)
        assert {error.reason for error in refused} == {"OverBudget"}
        await cloud.until(client, core.ResourceQuota, "gpus", "tenant-root", lambda q: q.status.used.get(key) == "3")
        stored, _ = await client.list(GPUClaim)
        assert {found.metadata.uid for found in stored} >= {taken[0].metadata.uid}
        assert len(stored) == 2
        # It is given back, and the other tenant may have it.
        winner = taken[0].metadata
        (other,) = set(tenants) - {winner.namespace}
        await client.delete(GPUClaim, winner.name, winner.namespace)
        await cloud.once_admitted(client, claim("next", namespace=other))
        error = await refusal(client.create(claim("late", namespace=winner.namespace)))
        assert error.reason == "OverBudget"
        assert await audit.faults(client) == []
