"""A real kubelet turns the pinned pod away: the refusal is stored, and the set goes elsewhere (R37)."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import signal
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpuclaim.api import core
from gpuclaim.api.core import ObjectMeta
from gpuclaim.api.types import Device, GPUClaim, GPUNode, Health, ResourceCount
from gpuclaim.kube import config
from gpuclaim.kube.client import ApiError, Client
from gpuclaim.local.controlplane import ControlPlane
from gpuclaim.local.kubelet import Kubelet, available
from support import cloud, replicas
from support.cloud import H200, claim
from support.device_plugin import DevicePlugin
from support.versions import Versions

from .test_claim_story import moved_to, told
from .test_orders import bound, launcher, start

A, B = "0000:10:00.0", "0000:11:00.0"
PODS = "/api/v1/namespaces/tenant-a/pods"

pytestmark = [
    pytest.mark.usefixtures("crds"),
    pytest.mark.skipif(not available(), reason="a real kubelet needs root on Linux"),
]


@pytest.fixture
async def client(cluster: ControlPlane) -> AsyncIterator[Client]:
    """A class, and a tenant."""
    async with Client(config.load(cluster.kubeconfig)) as opened:
        await opened.create(cloud.gpu_class())
        await cloud.add_namespace(opened, "tenant-a")
        await cloud.add_service_account(opened, "tenant-a")
        yield opened


@pytest.fixture
def strict_kubelet(cluster: ControlPlane) -> Iterator[Kubelet]:
    """One that takes no pod whose devices are not all on one NUMA node."""
    with Kubelet(cluster, "node-a", configuration={"topologyManagerPolicy": "single-numa-node"}) as running:
        yield running


@contextlib.asynccontextmanager
async def offered(client: Client, kubelet: Kubelet, devices: Mapping[str, int | None]) -> AsyncIterator[DevicePlugin]:
    """The kubelet's Node offers these devices, and the report of its agent says so."""
    async with DevicePlugin(kubelet.device_plugins, H200, devices) as plugin:
        count = str(len(devices))
        await cloud.until(client, core.Node, "node-a", "", lambda node: node.status.allocatable.get(H200) == count)
        await report(client, "node-a", devices)
        yield plugin


async def test_a_node_that_repeats_it_is_let_be_for_longer_and_forgotten_when_it_is_gone(
    client: Client, cluster: ControlPlane, kubelet: Kubelet
) -> None:
    ahead = dt.timedelta(0)

    async with offered(client, kubelet, {A: None}) as plugin:
        plugin.fail_allocate = "the device does not answer"
        async with cloud.running_controller(cluster.kubeconfig, now=lambda: dt.datetime.now(dt.UTC) + ahead):
            await client.create(claim("vm1"))
            held = await cloud.until(client, GPUClaim, "vm1", "tenant-a", bound)
            assert held.status.node_name == "node-a"
            await start(client, launcher("virt-launcher-vm1-a", "vm1"))
            refused = await cloud.until(client, GPUClaim, "vm1", "tenant-a", lambda found: found.status.refusals)
            (refusal,) = refused.status.refusals
            assert (refusal.node_name, refusal.reason) == ("node-a", "UnexpectedAdmissionError")
            assert "the device does not answer" in refusal.message
            assert refusal.expires_at - refusal.refused_at == dt.timedelta(minutes=5)
            event = await told(client, "NodeRefused")
            assert event.type == "Warning"
            assert event.note.startswith("node node-a turned the pod away (UnexpectedAdmissionError), and is not tried")
            # There is no other node yet: it holds where it is, and no pod is sent there again.
            with pytest.raises(ApiError) as again:
                await start(client, launcher("virt-launcher-vm1-b", "vm1"))
            assert again.value.reason == "NodeUnderRefusal"
            # Once it has expired it is tried again, and does the same.
            ahead = dt.timedelta(minutes=6)
            await start(client, launcher("virt-launcher-vm1-b", "vm1"))
            refused = await cloud.until(client, GPUClaim, "vm1", "tenant-a", refused_again(refusal.pod_uid))
            (longer,) = refused.status.refusals
            assert longer.expires_at - longer.refused_at == dt.timedelta(minutes=10)
            # Another node comes: the pod is let in, and the set has moved there before.
            await cloud.add_node(client, "gpu-2", 1)
            pod = await started(client, "virt-launcher-vm1-c")
            moved = await client.get(GPUClaim, "vm1", "tenant-a")
            assert pod.spec.node_name == moved.status.node_name == "gpu-2"
            assert moved.status.refusals == [longer]
            assert (await told(client, "Moved")).note == (
                "moved from node node-a to node gpu-2 as the node had turned the set's pod away"
            )
            kubelet.process.stop()
            await client.delete(core.Node, "node-a")
            await cloud.until(client, GPUClaim, "vm1", "tenant-a", lambda found: not found.status.refusals)


def refused_again(pod_uid: str) -> Any:
    return lambda found: any(refusal.pod_uid != pod_uid for refusal in found.status.refusals)


async def test_a_topology_that_does_not_fit_is_refused_and_stored_before_the_set_goes_elsewhere(
    client: Client, cluster: ControlPlane, strict_kubelet: Kubelet
) -> None:
    async with offered(client, strict_kubelet, {A: 0, B: 1}):
        reason = await _goes_elsewhere(client, cluster, lambda: asyncio.sleep(0))
    assert reason == "TopologyAffinityError"


async def test_a_device_that_is_gone_before_the_pod_starts_is_refused_and_stored_before_the_set_goes_elsewhere(
    client: Client, cluster: ControlPlane, kubelet: Kubelet
) -> None:
    async with offered(client, kubelet, {A: None, B: None}) as plugin:
        # The scheduler sends the pod while the node's kubelet is away, and it comes back without the devices.
        await asyncio.to_thread(kubelet.process.kill)

        async def come_back() -> None:
            await plugin.stop()
            await asyncio.to_thread(kubelet.restart)

        reason = await _goes_elsewhere(client, cluster, come_back)
    assert reason == "UnexpectedAdmissionError"


async def _goes_elsewhere(client: Client, cluster: ControlPlane, once_sent: Any) -> str:
    """A set of two claims whose pod node-a turns away runs on gpu-2; in which order that is stored. The reason."""
    await cloud.add_node(client, "gpu-2", 4)
    async with cloud.running_controller(cluster.kubeconfig), Versions(client, GPUClaim, "tenant-a") as seen:
        for name in ("one", "two"):
            await client.create(claim(name, set="vm1"))
            assert (await cloud.until(client, GPUClaim, name, "tenant-a", bound)).status.node_name == "node-a"
        await start(client, launcher("virt-launcher-vm1-a", "vm1", gpus=2))
        sent = await cloud.until(client, core.Pod, "virt-launcher-vm1-a", "tenant-a", lambda pod: pod.spec.node_name)
        assert sent.spec.node_name == "node-a"
        await once_sent()
        first = await cloud.until(
            client, core.Pod, "virt-launcher-vm1-a", "tenant-a", lambda pod: pod.status.phase == "Failed"
        )
        # As virt-controller does: at once another pod, and again, until one is let in.
        pod = await started(client, "virt-launcher-vm1-b", gpus=2)
        assert pod.spec.node_name == "gpu-2"
        for name in ("one", "two"):
            moved = await cloud.until(client, GPUClaim, name, "tenant-a", moved_to("gpu-2"))
            (refusal,) = moved.status.refusals
            assert (refusal.node_name, refusal.pod_uid) == ("node-a", first.metadata.uid)
            assert refusal.reason == first.status.reason
        refused = [await seen.first(name, lambda found: found.status.refusals) for name in ("one", "two")]
        moves = [await seen.first(name, moved_to("gpu-2")) for name in ("one", "two")]
        # Every claim says so before any is moved, and all are moved before a pod is let in.
        assert max(map(version, refused)) < min(map(version, moves))
        assert max(map(version, moves)) < version(pod)
        return first.status.reason


def version(found: GPUClaim | core.Pod) -> int:
    return int(found.metadata.resource_version)


async def test_a_leader_that_is_killed_after_the_refusal_does_not_have_the_set_go_back(
    client: Client, cluster: ControlPlane, kubelet: Kubelet, tmp_path: Path
) -> None:
    async with offered(client, kubelet, {A: None}) as plugin:
        plugin.fail_allocate = "the device does not answer"
        async with replicas.running(cluster.kubeconfig, tmp_path, count=2) as running:
            first = await replicas.leader(client)
            await client.create(claim("vm1"))
            await cloud.until(client, GPUClaim, "vm1", "tenant-a", bound)
            await start(client, launcher("virt-launcher-vm1-a", "vm1"))
            await cloud.until(client, GPUClaim, "vm1", "tenant-a", lambda found: found.status.refusals)
            # It fits nowhere else yet, so that nothing can have been pinned anew.
            running[first].signal(signal.SIGKILL)
            # Of the pod nothing tells the next leader: only the claim's status does.
            await client.request("DELETE", f"{PODS}/virt-launcher-vm1-a", body={"gracePeriodSeconds": 0})
            await cloud.until_gone(client, core.Pod, "virt-launcher-vm1-a", "tenant-a")
            plugin.fail_allocate = None
            assert await replicas.leader(client, other_than=first) != first
            await replicas.first_ready(replica for name, replica in running.items() if name != first)
            with pytest.raises(ApiError) as again:
                await start(client, launcher("virt-launcher-vm1-b", "vm1"))
            assert again.value.reason == "NodeUnderRefusal"
            await cloud.add_node(client, "gpu-2", 1)
            assert (await started(client, "virt-launcher-vm1-b")).spec.node_name == "gpu-2"
            moved = await client.get(GPUClaim, "vm1", "tenant-a")
            assert [entry.reason for entry in moved.status.history] == ["NodeRefused"]


async def started(client: Client, name: str, gpus: int = 1) -> core.Pod:
    """The pod of vm1 once it is let in and has its node: what has just happened is known a moment later."""
    async with asyncio.timeout(60):
        while True:
            try:
                await start(client, launcher(name, "vm1", gpus=gpus))
            except ApiError as error:
                if error.reason not in {"NodeUnderRefusal", "SetInUse", "SetNotBound"}:
                    raise
            else:
                return await cloud.until(client, core.Pod, name, "tenant-a", lambda pod: pod.spec.node_name)


async def report(client: Client, name: str, devices: Mapping[str, int | None]) -> None:
    """What the agent of a node with these GPUs would report."""
    found = [
        Device(
            address=address,
            health=Health.HEALTHY,
            numa_node=numa,
            resources=[ResourceCount(name=H200, allocatable=1, used=0)],
        )
        for address, numa in devices.items()
    ]
    await client.create(GPUNode(metadata=ObjectMeta(name=name)))
    status = {
        "devices": msgspec.to_builtins(found),
        "resourceNames": [H200],
        "reportedAt": dt.datetime.now(dt.UTC).isoformat(),
    }
    await client.patch(GPUNode, name, {"status": status}, subresource="status")
