"""What the agent says to the apiserver, and what it makes of refusals (R27)."""

from __future__ import annotations

from typing import Any, cast

import msgspec
import pytest

from gpuclaim.agent.registry import Registry, RegistryError
from gpuclaim.api import core
from gpuclaim.api.core import ObjectMeta, Outcome
from gpuclaim.api.types import GPUNode, GPUNodeStatus
from gpuclaim.kube.client import ApiError, Client, UnreachableError

PATH = "/apis/gpu.cozystack.io/v1alpha1/gpunodes"


class FakeClient:
    def __init__(self) -> None:
        self.objects: dict[type, Any] = {core.Node: core.Node(metadata=ObjectMeta(name="node-a", uid="u-1"))}
        self.exists = False
        self.refuses: dict[str, Exception] = {}
        self.sent: list[tuple[str, str, Any]] = []
        self.selectors: list[str] = []

    async def get(self, type_: type, name: str) -> Any:
        if "GET" in self.refuses:
            raise self.refuses["GET"]
        if type_ not in self.objects:
            raise ApiError(Outcome(code=404, message=f"{name} not found"))
        return self.objects[type_]

    async def list(self, type_: type, *, field_selector: str) -> tuple[list[Any], str]:
        if "LIST" in self.refuses:
            raise self.refuses["LIST"]
        self.selectors.append(field_selector)
        meta = ObjectMeta(namespace="t", name="p")
        return [core.Pod(metadata=meta, status=core.PodStatus(phase="Running"))], "1"

    async def request(self, method: str, path: str, *, body: Any, content: str = "application/json") -> bytes:
        if method in self.refuses:
            raise self.refuses[method]
        if method == "PATCH" and not self.exists:
            raise ApiError(Outcome(code=404, message="not found"))
        self.exists = True
        self.sent.append((method, path, body))
        return b""


@pytest.fixture
def client() -> FakeClient:
    return FakeClient()


@pytest.fixture
def registry(client: FakeClient) -> Registry:
    return Registry(cast("Client", client), "node-a")


async def test_it_patches_its_own_fields_of_its_own_status(client: FakeClient, registry: Registry) -> None:
    client.exists = True
    await registry.write(GPUNodeStatus(boot_id="b"))
    ((method, path, body),) = client.sent
    assert (method, path) == ("PATCH", f"{PATH}/node-a/status")
    assert set(body) == {"status"}
    assert set(body["status"]) == {"devices", "unplaced", "resourceNames", "bootID", "reportedAt"}


async def test_it_makes_a_gpunode_that_goes_with_the_node(client: FakeClient, registry: Registry) -> None:
    await registry.write(GPUNodeStatus())
    (method, path, body), patch = client.sent
    assert (method, path, patch[0]) == ("POST", PATH, "PATCH")
    assert msgspec.convert(body, GPUNode).metadata.name == "node-a"
    assert body["metadata"]["ownerReferences"] == [{"apiVersion": "v1", "kind": "Node", "name": "node-a", "uid": "u-1"}]


async def test_no_such_node(client: FakeClient, registry: Registry) -> None:
    del client.objects[core.Node]
    with pytest.raises(RegistryError, match="the cluster has no Node node-a"):
        await registry.write(GPUNodeStatus())


@pytest.mark.parametrize("method", ["PATCH", "POST"])
@pytest.mark.parametrize("error", [ApiError(Outcome(code=403, message="forbidden")), UnreachableError("no answer")])
async def test_a_write_that_fails(client: FakeClient, registry: Registry, method: str, error: Exception) -> None:
    client.refuses[method] = error
    with pytest.raises(RegistryError, match=r"forbidden|no answer"):
        await registry.write(GPUNodeStatus())


async def test_stored(client: FakeClient, registry: Registry) -> None:
    assert await registry.stored() is None
    client.objects[GPUNode] = GPUNode(metadata=ObjectMeta(name="node-a"), status=GPUNodeStatus(boot_id="b"))
    assert await registry.stored() == GPUNodeStatus(boot_id="b")
    client.refuses["GET"] = msgspec.ValidationError("of another version")
    assert await registry.stored() is None
    for error in (ApiError(Outcome(code=500, message="broken")), UnreachableError("no answer")):
        client.refuses["GET"] = error
        with pytest.raises(RegistryError):
            await registry.stored()


async def test_phases_of_its_own_node_only(client: FakeClient, registry: Registry) -> None:
    assert await registry.phases() == {("t", "p"): "Running"}
    assert client.selectors == ["spec.nodeName=node-a"]
    client.refuses["LIST"] = ApiError(Outcome(code=403, message="forbidden"))
    with pytest.raises(RegistryError, match="its pods cannot be listed: forbidden"):
        await registry.phases()
