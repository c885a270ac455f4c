"""A real kubelet turns the pinned pod away: the refusal is stored, and the set goes elsewhere (R37)."""

from __future__ import annotations

import datetime as dt

import msgspec
import pytest

from gpuclaim.api import core
from gpuclaim.api.core import ObjectMeta
from gpuclaim.api.types import Device, GPUClaim, GPUNode, Health, ResourceCount
from gpuclaim.kube import config
from gpuclaim.kube.client import ApiError, Client
from gpuclaim.local.controlplane import ControlPlane
from gpuclaim.local.kubelet import Kubelet
from support import cloud
from support.cloud import H200, claim
from support.device_plugin import DevicePlugin

from .test_orders import bound, launcher, start

pytestmark = pytest.mark.usefixtures("crds")


async def test_the_set_of_a_pod_that_kubelet_turned_away_goes_elsewhere(
    cluster: ControlPlane, kubelet: Kubelet
) -> None:
    async with (
        Client(config.load(cluster.kubeconfig)) as client,
        DevicePlugin(kubelet.device_plugins, H200, ["0000:10:00.0"]) as plugin,
    ):
        plugin.fail_allocate = "the device does not answer"
        await cloud.until(client, core.Node, "node-a", "", lambda node: node.status.allocatable.get(H200) == "1")
        await client.create(cloud.gpu_class())
        await cloud.add_namespace(client, "tenant-a")
        await cloud.add_service_account(client, "tenant-a")
        await report(client, "node-a")
        async with cloud.running_controller(cluster.kubeconfig):
            await client.create(claim("vm1", count=1))
            held = await cloud.until(client, GPUClaim, "vm1", "tenant-a", bound)
            assert held.status.node_name == "node-a"
            await start(client, launcher("virt-launcher-vm1-a", "vm1"))
            refused = await cloud.until(client, GPUClaim, "vm1", "tenant-a", lambda found: found.status.refusals)
            (refusal,) = refused.status.refusals
            assert (refusal.node_name, refusal.reason) == ("node-a", "UnexpectedAdmissionError")
            assert "the device does not answer" in refusal.message
            assert refusal.expires_at - refusal.refused_at == dt.timedelta(minutes=5)
            # There is no other node yet: it holds where it is, and no pod is sent there again.
            with pytest.raises(ApiError) as again:
                await start(client, launcher("virt-launcher-vm1-b", "vm1"))
            assert again.value.reason == "NodeUnderRefusal"
            # Another node comes: the pod is let in, and the set has moved there before.
            await cloud.add_node(client, "gpu-2", 1)
            await _once_known(client)
            pod = await cloud.until(
                client, core.Pod, "virt-launcher-vm1-b", "tenant-a", lambda found: bool(found.spec.node_name)
            )
            moved = await client.get(GPUClaim, "vm1", "tenant-a")
            assert pod.spec.node_name == moved.status.node_name == "gpu-2"
            assert [r.node_name for r in moved.status.refusals] == ["node-a"]


async def _once_known(client: Client) -> None:
    """A new node is known a moment after it is stored."""
    while True:
        try:
            await start(client, launcher("virt-launcher-vm1-b", "vm1"))
        except ApiError as error:
            if error.reason != "NodeUnderRefusal":
                raise
        else:
            return


async def report(client: Client, name: str) -> None:
    """What the agent of a node with one GPU would report."""
    device = Device(
        address="0000:10:00.0",
        health=Health.HEALTHY,
        resources=[ResourceCount(name=H200, allocatable=1, used=0)],
    )
    await client.create(GPUNode(metadata=ObjectMeta(name=name)))
    status = {
        "devices": msgspec.to_builtins([device]),
        "resourceNames": [H200],
        "reportedAt": dt.datetime.now(dt.UTC).isoformat(),
    }
    await client.patch(GPUNode, name, {"status": status}, subresource="status")
