"""The guard on the real apiserver: no GPUs without a hold while no controller runs, and who never waits (R43a, R44)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gpuclaim.admission import guard
from gpuclaim.api import core, names
from gpuclaim.api.types import GPUClaim, GPUClass
from gpuclaim.kube import config
from gpuclaim.kube.client import ApiError, Client
from gpuclaim.local.controlplane import ControlPlane
from gpuclaim.placement.books import Settings
from support import cloud
from support.cloud import H200, claim

pytestmark = pytest.mark.usefixtures("crds")

EXEMPT = Settings(exempt_namespaces=frozenset({"gpu-operator"}))
OTHER = "nvidia.com/NEW"


def pod(name: str = "p", resource: str = H200, count: str = "1", *, labels: Any = None, **spec: Any) -> dict[str, Any]:
    container = {"name": "main", "image": "any", "resources": {"limits": {resource: count}}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": labels or {}},
        "spec": {"automountServiceAccountToken": False, "containers": [container]} | spec,
    }


PLAIN: dict[str, Any] = {"name": "plain", "image": "any"}
ASKS: dict[str, Any] = {"name": "asks", "image": "any", "resources": {"limits": {H200: "1"}}}


@pytest.fixture
async def client(cluster: ControlPlane) -> AsyncIterator[Client]:
    """A class, a node with two GPUs, tenants, and a namespace that is exempt."""
    async with Client(config.load(cluster.kubeconfig)) as opened:
        await opened.create(cloud.gpu_class())
        await cloud.add_node(opened, "gpu-1", 2)
        for namespace in ("tenant-a", "gpu-operator"):
            await cloud.add_namespace(opened, namespace)
            await cloud.add_service_account(opened, namespace)
        yield opened


async def create(client: Client, body: dict[str, Any], namespace: str = "tenant-a", *, dry_run: bool = False) -> None:
    params = {"dryRun": "All"} if dry_run else {}
    await client.request("POST", f"/api/v1/namespaces/{namespace}/pods", body=body, params=params)


async def refusal(client: Client, body: dict[str, Any], namespace: str = "tenant-a") -> str:
    with pytest.raises(ApiError) as caught:
        await create(client, body, namespace)
    assert caught.value.code == 403
    return str(caught.value)


async def guarded(client: Client, class_name: str = "h200") -> None:
    """Returns once the class is taken up."""
    await cloud.until(client, GPUClass, class_name, "", lambda found: names.GUARDED_LABEL in found.metadata.labels)


@pytest.fixture
async def abandoned(client: Client, cluster: ControlPlane) -> Client:
    """A controller has run, took the class up and a claim `vm1`, and runs no more."""
    async with cloud.running_controller(cluster.kubeconfig, settings=EXEMPT):
        await client.create(claim("vm1"))
        await cloud.until(client, GPUClaim, "vm1", "tenant-a", lambda found: found.status.node_name)
        await guarded(client)
    return client


async def test_without_a_controller_no_pod_gets_gpus_that_it_does_not_hold(abandoned: Client) -> None:
    bare = await refusal(abandoned, pod())
    assert "belongs to no set: order a GPUClaim" in bare
    assert "webhook" not in bare
    for labels in ({names.SET_LABEL: "vm1"}, {names.VM_NAME_LABEL: "vm1"}):
        with pytest.raises(ApiError) as caught:
            await create(abandoned, pod(labels=labels))
        assert "failed calling webhook" in str(caught.value)


@pytest.mark.parametrize(
    "spec",
    [
        {"containers": [PLAIN, ASKS]},
        {"containers": [PLAIN], "initContainers": [ASKS]},
        {"containers": [PLAIN], "initContainers": [ASKS | {"restartPolicy": "Always"}]},
        {"containers": [ASKS | {"resources": {"limits": {H200: "1"}, "requests": {H200: "1"}}}]},
    ],
    ids=["second container", "init container", "sidecar", "requests and limits"],
)
async def test_wherever_a_pod_asks_it_is_seen(abandoned: Client, spec: dict[str, Any]) -> None:
    assert "belongs to no set" in await refusal(abandoned, pod(**spec))


async def test_without_a_controller_pods_without_gpus_start(abandoned: Client) -> None:
    await create(abandoned, pod("none", containers=[PLAIN]))
    await create(abandoned, pod("vm", containers=[PLAIN], labels={names.VM_NAME_LABEL: "vm1"}))
    await create(abandoned, pod("other", resource="intel.com/sriov"))
    await create(abandoned, pod("zero", count="0"))


async def test_the_namespaces_that_the_hoster_exempts_are_let_be(abandoned: Client) -> None:
    await create(abandoned, pod(), "gpu-operator")
    await create(abandoned, pod("q", labels={names.SET_LABEL: "vm1"}), "gpu-operator")


async def test_a_pod_cannot_ask_for_a_gpu_later_nor_change_its_set(client: Client, cluster: ControlPlane) -> None:
    async with cloud.running_controller(cluster.kubeconfig, settings=EXEMPT):
        await client.create(claim("vm1"))
        await cloud.until(client, GPUClaim, "vm1", "tenant-a", lambda found: found.status.node_name)
        await create(client, pod("has", labels={names.VM_NAME_LABEL: "vm1"}))
        await create(client, pod("plain", containers=[PLAIN]))
        await guarded(client)
    path = "/api/v1/namespaces/tenant-a/pods/"
    for label, value in ((names.SET_LABEL, "other"), (names.VM_NAME_LABEL, None)):
        with pytest.raises(ApiError, match="stays in its set"):
            await client.patch(core.Pod, "has", {"metadata": {"labels": {label: value}}}, "tenant-a")
    # A set that it is in already, said in another way, and labels that name none.
    await client.patch(core.Pod, "has", {"metadata": {"labels": {names.SET_LABEL: "vm1", "app": "x"}}}, "tenant-a")
    await client.patch(core.Pod, "plain", {"metadata": {"labels": {names.SET_LABEL: "vm1"}}}, "tenant-a")

    # What Kubernetes itself refuses, so that the guard need not look there.
    resize = {
        "spec": {"containers": [{"name": "plain", "resources": {"limits": {H200: "1"}, "requests": {H200: "1"}}}]}
    }
    merge = "application/strategic-merge-patch+json"
    with pytest.raises(ApiError) as caught:
        await client.request("PATCH", path + "plain/resize", body=resize, content=merge)
    assert caught.value.code == 422
    ephemeral = {"spec": {"ephemeralContainers": [ASKS]}}
    with pytest.raises(ApiError) as caught:
        await client.request("PATCH", path + "plain/ephemeralcontainers", body=ephemeral, content=merge)
    assert caught.value.code == 422
    with pytest.raises(ApiError) as caught:
        await create(client, pod("whole", containers=[PLAIN], resources={"limits": {H200: "1"}}))
    assert caught.value.code == 422


async def test_a_class_made_while_no_controller_runs_is_guarded(abandoned: Client, cluster: ControlPlane) -> None:
    await abandoned.create(cloud.gpu_class("new", OTHER))
    await _until_refused(abandoned, pod(resource=OTHER))
    assert "belongs to no set" in await refusal(abandoned, pod(resource=OTHER))
    # Nobody pins it: the webhook is not asked about a class that no leader knows.
    assert "no gpuclaim controller runs" in await refusal(abandoned, pod(resource=OTHER, labels={names.SET_LABEL: "x"}))
    await create(abandoned, pod(resource=OTHER), "gpu-operator")
    await create(abandoned, pod("plain", containers=[PLAIN]))
    async with cloud.running_controller(cluster.kubeconfig, settings=EXEMPT):
        await guarded(abandoned, "new")
        assert guard.KNOWN in await refusal(abandoned, pod(resource=OTHER))


async def test_what_the_chart_has_holds_before_any_controller_ran(client: Client) -> None:
    for each in (guard.new_classes(), guard.new_classes_binding(["gpu-operator"])):
        await client.apply(each)
    await _until_refused(client, pod())
    assert "belongs to no set" in await refusal(client, pod())
    await create(client, pod(), "gpu-operator")
    await create(client, pod("plain", containers=[PLAIN]))


async def _until_refused(client: Client, body: dict[str, Any]) -> None:
    """The apiserver takes new policies up every second, and learns of a new class a moment after it is stored."""
    async with asyncio.timeout(60):
        while True:
            try:
                await create(client, body, dry_run=True)
            except ApiError:
                return
            await asyncio.sleep(0.1)


async def test_a_dra_class_that_is_mapped_to_a_resource_is_no_way_around(client: Client, cluster: ControlPlane) -> None:
    device_class = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": "h200.example.com"},
        "spec": {"extendedResourceName": H200},
    }
    await client.request("POST", "/apis/resource.k8s.io/v1/deviceclasses", body=device_class)
    asked = f"{names.DEVICE_CLASS_PREFIX}h200.example.com"
    async with cloud.running_controller(cluster.kubeconfig, settings=EXEMPT):
        await client.create(claim("vm1"))
        await cloud.until(client, GPUClaim, "vm1", "tenant-a", lambda found: found.status.node_name)
        await _until_refused(client, pod(resource=asked))
        assert "belongs to no set" in await refusal(client, pod(resource=asked))
        two = pod(resource=asked, labels={names.SET_LABEL: "vm1"}, count="2")
        with pytest.raises(ApiError) as caught:
            await create(client, two)
        assert caught.value.reason == "AboveHold"
        await create(client, pod(resource=asked, labels={names.SET_LABEL: "vm1"}))
    await create(client, pod("free", resource=f"{names.DEVICE_CLASS_PREFIX}nic.example.com"))
