"""A simulated node on the real apiserver: its kubelet runs pods or turns them away, and the real agent reports it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpuclaim.api import core
from gpuclaim.api.types import GPUNode
from gpuclaim.kube import config
from gpuclaim.kube.client import Client
from gpuclaim.local import offers
from gpuclaim.local.controlplane import ControlPlane
from gpuclaim.local.simulated_node import SILENT, UNHEALTHY, Ground, SimulatedNode
from support.cloud import until, until_gone
from support.wait import until_async

pytestmark = pytest.mark.usefixtures("crds")

NAME = "gpu-1"
RESOURCE = offers.H200.resource
NS = "default"


@pytest.fixture
async def client(cluster: ControlPlane) -> AsyncIterator[Client]:
    async with Client(config.load(cluster.kubeconfig)) as opened:
        yield opened


@pytest.fixture
async def node(client: Client, tmp_path: Path) -> AsyncIterator[SimulatedNode]:
    """A node of four H200, reported."""
    plan = offers.NodePlan(NAME, offers.H200, 4)
    made = SimulatedNode(
        client, plan, tmp_path / "n", Ground(agent_interval=0.1, devices={"devices.kubevirt.io/kvm": 9})
    )
    task = asyncio.ensure_future(made.run())
    await asyncio.wait_for(made.reported.wait(), 60)
    yield made
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def start(client: Client, name: str, gpus: int, **spec: Any) -> None:
    limits = {RESOURCE: str(gpus)}
    body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": NS},
        "spec": {
            "automountServiceAccountToken": False,
            "containers": [{"name": "compute", "image": "i", "resources": {"limits": limits}}],
        }
        | spec,
    }
    await client.request("POST", f"/api/v1/namespaces/{NS}/pods", body=body)


async def phase(client: Client, name: str, *wanted: str) -> core.Pod:
    return await until(client, core.Pod, name, NS, lambda pod: pod.status.phase in wanted)


async def used(client: Client, total: int, allocatable: int = 4) -> GPUNode:
    def holds(found: GPUNode) -> bool:
        counts = [each for device in found.status.devices for each in device.resources]
        return sum(c.used for c in counts) == total and sum(c.allocatable for c in counts) == allocatable

    return await until(client, GPUNode, NAME, "", holds)


async def test_a_pod_runs_with_devices_that_the_agent_reports_and_ends(client: Client, node: SimulatedNode) -> None:
    await start(client, "a", 3)
    pod = await phase(client, "a", "Running")
    assert pod.spec.node_name == NAME
    reported = await used(client, 3)
    assert [u.name for d in reported.status.devices for u in d.users] == ["a"] * 3
    await client.delete(core.Pod, "a", NS)
    await until_gone(client, core.Pod, "a", NS)
    await used(client, 0)
    assert node.ledger.given(pod.metadata.uid) is None


@pytest.mark.usefixtures("node")
async def test_a_pod_that_asks_for_more_than_is_left_is_turned_away(client: Client) -> None:
    await start(client, "a", 3)
    await phase(client, "a", "Running")
    await start(client, "b", 2, nodeName=NAME)
    pod = await phase(client, "b", "Failed")
    assert pod.status.reason == "UnexpectedAdmissionError"
    assert "Requested: 2, Available: 1" in pod.status.message
    await start(client, "c", 0, nodeName=NAME, nodeSelector={"no": "such"})
    assert (await phase(client, "c", "Failed")).status.reason == "NodeAffinity"
    events = msgspec.json.decode(await client.request("GET", f"/api/v1/namespaces/{NS}/events"))["items"]
    assert {e["reason"] for e in events if e.get("source", {}).get("component") == "kubelet"} == {
        "UnexpectedAdmissionError",
        "NodeAffinity",
    }


@pytest.mark.usefixtures("node")
async def test_a_gpu_fails_and_is_mended_by_an_annotation(client: Client) -> None:
    first = (await client.get(GPUNode, NAME)).status.devices[0].address
    await client.patch(core.Node, NAME, {"metadata": {"annotations": {UNHEALTHY: first}}})
    reported = await used(client, 0, allocatable=3)
    assert {d.address: d.health.value for d in reported.status.devices}[first] == "Unhealthy"
    await until(client, core.Node, NAME, "", lambda found: found.status.allocatable.get(RESOURCE) == "3")
    await client.patch(core.Node, NAME, {"metadata": {"annotations": {UNHEALTHY: None}}})
    await used(client, 0)
    await until(client, core.Node, NAME, "", lambda found: found.status.allocatable.get(RESOURCE) == "4")


async def test_a_silent_node_does_nothing_until_it_speaks_again(client: Client, node: SimulatedNode) -> None:
    await start(client, "a", 1)
    await phase(client, "a", "Running")
    await client.patch(core.Node, NAME, {"metadata": {"annotations": {SILENT: "true"}}})
    await until_async(lambda: not node.speaks, "the node is silent")
    await start(client, "b", 1, nodeName=NAME)
    await client.delete(core.Pod, "a", NS)
    with pytest.raises(TimeoutError):
        await until(client, core.Pod, "b", NS, lambda pod: pod.status.phase == "Running", seconds=1)
    assert (await client.get(core.Pod, "a", NS)).metadata.deletion_timestamp is not None
    await client.patch(core.Node, NAME, {"metadata": {"annotations": {SILENT: None}}})
    await until_gone(client, core.Pod, "a", NS)
    await phase(client, "b", "Running")
    await used(client, 1)
