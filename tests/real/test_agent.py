"""The agent against a real kubelet, its device manager and a real apiserver."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gpuclaim.agent.loop import AgentConfig, run
from gpuclaim.agent.podresources import PodResources
from gpuclaim.api import core
from gpuclaim.api.types import GPUNode, Health
from gpuclaim.kube import config
from gpuclaim.kube.client import Client
from gpuclaim.local.kubelet import Kubelet, available
from gpuclaim.local.sysfs_tree import SimulatedFunction, SysfsTree
from support.cloud import until
from support.device_plugin import DevicePlugin

if TYPE_CHECKING:
    from gpuclaim.local.controlplane import ControlPlane

R = "nvidia.com/GH100_H200"
A, B = "0000:3b:00.0", "0000:5e:00.0"

pytestmark = pytest.mark.usefixtures("crds")


@contextlib.asynccontextmanager
async def running_agent(kubelet: Kubelet, tree: SysfsTree, client: Client, **settings: Any) -> AsyncIterator[None]:
    fields: dict[str, Any] = {"interval": 0.5, "heartbeat": 60, "phases_every": 1} | settings
    agent_config = AgentConfig(node=kubelet.name, sysfs=tree.root, pod_resources=kubelet.pod_resources, **fields)
    task = asyncio.ensure_future(run(agent_config, client))
    try:
        yield
        assert not task.done()
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def summary(node: GPUNode) -> dict[str, tuple[Health, dict[str, tuple[int, int]]]]:
    return {
        device.address: (device.health, {each.name: (each.allocatable, each.used) for each in device.resources})
        for device in node.status.devices
    }


async def until_says(client: Client, name: str, **expected: Any) -> GPUNode:
    return await until(client, GPUNode, name, "", lambda node: summary(node) == expected["devices"])


def pod(name: str, gpus: int) -> dict[str, Any]:
    container = {"name": "c", "image": "i", "resources": {"limits": {R: str(gpus)}}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"nodeName": "node-a", "automountServiceAccountToken": False, "containers": [container]},
    }


async def test_from_device_plugin_to_gpunode(cluster: ControlPlane, kubelet: Kubelet, tmp_path: Path) -> None:
    tree = SysfsTree(
        tmp_path,
        [
            SimulatedFunction(address=A, driver="vfio-pci", group=12, numa=0),
            SimulatedFunction(address=B, driver="vfio-pci", group=13, numa=1),
        ],
    )
    healthy, unhealthy = Health.HEALTHY, Health.UNHEALTHY
    async with (
        Client(config.load(cluster.kubeconfig)) as client,
        DevicePlugin(kubelet.device_plugins, R, ["12", "13"]) as plugin,
        running_agent(kubelet, tree, client),
    ):
        node = await until_says(client, "node-a", devices={A: (healthy, {R: (1, 0)}), B: (healthy, {R: (1, 0)})})
        assert node.status.resource_names == [R]
        assert node.status.boot_id
        assert [(owner.kind, owner.name) for owner in node.metadata.owner_references] == [("Node", "node-a")]

        plugin.prefer = ["13"]
        await client.request("POST", "/api/v1/namespaces/default/pods", body=pod("p", 1))
        node = await until_says(client, "node-a", devices={A: (healthy, {R: (1, 0)}), B: (healthy, {R: (1, 1)})})
        assert [user.name for user in node.status.devices[1].users] == ["p"]

        plugin.set_health("13", healthy=False)
        await until_says(client, "node-a", devices={A: (healthy, {R: (1, 0)}), B: (unhealthy, {R: (0, 1)})})
        plugin.set_health("13", healthy=True)
        await until_says(client, "node-a", devices={A: (healthy, {R: (1, 0)}), B: (healthy, {R: (1, 1)})})


async def test_a_restart_of_kubelet_loses_nothing(cluster: ControlPlane, kubelet: Kubelet, tmp_path: Path) -> None:
    tree = SysfsTree(tmp_path, [SimulatedFunction(address=A, driver="vfio-pci", group=12, numa=0)])
    async with (
        Client(config.load(cluster.kubeconfig)) as client,
        DevicePlugin(kubelet.device_plugins, R, ["12"]) as plugin,
        running_agent(kubelet, tree, client, heartbeat=2, settle=60),
    ):
        before = await until_says(client, "node-a", devices={A: (Health.HEALTHY, {R: (1, 0)})})
        seen: list[GPUNode] = []
        back = asyncio.Event()

        def note(node: GPUNode) -> bool:
            seen.append(node)
            return back.is_set() and node.status.reported_at != before.status.reported_at

        watching = asyncio.ensure_future(until(client, GPUNode, "node-a", "", note))
        await asyncio.to_thread(kubelet.restart)
        await asyncio.sleep(2)  # plugins take a moment to see that kubelet is a new one
        await plugin.start()
        before = seen[-1]
        back.set()
        await watching
        assert all(summary(node) == {A: (Health.HEALTHY, {R: (1, 0)})} for node in seen)


async def test_the_program(cluster: ControlPlane, kubelet: Kubelet, tmp_path: Path) -> None:
    tree = SysfsTree(tmp_path, [SimulatedFunction(address=A, driver="vfio-pci", group=12, numa=0)])
    argv = ["--node", "node-a", "--sysfs", tree.root, "--pod-resources", kubelet.pod_resources]
    argv += ["--kubeconfig", cluster.kubeconfig, "--interval", "0.5"]
    async with (
        Client(config.load(cluster.kubeconfig)) as client,
        DevicePlugin(kubelet.device_plugins, R, ["0000:3b:00.0"]),
    ):
        process = await asyncio.create_subprocess_exec(sys.executable, "-m", "gpuclaim", "agent", *map(str, argv))
        try:
            await until_says(client, "node-a", devices={A: (Health.HEALTHY, {R: (1, 0)})})
            status = await asyncio.to_thread(Path(f"/proc/{process.pid}/status").read_text)
            print([line for line in status.splitlines() if line.startswith(("VmRSS", "Rss", "VmHWM"))])
            process.send_signal(signal.SIGTERM)
            assert await asyncio.wait_for(process.wait(), 5) == 0
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()


async def test_a_kubelet_that_lists_pods_in_a_final_phase(cluster: ControlPlane, tmp_path: Path) -> None:
    # R26: up to 1.33 a pod that has ended stays in List, for a while with its devices.
    if not available():
        pytest.skip("a real kubelet needs root on Linux")
    tree = SysfsTree(tmp_path, [SimulatedFunction(address=A, driver="vfio-pci", group=12, numa=0)])
    async with (
        Kubelet(cluster, "node-a", version="1.33") as kubelet,
        Client(config.load(cluster.kubeconfig)) as client,
        DevicePlugin(kubelet.device_plugins, R, ["12"]),
        running_agent(kubelet, tree, client),
    ):
        await until_says(client, "node-a", devices={A: (Health.HEALTHY, {R: (1, 0)})})
        ends = pod("ends", 1)
        ends["spec"]["activeDeadlineSeconds"] = 3
        await client.request("POST", "/api/v1/namespaces/default/pods", body=ends)
        await until_says(client, "node-a", devices={A: (Health.HEALTHY, {R: (1, 1)})})
        await until(client, core.Pod, "ends", "default", lambda each: each.status.phase == "Failed")
        with PodResources(kubelet.pod_resources) as asked:
            assert [each.name for each in (await asked.read()).pods] == ["ends"]
        await until_says(client, "node-a", devices={A: (Health.HEALTHY, {R: (1, 0)})})
