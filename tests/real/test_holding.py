"""Who gives a new claim its finalizer (R10a): the apiserver itself where it can, else the webhook."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator

import pytest

from gpuclaim.admission import holding, webhooks
from gpuclaim.api import names
from gpuclaim.api.types import GPUClaim
from gpuclaim.kube import config
from gpuclaim.kube.client import Client
from gpuclaim.local.controlplane import ControlPlane
from support import cloud
from support.cloud import claim
from support.wait import until_async, until_awaited

pytestmark = pytest.mark.usefixtures("crds")

_POLICY = f"/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicies/{holding.NAME}"
_BINDING = f"/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicybindings/{holding.NAME}"


@pytest.fixture
async def client(cluster: ControlPlane) -> AsyncIterator[Client]:
    async with Client(config.load(cluster.kubeconfig)) as opened:
        await opened.create(cloud.gpu_class())
        await cloud.add_node(opened, "gpu-1", 8)
        await cloud.add_namespace(opened, "tenant-a")
        async with cloud.running_controller(cluster.kubeconfig):
            yield opened


async def asked(client: Client) -> float:
    """How often the apiserver has asked the webhook for holds."""
    lines = (await client.request("GET", "/metrics")).decode().splitlines()
    name = f'name="{webhooks.HOLDS}"'
    return sum(
        float(line.rsplit(maxsplit=1)[1])
        for line in lines
        if line.startswith("apiserver_admission_webhook_request_total{") and name in line
    )


async def until_asked(client: Client, *, whether: bool) -> None:
    """Returns once the webhook is asked about a claim without the finalizer, or is not."""

    async def done() -> bool:
        before = await asked(client)
        await client.create(claim("probe"), dry_run=True)
        return (await asked(client) > before) == whether

    # An apiserver takes policies up, and forgets them, within seconds, and tells nobody.
    await until_awaited(done, f"the webhook is asked: {whether}")


async def until_written(client: Client) -> None:
    """Returns once the leader has written the policy and what binds it."""
    await until_awaited(lambda: cloud.exists(client, _BINDING), f"{holding.NAME} is there")


async def ordered(client: Client, name: str, finalizers: list[str]) -> GPUClaim:
    order = claim(name)
    order.metadata.finalizers.extend(finalizers)
    return await client.create(order)


async def test_the_policy_gives_the_finalizer_and_keeps_those_that_are_there(client: Client) -> None:
    await until_written(client)
    await until_asked(client, whether=False)
    before = await asked(client)
    made = await ordered(client, "one", ["example.com/mine"])
    assert made.metadata.finalizers == ["example.com/mine", names.HOLD_FINALIZER]
    assert (await ordered(client, "two", [])).metadata.finalizers == [names.HOLD_FINALIZER]
    # One that names it itself is not given it twice.
    assert (await ordered(client, "three", [names.HOLD_FINALIZER])).metadata.finalizers == [names.HOLD_FINALIZER]
    await cloud.until(client, GPUClaim, "two", "tenant-a", lambda found: found.status.node_name)
    assert await asked(client) == before


async def test_without_the_policy_the_webhook_gives_it(client: Client) -> None:
    await until_written(client)
    await client.request("DELETE", _POLICY)
    await until_asked(client, whether=True)
    assert (await ordered(client, "one", [])).metadata.finalizers == [names.HOLD_FINALIZER]


async def test_a_cluster_that_does_not_serve_the_policy(
    old_crds: None, old_cluster: ControlPlane, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "gpuclaim.controller.registration")
    async with Client(config.load(old_cluster.kubeconfig)) as client:
        await client.create(cloud.gpu_class())
        await cloud.add_node(client, "gpu-1", 8)
        await cloud.add_namespace(client, "tenant-a")
        async with cloud.running_controller(old_cluster.kubeconfig):
            await until_async(lambda: f"{holding.NAME} was not written" in caplog.text, "the policy is tried")
            assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
            assert (await ordered(client, "one", [])).metadata.finalizers == [names.HOLD_FINALIZER]
