"""Who gives a new claim its finalizer (R10a): the apiserver itself where it can, else the webhook."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from gpuclaim.admission import holding, webhooks
from gpuclaim.api import names
from gpuclaim.api.types import GPUClaim
from gpuclaim.kube import config
from gpuclaim.kube.client import ApiError, Client
from gpuclaim.local.controlplane import ControlPlane
from support import cloud
from support.cloud import claim

pytestmark = pytest.mark.usefixtures("crds")

_WEBHOOKS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/gpuclaim"
_POLICY = f"/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicies/{holding.NAME}"


@pytest.fixture
async def client(cluster: ControlPlane) -> AsyncIterator[Client]:
    async with Client(config.load(cluster.kubeconfig)) as opened:
        await opened.create(cloud.gpu_class())
        await cloud.add_node(opened, "gpu-1", 8)
        await cloud.add_namespace(opened, "tenant-a")
        async with cloud.running_controller(cluster.kubeconfig):
            yield opened


async def lead_astray(client: Client) -> None:
    """The webhook for holds is to be found where nobody listens."""
    astray = [{"name": webhooks.HOLDS, "clientConfig": {"url": "https://127.0.0.1:1/holds"}}]
    stored = await client.request("GET", _WEBHOOKS)
    assert webhooks.HOLDS.encode() in stored
    await client.request(
        "PATCH", _WEBHOOKS, body={"webhooks": astray}, content="application/strategic-merge-patch+json"
    )


async def ordered(client: Client, name: str, finalizers: list[str]) -> GPUClaim:
    order = claim(name)
    order.metadata.finalizers.extend(finalizers)
    return await client.create(order)


async def test_the_policy_gives_the_finalizer_and_keeps_those_that_are_there(client: Client) -> None:
    await lead_astray(client)
    async with asyncio.timeout(30):
        while True:  # an apiserver takes a policy up within a second or two
            try:
                made = await ordered(client, "one", ["example.com/mine"])
                break
            except ApiError as error:
                assert webhooks.HOLDS in str(error)  # noqa: PT017 - it may be asked meanwhile, and nothing else may fail
                await asyncio.sleep(0.1)
    assert made.metadata.finalizers == ["example.com/mine", names.HOLD_FINALIZER]
    assert (await ordered(client, "two", [])).metadata.finalizers == [names.HOLD_FINALIZER]
    # One that names it itself is not given it twice.
    assert (await ordered(client, "three", [names.HOLD_FINALIZER])).metadata.finalizers == [names.HOLD_FINALIZER]
    await cloud.until(client, GPUClaim, "two", "tenant-a", lambda found: found.status.node_name)


async def test_without_the_policy_the_webhook_gives_it(client: Client) -> None:
    await client.request("DELETE", _POLICY)
    await lead_astray(client)
    async with asyncio.timeout(30):
        while True:  # until the apiserver has forgotten the policy
            try:
                await client.create(claim("probe"), dry_run=True)
            except ApiError as error:
                assert webhooks.HOLDS in str(error)  # noqa: PT017
                break
            await asyncio.sleep(0.1)


async def test_a_cluster_that_does_not_serve_the_policy(old_crds: None, old_cluster: ControlPlane) -> None:
    async with Client(config.load(old_cluster.kubeconfig)) as client:
        await client.create(cloud.gpu_class())
        await cloud.add_node(client, "gpu-1", 8)
        await cloud.add_namespace(client, "tenant-a")
        async with cloud.running_controller(old_cluster.kubeconfig):
            with pytest.raises(ApiError) as no:
                await client.request("GET", _POLICY)
            assert no.value.code == 404
            assert (await ordered(client, "one", [])).metadata.finalizers == [names.HOLD_FINALIZER]
