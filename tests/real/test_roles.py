"""Who may do what: the chart's roles on the real apiserver (R60)."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpuclaim.api import core, names
from gpuclaim.api.types import GPUClaim
from gpuclaim.kube import config
from gpuclaim.kube.client import ApiError, Client, Content
from gpuclaim.local.controlplane import ControlPlane
from support import accounts, cloud
from support.chart import NAMESPACE, Helm
from support.wait import until_awaited

RBAC = "rbac.authorization.k8s.io"
CLAIMS = "/apis/gpu.cozystack.io/v1alpha1/namespaces/{}/gpuclaims"
CLASSES = "/apis/gpu.cozystack.io/v1alpha1/gpuclasses"
NODES = "/apis/gpu.cozystack.io/v1alpha1/gpunodes"
MINE, OTHERS = CLAIMS.format("tenant-a"), CLAIMS.format("tenant-b")
LABEL: dict[str, Any] = {"metadata": {"labels": {"a": "b"}}}
NO_FINALIZER: dict[str, Any] = {"metadata": {"finalizers": []}}
BOUND: dict[str, Any] = {"status": {"nodeName": "node-a"}}


@dataclasses.dataclass
class World:
    """The chart's roles, two tenants with a claim each, a class and a node."""

    cluster: ControlPlane
    admin: Client
    folder: Path

    @contextlib.asynccontextmanager
    async def person(self, name: str, *groups: str) -> AsyncIterator[Client]:
        """Somebody with a certificate."""
        async with Client(config.load(self.cluster.kubeconfig_for(name, groups))) as client:
            yield client

    @contextlib.asynccontextmanager
    async def controller(self) -> AsyncIterator[Client]:
        """The controller's ServiceAccount."""
        token = await accounts.token(self.admin, NAMESPACE, "gpuclaim-controller")
        file = accounts.kubeconfig(self.cluster, self.folder / "kubeconfig", {"token": token})
        async with Client(config.load(file)) as client:
            yield client


def binding(user: str, role: str, namespace: str | None) -> dict[str, Any]:
    """Gives a ClusterRole to a user, in one namespace or in all."""
    meta = {"name": f"{user}-{role}"}
    if namespace:
        meta["namespace"] = namespace
    return {
        "apiVersion": f"{RBAC}/v1",
        "kind": "RoleBinding" if namespace else "ClusterRoleBinding",
        "metadata": meta,
        "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": role},
        "subjects": [{"apiGroup": RBAC, "kind": "User", "name": user}],
    }


@pytest.fixture
async def world(
    cluster: ControlPlane, crds: None, tmp_path: Path, progress: Callable[[str], None]
) -> AsyncIterator[World]:
    helm = Helm.build(tmp_path, progress)
    async with Client(config.load(cluster.kubeconfig)) as admin:
        await admin.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
        for obj in helm.objects():
            if obj["kind"] not in ("CustomResourceDefinition", "DaemonSet", "Deployment"):
                await admin.apply(obj)
        for namespace in ("tenant-a", "tenant-b"):
            await cloud.add_namespace(admin, namespace)
            order = cloud.claim("order", namespace)
            meta = msgspec.structs.replace(order.metadata, finalizers=[names.HOLD_FINALIZER])
            await admin.create(msgspec.structs.replace(order, metadata=meta))
        await admin.create(cloud.gpu_class())
        await cloud.add_node(admin, "node-a", gpus=8)
        for user, role, where in (
            ("reader", "view", "tenant-a"),
            ("orderer", "edit", "tenant-a"),
            ("owner", "admin", "tenant-a"),
            ("hoster", "gpuclaim-hoster", None),
        ):
            await admin.apply(binding(user, role, where))
        there = World(cluster, admin, tmp_path)
        await _until_the_roles_stand(there)
        yield there
        # What holds the namespaces back where no controller runs.
        for namespace in ("tenant-a", "tenant-b"):
            await admin.patch(GPUClaim, "order", NO_FINALIZER, namespace)


async def _until_the_roles_stand(world: World) -> None:
    """The roles are aggregated, and the policy is known."""
    async with world.person("owner") as owner:

        async def stand() -> bool | None:
            allowed = await may(owner, "POST", f"{MINE}?dryRun=All", new("probe")) == ""
            return (allowed and "hold" in await may(owner, "PATCH", f"{MINE}/order?dryRun=All", NO_FINALIZER)) or None

        await until_awaited(stand, "the roles stand")


def new(name: str) -> dict[str, Any]:
    """An order as JSON."""
    return core.wire(cloud.claim(name))


async def may(client: Client, method: str, path: str, body: Any = None) -> str:
    """Empty where the request is let through; else why it is not. Only a refusal of rights counts as one."""
    content: str = Content.MERGE if method == "PATCH" else "application/json"
    try:
        await client.request(method, path, body=body, content=content)
    except ApiError as error:
        if error.code != 403:
            raise
        return str(error)
    return ""


Request = tuple[str, str, Any]
READ_MINE: list[Request] = [("GET", MINE, None), ("GET", f"{MINE}/order", None)]
READ_CATALOGUE: list[Request] = [("GET", CLASSES, None), ("GET", f"{CLASSES}/h200", None)]
WRITE_MINE: list[Request] = [
    ("POST", f"{MINE}?dryRun=All", new("another")),
    ("PATCH", f"{MINE}/order?dryRun=All", LABEL),
    ("DELETE", f"{MINE}/order?dryRun=All", {}),
]
NOBODYS: list[Request] = [
    # A claim's status, its finalizer, and a hold on a node of one's choice.
    ("PATCH", f"{MINE}/order/status?dryRun=All", BOUND),
    ("PATCH", f"{MINE}/order?dryRun=All", NO_FINALIZER),
]
OTHERS_: list[Request] = [
    ("GET", OTHERS, None),
    ("GET", f"{OTHERS}/order", None),
    ("POST", f"{OTHERS}?dryRun=All", core.wire(cloud.claim("another", "tenant-b"))),
    ("DELETE", f"{OTHERS}/order?dryRun=All", {}),
    ("GET", "/apis/gpu.cozystack.io/v1alpha1/gpuclaims", None),
]
READ_NODES: list[Request] = [("GET", NODES, None), ("GET", f"{NODES}/node-a", None)]
WRITE_CLASSES: list[Request] = [
    ("POST", f"{CLASSES}?dryRun=All", core.wire(cloud.gpu_class("another"))),
    ("PATCH", f"{CLASSES}/h200?dryRun=All", {"spec": {"closed": True}}),
    ("DELETE", f"{CLASSES}/h200?dryRun=All", {}),
]
WRITE_NODES: list[Request] = [("PATCH", f"{NODES}/node-a?dryRun=All", {"spec": {"cordoned": True}})]
STATUSES: list[Request] = [
    ("PATCH", f"{CLASSES}/h200/status?dryRun=All", {"status": {"availability": "SoldOut"}}),
    ("PATCH", f"{NODES}/node-a/status?dryRun=All", {"status": {"bootID": "b"}}),
]
DELETE_NODES: list[Request] = [("DELETE", f"{NODES}/node-a?dryRun=All", {})]
EVERYTHING = [
    *READ_MINE,
    *READ_CATALOGUE,
    *WRITE_MINE,
    *NOBODYS,
    *OTHERS_,
    *READ_NODES,
    *WRITE_CLASSES,
    *WRITE_NODES,
    *STATUSES,
    *DELETE_NODES,
]
ALLOWED: dict[str, list[Request]] = {
    "nobody": READ_CATALOGUE,
    "reader": READ_CATALOGUE + READ_MINE,
    "orderer": READ_CATALOGUE + READ_MINE + WRITE_MINE,
    "owner": READ_CATALOGUE + READ_MINE + WRITE_MINE,
    "hoster": READ_CATALOGUE
    + READ_MINE
    + [each for each in OTHERS_ if each[0] == "GET"]
    + READ_NODES
    + WRITE_CLASSES
    + WRITE_NODES,
}


@pytest.mark.parametrize("user", ALLOWED)
async def test_each_may_what_its_role_says_and_nothing_else(world: World, user: str) -> None:
    wrong = []
    async with world.person(user) as client:
        for method, path, body in EVERYTHING:
            refusal = await may(client, method, path, body)
            if bool(refusal) is ((method, path, body) in ALLOWED[user]):
                wrong.append(f"{method} {path}: {refusal or 'let through'}")
    assert wrong == []


async def test_the_controller_may_what_it_does_and_nothing_else(world: World) -> None:
    admission = "/apis/admissionregistration.k8s.io/v1"
    allowed = [
        ("GET", "/apis/gpu.cozystack.io/v1alpha1/gpuclaims", None),
        ("GET", CLASSES, None),
        ("GET", NODES, None),
        ("GET", "/api/v1/pods", None),
        ("GET", "/api/v1/nodes", None),
        ("GET", "/api/v1/namespaces", None),
        ("GET", "/api/v1/resourcequotas", None),
        *NOBODYS,
        *STATUSES,
        # Of a VM that is an order.
        ("POST", f"{MINE}?dryRun=All", new("another")),
        ("PATCH", f"{admission}/validatingwebhookconfigurations/gpuclaim?dryRun=All", LABEL),
        ("PATCH", f"{admission}/mutatingwebhookconfigurations/gpuclaim?dryRun=All", LABEL),
        ("GET", f"/api/v1/namespaces/{NAMESPACE}/services/gpuclaim-controller", None),
    ]
    config_map = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x"}}
    refused = [
        # It may patch a class, for the guard's label; RBAC cannot narrow that to labels.
        *(each for each in WRITE_CLASSES if each[0] != "PATCH"),
        *WRITE_NODES,
        *DELETE_NODES,
        ("DELETE", f"{MINE}/order?dryRun=All", {}),
        ("GET", "/api/v1/secrets", None),
        ("GET", f"/api/v1/namespaces/{NAMESPACE}/secrets", None),
        ("GET", f"/api/v1/namespaces/{NAMESPACE}/configmaps", None),
        ("POST", "/api/v1/namespaces/tenant-a/configmaps?dryRun=All", config_map),
        ("PATCH", "/api/v1/nodes/node-a?dryRun=All", LABEL),
        ("PATCH", "/api/v1/nodes/node-a/status?dryRun=All", LABEL),
        ("DELETE", "/api/v1/namespaces/tenant-a/pods/x?dryRun=All", {}),
        ("PATCH", f"{admission}/validatingwebhookconfigurations/other?dryRun=All", LABEL),
        ("DELETE", f"{admission}/validatingwebhookconfigurations/gpuclaim?dryRun=All", {}),
        ("GET", "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases", None),
    ]
    async with world.controller() as client:
        assert [(each[1], said) for each in allowed if (said := await may(client, *each))] == []
        assert [each for each in refused if not await may(client, *each)] == []


async def test_the_finalizer_is_the_controllers(world: World) -> None:
    async with world.person("owner") as owner, world.controller() as controller:
        with pytest.raises(ApiError, match="the controller's: the claim holds its GPUs until its pod has ended") as no:
            await owner.patch(GPUClaim, "order", NO_FINALIZER, "tenant-a")
        assert no.value.reason == "Forbidden"
        # One of the tenant's own is the tenant's business.
        own = {"metadata": {"finalizers": [names.HOLD_FINALIZER, "example.com/mine"]}}
        await owner.patch(GPUClaim, "order", own, "tenant-a")
        await owner.patch(GPUClaim, "order", {"metadata": {"finalizers": [names.HOLD_FINALIZER]}}, "tenant-a")
        await controller.patch(GPUClaim, "order", NO_FINALIZER, "tenant-a")
