"""The controller with the rights, the arguments and the Service that the chart gives it (R60, R63)."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import socket
import ssl
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from gpuclaim.admission.certificates import Serving
from gpuclaim.api.types import GPUClaim
from gpuclaim.kube import config
from gpuclaim.kube.client import ApiError, Client
from gpuclaim.local.controlplane import CONTROLLERS, ControlPlane
from gpuclaim.local.process import free_ports
from gpuclaim.local.slate import Slate
from support import accounts, cloud
from support.chart import CHART, NAMESPACE, Helm
from support.metrics import samples
from support.wait import until_awaited

NAME = "gpuclaim-controller"
SLICES = f"/apis/discovery.k8s.io/v1/namespaces/{NAMESPACE}/endpointslices"
ADMISSION = "/apis/admissionregistration.k8s.io/v1"
VALIDATING = f"{ADMISSION}/validatingwebhookconfigurations/gpuclaim"

MUTATING = f"{ADMISSION}/mutatingwebhookconfigurations/gpuclaim"
GUARD = f"{ADMISSION}/validatingadmissionpolicies/gpuclaim-guard"


def own_address() -> str:
    """An address of this machine that an EndpointSlice may have: not a loopback one. No packet is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("198.51.100.1", 9))
        except OSError:
            pytest.skip("this machine has no address but the loopback's, and no EndpointSlice may name that")
        return str(probe.getsockname()[0])


@dataclasses.dataclass
class Replica:
    """A controller's process, and what it said."""

    process: asyncio.subprocess.Process
    port: int
    metrics_port: int
    log: Path

    async def leads(self) -> None:
        """Waits until it takes orders."""
        assert self.process.stdout
        async with asyncio.timeout(60):
            said = await self.process.stdout.readline()
        assert said == b"ready\n", self.log.read_text()

    async def kill(self) -> None:
        """Ends it without a word."""
        self.process.kill()
        await self.process.wait()

    async def page(self, path: str) -> tuple[int, str]:
        """What it answers there."""
        # Its certificate is for the Service's name.
        trusting = ssl.create_default_context()
        trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
        url = f"https://127.0.0.1:{self.port}{path}"
        async with aiohttp.ClientSession() as session, session.get(url, ssl=trusting) as answer:
            return answer.status, await answer.text()

    async def metrics(self) -> dict[str, float]:
        """Its series as `name{label="value"}` → number, labels sorted."""
        url = f"http://127.0.0.1:{self.metrics_port}/metrics"
        async with aiohttp.ClientSession() as session, session.get(url) as answer:
            assert answer.status == 200
            return samples(await answer.text())

    def decisions(self) -> list[dict[str, Any]]:
        """The audit trail: of its log in JSON the lines that tell of decisions."""
        lines = [json.loads(line) for line in self.log.read_text().splitlines()]
        return [line for line in lines if line["logger"] == "gpuclaim.audit"]


@dataclasses.dataclass
class Deployment:
    """The chart installed in a cluster where nobody starts pods; replicas are started here as its Deployment says."""

    cluster: ControlPlane
    admin: Client
    helm: Helm
    arguments: list[str]
    folder: Path
    address: str

    @contextlib.asynccontextmanager
    async def replica(self, identity: str, *more: str) -> AsyncIterator[Replica]:
        """A replica with the Deployment's arguments, ServiceAccount and environment; only its ports are its own."""
        port, metrics = free_ports(2)
        own = {"--listen": port, "--metrics-listen": metrics}
        arguments = [
            f"{name}=:{own[name]}" if (name := each.partition("=")[0]) in own else each for each in self.arguments
        ]
        token = await accounts.token(self.admin, NAMESPACE, NAME)
        kubeconfig = accounts.kubeconfig(self.cluster, self.folder / f"{identity}.kubeconfig", {"token": token})
        log = self.folder / f"{identity}.log"
        with log.open("wb") as sink:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "gpuclaim", *arguments, *more, "--identity", identity),
                env=os.environ | {"KUBECONFIG": str(kubeconfig), "POD_IP": self.address},
                stdout=asyncio.subprocess.PIPE,
                stderr=sink,
            )
        try:
            yield Replica(process, port, metrics, log)
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


@pytest.fixture(scope="module")
def routed_cluster(progress: Callable[[str], None]) -> Iterator[ControlPlane]:
    """One whose apiserver finds a Service's endpoints itself: there is no kube-proxy here."""
    arguments = ("--enable-aggregator-routing=true",)
    with ControlPlane(controllers=CONTROLLERS, apiserver_arguments=arguments, progress=progress) as running:
        yield running


@pytest.fixture
async def deployment(
    routed_cluster: ControlPlane, tmp_path: Path, progress: Callable[[str], None]
) -> AsyncIterator[Deployment]:
    helm = Helm.build(tmp_path, progress, routed_cluster.kubeconfig)
    values = ("--set", "controller.leaseDuration=5")
    release = ("gpuclaim", "--namespace", NAMESPACE)
    helm.run("install", *release, CHART, "--create-namespace", *values)
    slate = Slate(routed_cluster)
    (container,) = next(
        each["spec"]["template"]["spec"]["containers"] for each in helm.objects(*values) if each["kind"] == "Deployment"
    )
    async with Client(config.load(routed_cluster.kubeconfig)) as admin:
        yield Deployment(routed_cluster, admin, helm, container["args"], tmp_path, own_address())
    helm.run("uninstall", *release)
    slate.wipe()


async def leads_to(admin: Client) -> list[tuple[str, int]]:
    """Where the Service leads."""
    items = msgspec.json.decode(await admin.request("GET", SLICES))["items"]
    return [
        (address, each["ports"][0]["port"])
        for each in items
        for endpoint in each["endpoints"]
        for address in endpoint["addresses"]
    ]


async def until_answered(client: Client, claim: GPUClaim) -> GPUClaim:
    """Orders until somebody answers."""

    async def order() -> GPUClaim | None:
        try:
            return await client.create(claim)
        except ApiError as error:
            # No leader, or none that the apiserver knows of yet: it says so, and takes nothing unseen.
            if error.code not in (500, 503):
                raise
            return None

    return await until_awaited(order, "the order is answered")


async def test_the_service_leads_to_the_leader(deployment: Deployment) -> None:
    admin = deployment.admin
    await admin.create(cloud.gpu_class())
    await cloud.add_node(admin, "node-a", gpus=8)
    await cloud.add_namespace(admin, "tenant-a")
    async with deployment.replica("one") as one, deployment.replica("two") as two:
        first, second = await _led_by(one, two)
        assert await leads_to(admin) == [(deployment.address, first.port)]
        await until_answered(admin, cloud.claim("before"))
        bound = await cloud.until(admin, GPUClaim, "before", "tenant-a", lambda c: c.status.node_name)
        assert bound.status.node_name == "node-a"
        # The other one is ready to take over, and says of itself that it is.
        await until_awaited(lambda: _answers(second, "/readyz", 200), "the follower has read everything")
        assert (await first.page("/readyz"))[0] == 200
        assert (await first.page("/healthz"))[0] == 200
        follower = await second.metrics()
        assert (follower["gpuclaim_leader"], follower["gpuclaim_ready"]) == (0, 0)
        # Only the leader tells of the cloud: a sum over both is right.
        assert 'gpuclaim_class_held_gpus{class="h200"}' not in follower

        await first.kill()
        await second.leads()
        assert await leads_to(admin) == [(deployment.address, second.port)]
        await until_answered(admin, cloud.claim("after", count=7))
        await cloud.until(admin, GPUClaim, "after", "tenant-a", lambda c: c.status.node_name)
        with pytest.raises(ApiError, match="h200") as refused:
            await admin.create(cloud.claim("too-much"))
        assert refused.value.reason == "InsufficientCapacity"
        await _tells_what_it_did(second)
        for name in ("before", "after"):
            await admin.delete(GPUClaim, name, "tenant-a")
            await cloud.until_gone(admin, GPUClaim, name, "tenant-a")
        # It never asked for more than it has.
        for replica in (first, second):
            assert "orbidden" not in replica.log.read_text()


async def _tells_what_it_did(leader: Replica) -> None:
    """The audit trail and the metrics of a leader that took 7 GPUs beside 1 and refused one more."""
    taken, refused = leader.decisions()[-2:]
    assert (taken["name"], taken["verdict"], taken["node"], taken["count"]) == ("after", "admitted", "node-a", 7)
    assert (refused["name"], refused["verdict"], refused["reason"]) == ("too-much", "refused", "InsufficientCapacity")
    assert refused["user"] == "gpuclaim-admin"
    assert "cannot be ordered" in refused["why"]
    assert refused["microseconds"] >= refused["decidingMicroseconds"] > 0
    found = await leader.metrics()
    wanted = {
        'gpuclaim_class_capacity_gpus{class="h200"}': 8,
        'gpuclaim_class_held_gpus{class="h200"}': 8,
        'gpuclaim_class_attached_gpus{class="h200"}': 0,
        'gpuclaim_class_free_gpus{class="h200"}': 0,
        'gpuclaim_class_largest_order_gpus{class="h200"}': 0,
        'gpuclaim_nodes{state="Eligible"}': 1,
        'gpuclaim_orders_total{dry_run="false",reason="",verdict="admitted"}': 1,
        'gpuclaim_orders_total{dry_run="false",reason="InsufficientCapacity",verdict="refused"}': 1,
        "gpuclaim_leader": 1,
        "gpuclaim_ready": 1,
        'gpuclaim_watch_broken_seconds{kind="Pod"}': 0,
    }
    assert {name: found.get(name) for name in wanted} == wanted
    assert found['gpuclaim_webhook_seconds_count{webhook="orders"}'] >= 2
    assert found["gpuclaim_webhook_certificate_expiry_timestamp_seconds"] > time.time()


async def _led_by(one: Replica, two: Replica) -> tuple[Replica, Replica]:
    """(the leader, the other one)."""
    waits = {asyncio.ensure_future(each.leads()): each for each in (one, two)}
    done, pending = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for each in pending:
        each.cancel()
    (leader,) = (waits[each] for each in done)
    done.pop().result()
    return (leader, two) if leader is one else (two, one)


async def _answers(replica: Replica, path: str, status: int) -> bool | None:
    return (await replica.page(path))[0] == status or None


async def test_what_somebody_deletes_of_the_registration_comes_back(deployment: Deployment) -> None:
    async with deployment.replica("one") as one:
        await one.leads()
        (slice_,) = msgspec.json.decode(await deployment.admin.request("GET", SLICES))["items"]
        assert slice_["metadata"]["ownerReferences"][0]["name"] == NAME
        found: dict[str, Any] = msgspec.json.decode(await deployment.admin.request("GET", VALIDATING))
        assert found["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "Helm"
        assert {each["clientConfig"]["service"]["name"] for each in found["webhooks"]} == {NAME}

        # The guard goes with them: it would turn away pods with GPUs for ever.
        async def owned() -> bool | None:
            policy = msgspec.json.decode(await deployment.admin.request("GET", GUARD))
            owners = [each["uid"] for each in policy["metadata"].get("ownerReferences", ())]
            mutating = msgspec.json.decode(await deployment.admin.request("GET", MUTATING))
            return owners == [mutating["metadata"]["uid"]] or None

        await until_awaited(owned, "the guard is the registration's")
        # A class more, and the leader writes everything anew.
        await deployment.admin.request("DELETE", f"{SLICES}/{slice_['metadata']['name']}", body={})
        await deployment.admin.create(cloud.gpu_class("another", "nvidia.com/ANOTHER"))

        async def there() -> bool | None:
            return bool(await leads_to(deployment.admin)) or None

        await until_awaited(there, "the Service leads to the leader again")


async def holds(admin: Client) -> dict[str, tuple[str, str | None, object]]:
    """Each claim → (UID, node, since when it is held)."""
    body = await admin.request("GET", "/apis/gpu.cozystack.io/v1alpha1/gpuclaims")
    claims = msgspec.json.decode(body, type=ClaimList).items
    return {c.metadata.name: (c.metadata.uid, c.status.node_name, c.status.held_since) for c in claims}


class ClaimList(msgspec.Struct):
    """A list of claims."""

    items: list[GPUClaim]


async def test_holds_outlive_an_upgrade_an_uninstall_and_a_new_install(deployment: Deployment) -> None:
    admin, helm = deployment.admin, deployment.helm
    release = ("gpuclaim", "--namespace", NAMESPACE)
    await admin.create(cloud.gpu_class())
    for node in ("node-a", "node-b"):
        await cloud.add_node(admin, node, gpus=4)
    await cloud.add_namespace(admin, "tenant-a")
    async with deployment.replica("one") as one:
        await one.leads()
        for name, count in (("small", 1), ("large", 4), ("goes", 1)):
            await until_answered(admin, cloud.claim(name, count=count))
            await cloud.until(admin, GPUClaim, name, "tenant-a", lambda c: c.status.node_name)
        before = await holds(admin)
        assert {node for _, node, _ in before.values()} == {"node-a", "node-b"}
        # An upgrade leaves what the leader wrote into the chart's objects: the next order is decided. It comes again
        # after the leader has looked after its registration, and changes what the guard of both is about.
        changes = ("agent.interval=5", "exemptNamespaces={gpu-operator}")
        for change in changes:
            helm.run("upgrade", *release, CHART, "--reset-then-reuse-values", "--set", change)
        with pytest.raises(ApiError) as refused:
            await admin.create(cloud.claim("too-much", count=4))
        assert refused.value.reason == "InsufficientCapacity"
        assert await holds(admin) == before
    helm.run("uninstall", *release)

    async def unregistered() -> bool | None:
        return not any([await cloud.exists(admin, path) for path in (VALIDATING, MUTATING, GUARD)]) or None

    await until_awaited(unregistered, "webhooks and guard have gone with the release")
    assert await holds(admin) == before
    # Meanwhile nobody decides: orders are stored and wait, a deleted claim holds on.
    await admin.create(cloud.claim("meanwhile"))
    await admin.delete(GPUClaim, "goes", "tenant-a")
    waiting = await admin.get(GPUClaim, "goes", "tenant-a")
    assert waiting.metadata.deletion_timestamp
    assert waiting.status.node_name
    assert (await admin.get(GPUClaim, "meanwhile", "tenant-a")).status.node_name is None

    helm.run("install", *release, CHART, "--set", "controller.leaseDuration=5")
    async with deployment.replica("two") as two:
        await two.leads()
        await cloud.until_gone(admin, GPUClaim, "goes", "tenant-a")
        await cloud.until(admin, GPUClaim, "meanwhile", "tenant-a", lambda c: c.status.node_name)
        after = await holds(admin)
        # Nothing has moved.
        assert {name: after[name] for name in ("small", "large")} == {name: before[name] for name in ("small", "large")}
        assert "orbidden" not in two.log.read_text()


async def test_a_certificate_that_no_caller_would_trust_is_told_and_not_shown(deployment: Deployment) -> None:
    """cert-manager's folder, and what may stand in it (R63)."""
    folder = deployment.folder / "certificate"
    folder.mkdir()
    host = f"{NAME}.{NAMESPACE}.svc"

    def put(serving: Serving) -> None:
        for name, content in (
            ("tls.crt", serving.pair.certificate),
            ("tls.key", serving.pair.key),
            ("ca.crt", serving.authority),
        ):
            (folder / name).write_bytes(content)

    good, foreign = Serving.self_made([host]), Serving.self_made(["somebody.else.svc"])
    put(foreign)
    option = f"--webhook-certificate={folder}"
    async with deployment.replica("wrong", option) as wrong:
        assert await wrong.process.wait() == 1
        assert f"is not good for {host}" in wrong.log.read_text()
    put(good)
    async with deployment.replica("right", option) as right:
        await right.leads()
        assert await right.page("/readyz") == (200, "ok")
        put(Serving(foreign.pair, good.authority))

        async def told() -> str | None:
            status, said = await right.page("/readyz")
            assert status == 200  # the one that is shown is good
            return said if said != "ok" else None

        assert f"is not good for {host}" in await until_awaited(told, "the page says what is wrong")
        assert f"is not good for {host}" in right.log.read_text()
        found = await right.metrics()
        assert found["gpuclaim_webhook_certificate_expiry_timestamp_seconds"] == good.ends.timestamp()
