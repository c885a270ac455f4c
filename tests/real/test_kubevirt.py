"""The real virt-controller makes launcher pods of VMs; VMs go on and off with the stand-in for virt-handler."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from gpuclaim.api import core, names
from gpuclaim.kube import config
from gpuclaim.kube.client import Client
from gpuclaim.local.controlplane import ControlPlane
from gpuclaim.local.kubevirt import NODE_DEVICES, NODE_LABELS, KubeVirt, VirtHandlerStandIn
from gpuclaim.local.offers import H200, NodePlan
from gpuclaim.local.simulated_kubelet import Pod
from support import cloud, machines
from support.machines import VirtualMachine, launches, says

pytestmark = pytest.mark.usefixtures("crds", "kubevirt")


@pytest.fixture
async def client(cluster: ControlPlane) -> AsyncIterator[Client]:
    async with Client(config.load(cluster.kubeconfig)) as opened:
        await cloud.add_namespace(opened, "tenant-a")
        yield opened
        await machines.remove_all(opened)


@pytest.fixture
async def hoster(client: Client) -> AsyncIterator[Client]:
    """One node with two GPUs, and the stand-in."""
    with tempfile.TemporaryDirectory(prefix="gpuclaim-") as folder:
        plans = [NodePlan("gpu-1", H200, 2)]
        async with (
            machines.simulated_nodes(client, plans, Path(folder)),
            machines.running(VirtHandlerStandIn().run(client)),
        ):
            yield client
            await machines.remove_all(client)


async def test_a_vm_with_a_gpu_gives_a_launcher_pod_that_asks_for_it(client: Client) -> None:
    await client.apply(machines.machine("vm1", H200.resource))
    pod = await machines.until_one(
        client, core.Pod, "tenant-a", lambda found: found.metadata.labels.get(names.VM_NAME_LABEL) == "vm1"
    )
    (compute,) = (each for each in pod.spec.containers if each.name == "compute")
    assert compute.resources.limits[H200.resource] == "1"
    for device in NODE_DEVICES:
        assert compute.resources.limits[device] == "1"
    selector = (await client.get(Pod, pod.metadata.name, "tenant-a")).spec.node_selector
    assert dict(NODE_LABELS).items() >= selector.items()


async def test_a_vm_that_asks_for_a_resource_that_is_not_permitted_gets_no_pod(client: Client) -> None:
    await client.apply(machines.machine("vm2", "x.io/other"))
    vmi = await cloud.until(client, machines.Instance, "vm2", "tenant-a", machines.failure)
    assert "x.io/other" in machines.failure(vmi)
    assert (await client.list(core.Pod, "tenant-a"))[0] == []


async def test_a_vm_goes_on_and_off_and_on_again(hoster: Client) -> None:
    await hoster.apply(machines.machine("vm1", H200.resource))
    await cloud.until(hoster, VirtualMachine, "vm1", "tenant-a", says("Running"))
    vmi = await cloud.until(
        hoster, machines.Instance, "vm1", "tenant-a", lambda found: machines.condition(found, "Ready") == "True"
    )
    assert (vmi.status.phase, vmi.status.node_name) == ("Running", "gpu-1")
    first = await machines.until_one(hoster, Pod, "tenant-a", launches("vm1"))

    await machines.switch(hoster, "vm1", "Halted")
    await cloud.until(hoster, VirtualMachine, "vm1", "tenant-a", says("Stopped"))
    await cloud.until_gone(hoster, machines.Instance, "vm1", "tenant-a")
    await cloud.until_gone(hoster, core.Pod, first.metadata.name, "tenant-a")

    await machines.switch(hoster, "vm1", "Always")
    await cloud.until(hoster, VirtualMachine, "vm1", "tenant-a", says("Running"))
    await machines.until_one(hoster, Pod, "tenant-a", launches("vm1", but=first.metadata.uid))

    await hoster.delete(VirtualMachine, "vm1", "tenant-a")
    await cloud.until_gone(hoster, VirtualMachine, "vm1", "tenant-a")
    await cloud.until_gone(hoster, machines.Instance, "vm1", "tenant-a")


async def test_a_vm_whose_pod_is_deleted_starts_again(hoster: Client) -> None:
    await hoster.apply(machines.machine("vm1", H200.resource))
    await cloud.until(hoster, VirtualMachine, "vm1", "tenant-a", says("Running"))
    first = await machines.until_one(hoster, Pod, "tenant-a", launches("vm1"))
    await hoster.delete(core.Pod, first.metadata.name, "tenant-a")
    await machines.until_one(hoster, Pod, "tenant-a", launches("vm1", but=first.metadata.uid))
    await cloud.until(hoster, VirtualMachine, "vm1", "tenant-a", says("Running"))


async def test_a_vm_whose_pod_fails_while_it_runs_starts_again(hoster: Client) -> None:
    await hoster.apply(machines.machine("vm1", H200.resource))
    await cloud.until(hoster, VirtualMachine, "vm1", "tenant-a", says("Running"))
    first = await machines.until_one(hoster, Pod, "tenant-a", launches("vm1"))
    # What a real kubelet says of a pod that it cannot take back after its own restart.
    failed = {"status": {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "Pod was rejected"}}
    await hoster.patch(core.Pod, first.metadata.name, failed, "tenant-a", subresource="status")
    await machines.until_one(hoster, Pod, "tenant-a", launches("vm1", but=first.metadata.uid))
    await cloud.until(hoster, VirtualMachine, "vm1", "tenant-a", says("Running"))


async def test_a_vm_that_is_switched_off_and_at_once_on_starts_when_its_old_pod_is_gone(hoster: Client) -> None:
    await hoster.apply(machines.machine("vm3", H200.resource))
    await cloud.until(hoster, VirtualMachine, "vm3", "tenant-a", says("Running"))
    first = await machines.until_one(hoster, Pod, "tenant-a", launches("vm3"))
    await machines.switch(hoster, "vm3", "Halted")
    await cloud.until(hoster, machines.Instance, "vm3", "tenant-a", lambda found: found.metadata.deletion_timestamp)
    await machines.switch(hoster, "vm3", "Always")
    await machines.until_one(hoster, core.Pod, "tenant-a", lambda found: found.metadata.uid != first.metadata.uid)
    left, _ = await hoster.list(core.Pod, "tenant-a")
    assert first.metadata.uid not in {pod.metadata.uid for pod in left}


async def test_a_second_start_changes_nothing_that_is_there(kubevirt: KubeVirt, client: Client) -> None:
    before, pid = await _configuration(kubevirt, client), kubevirt.process.pid
    await kubevirt.stop()
    await kubevirt.start()
    assert kubevirt.process.pid != pid
    assert await _configuration(kubevirt, client) == before
    await client.apply(machines.machine("vm1", H200.resource))
    await machines.until_one(client, core.Pod, "tenant-a", lambda found: names.VM_NAME_LABEL in found.metadata.labels)


async def _configuration(kubevirt: KubeVirt, client: Client) -> tuple[str, int]:
    resource = await client.discover("kubevirt.io/v1", "KubeVirt")
    found = msgspec.json.decode(await client.request("GET", resource.path(kubevirt.namespace, "kubevirt")))
    return found["metadata"]["uid"], found["metadata"]["generation"]
