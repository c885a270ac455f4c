"""A move that a leader sent and that arrives when another leads: the apiserver refuses it (R39)."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
from collections.abc import AsyncIterator

import msgspec
import pytest

from gpuclaim.admission import fence
from gpuclaim.api.core import ObjectMeta
from gpuclaim.api.types import GPUClaim
from gpuclaim.controller.registration import Registration
from gpuclaim.kube import config
from gpuclaim.kube.client import ApiError, Client
from gpuclaim.kube.resources import Lease, LeaseSpec
from gpuclaim.local.controlplane import ControlPlane
from support import audit, cloud
from support.cloud import claim
from support.roads import SlowRoad, moves
from support.wait import until_awaited

from .test_orders import bound

pytestmark = pytest.mark.usefixtures("crds")


@pytest.fixture
async def client(cluster: ControlPlane) -> AsyncIterator[Client]:
    """Two nodes of four GPUs, a tenant."""
    async with Client(config.load(cluster.kubeconfig)) as opened:
        await opened.create(cloud.gpu_class())
        for name in ("gpu-1", "gpu-2"):
            await cloud.add_node(opened, name, 4)
        await cloud.add_namespace(opened, "tenant-a")
        yield opened


@pytest.mark.parametrize("fenced", [True, False], ids=["with the fence", "without it"])
async def test_a_move_that_arrives_when_another_leads_is_refused(
    client: Client, cluster: ControlPlane, monkeypatch: pytest.MonkeyPatch, fenced: bool
) -> None:
    if not fenced:
        monkeypatch.setattr(Registration, "_write_helpful", _nothing)
    async with SlowRoad(config.load(cluster.kubeconfig), moves) as road, contextlib.AsyncExitStack() as first:
        await first.enter_async_context(cloud.running_controller(cluster.kubeconfig, "first", client=road))
        for name, count in (("vm1", 3), ("vm2", 1)):
            await client.create(claim(name, count=count))
            assert (await cloud.until(client, GPUClaim, name, "tenant-a", bound)).status.node_name == "gpu-1"
        if fenced:
            await until_awaited(lambda: _refuses_strangers(client), "the fence is in force")
        # The set of vm1 grows, and has to move for it: the write gets stuck.
        growing = asyncio.create_task(client.create(claim("vm1-more", set="vm1")))
        await road.stuck.wait()
        growing.cancel()
        await first.aclose()
        async with cloud.running_controller(cluster.kubeconfig, "second"):
            # vm1 is where it was, and the other node is given away.
            await client.create(claim("other", count=4))
            assert (await cloud.until(client, GPUClaim, "other", "tenant-a", bound)).status.node_name == "gpu-2"
            road.let_go.set()
            assert road.arrived is not None
            (outcome,) = await asyncio.gather(road.arrived, return_exceptions=True)
    if fenced:
        assert isinstance(outcome, ApiError)
        assert (outcome.code, outcome.reason) == (403, "Forbidden")
        assert "another leads" in str(outcome)
        assert await audit.faults(client) == []
    else:
        # What it is there for.
        assert isinstance(outcome, bytes)
        assert await audit.faults(client) == [f"gpu-2: {cloud.H200} is short by 3"]


async def _nothing(*_: object) -> None:
    """Writes no policies."""


async def _refuses_strangers(client: Client) -> bool:
    """Whether a write of a leader that there is not is refused, though it changes nothing."""
    try:
        await client.patch(GPUClaim, "vm1", {}, "tenant-a", subresource="status", manager=f"{fence.PREFIX}nobody")
    except ApiError as error:
        return error.code == 403
    return False


async def test_an_apiserver_that_knows_only_an_old_lease_holds_up_no_leader(
    client: Client, cluster: ControlPlane
) -> None:
    """Kubernetes' doing: with the last policy about Leases, its apiserver stops hearing of them, for good."""
    lease = await client.create(_lease(1))
    fences = fence.policies("default", "leader")
    for policy in fences:
        await client.apply(policy)
    await client.create(claim("vm1"))
    await until_awaited(lambda: _refuses_strangers(client), "the fence is in force")
    for policy in fences:
        plural = {"ValidatingAdmissionPolicy": "policies", "ValidatingAdmissionPolicyBinding": "policybindings"}
        path = f"/apis/admissionregistration.k8s.io/v1/validatingadmission{plural[policy['kind']]}/{fence.NAME}"
        await client.request("DELETE", path)
    await until_awaited(lambda: _lets_strangers_in(client), "the fence is forgotten")
    await asyncio.sleep(5)  # it looks each second whether any policy is about Leases, and nothing tells when it has
    await client.replace(msgspec.structs.replace(lease, spec=_lease(2).spec))
    for policy in fences:
        await client.apply(policy)
    await until_awaited(lambda: _refuses_strangers(client), "the fence is in force")
    async with cloud.running_controller(cluster.kubeconfig, "me", lease_namespace="default", lease_name="leader"):
        await cloud.until(client, GPUClaim, "vm1", "tenant-a", bound)


def _lease(second: int) -> Lease:
    acquired = dt.datetime(2026, 12, 1, 12, 0, second, 120000, tzinfo=dt.UTC)
    spec = LeaseSpec(holder_identity="me", acquire_time=acquired, renew_time=acquired, lease_duration_seconds=15)
    return Lease(metadata=ObjectMeta(namespace="default", name="leader"), spec=spec)


async def _lets_strangers_in(client: Client) -> bool:
    return not await _refuses_strangers(client)
