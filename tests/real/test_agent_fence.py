"""What an agent's token reaches on the real apiserver: its own node's GPUNode, and nothing else (R27, R60, R61)."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpuclaim.agent.loop import AgentConfig, run
from gpuclaim.agent.values import PodDevices
from gpuclaim.api import core
from gpuclaim.api.types import GPUNode, Health
from gpuclaim.kube import config
from gpuclaim.kube.client import ApiError, Client
from gpuclaim.local.controlplane import ControlPlane
from gpuclaim.local.kubelet import Kubelet
from gpuclaim.local.podresources_server import PodResourcesServer
from gpuclaim.local.process import free_ports
from gpuclaim.local.sysfs_tree import SimulatedFunction, SysfsTree
from support import accounts
from support.chart import NAMESPACE, Helm
from support.cloud import until
from support.device_plugin import DevicePlugin

ACCOUNT = "gpuclaim-agent"
R = "nvidia.com/GH100_H200"
A = "0000:3b:00.0"
GPUNODES = "/apis/gpu.cozystack.io/v1alpha1/gpunodes"
CORE = f"/api/v1/namespaces/{NAMESPACE}"
MERGE, JSON, APPLY = (f"application/{kind}" for kind in ("merge-patch+json", "json-patch+json", "apply-patch+yaml"))
FENCE = "ValidatingAdmissionPolicy 'gpuclaim-agent'"


@dataclasses.dataclass
class Fence:
    """A cluster with the agent's part of the chart, two Nodes and, on each, an agent's pod."""

    cluster: ControlPlane
    admin: Client
    folder: Path
    uids: dict[str, str] = dataclasses.field(default_factory=dict)

    async def token(self, pod: str | None) -> str:
        """A token of the agents' ServiceAccount, bound to a pod as kubelet asks for it; None: bound to nothing."""
        bound = (pod, self.uids[pod]) if pod is not None else None
        return await accounts.token(self.admin, NAMESPACE, ACCOUNT, bound)

    @contextlib.asynccontextmanager
    async def agent(self, pod: str | None) -> AsyncIterator[Client]:
        """A client with the token of that pod."""
        async with self.bearer({"token": await self.token(pod)}) as client:
            yield client

    @contextlib.asynccontextmanager
    async def bearer(self, user: dict[str, str]) -> AsyncIterator[Client]:
        """A client with a kubeconfig's user, and so with no certificate."""
        file = accounts.kubeconfig(self.cluster, self.folder / "kubeconfig", user)
        async with Client(config.load(file)) as client:
            yield client

    async def give_all_rights(self) -> None:
        """What the fence does not hold back is then allowed."""
        await self.admin.apply(
            {
                "apiVersion": "rbac.authorization.k8s.io/v1",
                "kind": "ClusterRoleBinding",
                "metadata": {"name": "too-much"},
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
                "subjects": [{"kind": "ServiceAccount", "name": ACCOUNT, "namespace": NAMESPACE}],
            }
        )

    def new(self, name: str = "node-a", owner: str | None = None, **fields: Any) -> dict[str, Any]:
        """A GPUNode as an agent creates it."""
        owned = {"apiVersion": "v1", "kind": "Node", "name": owner or name, "uid": self.uids[owner or name]}
        metadata = {"name": name, "ownerReferences": [owned]} | fields.pop("metadata", {})
        return {"apiVersion": "gpu.cozystack.io/v1alpha1", "kind": "GPUNode", "metadata": metadata} | fields


@pytest.fixture(scope="session")
def helm(tmp_path_factory: pytest.TempPathFactory, progress: Callable[[str], None]) -> Helm:
    return Helm.build(tmp_path_factory.mktemp("helm"), progress)


@pytest.fixture(params=["newest", "old"])
def either_cluster(request: pytest.FixtureRequest) -> ControlPlane:
    """The newest Kubernetes, or the older one, with the CRDs."""
    prefix = "old_" if request.param == "old" else ""
    request.getfixturevalue(f"{prefix}crds")
    found = request.getfixturevalue(f"{prefix}cluster")
    assert isinstance(found, ControlPlane)
    return found


@pytest.fixture
async def fence(either_cluster: ControlPlane, helm: Helm, tmp_path: Path) -> AsyncIterator[Fence]:
    async with fenced(either_cluster, helm, tmp_path) as fence:
        yield fence


@contextlib.asynccontextmanager
async def fenced(cluster: ControlPlane, helm: Helm, folder: Path) -> AsyncIterator[Fence]:
    async with Client(config.load(cluster.kubeconfig)) as admin:
        fence = Fence(cluster, admin, folder)
        await admin.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
        for obj in helm.objects():
            if obj["kind"] not in ("CustomResourceDefinition", "DaemonSet", "Deployment"):
                await admin.apply(obj)
        for node in ("node-a", "node-b"):
            body: dict[str, Any] = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}}
            fence.uids[node] = (await admin.apply(body))["metadata"]["uid"]
            spec = {
                "nodeName": node,
                "serviceAccountName": ACCOUNT,
                "automountServiceAccountToken": False,
                "containers": [{"name": "agent", "image": "gpuclaim"}],
            }
            name = f"agent-{node[-1]}"
            body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": NAMESPACE}, "spec": spec}
            fence.uids[name] = (await admin.apply(body))["metadata"]["uid"]
        async with fence.agent(None) as nobody:
            await _until_it_stands(nobody)
        yield fence


async def _until_it_stands(nobody: Client) -> None:
    """The apiserver takes a moment to know a role and a policy."""
    async with asyncio.timeout(60):
        while True:
            said = await refused(nobody, "POST", f"{GPUNODES}?dryRun=All", {"metadata": {"name": "probe"}}, missing="")
            if FENCE in said:
                return
            await asyncio.sleep(0.1)


async def refused(
    client: Client,
    method: str,
    path: str,
    body: Any = None,
    content: str = "application/json",
    missing: str | None = None,
) -> str:
    """Why it is refused; `missing` is the answer where it is not."""
    if isinstance(body, dict) and method in ("POST", "PUT") and path.startswith(GPUNODES):
        body = {"apiVersion": "gpu.cozystack.io/v1alpha1", "kind": "GPUNode"} | body
    try:
        await client.request(method, path, body=body, content=content)
    except ApiError as error:
        return f"{error.code} {error}"
    if missing is not None:
        return missing
    pytest.fail(f"{method} {path} was let through: {body}")


async def test_what_an_agent_does(fence: Fence) -> None:
    async with fence.agent("agent-a") as agent:
        await agent.request("GET", "/api/v1/nodes/node-a")
        await agent.request("GET", "/api/v1/pods?fieldSelector=spec.nodeName%3Dnode-a")
        await agent.request("POST", GPUNODES, body=fence.new())
        await agent.request("GET", f"{GPUNODES}/node-a")
        own = f"{GPUNODES}/node-a/status"
        await agent.request("PATCH", own, body={"status": {"resourceNames": [R]}}, content=MERGE)
        # The controller's conditions stay, and a report beside them is taken.
        condition = {
            "type": "Reporting",
            "status": "True",
            "reason": "Reporting",
            "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }
        await fence.admin.request("PATCH", own, body={"status": {"conditions": [condition]}}, content=MERGE)
        await agent.request("PATCH", own, body={"status": {"resourceNames": []}}, content=MERGE)
        # What is no status goes past a status: nothing of it is stored.
        smuggled = {
            "metadata": {"labels": {"a": "b"}, "finalizers": ["a.example/b"], "ownerReferences": []},
            "spec": {"cordoned": True},
            "status": {"bootID": "b"},
        }
        await agent.request("PATCH", own, body=smuggled, content=MERGE)
        node = await fence.admin.get(GPUNode, "node-a")
        assert [each.type for each in node.status.conditions] == ["Reporting"]
        assert (node.status.boot_id, node.status.resource_names) == ("b", [])
        assert not node.spec.cordoned
        assert not node.metadata.labels
        assert not node.metadata.finalizers
        assert [each.uid for each in node.metadata.owner_references] == [fence.uids["node-a"]]


async def test_the_rights_are_the_least(fence: Fence) -> None:
    async with fence.agent("agent-a") as agent:
        for method, path in (
            ("GET", GPUNODES),
            ("GET", "/api/v1/nodes"),
            ("GET", f"{CORE}/pods/agent-a"),
            ("GET", f"{CORE}/secrets"),
            ("GET", "/apis/gpu.cozystack.io/v1alpha1/gpuclaims"),
            ("DELETE", f"{GPUNODES}/node-a"),
            ("DELETE", f"{CORE}/pods/agent-a"),
        ):
            assert (await refused(agent, method, path)).startswith("403 "), (method, path)


CONDITION = {
    "type": "Healthy",
    "status": "False",
    "reason": "R",
    "message": "",
    "lastTransitionTime": "2026-01-01T00:00:00Z",
}


async def test_what_it_may_not_whatever_its_rights(fence: Fence) -> None:
    await fence.give_all_rights()
    for name in ("node-a", "node-b"):
        await fence.admin.request("POST", GPUNODES, body=fence.new(name))
        body = {"status": {"conditions": [CONDITION]}}
        await fence.admin.request("PATCH", f"{GPUNODES}/{name}/status", body=body, content=MERGE)
    own, other = f"{GPUNODES}/node-a", f"{GPUNODES}/node-b"
    whole = msgspec.json.decode(await fence.admin.request("GET", own))
    others = msgspec.json.decode(await fence.admin.request("GET", other))
    not_mine = "writes the GPUNode of that name only"
    nothing_else = "writes nothing else"
    conditions = "the conditions of a GPUNode are the controller's"
    config_map = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}}
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "agent-b", "namespace": NAMESPACE}}
    claim = {
        "apiVersion": "gpu.cozystack.io/v1alpha1",
        "kind": "GPUClaim",
        "metadata": {"name": "c"},
        "spec": {"className": "h200"},
    }
    forbidden: list[tuple[str, str, str, Any, str]] = [
        # Another node's GPUNode.
        (not_mine, "PATCH", f"{other}/status", {"status": {"resourceNames": [R]}}, MERGE),
        (not_mine, "PATCH", f"{other}/status", [{"op": "add", "path": "/status/bootID", "value": "x"}], JSON),
        (not_mine, "PUT", f"{other}/status", others, "application/json"),
        (not_mine, "POST", GPUNODES, fence.new("node-c", owner="node-a"), "application/json"),
        (nothing_else, "PATCH", other, {"spec": {"cordoned": True}}, MERGE),
        (nothing_else, "DELETE", other, None, "application/json"),
        # Its own, beyond the report.
        (nothing_else, "PATCH", own, {"spec": {"cordoned": True}}, MERGE),
        (nothing_else, "PATCH", own, {"metadata": {"labels": {"a": "b"}}}, MERGE),
        (nothing_else, "PATCH", f"{own}?fieldManager=x&force=true", fence.new(spec={"cordoned": True}), APPLY),
        (nothing_else, "PUT", own, whole | {"spec": {"cordoned": True}}, "application/json"),
        (nothing_else, "DELETE", own, None, "application/json"),
        (nothing_else, "DELETE", GPUNODES, None, "application/json"),
        (conditions, "PATCH", f"{own}/status", {"status": {"conditions": []}}, MERGE),
        (conditions, "PATCH", f"{own}/status", {"status": None}, MERGE),
        (conditions, "PATCH", f"{own}/status", {"status": {"conditions": [CONDITION | {"status": "True"}]}}, MERGE),
        (conditions, "PUT", f"{own}/status", whole | {"status": {"bootID": "x"}}, "application/json"),
        # Anything else.
        (nothing_else, "POST", f"{CORE}/configmaps", config_map, "application/json"),
        (nothing_else, "POST", f"{CORE}/configmaps?dryRun=All", config_map, "application/json"),
        (
            nothing_else,
            "POST",
            "/apis/gpu.cozystack.io/v1alpha1/namespaces/default/gpuclaims",
            claim,
            "application/json",
        ),
        (nothing_else, "PATCH", "/api/v1/nodes/node-a", {"metadata": {"labels": {"a": "b"}}}, MERGE),
        (nothing_else, "PATCH", "/api/v1/nodes/node-a/status", {"status": {"capacity": {"a": "1"}}}, MERGE),
        (nothing_else, "DELETE", f"{CORE}/pods/agent-b", None, "application/json"),
        (nothing_else, "POST", f"{CORE}/pods/agent-b/eviction", eviction, "application/json"),
        (
            nothing_else,
            "POST",
            f"{CORE}/pods/agent-b/exec?command=sh&container=agent&stdout=1",
            None,
            "application/json",
        ),
        (nothing_else, "POST", f"{CORE}/serviceaccounts/{ACCOUNT}/token", {"spec": {}}, "application/json"),
        (nothing_else, "DELETE", "/apis/rbac.authorization.k8s.io/v1/clusterroles/view", None, "application/json"),
    ]
    async with fence.agent("agent-a") as agent:
        for why, method, path, body, content in forbidden:
            said = await refused(agent, method, path, body, content)
            assert said.startswith("403 "), (method, path, said)
            assert FENCE in said, (method, path, said)
            assert why in said, (method, path, said)
        # Its own report still is taken.
        await agent.request("PATCH", f"{own}/status", body={"status": {"bootID": "b"}}, content=MERGE)
        same = {"status": {"conditions": whole["status"]["conditions"]}}
        await agent.request("PATCH", f"{own}/status", body=same, content=MERGE)
    for name in ("node-a", "node-b"):
        node = await fence.admin.get(GPUNode, name)
        assert not node.spec.cordoned
        assert [(each.type, each.status) for each in node.status.conditions] == [("Healthy", "False")]


async def test_what_it_may_not_create(fence: Fence) -> None:
    await fence.give_all_rights()
    owner = fence.new()["metadata"]["ownerReferences"][0]
    empty, owned = "creates a GPUNode that is empty", "creates a GPUNode that its Node owns"
    bad = {
        "spec": (empty, fence.new(spec={"cordoned": True})),
        "labels": (empty, fence.new(metadata={"labels": {"a": "b"}})),
        "annotations": (empty, fence.new(metadata={"annotations": {"a": "b"}})),
        "finalizers": (empty, fence.new(metadata={"finalizers": ["a.example/b"]})),
        "no owner": (owned, fence.new(metadata={"ownerReferences": []})),
        "another owner": (owned, fence.new(owner="node-b")),
        "two owners": (owned, fence.new(metadata={"ownerReferences": [owner, owner | {"uid": "b"}]})),
        "an owner of another kind": (owned, fence.new(metadata={"ownerReferences": [owner | {"kind": "Pod"}]})),
        "a controller": (owned, fence.new(metadata={"ownerReferences": [owner | {"controller": True}]})),
        "one that holds it up": (
            owned,
            fence.new(metadata={"ownerReferences": [owner | {"blockOwnerDeletion": True}]}),
        ),
    }
    async with fence.agent("agent-a") as agent:
        for what, (why, body) in bad.items():
            said = await refused(agent, "POST", GPUNODES, body)
            assert FENCE in said, (what, said)
            assert why in said, (what, said)
        named = fence.new()
        del named["metadata"]["name"]
        named["metadata"]["generateName"] = "node-"
        assert "writes the GPUNode of that name only" in await refused(agent, "POST", GPUNODES, named)
        await agent.request("POST", GPUNODES, body=fence.new(spec={}))


async def test_a_token_that_names_no_node(fence: Fence) -> None:
    await fence.give_all_rights()
    async with fence.agent(None) as agent:
        assert "names no node" in await refused(agent, "POST", GPUNODES, fence.new())
        await fence.admin.request("POST", GPUNODES, body=fence.new())
        body = {"status": {"bootID": "b"}}
        assert "names no node" in await refused(agent, "PATCH", f"{GPUNODES}/node-a/status", body, MERGE)


async def test_others_are_not_fenced(fence: Fence) -> None:
    # A user of another name, and the ServiceAccount of that name in another namespace.
    await fence.admin.request("POST", GPUNODES, body=fence.new(spec={"cordoned": True}))
    namesake = f"system:serviceaccount:default:{ACCOUNT}"
    async with Client(config.load(fence.cluster.kubeconfig_for(namesake, ["system:masters"]))) as other:
        await other.request("PATCH", f"{GPUNODES}/node-a", body={"spec": {"cordoned": False}}, content=MERGE)


async def page(port: int, path: str) -> tuple[int, str]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: a\r\n\r\n".encode())
    head, _, body = (await reader.read()).decode().partition("\r\n\r\n")
    writer.close()
    return int(head.split()[1]), body


async def until_page(port: int, path: str, holds: Callable[[int, str], bool]) -> str:
    async with asyncio.timeout(30):
        while True:
            with contextlib.suppress(ConnectionError):
                status, body = await page(port, path)
                if holds(status, body):
                    return body
            await asyncio.sleep(0.05)


@contextlib.asynccontextmanager
async def running(fence: Fence, node: str, pod: str, socket: Path, tree: SysfsTree) -> AsyncIterator[int]:
    (port,) = free_ports(1)
    agent_config = AgentConfig(
        node=node, sysfs=tree.root, pod_resources=socket, interval=0.2, listen=("127.0.0.1", port)
    )
    async with fence.agent(pod) as client:
        task = asyncio.ensure_future(run(agent_config, client))
        try:
            yield port
            assert not task.done()
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


async def test_the_agent_reports_through_it(fence: Fence, tmp_path: Path) -> None:
    tree = SysfsTree(tmp_path / "sys", [SimulatedFunction(address=A, driver="vfio-pci", group=12, numa=0)])
    pods = [PodDevices(NAMESPACE, "agent-a", {R: [A]})]  # its phase is asked for
    async with PodResourcesServer(tmp_path / "s", {R: [A]}, pods) as kubelet:
        async with running(fence, "node-a", "agent-a", tmp_path / "s", tree) as port:
            node = await until(fence.admin, GPUNode, "node-a", "", lambda each: each.status.devices)
            assert [device.health for device in node.status.devices] == [Health.HEALTHY]
            assert [owner.name for owner in node.metadata.owner_references] == ["node-a"]
            assert await until_page(port, "/readyz", lambda status, _: status == 200) == "ok\n"
            said = await until_page(port, "/metrics", lambda *_: True)
            assert 'gpuclaim_agent_devices{health="Healthy"} 1' in said
            assert 'gpuclaim_agent_problems{source="phases"} 0' in said
            kubelet.fail = "no"
            said = await until_page(port, "/readyz", lambda status, _: status == 503)
            assert said.startswith("reading: kubelet at ")
            assert (await page(port, "/healthz"))[0] == 200
            kubelet.fail = None
            await until_page(port, "/readyz", lambda status, _: status == 200)
        # An agent that takes itself for another node's gets nowhere, and says so.
        async with running(fence, "node-b", "agent-a", tmp_path / "s", tree) as port:
            said = await until_page(port, "/readyz", lambda status, body: status == 503 and FENCE in body)
            assert "the agent of node 'node-a' writes the GPUNode of that name only" in said
            said = await until_page(port, "/metrics", lambda *_: True)
            assert 'gpuclaim_agent_problems{source="writing"} 1' in said


async def test_the_daemon_sets_pod_on_a_real_kubelet(
    cluster: ControlPlane, crds: None, kubelet: Kubelet, helm: Helm, tmp_path: Path
) -> None:
    # No container runs here, but its volumes are kubelet's: the agent runs beside it, with the pod's token.
    tree = SysfsTree(tmp_path / "sys", [SimulatedFunction(address=A, driver="vfio-pci", group=12, numa=0)])
    (daemon_set,) = (each for each in helm.objects() if each["kind"] == "DaemonSet")
    async with fenced(cluster, helm, tmp_path) as fence, DevicePlugin(kubelet.device_plugins, R, ["12"]):
        template = daemon_set["spec"]["template"]
        metadata = template["metadata"] | {"name": "agent", "namespace": NAMESPACE}
        spec = template["spec"] | {"nodeName": kubelet.name}
        pod = await fence.admin.apply({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
        await until(fence.admin, core.Pod, "agent", NAMESPACE, lambda each: each.status.phase == "Running")
        mounted = kubelet_sees(kubelet, f"pods/{pod['metadata']['uid']}/volumes/kubernetes.io~projected/token")
        assert sorted(each.name for each in mounted.iterdir() if each.name[0] != ".") == [
            "ca.crt",
            "namespace",
            "token",
        ]
        assert (mounted / "namespace").read_text() == NAMESPACE
        agent_config = AgentConfig(
            node=kubelet.name, sysfs=tree.root, pod_resources=kubelet.pod_resources, interval=0.2
        )
        async with fence.bearer({"tokenFile": str(mounted / "token")}) as client:
            task = asyncio.ensure_future(run(agent_config, client))
            try:
                node = await until(fence.admin, GPUNode, kubelet.name, "", lambda each: R in each.status.resource_names)
                assert [device.health for device in node.status.devices] == [Health.HEALTHY]
            finally:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task


def kubelet_sees(kubelet: Kubelet, below: str) -> Path:
    """A path of kubelet's folder, through its mount namespace."""
    return Path(f"/proc/{kubelet.process.pid}/root/var/lib/kubelet/{below}")
