"""Virtual machines with GPUs, on simulated nodes, for tests with the real virt-controller."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from gpuclaim.api import names
from gpuclaim.api.core import ObjectMeta, Struct
from gpuclaim.kube import resources
from gpuclaim.kube.client import Client
from gpuclaim.kube.resources import Resource, resource_of
from gpuclaim.local import kubevirt
from gpuclaim.local.offers import NodePlan
from gpuclaim.local.simulated_kubelet import Pod
from gpuclaim.local.simulated_node import Ground, SimulatedNode
from support import cloud

T = TypeVar("T", bound=msgspec.Struct)


class VirtualMachineSpec(Struct, frozen=True, kw_only=True):
    """kubevirt.io/v1 VirtualMachineSpec."""

    run_strategy: str = ""


class VirtualMachineStatus(Struct, frozen=True, kw_only=True):
    """kubevirt.io/v1 VirtualMachineStatus."""

    printable_status: str = ""
    ready: bool = False


class VirtualMachine(Struct, frozen=True, kw_only=True):
    """kubevirt.io/v1 VirtualMachine."""

    metadata: ObjectMeta
    spec: VirtualMachineSpec = VirtualMachineSpec()
    status: VirtualMachineStatus = VirtualMachineStatus()


class Condition(Struct, frozen=True, kw_only=True):
    """kubevirt.io/v1 VirtualMachineInstanceCondition."""

    type: str
    status: str = ""
    message: str = ""


class InstanceStatus(Struct, frozen=True, kw_only=True):
    """kubevirt.io/v1 VirtualMachineInstanceStatus."""

    phase: str = ""
    node_name: str = ""
    conditions: list[Condition] = []


class Instance(Struct, frozen=True, kw_only=True):
    """kubevirt.io/v1 VirtualMachineInstance, with more of its status than the stand-in reads."""

    metadata: ObjectMeta
    status: InstanceStatus = InstanceStatus()


resources.TYPED[Instance] = Resource("kubevirt.io/v1", "virtualmachineinstances", namespaced=True)
resources.TYPED[VirtualMachine] = Resource("kubevirt.io/v1", "virtualmachines", namespaced=True)


def machine(name: str, resource: str, run_strategy: str = "Always", namespace: str = "tenant-a") -> dict[str, Any]:
    """A VirtualMachine with one GPU."""
    domain = {"memory": {"guest": "1Gi"}, "devices": {"gpus": [{"name": "gpu", "deviceName": resource}]}}
    return {
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachine",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"runStrategy": run_strategy, "template": {"spec": {"architecture": "amd64", "domain": domain}}},
    }


async def switch(client: Client, name: str, run_strategy: str, namespace: str = "tenant-a") -> None:
    """Switch a VM on (`Always`) or off (`Halted`)."""
    await client.patch(VirtualMachine, name, {"spec": {"runStrategy": run_strategy}}, namespace)


def says(status: str) -> Callable[[VirtualMachine], bool]:
    """Whether the VM's printable status is this."""
    return lambda found: found.status.printable_status == status


def condition(instance: Instance, type_: str) -> str:
    """The status of a condition; empty where there is no such condition."""
    return next((each.status for each in instance.status.conditions if each.type == type_), "")


def failure(instance: Instance) -> str:
    """What virt-controller says to be wrong; empty where nothing is."""
    found = (each for each in instance.status.conditions if (each.type, each.status) == ("Synchronized", "False"))
    return next((each.message for each in found), "")


def launches(vm: str, *, but: str = "") -> Callable[[Pod], bool]:
    """Whether a pod is a launcher of the VM, on a node and running; not the one with the UID `but`."""

    def holds(pod: Pod) -> bool:
        meta = pod.metadata
        own = meta.labels.get(names.VM_NAME_LABEL) == vm and meta.uid != but
        return own and bool(pod.spec.node_name) and pod.status.phase == "Running"

    return holds


async def until_one(
    client: Client, type_: type[T], namespace: str, holds: Callable[[T], object], seconds: float = 120
) -> T:
    """The first object of a namespace that `holds` is true of; watched, not polled."""
    async with asyncio.timeout(seconds):
        while True:
            found, version = await client.list(type_, namespace)
            for obj in found:
                if holds(obj):
                    return obj
            changes = client.watch(resource_of(type_), namespace, since=version)
            async with contextlib.aclosing(changes):
                async for kind, item in changes:
                    obj = msgspec.json.decode(item, type=type_)
                    if kind in {"ADDED", "MODIFIED"} and holds(obj):
                        return obj


async def remove_all(client: Client) -> None:
    """Delete every VM and return when they, their instances and their pods are gone.

    A `Slate` that is wiped while VMs are there races with virt-controller, which makes anew what it misses.
    """
    found, _ = await client.list(VirtualMachine)
    for each in found:
        await client.delete(VirtualMachine, each.metadata.name, each.metadata.namespace)
    for type_ in (VirtualMachine, Instance):
        await _until_none(client, type_)
    for each in found:
        pods, _ = await client.list(Pod, each.metadata.namespace)
        for pod in pods:
            if pod.metadata.labels.get(names.VM_NAME_LABEL) == each.metadata.name:
                await cloud.until_gone(client, Pod, pod.metadata.name, pod.metadata.namespace)


async def _until_none(client: Client, type_: type[msgspec.Struct], seconds: float = 60) -> None:
    async with asyncio.timeout(seconds):
        while True:
            found, version = await client.list(type_)
            if not found:
                return
            async with contextlib.aclosing(client.watch(resource_of(type_), since=version)) as changes:
                async for kind, _ in changes:
                    if kind == "DELETED":
                        break


@contextlib.asynccontextmanager
async def simulated_nodes(client: Client, plans: Sequence[NodePlan], directory: Path) -> AsyncIterator[None]:
    """Nodes with the real agent, that launcher pods can run on; gpuclaim's CRDs must be served."""
    (directory / "pci.ids").touch()
    ground = Ground(labels=kubevirt.NODE_LABELS, devices=kubevirt.NODE_DEVICES, pci_ids=directory / "pci.ids")
    nodes = [
        SimulatedNode(client, plan, directory / str(number), ground, number=number)
        for number, plan in enumerate(plans, 1)
    ]
    async with running(*(node.run() for node in nodes)):
        async with asyncio.timeout(60):
            await asyncio.gather(*(node.reported.wait() for node in nodes))
        yield


@contextlib.asynccontextmanager
async def running(*work: Any) -> AsyncIterator[None]:
    """Coroutines that run while the block does; the end of one fails the block."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(each) for each in work]
        yield
        for task in tasks:
            task.cancel()
