"""A VM that is an order (R45): decided when it is made, filled, its claim made once; on the real virt-controller."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from click.testing import CliRunner

from gpuclaim.api import core, model, names
from gpuclaim.api.core import ObjectMeta
from gpuclaim.api.types import GPUClaim
from gpuclaim.cli.render import render
from gpuclaim.kube import config
from gpuclaim.kube.client import ApiError, Client, Content
from gpuclaim.kube.resources import Resource
from gpuclaim.local.controlplane import ControlPlane
from gpuclaim.local.kubevirt import VirtHandlerStandIn
from gpuclaim.local.offers import H200, NodePlan
from gpuclaim.local.simulated_kubelet import Pod
from support import cloud, machines
from support.machines import VirtualMachine, launches, says
from support.wait import until_awaited

VMS = "/apis/kubevirt.io/v1/namespaces/tenant-a/virtualmachines"


def order(name: str = "vm1", count: str | None = None, class_name: str = "h200", **fields: Any) -> dict[str, Any]:
    """A VM that orders GPUs and names no device."""
    body = machines.machine(name, H200.resource, **fields)
    labels = {names.CLASS_LABEL: class_name} | ({names.COUNT_LABEL: count} if count else {})
    body["metadata"]["labels"] = labels
    del body["spec"]["template"]["spec"]["domain"]["devices"]
    return body


async def make(client: Client, body: dict[str, Any], *, dry_run: bool = False) -> dict[str, Any]:
    params = {"dryRun": "All"} if dry_run else {}
    made: dict[str, Any] = msgspec.json.decode(await client.request("POST", VMS, body=body, params=params))
    return made


async def refusal(client: Client, body: dict[str, Any], *, dry_run: bool = False) -> ApiError:
    with pytest.raises(ApiError) as caught:
        await make(client, body, dry_run=dry_run)
    return caught.value


def gpus(machine: dict[str, Any]) -> list[dict[str, str]]:
    found: list[dict[str, str]] = machine["spec"]["template"]["spec"]["domain"]["devices"]["gpus"]
    return found


def bound(claim: GPUClaim) -> bool:
    return claim.status.node_name is not None


@pytest.fixture
async def catalogue(crds: None, kubevirt: None, cluster: ControlPlane) -> AsyncIterator[Client]:
    """A class, a node with one GPU and one with two, a tenant with a budget of three, and the stand-in."""
    plans = [NodePlan("gpu-1", H200, 1), NodePlan("gpu-2", H200, 2)]
    with tempfile.TemporaryDirectory(prefix="gpuclaim-") as folder:
        async with Client(config.load(cluster.kubeconfig)) as client:
            await client.create(H200.gpu_class())
            await cloud.add_namespace(client, "tenant-a")
            async with (
                machines.simulated_nodes(client, plans, Path(folder)),
                machines.running(VirtHandlerStandIn().run(client)),
            ):
                yield client
                await machines.remove_all(client)


@pytest.fixture
async def hoster(catalogue: Client, cluster: ControlPlane) -> AsyncIterator[Client]:
    async with cloud.running_controller(cluster.kubeconfig):
        yield catalogue
        # What is left is let go by the controller, which runs still.
        await machines.remove_all(catalogue)


async def test_a_vm_is_an_order_from_its_creation_to_its_end(hoster: Client) -> None:
    made = await make(hoster, order(count="2"))
    assert gpus(made) == [{"name": f"gpu-{n}", "deviceName": H200.resource} for n in (1, 2)]
    claim = await cloud.until(hoster, GPUClaim, "vm1", "tenant-a", bound)
    assert claim.status.node_name == "gpu-2"
    assert (claim.spec.class_name, claim.spec.count, model.claim_set(claim)) == ("h200", 2, "vm1")
    (owner,) = claim.metadata.owner_references
    assert (owner.kind, owner.name, owner.uid) == ("VirtualMachine", "vm1", made["metadata"]["uid"])
    pod = await machines.until_one(hoster, Pod, "tenant-a", launches("vm1"))
    assert pod.spec.node_name == "gpu-2"
    await cloud.until(hoster, VirtualMachine, "vm1", "tenant-a", says("Running"))

    # The order does not change, as a claim does not.
    await _fixed(hoster, "vm1")
    for labels in ({names.COUNT_LABEL: "1"}, {names.CLASS_LABEL: None}, {names.CLASS_LABEL: "other"}):
        with pytest.raises(ApiError, match="does not change"):
            await hoster.patch(VirtualMachine, "vm1", {"metadata": {"labels": labels}}, "tenant-a")
    await hoster.patch(VirtualMachine, "vm1", {"metadata": {"labels": {"app": "x"}}}, "tenant-a")

    # Off, it holds; gone, it does not.
    await machines.switch(hoster, "vm1", "Halted")
    await cloud.until_gone(hoster, core.Pod, pod.metadata.name, "tenant-a")
    assert (await refusal(hoster, order("vm2", "2"))).reason == "InsufficientCapacity"
    await hoster.delete(VirtualMachine, "vm1", "tenant-a")
    await cloud.until_gone(hoster, GPUClaim, "vm1", "tenant-a")
    await _once_made(hoster, order("vm2", "2"))


async def _fixed(client: Client, name: str) -> None:
    """An apiserver looks for new policies every second only."""
    path = f"{VMS}/{name}?dryRun=All"
    body = {"metadata": {"labels": {names.COUNT_LABEL: "1"}}}

    async def refused() -> bool | None:
        try:
            await client.request("PATCH", path, body=body, content=Content.MERGE)
        except ApiError as error:
            return "does not change" in str(error) or None
        return None

    await until_awaited(refused, "the policy is in force")


async def _once_made(client: Client, body: dict[str, Any]) -> None:
    """What has just been given back is known a moment later."""
    async with asyncio.timeout(60):
        while True:
            try:
                await make(client, body)
            except ApiError:
                await asyncio.sleep(0.05)
            else:
                return


async def test_an_order_that_does_not_fit_is_refused_with_the_vm(hoster: Client) -> None:
    hard: dict[str, str | int] = {names.budget_key("h200"): "1"}
    quota = core.ResourceQuota(
        metadata=ObjectMeta(name="gpus", namespace="tenant-a"), spec=core.ResourceQuotaSpec(hard=hard)
    )
    off = {"run_strategy": "Halted"}
    for body, reason in (
        (order("a", "3", **off), "InsufficientCapacity"),
        (order("a", "0", **off), "InvalidCount"),
        (order("a", "two", **off), "InvalidCount"),
        (order("a", class_name="none", **off), "UnknownClass"),
        (order("a.b", **off), "InvalidName"),
    ):
        error = await refusal(hoster, body)
        assert (error.code, error.reason) == (403, reason), str(error)
        assert error.status.details is not None
        assert error.status.details.kind == "virtualmachines"
        assert error.status.details.causes[0].field.startswith("metadata.")
        assert (await refusal(hoster, body, dry_run=True)).reason == reason
    three = machines.machine("a", H200.resource, "Halted")
    three["metadata"]["labels"] = {names.CLASS_LABEL: "h200"}
    three["spec"]["template"]["spec"]["domain"]["devices"]["gpus"].append({"name": "b", "deviceName": H200.resource})
    assert (await refusal(hoster, three)).reason == "AboveOrder"
    other_set = order("a", **off)
    other_set["spec"]["template"]["spec"]["hostname"] = "web"
    assert (await refusal(hoster, other_set)).reason == "OtherSet"

    # None of them, and no dry run, has reserved anything.
    for _ in range(3):
        assert len(gpus(await make(hoster, order("a", "2", **off), dry_run=True))) == 2
    await make(hoster, order("a", "2", **off))
    await hoster.create(quota)
    async with asyncio.timeout(60):
        while (await refusal(hoster, order("b", "2", **off))).reason != "OverBudget":  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def test_a_vm_that_brings_its_devices_and_one_whose_name_is_made(hoster: Client) -> None:
    whole = machines.machine("whole", H200.resource, "Halted")
    whole["metadata"]["labels"] = {names.CLASS_LABEL: "h200"}
    assert gpus(await make(hoster, whole)) == [{"name": "gpu", "deviceName": H200.resource}]
    named = order("", "2", run_strategy="Halted")
    del named["metadata"]["name"]
    named["metadata"]["generateName"] = "vm-"
    made = await make(hoster, named)
    assert len(gpus(made)) == 2
    for name in ("whole", made["metadata"]["name"]):
        await cloud.until(hoster, GPUClaim, name, "tenant-a", bound)
    assert (await refusal(hoster, order("more"))).reason == "InsufficientCapacity"


async def test_a_claim_that_is_there_already_is_the_vms_if_it_is_the_same(hoster: Client) -> None:
    mine = await hoster.create(cloud.claim("vm1"))
    await cloud.until(hoster, GPUClaim, "vm1", "tenant-a", bound)
    assert (await refusal(hoster, order("vm1", "2"))).reason == "ClaimDiffers"
    await make(hoster, order("vm1"))
    await machines.until_one(hoster, Pod, "tenant-a", launches("vm1"))
    (claim,) = (await hoster.list(GPUClaim, "tenant-a"))[0]
    assert (claim.metadata.uid, claim.metadata.owner_references) == (mine.metadata.uid, [])


async def test_of_many_vms_at_once_for_the_last_gpus_just_as_many_are_made_as_fit(hoster: Client) -> None:
    bodies = [order(f"vm-{number}", run_strategy="Halted") for number in range(24)]
    results = await asyncio.gather(*(make(hoster, body) for body in bodies), return_exceptions=True)
    made = [result["metadata"]["name"] for result in results if isinstance(result, dict)]
    reasons = [result.reason for result in results if isinstance(result, ApiError)]
    assert (len(made), reasons) == (3, ["InsufficientCapacity"] * 21)
    for name in made:
        await cloud.until(hoster, GPUClaim, name, "tenant-a", bound)
    assert len((await hoster.list(GPUClaim, "tenant-a"))[0]) == 3


async def test_a_pool_of_the_rendered_template(hoster: Client, cluster: ControlPlane) -> None:
    arguments = ["--class", "h200", "--kubeconfig", str(cluster.kubeconfig)]
    # In a thread: the command has a loop of its own.
    done = await asyncio.to_thread(CliRunner().invoke, render, arguments)
    assert done.exit_code == 0, done.output
    template = yaml.safe_load(done.stdout)
    template["metadata"]["labels"]["pool"] = "workers"
    template["spec"]["runStrategy"] = "Always"
    template["spec"]["template"]["spec"]["architecture"] = "amd64"
    template["spec"]["template"]["spec"]["domain"]["memory"] = {"guest": "1Gi"}
    pool = {
        "apiVersion": "pool.kubevirt.io/v1beta1",
        "kind": "VirtualMachinePool",
        "metadata": {"name": "workers", "namespace": "tenant-a"},
        "spec": {
            "replicas": 2,
            "selector": {"matchLabels": {"pool": "workers"}},
            "virtualMachineTemplate": template,
        },
    }
    await hoster.apply(pool)
    pools = Resource("pool.kubevirt.io/v1beta1", "virtualmachinepools", namespaced=True)
    try:
        await _runs_and_grows(hoster, pool)
    finally:
        await hoster.request("DELETE", pools.path("tenant-a", "workers"))
    for claim in (await hoster.list(GPUClaim, "tenant-a"))[0]:
        await cloud.until_gone(hoster, GPUClaim, claim.metadata.name, "tenant-a", seconds=120)


async def _runs_and_grows(hoster: Client, pool: dict[str, Any]) -> None:
    nodes: set[str | None] = set()
    for name in ("workers-0", "workers-1"):
        pod = await machines.until_one(hoster, Pod, "tenant-a", launches(name))
        claim = await cloud.until(hoster, GPUClaim, name, "tenant-a", bound)
        assert claim.metadata.owner_references[0].name == name
        assert pod.spec.node_name == claim.status.node_name
        nodes.add(claim.status.node_name)
    assert nodes == {"gpu-1", "gpu-2"}

    # One more fits, a fourth does not: the pool says so, and the others run on.
    await hoster.apply(pool | {"spec": pool["spec"] | {"replicas": 4}})
    more = await machines.until_one(
        hoster, GPUClaim, "tenant-a", lambda c: bound(c) and c.metadata.name not in {"workers-0", "workers-1"}
    )
    assert more.status.node_name == "gpu-2"
    events = "/apis/events.k8s.io/v1/namespaces/tenant-a/events"
    async with asyncio.timeout(120):
        while b"1 GPU of class 'h200' cannot be ordered" not in await hoster.request("GET", events):  # noqa: ASYNC110
            await asyncio.sleep(0.2)
    assert len((await hoster.list(GPUClaim, "tenant-a"))[0]) == 3


async def test_without_a_controller_vms_that_order_nothing_are_made_and_orders_are_not(
    catalogue: Client, cluster: ControlPlane
) -> None:
    # Stored while nobody was asked, as by a leader that died before it made the claims.
    first, second = order("first", "2", run_strategy="Halted"), order("second", "2", run_strategy="Halted")
    for body in (first, second):
        body["spec"]["template"]["spec"]["domain"]["devices"] = {}  # its schema wants that, and nobody fills it in
        await make(catalogue, body)
    async with cloud.running_controller(cluster.kubeconfig):
        claims = [
            await cloud.until(catalogue, GPUClaim, "first", "tenant-a", bound),
            await cloud.until(catalogue, GPUClaim, "second", "tenant-a", _waits),
        ]
        assert [claim.metadata.owner_references[0].name for claim in claims] == ["first", "second"]
        await catalogue.delete(VirtualMachine, "first", "tenant-a")
        await cloud.until(catalogue, GPUClaim, "second", "tenant-a", bound)
        # A claim that is deleted under its VM is ordered anew.
        await catalogue.delete(GPUClaim, "second", "tenant-a", uid=claims[1].metadata.uid)
        anew = await cloud.until(
            catalogue, GPUClaim, "second", "tenant-a", lambda c: bound(c) and c.metadata.uid != claims[1].metadata.uid
        )
        assert anew.metadata.owner_references == claims[1].metadata.owner_references
    assert "failed calling webhook" in str(await refusal(catalogue, order("third")))
    plain = order("plain", run_strategy="Halted")
    del plain["metadata"]["labels"]
    plain["spec"]["template"]["spec"]["domain"]["devices"] = {}
    await make(catalogue, plain)


def _waits(claim: GPUClaim) -> bool:
    condition = model.condition(claim.status.conditions, "Bound")
    return condition is not None and condition.reason == "InsufficientCapacity"


async def test_a_cluster_without_kubevirt_and_one_where_it_comes_later(
    old_crds: None, old_cluster: ControlPlane
) -> None:
    group = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "virtualmachines.kubevirt.io"},
        "spec": {
            "group": "kubevirt.io",
            "names": {"kind": "VirtualMachine", "plural": "virtualmachines", "listKind": "VirtualMachineList"},
            "scope": "Namespaced",
            "versions": [
                {
                    "name": "v1",
                    "served": True,
                    "storage": True,
                    "schema": {
                        "openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                    },
                }
            ],
        },
    }
    async with Client(config.load(old_cluster.kubeconfig)) as client:
        await client.create(cloud.gpu_class(resource=H200.resource))
        await cloud.add_namespace(client, "tenant-a")
        await cloud.add_node(client, "gpu-1", 2, H200.resource)
        async with cloud.running_controller(old_cluster.kubeconfig):
            await client.create(cloud.claim("early"))
            await cloud.until(client, GPUClaim, "early", "tenant-a", bound)
            await client.apply(group)
            await _once_made(client, order("late", run_strategy="Halted"))
            await cloud.until(client, GPUClaim, "late", "tenant-a", bound)
