"""Orders and launcher pods on the real apiserver and scheduler: admission, binder, pin, takeover."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpuclaim.api import core, model, names
from gpuclaim.api.types import Availability, GPUClaim, GPUClass, GPUNode
from gpuclaim.kube import config
from gpuclaim.kube.client import ApiError, Client
from gpuclaim.kube.resources import Lease
from gpuclaim.local.controlplane import ControlPlane
from support import cloud
from support.cloud import H200, claim

pytestmark = pytest.mark.usefixtures("crds")


@pytest.fixture
async def client(cluster: ControlPlane) -> AsyncIterator[Client]:
    async with Client(config.load(cluster.kubeconfig)) as opened:
        yield opened


@pytest.fixture
async def hoster(client: Client) -> Client:
    """A catalogue of one class, two nodes (2 and 4 GPUs), two tenants."""
    await client.create(cloud.gpu_class())
    await cloud.add_node(client, "gpu-1", 2)
    await cloud.add_node(client, "gpu-2", 4)
    for namespace in ("tenant-a", "tenant-b"):
        await cloud.add_namespace(client, namespace)
    return client


@pytest.fixture
async def controller(hoster: Client, cluster: ControlPlane) -> AsyncIterator[None]:
    async with cloud.running_controller(cluster.kubeconfig):
        yield


def bound(found: GPUClaim) -> bool:
    return found.status.node_name is not None


def condition(type_: str, reason: str) -> Callable[[GPUClaim], bool]:
    def holds(found: GPUClaim) -> bool:
        is_ = model.condition(found.status.conditions, type_)
        return is_ is not None and is_.reason == reason

    return holds


def launcher(name: str, vm: str, gpus: int = 1, namespace: str = "tenant-a", **spec: Any) -> dict[str, Any]:
    """A pod as virt-controller makes it, as far as we and the scheduler look."""
    limits = {H200: str(gpus)} if gpus else {}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "labels": {names.VM_NAME_LABEL: vm}},
        "spec": {
            "automountServiceAccountToken": False,
            "containers": [{"name": "compute", "image": "launcher", "resources": {"limits": limits}}],
        }
        | spec,
    }


async def start(client: Client, pod: dict[str, Any]) -> core.Pod:
    meta = pod["metadata"]
    body = await client.request("POST", f"/api/v1/namespaces/{meta['namespace']}/pods", body=pod)
    return msgspec.json.decode(body, type=core.Pod)


async def refusal(work: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        await work
    return caught.value


@pytest.mark.usefixtures("controller")
async def test_an_order_is_bound_before_any_pod_exists_and_the_last_gpu_goes_once(hoster: Client) -> None:
    await hoster.create(claim("a", count=2))
    first = await cloud.until(hoster, GPUClaim, "a", "tenant-a", bound)
    assert first.status.node_name == "gpu-1"  # best fit (R34)
    assert condition("Bound", "Bound")(first)
    assert first.status.held_since is not None
    assert names.HOLD_FINALIZER in first.metadata.finalizers
    on_node, _ = await hoster.list(GPUClaim, field_selector="status.nodeName=gpu-1")
    assert [c.metadata.name for c in on_node] == ["a"]  # R10

    error = await refusal(hoster.create(claim("b", namespace="tenant-b", count=5)))
    assert (error.code, error.reason) == (403, "InsufficientCapacity")
    assert "h200" in str(error)
    assert "5" in str(error)
    assert "4" in str(error)  # the largest order that would fit
    assert "gpu-2" not in str(error)  # R42: no node names
    assert error.status.details is not None
    assert {cause.reason for cause in error.status.details.causes} >= {"InsufficientCapacity"}
    listed, _ = await hoster.list(GPUClaim, "tenant-b")
    assert listed == []


@pytest.mark.usefixtures("controller")
@pytest.mark.parametrize(
    ("order", "reason"),
    [
        (claim("x", class_name="nope"), "UnknownClass"),
        (claim("x", class_name="closed"), "ClassClosed"),
        (claim("x", class_name="capped", count=3), "AboveMaxCount"),
        (claim("x", count=7), "InsufficientCapacity"),
    ],
)
async def test_refusals_say_why(hoster: Client, order: GPUClaim, reason: str) -> None:
    await hoster.create(cloud.gpu_class("closed", closed=True))
    await hoster.create(cloud.gpu_class("capped", max_count=2))
    for attempt in (order, order):
        error = await refusal(_once_known(hoster, attempt, reason))
        assert error.reason == reason
        assert order.spec.class_name in str(error)


async def _once_known(client: Client, order: GPUClaim, reason: str) -> GPUClaim:
    """A new class is known a moment after it is stored; until then the order is refused for that."""
    async with asyncio.timeout(30):
        while True:
            try:
                return await client.create(order, dry_run=True)
            except ApiError as error:
                if error.reason == reason or error.reason != "UnknownClass":
                    raise


@pytest.mark.usefixtures("controller")
async def test_bad_orders_get_the_schemas_own_words_and_reserve_nothing(hoster: Client) -> None:
    body = {
        "apiVersion": names.API_VERSION,
        "kind": "GPUClaim",
        "metadata": {"name": "zero", "namespace": "tenant-a"},
        "spec": {"className": "h200", "count": 0},
    }
    path = f"/apis/{names.API_VERSION}/namespaces/tenant-a/gpuclaims"
    error = await refusal(hoster.request("POST", path, body=body))
    assert (error.code, error.reason) == (422, "Invalid")
    assert "spec.count" in str(error)
    await hoster.create(claim("all", count=4))
    await hoster.create(claim("rest", count=2))


@pytest.mark.usefixtures("controller")
async def test_a_dry_run_answers_truly_and_reserves_nothing(hoster: Client) -> None:
    for _ in range(5):
        await hoster.create(claim("probe", count=4), dry_run=True)
    error = await refusal(hoster.create(claim("probe", count=5), dry_run=True))
    assert error.reason == "InsufficientCapacity"
    await hoster.create(claim("real", count=4))
    error = await refusal(hoster.create(claim("probe", count=4), dry_run=True))
    assert error.reason == "InsufficientCapacity"


@pytest.mark.usefixtures("controller")
async def test_of_many_orders_at_once_for_the_last_gpu_exactly_one_is_taken(hoster: Client) -> None:
    await hoster.create(claim("most", count=4))
    await hoster.create(claim("some", count=1))
    orders = [claim(f"last-{n}", namespace=f"tenant-{'ab'[n % 2]}") for n in range(64)]
    results = await cloud.all_of(hoster.create(order) for order in orders)
    taken = [result for result in results if isinstance(result, GPUClaim)]
    refused = [result for result in results if isinstance(result, ApiError)]
    assert (len(taken), len(refused)) == (1, 63)
    assert {error.reason for error in refused} == {"InsufficientCapacity"}
    winner = taken[0].metadata
    assert (await cloud.until(hoster, GPUClaim, winner.name, winner.namespace, bound)).status.node_name == "gpu-1"


@pytest.mark.usefixtures("controller")
async def test_a_deleted_claim_gives_its_gpus_back(hoster: Client) -> None:
    await hoster.create(claim("all", count=4))
    await cloud.until(hoster, GPUClaim, "all", "tenant-a", bound)
    await hoster.delete(GPUClaim, "all", "tenant-a")
    await cloud.until_gone(hoster, GPUClaim, "all", "tenant-a")
    await cloud.once_admitted(hoster, claim("again", count=4))


@pytest.mark.usefixtures("controller")
async def test_claims_of_one_set_at_once_end_on_one_node(hoster: Client) -> None:
    await hoster.create(cloud.gpu_class("spare", "x.io/spare"))
    orders = [claim(f"vm1-{n}", count=1, set="vm1") for n in range(6)]
    results = await cloud.all_of(hoster.create(order) for order in orders)
    taken = [result.metadata.name for result in results if isinstance(result, GPUClaim)]
    stored = [await cloud.until(hoster, GPUClaim, name, "tenant-a", bound) for name in taken]
    assert len({found.status.node_name for found in stored}) == 1
    # gpu-1 takes two, and the set moves to gpu-2 for two more.
    assert len(stored) == 4


@pytest.mark.usefixtures("controller")
async def test_two_members_at_once_of_which_one_has_to_move_for_the_other(hoster: Client) -> None:
    for attempt in range(5):
        orders = [claim(f"{attempt}-{n}", count=2, set=f"vm{attempt}") for n in range(2)]
        await asyncio.gather(*(hoster.create(order) for order in orders))
        for order in orders:
            name = order.metadata.name
            assert (await cloud.until(hoster, GPUClaim, name, "tenant-a", bound)).status.node_name == "gpu-2"
        for order in orders:
            await hoster.delete(GPUClaim, order.metadata.name, "tenant-a")
            await cloud.until_gone(hoster, GPUClaim, order.metadata.name, "tenant-a")
        await _until_fits(hoster, claim("probe", count=4))


@pytest.mark.usefixtures("controller")
async def test_a_set_that_is_off_moves_to_take_a_member_and_never_loses_its_hold(hoster: Client) -> None:
    await hoster.create(claim("one", count=2, set="vm1"))
    assert (await cloud.until(hoster, GPUClaim, "one", "tenant-a", bound)).status.node_name == "gpu-1"
    await hoster.create(claim("two", count=2, set="vm1"))
    # Moves are stored before the order that needs them is admitted (R35a).
    moved = await hoster.get(GPUClaim, "one", "tenant-a")
    assert moved.status.node_name == "gpu-2"
    assert condition("Bound", "Moved")(moved)
    assert (await cloud.until(hoster, GPUClaim, "two", "tenant-a", bound)).status.node_name == "gpu-2"


async def test_claims_made_while_no_controller_ran_are_bound_in_order(hoster: Client, cluster: ControlPlane) -> None:
    for name, count in (("first", 4), ("second", 4), ("third", 2)):
        await hoster.create(claim(name, count=count))
        # Creation times have whole seconds; the order within one is by name.
    async with cloud.running_controller(cluster.kubeconfig):
        first = await cloud.until(hoster, GPUClaim, "first", "tenant-a", bound)
        third = await cloud.until(hoster, GPUClaim, "third", "tenant-a", bound)
        assert (first.status.node_name, third.status.node_name) == ("gpu-2", "gpu-1")
        waits = await cloud.until(hoster, GPUClaim, "second", "tenant-a", condition("Bound", "InsufficientCapacity"))
        assert not bound(waits)
        await hoster.delete(GPUClaim, "first", "tenant-a")
        assert (await cloud.until(hoster, GPUClaim, "second", "tenant-a", bound)).status.node_name == "gpu-2"
        assert names.HOLD_FINALIZER in (await hoster.get(GPUClaim, "second", "tenant-a")).metadata.finalizers


@pytest.mark.usefixtures("controller")
async def test_a_launcher_pod_is_sent_to_the_node_that_holds_its_gpus(hoster: Client) -> None:
    await hoster.create(claim("filler", count=2))
    await hoster.create(claim("vm1", count=1))
    held = await cloud.until(hoster, GPUClaim, "vm1", "tenant-a", bound)
    await start(hoster, launcher("virt-launcher-vm1-a", "vm1"))
    pod = await cloud.until(
        hoster, core.Pod, "virt-launcher-vm1-a", "tenant-a", lambda found: bool(found.spec.node_name)
    )
    assert pod.spec.node_name == held.status.node_name == "gpu-2"
    runs = await cloud.until(hoster, GPUClaim, "vm1", "tenant-a", condition("Attached", "PodRuns"))
    assert runs.status.attachment is not None
    assert runs.status.attachment.pod_uid == pod.metadata.uid

    second = await refusal(start(hoster, launcher("virt-launcher-vm1-b", "vm1")))
    assert second.reason == "SetInUse"

    # Deleted while the VM runs: held until the pod has ended (R10a).
    await hoster.delete(GPUClaim, "vm1", "tenant-a")
    waits = await cloud.until(hoster, GPUClaim, "vm1", "tenant-a", condition("Bound", "WaitsForPod"))
    assert bound(waits)
    error = await refusal(hoster.create(claim("greedy", namespace="tenant-b", count=4)))
    assert error.reason == "InsufficientCapacity"
    await hoster.request(
        "DELETE", "/api/v1/namespaces/tenant-a/pods/virt-launcher-vm1-a", body={"gracePeriodSeconds": 0}
    )
    await cloud.until_gone(hoster, GPUClaim, "vm1", "tenant-a")


@pytest.mark.usefixtures("controller")
@pytest.mark.parametrize(
    ("pod", "reason"),
    [
        (launcher("p", "nobody"), "NoClaim"),
        (launcher("p", "vm1", gpus=2), "AboveHold"),
        (launcher("p", "vm1", nodeName="gpu-2"), "WrongNode"),
        (launcher("p", "vm1", namespace="tenant-b"), "NoClaim"),
    ],
)
async def test_pods_that_would_take_what_they_do_not_hold_are_refused(
    hoster: Client, pod: dict[str, Any], reason: str
) -> None:
    await hoster.create(claim("vm1", count=1))
    await cloud.until(hoster, GPUClaim, "vm1", "tenant-a", bound)
    error = await refusal(start(hoster, pod))
    assert error.reason == reason


async def test_while_nobody_answers_pods_without_gpus_start_and_others_are_refused(
    hoster: Client, cluster: ControlPlane
) -> None:
    async with cloud.running_controller(cluster.kubeconfig):
        await hoster.create(claim("vm1", count=1))
        await cloud.until(hoster, GPUClaim, "vm1", "tenant-a", bound)
    await start(hoster, launcher("plain", "vm2", gpus=0))
    error = await refusal(start(hoster, launcher("virt-launcher-vm1-a", "vm1")))
    assert "failed calling webhook" in str(error)
    error = await refusal(hoster.create(claim("late")))
    assert "failed calling webhook" in str(error)


async def test_a_second_replica_takes_over_when_the_leader_is_killed(
    hoster: Client, cluster: ControlPlane, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "gpuclaim", "controller", "--kubeconfig", str(cluster.kubeconfig)]
    command += ["--webhook-url", "https://127.0.0.1:0", "--lease-duration", "3", "--identity", "leader"]
    with (tmp_path / "leader.log").open("wb") as log:
        leader = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, stderr=log)
        try:
            assert leader.stdout is not None
            async with asyncio.timeout(60):
                assert await leader.stdout.readline() == b"ready\n", (tmp_path / "leader.log").read_text()
            await hoster.create(claim("before", count=4))
            follower = asyncio.create_task(_follow(cluster, hoster))
            lease = await hoster.get(Lease, "gpuclaim-controller", "default")
            assert lease.spec.holder_identity == "leader"
            os.kill(leader.pid, signal.SIGKILL)
            await leader.wait()
            await follower
        finally:
            if leader.returncode is None:
                leader.kill()
                await leader.wait()


async def _follow(cluster: ControlPlane, client: Client) -> None:
    async with cloud.running_controller(cluster.kubeconfig, identity="follower"):
        lease = await client.get(Lease, "gpuclaim-controller", "default")
        assert lease.spec.holder_identity == "follower"
        assert (await cloud.until(client, GPUClaim, "before", "tenant-a", bound)).status.node_name == "gpu-2"
        error = await refusal(client.create(claim("after", count=4)))
        assert error.reason == "InsufficientCapacity"
        await client.create(claim("after", count=2))


@pytest.mark.usefixtures("controller")
async def test_a_node_that_is_cordoned_takes_no_new_hold(hoster: Client) -> None:
    await hoster.patch(GPUNode, "gpu-2", {"spec": {"cordoned": True}})
    error = await refusal(_until_refused(hoster, claim("big", count=3)))
    assert error.reason == "InsufficientCapacity"
    await hoster.create(claim("small", count=2))


async def _until_fits(client: Client, order: GPUClaim) -> None:
    """Until what was given back is known."""
    async with asyncio.timeout(30):
        while True:
            with contextlib.suppress(ApiError):
                await client.create(order, dry_run=True)
                return


async def _until_refused(client: Client, order: GPUClaim) -> None:
    """What was just written is known a moment later."""
    async with asyncio.timeout(30):
        while True:
            await client.create(order, dry_run=True)


@pytest.mark.usefixtures("controller")
async def test_the_catalogue_and_the_nodes_say_how_things_are(hoster: Client) -> None:
    def available(what: Availability) -> Callable[[GPUClass], bool]:
        return lambda found: found.status.availability is what

    def reporting(found: GPUNode) -> bool:
        is_ = model.condition(found.status.conditions, "Reporting")
        return is_ is not None and is_.reason == "Reports"

    await cloud.until(hoster, GPUClass, "h200", "", available(Availability.AVAILABLE))
    await cloud.until(hoster, GPUNode, "gpu-1", "", reporting)
    await hoster.create(claim("a", count=2))
    await hoster.create(claim("b", count=4))
    sold_out = await cloud.until(hoster, GPUClass, "h200", "", available(Availability.SOLD_OUT))
    assert sold_out.status.free is None  # the hoster has not asked for numbers to be shown
    await hoster.delete(GPUClaim, "a", "tenant-a")
    await cloud.until(hoster, GPUClass, "h200", "", available(Availability.AVAILABLE))
    node = await hoster.get(GPUNode, "gpu-1")
    assert len(node.status.devices) == 2  # the agent's half of the status is left alone


async def test_a_vm_that_is_off_leaves_a_drained_node_and_comes_back_elsewhere(
    hoster: Client, cluster: ControlPlane
) -> None:
    async with cloud.running_controller(cluster.kubeconfig, evacuate_after=dt.timedelta(0)):
        await hoster.create(claim("vm1", count=1))
        assert (await cloud.until(hoster, GPUClaim, "vm1", "tenant-a", bound)).status.node_name == "gpu-1"
        await hoster.patch(core.Node, "gpu-1", {"spec": {"unschedulable": True}})
        moved = await cloud.until(hoster, GPUClaim, "vm1", "tenant-a", condition("Bound", "Moved"))
        assert moved.status.node_name == "gpu-2"
        await start(hoster, launcher("virt-launcher-vm1-a", "vm1"))
        pod = await cloud.until(
            hoster, core.Pod, "virt-launcher-vm1-a", "tenant-a", lambda found: bool(found.spec.node_name)
        )
        assert pod.spec.node_name == "gpu-2"


@pytest.mark.usefixtures("controller")
async def test_a_quota_shows_how_much_of_the_budget_is_used(hoster: Client) -> None:
    def used(count: int) -> Callable[[core.ResourceQuota], bool]:
        return lambda quota: quota.status.used.get(f"{names.GROUP}/h200") == str(count)

    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "gpus", "namespace": "tenant-a"},
        "spec": {"hard": {f"{names.GROUP}/h200": "3", f"{names.GROUP}/total": "4", "pods": "10"}},
    }
    await hoster.request("POST", "/api/v1/namespaces/tenant-a/resourcequotas", body=quota)
    await cloud.until(hoster, core.ResourceQuota, "gpus", "tenant-a", used(0))
    await hoster.create(claim("vm1", count=2))
    shown = await cloud.until(hoster, core.ResourceQuota, "gpus", "tenant-a", used(2))
    assert shown.status.hard[f"{names.GROUP}/h200"] == "3"
    assert shown.status.used[f"{names.GROUP}/total"] == "2"
    # Kubernetes' own quota controller writes the same status: a pod makes it do so, and our keys stay.
    await start(hoster, launcher("plain", "other", gpus=0))
    both = await cloud.until(
        hoster, core.ResourceQuota, "gpus", "tenant-a", lambda quota: quota.status.used.get("pods") == "1"
    )
    assert both.status.used[f"{names.GROUP}/h200"] == "2"
    error = await refusal(hoster.create(claim("vm2", count=2)))
    assert error.reason == "OverBudget"
    assert "leaves 1" in str(error)
