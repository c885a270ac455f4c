"""`kubectl gpu` as tenants and hosters use it (R75), on the real apiserver with the running controller."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import os
import signal
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuclaim.admission import guard
from gpuclaim.api import core, names
from gpuclaim.api.types import Availability, GPUClaim, GPUClass, GPUNode
from gpuclaim.kube import config
from gpuclaim.kube.client import Client
from gpuclaim.local.controlplane import ControlPlane
from support import cloud, terminal, wait
from support.terminal import Seen

POLICIES = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
MERGE = "application/merge-patch+json"
PREFIX = "tenant.cozystack.io/"
HOSTILE = "sold\x1b[2J\x1b]0;owned\x07 out"


class Person:
    """Somebody with a kubeconfig and a terminal."""

    def __init__(self, kubeconfig: Path) -> None:
        self.kubeconfig = kubeconfig

    async def says(
        self, *arguments: str, columns: int = 80, answer: str = "", env: Mapping[str, str] | None = None
    ) -> Seen:
        """`kubectl gpu` with these arguments; the loop runs on meanwhile, for the controller is on it."""
        given = [*arguments, "--kubeconfig", str(self.kubeconfig)]
        return await asyncio.to_thread(terminal.run, given, columns=columns, answer=answer, env=env)


@pytest.fixture
async def client(cluster: ControlPlane) -> AsyncIterator[Client]:
    async with Client(config.load(cluster.kubeconfig)) as opened:
        yield opened


@pytest.fixture
async def hoster(crds: None, client: Client, cluster: ControlPlane) -> AsyncIterator[Person]:
    """Two classes, nodes with 2 and 4 GPUs, two tenants, one with a budget, and the controller."""
    await client.create(cloud.gpu_class(display_name="NVIDIA H200", description=HOSTILE))
    await client.create(cloud.gpu_class("closed", closed=True))
    await cloud.add_node(client, "gpu-1", 2)
    await cloud.add_node(client, "gpu-2", 4)
    for namespace in ("tenant-a", "tenant-b"):
        await cloud.add_namespace(client, namespace)
    await _grant(client)
    async with cloud.running_controller(cluster.kubeconfig):
        await cloud.until(
            client, GPUClass, "h200", "", lambda found: found.status.availability is Availability.AVAILABLE
        )
        yield Person(cluster.kubeconfig)


@pytest.fixture
def tenant(hoster: Person, cluster: ControlPlane) -> Person:
    """Anna, who may do in tenant-a what a tenant may, and nothing else."""
    return Person(cluster.kubeconfig_for("anna"))


async def _grant(client: Client) -> None:
    rbac = "rbac.authorization.k8s.io"
    anna = [{"apiGroup": rbac, "kind": "User", "name": "anna"}]
    rules: dict[str, list[dict[str, Any]]] = {
        "Role": [
            {
                "apiGroups": [names.GROUP],
                "resources": ["gpuclaims"],
                "verbs": ["get", "list", "watch", "create", "delete"],
            },
            {"apiGroups": [""], "resources": ["resourcequotas"], "verbs": ["get", "list"]},
        ],
        "ClusterRole": [{"apiGroups": [names.GROUP], "resources": ["gpuclasses"], "verbs": ["get", "list", "watch"]}],
    }
    for kind, granted in rules.items():
        place = {"namespace": "tenant-a"} if kind == "Role" else {}
        head = {"apiVersion": f"{rbac}/v1", "metadata": {"name": "gpu-tenant"} | place}
        await client.apply(head | {"kind": kind, "rules": granted})
        role = {"apiGroup": rbac, "kind": kind, "name": "gpu-tenant"}
        await client.apply(head | {"kind": f"{kind}Binding", "subjects": anna, "roleRef": role})


async def test_a_tenant_looks_orders_is_refused_and_releases(tenant: Person, client: Client) -> None:
    seen = await tenant.says("classes")
    assert seen.code == 0, seen.text
    assert [line.split()[:2] for line in seen.lines] == [
        ["NAME", "AVAILABLE"],
        ["closed", "Closed"],
        ["h200", "Available"],
    ]
    assert "NVIDIA H200" in seen.lines[2]
    assert "\x1b[32mAvailable" in seen.raw

    mine = ("-n", "tenant-a")
    seen = await tenant.says("claims", *mine)
    assert (seen.code, seen.lines) == (0, ["No claims found in namespace tenant-a."])

    seen = await tenant.says("order", "h200", "--count", "4", "--dry-run", *mine)
    assert (seen.code, seen.lines[0][:54]) == (0, "It would fit: 4 GPUs of class h200 could be held now. ")
    listed, _ = await client.list(GPUClaim, "tenant-a")
    assert listed == []

    for asked in ((), ("--dry-run",)):
        seen = await tenant.says("order", "h200", "--count", "5", *asked, *mine)
        assert seen.code == 1
        assert " ".join(seen.text.split()).startswith("Error: 5 GPUs of class 'h200' cannot be ordered")
        assert "4" in seen.text  # the largest order that would fit (R42)
        assert "webhook" not in seen.text

    seen = await tenant.says("order", "h200", "--name", "train", "--count", "2", "--wait", *mine)
    assert (seen.code, seen.lines) == (0, ["gpuclaim.gpu.cozystack.io/train holds 2 GPUs of class h200"])
    seen = await tenant.says("claims", *mine)
    assert [line.split()[:4] for line in seen.lines] == [
        ["NAME", "CLASS", "COUNT", "STATE"],
        ["train", "h200", "2", "Held"],
    ]
    seen = await tenant.says("claims", "-o", "wide", *mine, columns=200)
    assert seen.lines[1].split()[-2:] == ["train", "gpu-1"]
    assert (await tenant.says("claims", "-o", "name", *mine)).lines == ["gpuclaim.gpu.cozystack.io/train"]
    printed = json.loads((await tenant.says("claims", "train", "-o", "json", *mine, columns=500)).text)
    assert (printed["kind"], printed["status"]["nodeName"]) == ("GPUClaim", "gpu-1")
    assert yaml.safe_load((await tenant.says("claims", "-o", "yaml", *mine)).text)["kind"] == "GPUClaimList"

    seen = await tenant.says("release", "train", *mine, answer="n\n")
    assert seen.code == 1
    assert "train holds 2 GPUs of class h200" in seen.text
    assert "Nothing was released." in seen.text
    seen = await tenant.says("release", "train", "--wait", *mine, answer="y\n")
    assert seen.code == 0, seen.text
    assert seen.lines[-1].endswith("gpuclaim.gpu.cozystack.io/train released")
    listed, _ = await client.list(GPUClaim, "tenant-a")
    assert listed == []


async def test_an_order_without_a_name_gets_one_and_a_set(tenant: Person, client: Client) -> None:
    seen = await tenant.says("order", "h200", "--set", "vm1", "-o", "name", "-n", "tenant-a")
    made = seen.lines[0].removeprefix("gpuclaim.gpu.cozystack.io/")
    assert made.startswith("h200-")
    assert (await client.get(GPUClaim, made, "tenant-a")).spec.set == "vm1"


async def test_what_may_not_be_is_not_there_or_is_no_more_gets_a_sentence(tenant: Person, tmp_path: Path) -> None:
    seen = await tenant.says("claims", "-n", "tenant-b")
    assert seen.code == 1
    assert "you may not do that" in seen.text
    seen = await tenant.says("release", "-y", "nope", "-n", "tenant-a")
    assert seen.code == 1
    assert "there is no gpuclaims 'nope' here" in " ".join(seen.text.split())
    seen = await tenant.says("order", "closed", "-n", "tenant-a")
    assert seen.code == 1
    assert "closed to new orders" in " ".join(seen.text.split())

    seen = await tenant.says("order", "nope", "-n", "tenant-a")
    assert seen.code == 1
    assert "There is no GPU class 'nope'" in " ".join(seen.text.split())
    assert "`kubectl gpu classes` shows what there is" in " ".join(seen.text.split())

    expired = yaml.safe_load(tenant.kubeconfig.read_text())
    expired["users"][0]["user"] = {"token": "expired"}
    file = tmp_path / "expired"
    file.write_text(yaml.safe_dump(expired))
    seen = await Person(file).says("claims")
    assert seen.code == 1
    assert "log in again" in seen.text


@pytest.mark.parametrize("columns", [20, 80, 200])
async def test_no_line_is_wider_than_the_terminal_and_nothing_hostile_reaches_it(
    hoster: Person, tenant: Person, client: Client, columns: int
) -> None:
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "gpus", "namespace": "tenant-a"}}
    await client.apply(quota | {"spec": {"hard": {names.budget_key("h200"): "4"}}})
    ordered = await tenant.says("order", "h200", "--name", "a-name-that-is-as-long-as-names-are", "-n", "tenant-a")
    assert ordered.code == 0, ordered.text
    for command in (
        ("classes", "-o", "wide"),
        ("claims", "-A", "-o", "wide"),
        ("budget", "-n", "tenant-a"),
        ("nodes",),
        ("doctor", "-n", "tenant-a"),
        ("usage", "-o", "table"),
    ):
        seen = await hoster.says(*command, columns=columns)
        assert seen.code == 0, seen.text
        assert [line for line in seen.lines if len(line) > columns] == []
        assert ("gpu" if command[0] in {"nodes", "budget"} else "h200" if command[0] != "doctor" else "ok") in seen.text
    for form in ("wide", "json", "yaml"):
        seen = await hoster.says("classes", "-o", form, columns=columns)
        assert "\x1b" not in seen.text
        assert "\x07" not in seen.text


async def test_colours_are_for_who_wants_them(hoster: Person) -> None:
    assert "\x1b" in (await hoster.says("classes")).raw
    assert "\x1b" not in (await hoster.says("classes", env={"NO_COLOR": "1"})).raw


@pytest.fixture
async def without_api(old_cluster: ControlPlane) -> AsyncIterator[Person]:
    """The administrator of a cluster that does not serve our API; other tests get it back as they left it."""
    crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    there = [f"{crds}/{item['metadata']['name']}" for item in old_cluster.rest.get(crds)["items"]]
    ours = [path for path in there if path.endswith(names.GROUP)]
    for path in ours:
        old_cluster.rest.delete(path)
    served = f"/apis/{names.GROUP}/{names.VERSION}"
    await wait.until_async(lambda: not old_cluster.rest.answers(served) or None, "the API is no longer served")
    yield Person(old_cluster.kubeconfig)
    if ours:
        async with Client(config.load(old_cluster.kubeconfig)) as admin:
            await cloud.install_crds(admin)


async def test_a_cluster_without_gpuclaim(without_api: Person) -> None:
    seen = await without_api.says("claims")
    assert seen.code == 1
    assert "gpuclaim is not installed there" in " ".join(seen.text.split())


async def test_a_budget_is_shown_with_what_is_used_of_it(hoster: Person, tenant: Person, client: Client) -> None:
    key = names.budget_key("h200")
    await client.apply(
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "tenant-a", "labels": {f"{PREFIX}tenant-b": ""}}}
    )
    for namespace, hard in (("tenant-a", {key: "2"}), ("tenant-b", {names.budget_key("total"): "5"})):
        quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "gpus", "namespace": namespace}}
        await client.apply(quota | {"spec": {"hard": hard}})
    assert (await tenant.says("order", "h200", "--wait", "-n", "tenant-a")).code == 0
    for namespace in ("tenant-a", "tenant-b"):
        await cloud.until(
            client, core.ResourceQuota, "gpus", namespace, lambda found: "1" in found.status.used.values()
        )

    seen = await hoster.says("budget", "-n", "tenant-a")
    assert [line.split() for line in seen.lines[1:]] == [
        ["tenant-a", "gpus", "h200", "1", "2", "1", "own"],
        ["tenant-b", "gpus", "total", "1", "5", "4", "inherited"],
    ]
    # A tenant sees his own, and is told what he cannot see.
    seen = await tenant.says("budget", "-n", "tenant-a")
    assert seen.code == 0
    assert "You may not read namespace tenant-a" in seen.text
    assert seen.lines[-1].split() == ["tenant-a", "gpus", "h200", "1", "2", "1", "own"]


async def test_a_hoster_sees_every_gpu_and_takes_some_out(hoster: Person, tenant: Person, client: Client) -> None:
    assert (await tenant.says("order", "h200", "--wait", "-n", "tenant-a")).code == 0
    assert (await hoster.says("exclude", "gpu-2", "0000:11:00.0", "--reason", "hot")).code == 0
    assert (await hoster.says("exclude", "gpu-2", "0000:12:00.0")).code == 0
    seen = await hoster.says("exclude", "gpu-2", "0000:99:00.0")
    assert seen.code == 1
    assert "these are reported: 0000:10:00.0, 0000:11:00.0" in " ".join(seen.text.split())
    assert (await hoster.says("cordon", "gpu-1")).code == 0
    seen = await hoster.says("nodes")
    assert seen.code == 0, seen.text
    assert [line.split() for line in seen.lines[:3]] == [
        ["NODE", "GPUS", "FREE", "HELD", "USED", "NOTE"],
        ["gpu-1", "h.", "1", "1", "0", "cordoned"],
        ["gpu-2", ".xx.", "2", "0", "0"],
    ]
    assert "excluded" in " ".join(seen.lines[3:])

    assert (await hoster.says("include", "gpu-2", "0000:11:00.0")).code == 0
    assert (await hoster.says("uncordon", "gpu-1")).code == 0
    stored = await client.get(GPUNode, "gpu-2")
    assert [each.address for each in stored.spec.excluded] == ["0000:12:00.0"]
    assert not (await client.get(GPUNode, "gpu-1")).spec.cordoned
    assert (await tenant.says("nodes")).code == 1


async def test_a_hoster_plans_on_the_cluster_and_on_what_kubectl_prints(
    hoster: Person, tenant: Person, client: Client, cluster: ControlPlane, tmp_path: Path
) -> None:
    assert (await tenant.says("order", "h200", "--name", "a", "--count", "2", "--wait", "-n", "tenant-a")).code == 0
    asked = ("--drain", "gpu-1", "--order", "h200=2", "--order", "h200=1", "-n", "tenant-b", "-o", "json")
    kinds = "gpuclasses,gpuclaims,gpunodes,nodes,pods,namespaces,resourcequotas"
    dump = tmp_path / "dump.yaml"
    with dump.open("wb") as file:
        command = [*cluster.kubectl(), "get", kinds, "-A", "-o", "yaml"]
        process = await asyncio.create_subprocess_exec(*command, stdout=file)
        assert await process.wait() == 0
    printed = []
    for state in (("--cluster", "--kubeconfig", str(hoster.kubeconfig)), ("--dump", str(dump))):
        seen = await asyncio.to_thread(terminal.run, ["plan", *state, *asked], columns=2000, program=terminal.GPUCLAIM)
        assert seen.code == 0, seen.text
        printed.append(json.loads(seen.text))
    live, dumped = printed
    assert {key: live[key] for key in live if key != "now"} == {key: dumped[key] for key in dumped if key != "now"}
    assert [(each["set"], each["node"]) for each in live["drained"]["sets"]] == [("tenant-a/a", "gpu-2")]
    assert [(each["verdict"], each["node"]) for each in live["steps"]] == [("admitted", "gpu-2"), ("refused", None)]
    assert live["largest"] == {"closed": 0, "h200": 0}
    # Nothing of it came true.
    assert [(each.metadata.name, each.status.node_name) for each in (await client.list(GPUClaim))[0]] == [
        ("a", "gpu-1")
    ]
    refused = await asyncio.to_thread(
        terminal.run, ["plan", "--cluster", "--kubeconfig", str(tenant.kubeconfig)], program=terminal.GPUCLAIM
    )
    assert (refused.code, "you may not do that" in " ".join(refused.text.split())) == (1, True)


async def test_top_is_live_on_a_terminal(hoster: Person, tenant: Person, client: Client) -> None:
    def watch(person: Person, *arguments: str, columns: int = 80, rows: int = 24) -> terminal.Session:
        return terminal.Session(["top", *arguments, "--kubeconfig", str(person.kubeconfig)], columns=columns, rows=rows)

    def row(page: list[str], name: str) -> list[str]:
        return next((line.split() for line in page if line.startswith(f"{name} ")), [])

    with watch(hoster) as seen:
        page = await asyncio.to_thread(seen.until, lambda page: row(page, "gpu-2"), "the nodes")
        assert row(page, "gpu-1")[1] == ".."
        assert row(page, "h200")[1:3] == ["6", "6"]
        assert all(len(line) <= 80 for line in page)
        assert len(page) <= 24
        assert (await tenant.says("order", "h200", "--name", "train", "--wait", "-n", "tenant-a")).code == 0
        page = await asyncio.to_thread(seen.until, lambda page: row(page, "gpu-1")[1:2] == ["h."], "the hold")
        assert row(page, "h200")[1:4] == ["6", "5", "1"]
        assert "1 GPU held" in page[0]
        # Who is not the hoster sees his own claims.
        with watch(tenant, "-n", "tenant-a", columns=200) as small:
            page = await asyncio.to_thread(small.until, lambda page: row(page, "train"), "the claim")
            assert "1 claims in namespace tenant-a" in page[0]
            small.type("\x03")
            assert await asyncio.to_thread(small.ended) == 0
        seen.resize(40, 8)
        page = await asyncio.to_thread(
            seen.until, lambda page: len(page) <= 8 and all(len(line) <= 40 for line in page), "a small page"
        )
        seen.type("q")
        assert await asyncio.to_thread(seen.ended) == 0
        # The terminal is as it was.
        assert seen.raw.endswith("\x1b[?25h\x1b[?1049l")
        assert seen.modes == seen.before

    for number in (signal.SIGTERM, signal.SIGHUP):
        with watch(hoster) as seen:
            await asyncio.to_thread(seen.until, lambda page: row(page, "gpu-2"), "the nodes")
            seen.process.send_signal(number)
            assert await asyncio.to_thread(seen.ended) == 128 + number
            assert seen.raw.endswith("\x1b[?25h\x1b[?1049l")
            assert seen.modes == seen.before

    # In a pipe it is one moment.
    process = await asyncio.create_subprocess_exec(
        *(terminal.KUBECTL_GPU, "top", "--kubeconfig", str(hoster.kubeconfig)), stdout=asyncio.subprocess.PIPE
    )
    printed, _ = await process.communicate()
    assert process.returncode == 0
    assert b"\x1b" not in printed
    assert row(printed.decode().splitlines(), "gpu-1")[1] == "h."


class Examination:
    """What doctor found, as it says on a terminal and as JSON."""

    def __init__(self, person: Person) -> None:
        self._person = person

    async def findings(self) -> list[tuple[str, str]]:
        """(check, what) of each; the exit code must agree."""
        seen = await self._person.says("doctor", "-n", "tenant-a", "-o", "json", columns=2000)
        found = json.loads(seen.text)
        assert seen.code == (1 if found["findings"] else 0)
        return [(each["check"], each["what"]) for each in found["findings"]]


async def test_doctor_finds_nothing_and_then_each_planted_fault(
    crds: None, client: Client, cluster: ControlPlane
) -> None:
    doctor = Examination(Person(cluster.kubeconfig))
    await cloud.add_namespace(client, "tenant-a")
    # Nothing is installed but the API.
    assert {check for check, _ in await doctor.findings()} == {"webhooks", "guard", "orders", "leader"}

    await cloud.add_node(client, "gpu-1", 2)
    await client.create(cloud.gpu_class())
    async with cloud.running_controller(cluster.kubeconfig):
        await cloud.until(client, GPUClass, "h200", "", lambda found: found.status.availability is not None)
        assert await doctor.findings() == []
        seen = await Person(cluster.kubeconfig).says("doctor", "-n", "tenant-a")
        assert (seen.code, {line.split()[0] for line in seen.lines}) == (0, {"ok"})

        # The webhook does not let it be made later; so the pod is there before its class.
        await cloud.add_service_account(client, "tenant-a")
        container = {"name": "c", "image": "any", "resources": {"limits": {"amd.com/mi300x": "1"}}}
        meta = {"name": "thief", "namespace": "tenant-a"}
        spec = {"containers": [container], "automountServiceAccountToken": False}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}
        await client.request("POST", "/api/v1/namespaces/tenant-a/pods", body=pod)
        await client.create(cloud.gpu_class("mi300x", "amd.com/mi300x"))
        quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "gpus", "namespace": "tenant-a"}}
        await client.apply(quota | {"spec": {"hard": {names.budget_key("h20"): "2"}}})
        silent = (dt.datetime.now(dt.UTC) - dt.timedelta(hours=1)).isoformat()
        await cloud.add_node(client, "gpu-2", 1, reportedAt=silent, resourceNames=[cloud.H200, "nvidia.com/gpu"])
        found = dict(await doctor.findings())
        assert set(found) == {"agents", "plugins", "classes", "quotas", "pods"}
        assert "node gpu-2 has been silent for 60m" in found["agents"]
        assert "nvidia.com/gpu" in found["plugins"]
        assert "amd.com/mi300x" in found["classes"]
        assert "gpu.cozystack.io/h20" in found["quotas"]
        assert "tenant-a/thief" in found["pods"]

        policy = f"{POLICIES}/{guard.NEW}"
        await client.request("PATCH", policy, body={"spec": {"failurePolicy": "Fail"}}, content=MERGE)
        found = dict(await doctor.findings())
        assert guard.NEW in found["guard"]
        assert "must have Ignore" in found["guard"]

    # The controller is gone, and its webhook configurations are there.
    found = dict(await doctor.findings())
    assert {"orders", "leader"} <= set(found)
    assert "webhooks" not in found


async def test_kubectl_completes(hoster: Person, tenant: Person, cluster: ControlPlane, tmp_path: Path) -> None:
    assert (await tenant.says("order", "h200", "--name", "train", "--wait", "-n", "tenant-a")).code == 0
    kubectl = tmp_path / "kubectl"
    kubectl.symlink_to(cluster.kubectl()[0])
    path = f"{Path(terminal.KUBECTL_GPU).parent}:{os.environ['PATH']}"

    async def completed(person: Person, *words: str) -> list[str]:
        process = await asyncio.create_subprocess_exec(
            str(kubectl),
            "__complete",
            "gpu",
            *words,
            env={"PATH": path, "HOME": "/", "KUBECONFIG": str(person.kubeconfig)},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        printed, _ = await process.communicate()
        assert process.returncode == 0
        return printed.decode().splitlines()

    assert await completed(tenant, "cl") == [
        "classes\tShow the catalogue: what can be ordered.",
        "claims\tShow what is ordered, and what it holds.",
        ":4",
    ]
    assert await completed(tenant, "order", "") == ["closed", "h200", ":4"]
    assert await completed(tenant, "order", "h200", "--dr") == [
        "--dry-run\tOnly say whether it would fit, and if not why (exit code 1).",
        ":4",
    ]
    assert await completed(tenant, "release", "-n", "tenant-a", "") == ["train", ":4"]
    assert await completed(tenant, "release", "-n", "tenant-a", "train", "") == [":4"]
    assert await completed(tenant, "release", "-n", "tenant-b", "") == [":4"]
    assert await completed(hoster, "cordon", "gpu-1", "gpu-") == ["gpu-2", ":4"]
    assert await completed(hoster, "claims", "-n", "tenant-") == ["tenant-a", "tenant-b", ":4"]
    assert (await completed(hoster, "usage", "--prices", ""))[-1] == ":0"


async def test_doctor_says_what_it_could_not_look_at(tenant: Person) -> None:
    seen = await tenant.says("doctor", "-n", "tenant-a")
    assert "not looked at: Pod objects (Forbidden)" in seen.text
    assert seen.code == 3


async def test_doctor_without_the_api(without_api: Person) -> None:
    seen = await without_api.says("doctor", columns=200)
    assert seen.code == 1
    assert "the CRD gpuclaims.gpu.cozystack.io is not installed" in seen.text
    assert "mend: gpuclaim crds | kubectl apply" in seen.text
