"""Bursts of orders while things break, on real components: nothing is lost, nothing is sold twice, all is answered.

The controllers are processes of their own. A simulated apiserver with virtual time tries more histories than this can;
here the apiserver, etcd, the kernel's signals and TLS are the real ones.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import os
import signal
import subprocess
import sys
import tarfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from gpuclaim.admission import webhooks
from gpuclaim.api import names
from gpuclaim.api.reasons import Refusal
from gpuclaim.api.types import GPUClaim
from gpuclaim.controller import registration
from gpuclaim.kube import config
from gpuclaim.kube.client import ApiError, Client
from gpuclaim.kube.lease import Timing
from gpuclaim.kube.resources import Resource, resource_of
from gpuclaim.local.controlplane import ControlPlane
from gpuclaim.local.rest import RequestError
from gpuclaim.local.slate import Slate
from gpuclaim.placement import invariants
from support import audit, cloud, replicas
from support.cloud import claim
from support.replicas import Burst

ROOT = Path(__file__).parents[2]
NODES, GPUS = 20, 8
BUDGET = 30
VALIDATING = Resource("admissionregistration.k8s.io/v1", "validatingwebhookconfigurations", namespaced=False)


@pytest.fixture(scope="module")
def own_plane(progress: Callable[[str], None]) -> Iterator[ControlPlane]:
    """An apiserver that may be killed: no other test uses it."""
    with ControlPlane(progress=progress) as running:
        yield running


@pytest.fixture(scope="module")
def own_slate(own_plane: ControlPlane) -> Slate:
    async def install() -> None:
        async with Client(config.load(own_plane.kubeconfig)) as client:
            await cloud.install_crds(client)

    asyncio.run(install())
    return Slate(own_plane)


@pytest.fixture
def plane(own_plane: ControlPlane, own_slate: Slate) -> Iterator[ControlPlane]:
    yield own_plane
    own_slate.wipe()


@pytest.fixture
async def client(plane: ControlPlane) -> AsyncIterator[Client]:
    """A cloud of 160 GPUs, and two tenants, of which the second has a budget of 30."""
    async with Client(config.load(plane.kubeconfig)) as opened:
        await opened.create(cloud.gpu_class())
        for number in range(NODES):
            await cloud.add_node(opened, f"gpu-{number:02}", GPUS)
        for namespace in ("tenant-a", "tenant-b"):
            await cloud.add_namespace(opened, namespace)
        quota = {
            "apiVersion": "v1",
            "kind": "ResourceQuota",
            "metadata": {"name": "gpus", "namespace": "tenant-b"},
            "spec": {"hard": {f"{names.GROUP}/h200": str(BUDGET)}},
        }
        await opened.request("POST", "/api/v1/namespaces/tenant-b/resourcequotas", body=quota)
        yield opened


def orders() -> list[GPUClaim]:
    """More than there is room for: 204 GPUs, some of them in sets of two, and more for tenant-b than its budget."""
    single = [claim(f"a-{n:03}", count=1 + n % 2) for n in range(80)]
    pairs = [claim(f"p-{n:03}-{m}", set=f"p-{n:03}") for n in range(22) for m in range(2)]
    small = [claim(f"b-{n:03}", namespace="tenant-b") for n in range(40)]
    return [order for group in zip(single[:40], single[40:], pairs[:40], small, strict=True) for order in group] + [
        *pairs[40:]
    ]


def unanswered(error: ApiError) -> bool:
    """Whether an attempt got no decision: nobody answered the webhook, or the one that did may not decide."""
    return error.reason not in set(Refusal)


def burst(client: Client) -> Burst:
    return Burst(client, unanswered)


async def sound(client: Client, placed: Burst) -> None:
    """Every order is answered; what was taken is stored and bound, what was refused is not there; nothing twice."""
    wanted = {order.metadata.name for order in orders()}
    assert placed.taken | placed.refused.keys() == wanted
    assert not placed.taken & placed.refused.keys()
    stored, version = await client.list(GPUClaim)
    assert {found.metadata.name for found in stored} == placed.taken
    async with asyncio.timeout(120):
        # A leader that fails between two writes of a set's move leaves it on two nodes; the set is brought together.
        while any(not found.status.node_name for found in stored) or invariants.split_sets(
            await audit.stored_books(client)
        ):
            await cloud.changed(client, GPUClaim, "", version)
            stored, version = await client.list(GPUClaim)
    assert await audit.faults(client) == []
    books = await audit.stored_books(client)
    held = books.holds_by_node()
    assert max(held.values()) <= GPUS
    # A GPU that was kept for an attempt without an answer may have cost an order; never more than there are.
    assert sum(held.values()) <= NODES * GPUS
    for said in placed.troubles:
        # The last is an apiserver's that was just started, of the policy that gives a claim its finalizer.
        known = ("webhook", "not ready", "apiserver", "try again", "There can be a delay")
        assert any(word in said for word in known), said


async def test_the_leader_is_killed_in_a_burst(client: Client, plane: ControlPlane, tmp_path: Path) -> None:
    async with replicas.running(plane.kubeconfig, tmp_path) as running:
        placed = burst(client)
        first = await replicas.leader(client)
        async with asyncio.TaskGroup() as group:
            group.create_task(placed.place(orders()))
            await placed.until_answered(40)
            running[first].signal(signal.SIGKILL)
        assert await replicas.leader(client, other_than=first) != first
        await sound(client, placed)
    assert placed.troubles  # it was in the middle


async def test_the_leader_is_stopped_past_its_lease_and_goes_on(
    client: Client, plane: ControlPlane, tmp_path: Path
) -> None:
    async with replicas.running(plane.kubeconfig, tmp_path) as running:
        placed = burst(client)
        first = await replicas.leader(client)
        async with asyncio.TaskGroup() as group:
            group.create_task(placed.place(orders()))
            await placed.until_answered(40)
            running[first].signal(signal.SIGSTOP)
            second = await replicas.leader(client, other_than=first)
            await placed.until_answered(80)
            running[first].signal(signal.SIGCONT)
        await sound(client, placed)
        # It has understood, follows, and leads again when it is its turn.
        running[first].ready.clear()
        for identity in running.keys() - {first}:
            running[identity].signal(signal.SIGKILL)
        assert await replicas.leader(client, other_than=second) == first
        await running[first].ready.wait()
        assert await audit.faults(client) == []
    assert placed.troubles


async def test_the_apiserver_is_killed_and_comes_back_in_a_burst(
    client: Client, plane: ControlPlane, tmp_path: Path
) -> None:
    async with replicas.running(plane.kubeconfig, tmp_path, count=2):
        placed = burst(client)
        async with asyncio.TaskGroup() as group:
            group.create_task(placed.place(orders()))
            await placed.until_answered(40)
            await asyncio.to_thread(restart_apiserver, plane)
        await sound(client, placed)
    assert placed.troubles


async def test_etcd_is_compacted_and_the_informers_catch_up(
    client: Client, plane: ControlPlane, tmp_path: Path
) -> None:
    async with replicas.running(plane.kubeconfig, tmp_path, count=2):
        placed = burst(client)
        _, before = await client.list(GPUClaim)
        async with asyncio.TaskGroup() as group:
            group.create_task(placed.place(orders()))
            for answered in (30, 60, 90):
                await placed.until_answered(answered)
                await asyncio.to_thread(compact, plane)
            # An apiserver that comes back knows nothing of what was compacted: every informer has to list anew.
            await asyncio.to_thread(restart_apiserver, plane, compact)
            with pytest.raises(ApiError) as gone:
                async with contextlib.aclosing(client.watch(resource_of(GPUClaim), since=before)) as changes:
                    await anext(changes)
            assert gone.value.code == 410
        await sound(client, placed)


def compact(plane: ControlPlane) -> None:
    now = plane.etcd.post("/v3/kv/range", {"key": "AA==", "limit": 1})["header"]["revision"]
    try:
        plane.etcd.post("/v3/kv/compaction", {"revision": now, "physical": True})
    except RequestError as error:
        if "has been compacted" not in str(error):  # nothing was written since the last time
            raise


def restart_apiserver(plane: ControlPlane, meanwhile: Callable[[ControlPlane], None] = lambda _: None) -> None:
    apiserver = plane.processes["kube-apiserver"]
    apiserver.kill()
    meanwhile(plane)
    apiserver.start()
    apiserver.wait_until(lambda: plane.rest.answers("/readyz"))


async def bundles(client: Client, count: int, listed: Callable[[], object] = lambda: None) -> list[str]:
    """The next so many CA bundles that the webhook configuration has, beginning with the present one.

    Whatever changes after `listed` was called is seen.
    """
    found, version = await client.list_raw(VALIDATING, field_selector=f"metadata.name={webhooks.NAME}")
    (present,) = found
    seen = [_bundle(present)]
    listed()
    async with contextlib.aclosing(client.watch(VALIDATING, since=version)) as changes:
        while len(seen) < count:
            kind, item = await anext(changes)
            if kind == "MODIFIED" and _bundle(item) != seen[-1]:
                seen.append(_bundle(item))
    return seen


def _bundle(item: msgspec.Raw) -> str:
    found: str = msgspec.json.decode(item)["webhooks"][0]["clientConfig"].get("caBundle", "")
    return found


async def test_certificates_rotate_under_load_and_no_order_notices(client: Client, plane: ControlPlane) -> None:
    life = dt.timedelta(seconds=12)
    async with cloud.running_controller(
        plane.kubeconfig, timing=Timing(duration=15, retry=1, margin=5), certificate_life=life
    ):
        rotated = asyncio.create_task(bundles(client, 5))
        answered = 0

        async def load(number: int) -> None:
            nonlocal answered
            while not rotated.done():
                await client.create(claim(f"probe-{number}"), dry_run=True)
                answered += 1

        async with asyncio.timeout(120), asyncio.TaskGroup() as group:
            for number in range(8):
                group.create_task(load(number))
        seen = await rotated
    # One authority, two while it rotates, the new one, and so on.
    assert [len(msgspec.json.decode(f'"{each}"', type=bytes).split(b"BEGIN")) - 1 for each in seen] == [1, 2, 1, 2, 1]
    assert len(set(seen)) == 5
    assert answered > 100


async def test_what_others_make_of_the_webhook_configuration_is_made_good(
    client: Client, plane: ControlPlane, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(registration, "_REPAIR_SECONDS", 0.5)
    async with cloud.running_controller(plane.kubeconfig):
        listed = asyncio.Event()
        first = asyncio.create_task(bundles(client, 3, listed.set))
        await listed.wait()
        body = await client.request("GET", VALIDATING.path(name=webhooks.NAME))
        stored = msgspec.json.decode(body)
        stored["webhooks"][0]["clientConfig"]["caBundle"] = ""
        await client.request("PUT", VALIDATING.path(name=webhooks.NAME), body=stored)
        ours, foreign, again = await first
        assert foreign == ""
        assert again == ours
        await cloud.once_admitted(client, claim("vm1"))
    assert "had been changed by somebody" in caplog.text


PINNED = "95335d4"
"""The earlier version that is told by name; moved on with a release."""


def git(*arguments: str) -> str:
    """What git says of this checkout; empty where it is none, or does not go back so far."""
    done = subprocess.run(("git", *arguments), cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


def sources_of(commit: str, folder: Path) -> Path:
    """The program as it was: of a commit, or (`previous`) before its sources last changed."""
    if commit == "previous":
        last = git("log", "-1", "--format=%H", "--", "src/gpuclaim")
        commit = git("rev-parse", "--verify", f"{last}~1") if last else ""
    elif not git("merge-base", commit, "HEAD").startswith(commit):
        commit = ""  # not there, or of another line of history
    if not commit:
        pytest.skip("this checkout has no history that goes back so far (a shallow clone, or no clone)")
    archive = folder / "earlier.tar"
    subprocess.run(("git", "archive", "--output", archive, commit, "src"), cwd=ROOT, check=True)
    with tarfile.open(archive) as opened:
        opened.extractall(folder / "earlier", filter="data")
    source = folder / "earlier" / "src"
    asked = (sys.executable, "-c", "import gpuclaim; print(gpuclaim.__file__)")
    environment = os.environ | {"PYTHONPATH": str(source)}
    said = subprocess.run(asked, env=environment, capture_output=True, text=True, check=True)
    assert said.stdout.startswith(str(source))
    return source


@pytest.mark.parametrize("commit", ["previous", PINNED])
async def test_an_earlier_version_and_this_one_lead_in_turn_while_orders_come(
    client: Client, plane: ControlPlane, tmp_path: Path, commit: str
) -> None:
    earlier = sources_of(commit, tmp_path)
    placed = burst(client)
    logs: list[Path] = []
    async with asyncio.TaskGroup() as group, contextlib.AsyncExitStack() as running:
        leading: replicas.Replica | None = None
        for number, (version, source) in enumerate([("old", earlier), ("new", None)] * 2):
            # The next one has read everything beside the one that leads, which then ends: as a rollout has it.
            follows = await running.enter_async_context(
                replicas.one(plane.kubeconfig, tmp_path, f"{version}-{number}", source)
            )
            logs.append(follows.log)
            if leading is None:
                await replicas.first_ready([follows])
                group.create_task(placed.place(orders()))
            else:
                await placed.until_answered(35 * number)
                leading.signal(signal.SIGTERM if number % 2 else signal.SIGKILL)
                await replicas.first_ready([follows])
            leading = follows
        await placed.until_answered(len(orders()))
        await sound(client, placed)
    # What the earlier one logs can no longer be mended; what it did is in `sound`.
    said = {log.name: log.read_text() for log in logs if log.name.startswith("new")}
    assert not {name: text for name, text in said.items() if "Traceback" in text}
