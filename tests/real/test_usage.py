"""Usage on the real apiserver and scheduler: recorded once, whoever was down meanwhile."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from gpuclaim.api import core, model, names
from gpuclaim.api.types import GPUClaim, UsageKind
from gpuclaim.cli.main import main
from gpuclaim.kube import config
from gpuclaim.kube.client import Client
from gpuclaim.ledger.intervals import Record
from gpuclaim.ledger.store import Ledger
from gpuclaim.local.controlplane import ControlPlane
from support import cloud, postgresql
from support.cloud import H200, claim

pytestmark = pytest.mark.usefixtures("crds")


@pytest.fixture
async def hoster(cluster: ControlPlane) -> AsyncIterator[Client]:
    """A class, a node of four GPUs, a tenant."""
    async with Client(config.load(cluster.kubeconfig)) as client:
        await client.create(cloud.gpu_class())
        await cloud.add_node(client, "gpu-1", 4)
        await cloud.add_namespace(client, "tenant-a")
        yield client


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'ledger.db'}"


@pytest.fixture
def server() -> Iterator[postgresql.Server]:
    with postgresql.running() as running:
        yield running


def bound(found: GPUClaim) -> bool:
    return found.status.node_name is not None


def attached(found: GPUClaim) -> bool:
    return found.status.attachment is not None


def settled(found: GPUClaim) -> bool:
    """Its pod has ended, and the ledger has it."""
    usage = found.status.usage
    return found.status.attachment is None and usage is not None and not usage.unrecorded


def waits_for_ledger(found: GPUClaim) -> bool:
    condition = model.condition(found.status.conditions, "Bound")
    return condition is not None and condition.reason == "WaitsForLedger"


async def start(client: Client, name: str, vm: str) -> core.Pod:
    """A launcher pod, as far as we and the scheduler look."""
    body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "tenant-a", "labels": {names.VM_NAME_LABEL: vm}},
        "spec": {
            "automountServiceAccountToken": False,
            "containers": [{"name": "compute", "image": "launcher", "resources": {"limits": {H200: "1"}}}],
        },
    }
    made = await client.request("POST", "/api/v1/namespaces/tenant-a/pods", body=body)
    return msgspec.json.decode(made, type=core.Pod)


async def end(client: Client, name: str, at: dt.datetime) -> None:
    """What kubelet writes of a pod whose container ended then."""
    state = {"terminated": {"exitCode": 0, "finishedAt": at.strftime("%Y-%m-%dT%H:%M:%SZ")}}
    status = {
        "phase": "Succeeded",
        "containerStatuses": [
            {"name": "compute", "image": "l", "imageID": "l", "ready": False, "restartCount": 0, "state": state}
        ],
    }
    await client.patch(core.Pod, name, {"status": status}, "tenant-a", subresource="status")


def now() -> dt.datetime:
    return dt.datetime.now(dt.UTC).replace(microsecond=0)


def clock(ahead: float) -> Callable[[], dt.datetime]:
    """A clock of a controller that sees everything so many seconds later."""
    return lambda: dt.datetime.now(dt.UTC) + dt.timedelta(seconds=ahead)


def recorded(url: str) -> list[Record]:
    ledger = Ledger(url)
    try:
        found = ledger.records(dt.datetime(2020, 1, 1, tzinfo=dt.UTC), dt.datetime(2100, 1, 1, tzinfo=dt.UTC))
    finally:
        ledger.close()
    return sorted(found, key=lambda record: (record.name, record.kind, record.started_at))


async def test_what_ended_while_no_controller_ran_is_recorded_as_it_was(
    hoster: Client, cluster: ControlPlane, url: str
) -> None:
    async with cloud.running_controller(cluster.kubeconfig, ledger=url):
        await hoster.create(claim("vm1", set="vm1"))
        await cloud.until(hoster, GPUClaim, "vm1", "tenant-a", bound)
        pod = await start(hoster, "launcher-1", "vm1")
        first = await cloud.until(hoster, GPUClaim, "vm1", "tenant-a", attached)
        assert first.status.attachment is not None
        assert first.status.attachment.pod_uid == pod.metadata.uid
        held, since = first.status.held_since, first.status.attachment.since
        assert held is not None
    # The controller is down: the pod ends, and the tenant deletes the claim.
    ended = since + dt.timedelta(seconds=40)
    await end(hoster, "launcher-1", ended)
    await hoster.delete(GPUClaim, "vm1", "tenant-a")
    left = await cloud.until(hoster, GPUClaim, "vm1", "tenant-a", lambda c: c.metadata.deletion_timestamp)
    assert names.HOLD_FINALIZER in left.metadata.finalizers
    # An hour later another one starts.
    async with cloud.running_controller(cluster.kubeconfig, "second", now=clock(3600), ledger=url):
        await cloud.until_gone(hoster, GPUClaim, "vm1", "tenant-a")
    use, hold = recorded(url)
    assert (use.kind, use.started_at, use.ended_at, use.seconds) == (UsageKind.ATTACHED, since, ended, 40)
    assert (hold.kind, hold.started_at, hold.ended_at) == (UsageKind.HELD, held, ended)
    assert {(r.claim_uid, r.namespace, r.class_name, r.count, r.node_name) for r in (use, hold)} == {
        (first.metadata.uid, "tenant-a", "h200", 1, "gpu-1")
    }


async def test_a_pod_that_ends_is_in_the_ledger_while_its_claim_lives_and_the_report_adds_what_runs(
    hoster: Client, cluster: ControlPlane, url: str
) -> None:
    async with cloud.running_controller(cluster.kubeconfig, ledger=url):
        await hoster.create(claim("vm1"))
        await cloud.until(hoster, GPUClaim, "vm1", "tenant-a", bound)
        await start(hoster, "launcher-1", "vm1")
        await cloud.until(hoster, GPUClaim, "vm1", "tenant-a", attached)
        # It has run for half an hour, by its own account.
        since = now() - dt.timedelta(minutes=30)
        earlier = {"heldSince": since.isoformat(), "attachment": {"since": since.isoformat()}}
        await hoster.patch(GPUClaim, "vm1", {"status": earlier}, "tenant-a", subresource="status")
        await end(hoster, "launcher-1", since + dt.timedelta(seconds=30))
        lives = await cloud.until(hoster, GPUClaim, "vm1", "tenant-a", settled)
        (use,) = recorded(url)
        assert (use.kind, use.started_at, use.seconds) == (UsageKind.ATTACHED, since, 30)
        assert lives.status.usage is not None
        assert lives.status.usage.attached_seconds == 30
    # The report adds what the ledger has not: the hold runs on.
    arguments = [
        "usage",
        "--ledger",
        url,
        "--kubeconfig",
        str(cluster.kubeconfig),
        "--from",
        "2026-01-01",
        "-o",
        "json",
    ]
    result = await asyncio.to_thread(CliRunner().invoke, main, arguments)
    document = json.loads(result.stdout)
    assert "What runs is counted up to" in document["notes"][0]
    assert sum(line["attachedGPUSeconds"] for line in document["lines"]) == 30
    assert sum(line["heldGPUSeconds"] for line in document["lines"]) >= 1800


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
async def test_while_the_ledger_is_away_orders_go_on_and_deleted_claims_wait(
    hoster: Client, cluster: ControlPlane, tmp_path: Path, request: pytest.FixtureRequest, kind: str
) -> None:
    go, back = _away(tmp_path, request, kind)
    url = go()
    settings: dict[str, Any] = {"ledger": url}
    async with cloud.running_controller(cluster.kubeconfig, **settings):
        await hoster.create(claim("vm1"))
        held = await cloud.until(hoster, GPUClaim, "vm1", "tenant-a", bound)
        # It holds for a while, by its own account.
        since = now() - dt.timedelta(hours=1)
        status = {"status": {"heldSince": since.isoformat()}}
        await hoster.patch(GPUClaim, "vm1", status, "tenant-a", subresource="status")
        await hoster.delete(GPUClaim, "vm1", "tenant-a")
        waits = await cloud.until(hoster, GPUClaim, "vm1", "tenant-a", waits_for_ledger)
        assert waits.status.usage is not None
        assert [(i.kind, i.since) for i in waits.status.usage.unrecorded] == [(UsageKind.HELD, since)]
        # Orders go on, and the GPU stays held until the claim is gone (R10a).
        await hoster.create(claim("vm2", count=3))
        await cloud.until(hoster, GPUClaim, "vm2", "tenant-a", bound)
        assert (await cloud.until(hoster, GPUClaim, "vm1", "tenant-a", bound)).status.node_name == "gpu-1"
    # Meanwhile the leader changes.
    async with cloud.running_controller(cluster.kubeconfig, "second", **settings):
        await cloud.until(hoster, GPUClaim, "vm1", "tenant-a", waits_for_ledger)
        back()
        await cloud.until_gone(hoster, GPUClaim, "vm1", "tenant-a")
    (hold,) = recorded(url)
    assert (hold.claim_uid, hold.started_at) == (held.metadata.uid, since)
    assert hold.ended_at == waits.metadata.deletion_timestamp


def _away(tmp_path: Path, request: pytest.FixtureRequest, kind: str) -> tuple[Callable[[], str], Callable[[], None]]:
    """A ledger that is away once the first is called, which gives its URL, and there once the second is."""
    if kind == "sqlite":
        folder = tmp_path / "not-mounted-yet"
        return (lambda: f"sqlite:///{folder / 'ledger.db'}"), folder.mkdir
    server: postgresql.Server = request.getfixturevalue("server")

    def stop() -> str:
        server.stop()
        return server.url

    return stop, server.start
