"""A VM that is off keeps its GPU, and starts again on the node that has it (R10, R43): on the real virt-controller."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuclaim.api import core
from gpuclaim.api.types import GPUClaim
from gpuclaim.kube import config
from gpuclaim.kube.client import ApiError, Client
from gpuclaim.local.cloud import examples_dir
from gpuclaim.local.controlplane import ControlPlane
from gpuclaim.local.kubevirt import VirtHandlerStandIn
from gpuclaim.local.offers import H200, NodePlan
from gpuclaim.local.simulated_kubelet import Pod
from support import cloud, machines
from support.machines import VirtualMachine, launches, says

pytestmark = pytest.mark.usefixtures("crds", "kubevirt")


@pytest.fixture
async def hoster(cluster: ControlPlane) -> AsyncIterator[Client]:
    """A class, a node with one GPU and one with two, two tenants, the stand-in and the controller."""
    plans = [NodePlan("gpu-1", H200, 1), NodePlan("gpu-2", H200, 2)]
    with tempfile.TemporaryDirectory(prefix="gpuclaim-") as folder:
        async with Client(config.load(cluster.kubeconfig)) as client:
            await client.create(H200.gpu_class())
            for namespace in ("tenant-a", "tenant-b"):
                await cloud.add_namespace(client, namespace)
            async with (
                machines.simulated_nodes(client, plans, Path(folder)),
                machines.running(VirtHandlerStandIn().run(client)),
                cloud.running_controller(cluster.kubeconfig),
            ):
                yield client
                await machines.remove_all(client)


async def test_a_vm_starts_where_its_gpu_is_held_also_after_it_was_off(hoster: Client) -> None:
    order = await hoster.create(cloud.claim("vm1"))
    held = await cloud.until(hoster, GPUClaim, "vm1", "tenant-a", lambda found: found.status.node_name is not None)
    assert held.status.node_name == "gpu-1"  # best fit (R34)
    await _prefer_the_other_node(hoster)

    await hoster.apply(machines.machine("vm1", H200.resource))
    pod = await machines.until_one(hoster, Pod, "tenant-a", launches("vm1"))
    assert pod.spec.node_name == "gpu-1"
    assert _pinned_to(pod, "gpu-1")
    await cloud.until(hoster, VirtualMachine, "vm1", "tenant-a", says("Running"))
    attached = await cloud.until(hoster, GPUClaim, "vm1", "tenant-a", lambda found: found.status.attachment is not None)
    assert attached.status.attachment is not None
    assert attached.status.attachment.pod_uid == pod.metadata.uid

    await machines.switch(hoster, "vm1", "Halted")
    await cloud.until(hoster, VirtualMachine, "vm1", "tenant-a", says("Stopped"))
    await cloud.until_gone(hoster, core.Pod, pod.metadata.name, "tenant-a")
    off = await cloud.until(hoster, GPUClaim, "vm1", "tenant-a", lambda found: found.status.attachment is None)
    assert (off.metadata.uid, off.status.node_name) == (order.metadata.uid, "gpu-1")
    assert off.status.held_since == held.status.held_since

    # The others' GPUs are the other node's; nobody runs on the held one, and nobody else gets it.
    await hoster.create(cloud.claim("all-that-is-left", "tenant-b", count=2))
    with pytest.raises(ApiError) as refused:
        await hoster.create(cloud.claim("one-more", "tenant-b"))
    assert refused.value.reason == "InsufficientCapacity"

    await machines.switch(hoster, "vm1", "Always")
    again = await machines.until_one(hoster, Pod, "tenant-a", launches("vm1", but=pod.metadata.uid))
    assert again.spec.node_name == "gpu-1"
    await cloud.until(hoster, VirtualMachine, "vm1", "tenant-a", says("Running"))


async def test_a_vm_without_a_claim_does_not_start(hoster: Client) -> None:
    await hoster.apply(machines.machine("vm1", H200.resource))
    instance = await cloud.until(hoster, machines.Instance, "vm1", "tenant-a", machines.failure)
    assert "GPUClaim" in machines.failure(instance)
    assert (await hoster.list(core.Pod, "tenant-a"))[0] == []
    # The order that was missing lets it start.
    await hoster.create(cloud.claim("vm1"))
    await machines.until_one(hoster, Pod, "tenant-a", launches("vm1"))


async def test_the_example_works(hoster: Client) -> None:
    for file in ("order.yaml", "vm.yaml"):
        for document in yaml.safe_load_all((examples_dir() / file).read_text()):
            document["metadata"]["namespace"] = "tenant-a"
            await hoster.apply(document)
            name = document["metadata"]["name"]
    pod = await machines.until_one(hoster, Pod, "tenant-a", launches(name))
    claim = await hoster.get(GPUClaim, name, "tenant-a")
    assert claim.status.node_name == pod.spec.node_name
    await cloud.until(hoster, VirtualMachine, name, "tenant-a", says("Running"))


async def _prefer_the_other_node(client: Client) -> None:
    """Load gpu-1, so that the scheduler likes gpu-2 better for whatever may run on both."""
    busy = _plain("busy", nodeName="gpu-1")
    busy["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "100", "memory": "500Gi"}}
    for pod in (busy, _plain("anywhere")):
        await client.request("POST", "/api/v1/namespaces/tenant-a/pods", body=pod)
        await cloud.until(client, core.Pod, pod["metadata"]["name"], "tenant-a", lambda found: found.spec.node_name)
        if pod is busy:
            await cloud.until(client, core.Pod, "busy", "tenant-a", lambda found: found.status.phase == "Running")
    assert (await client.get(core.Pod, "anywhere", "tenant-a")).spec.node_name == "gpu-2"


def _plain(name: str, **spec: Any) -> dict[str, Any]:
    container = {"name": "main", "image": "any", "resources": {"requests": {"cpu": "1", "memory": "1Gi"}}}
    meta = {"name": name, "namespace": "tenant-a"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": {"containers": [container]} | spec}


def _pinned_to(pod: Pod, node: str) -> bool:
    """Whether every node selector term names the node, beside what virt-controller asked for."""
    assert pod.spec.affinity is not None
    wanted = pod.spec.affinity["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    pin = {"key": "metadata.name", "operator": "In", "values": [node]}
    return all(pin in term.get("matchFields", ()) for term in wanted["nodeSelectorTerms"])
