"""tests/cases/orders, file by file, through the real apiserver with the webhook and the binder running."""

from __future__ import annotations

import asyncio
import datetime as dt
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from gpuclaim.api import core
from gpuclaim.api.types import GPUClaim, GPUNode
from gpuclaim.controller.app import Controller
from gpuclaim.kube import config
from gpuclaim.kube.client import ApiError, Client
from gpuclaim.local.controlplane import ControlPlane
from support import cloud

FILES = sorted((Path(__file__).parents[1] / "cases" / "orders").glob("*.yaml"))
# Namespaces first, and pods after the nodes that they name.
ORDER = ["Namespace", "GPUClass", "Node", "GPUNode", "ResourceQuota", "GPUClaim", "Pod"]

pytestmark = pytest.mark.usefixtures("crds")


class Clock:
    """The controller's clock, which stands still until a step sets it."""

    def __init__(self, text: str) -> None:
        self.set(text)

    def set(self, text: str) -> None:
        self._now = dt.datetime.fromisoformat(text)

    def __call__(self) -> dt.datetime:
        return self._now


class Play:
    """One case on one cluster."""

    def __init__(self, client: Client, controller: Controller, clock: Clock) -> None:
        self._client = client
        self._controller = controller
        self._clock = clock
        self._version = 0

    async def step(self, step: dict[str, Any]) -> None:
        if "order" in step:
            await self._order(step)
        elif "delete" in step:
            await self._delete(**step["delete"])
        elif "now" in step:
            self._clock.set(step["now"])
        elif "set" in step:
            await self._set(**step["set"])
        elif "holds" in step:
            held = Counter[str]()
            for claim in await self._claims():
                held[claim.status.node_name or ""] += claim.spec.count
            assert {node: held[node] for node in step["holds"]} == step["holds"]
        else:
            pytest.fail(f"the file has a step that this does not know: {step}")

    async def _order(self, step: dict[str, Any]) -> None:
        await self._caught_up()
        before = {claim.metadata.uid: claim for claim in await self._claims()}
        order = dict(step["order"])
        claim = cloud.claim(
            order["name"], order["namespace"], order["className"], order.get("count", 1), set=order.get("set")
        )
        if step["verdict"] == "refused":
            with pytest.raises(ApiError) as refused:
                await self._client.create(claim)
            assert refused.value.reason == step["reason"]
            assert await self._claims() == list(before.values())
            return
        await self._client.create(claim)
        bound = await cloud.until(
            self._client, GPUClaim, order["name"], order["namespace"], lambda found: found.status.node_name
        )
        nodes = step["node"] if isinstance(step["node"], list) else [step["node"]]
        assert bound.status.node_name in nodes
        after = await self._claims()
        moved = {
            f"{claim.metadata.namespace}/{claim.metadata.name}"
            for claim in after
            if claim.metadata.uid in before and claim.status.node_name != before[claim.metadata.uid].status.node_name
        }
        if "moves" in step:
            assert moved == set(step["moves"])
        self._seen(after)

    async def _delete(self, namespace: str, name: str) -> None:
        await self._client.delete(GPUClaim, name, namespace)
        await cloud.until_gone(self._client, GPUClaim, name, namespace)
        async with asyncio.timeout(30):
            while self._controller.books.claim(namespace, name) is not None:  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    async def _set(self, kind: str, name: str, merge: dict[str, Any], namespace: str = "") -> None:
        kinds: dict[str, type[msgspec.Struct]] = {"ResourceQuota": core.ResourceQuota, "GPUNode": GPUNode}
        changed: Any = await self._client.patch(kinds[kind], name, merge, namespace)
        self._seen([changed])

    async def _claims(self) -> list[GPUClaim]:
        claims, _ = await self._client.list(GPUClaim)
        return claims

    def _seen(self, objects: list[Any]) -> None:
        versions = [int(obj.metadata.resource_version) for obj in objects]
        self._version = max([self._version, *versions])

    async def _caught_up(self) -> None:
        """Until the controller knows what this test has seen: its watches are as new as that, or hold nothing older."""
        async with asyncio.timeout(30):
            while any(await self._behind()):  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    async def _behind(self) -> list[bool]:
        books = self._controller.books
        stored = {(c.metadata.namespace, c.metadata.name): c for c in await self._claims()}
        known = {(c.metadata.namespace, c.metadata.name): c for c in books.claims()}
        quotas, _ = await self._client.list(core.ResourceQuota)
        hard = {
            (quota.metadata.namespace, quota.metadata.name, key): core.whole(value)
            for quota in quotas
            for key, value in quota.spec.hard.items()
        }
        seen = {(limit.namespace, limit.quota, limit.key): limit.hard for limit in books.budgets.quotas()}
        return [stored != known, hard != seen]


async def lay(client: Client, state: list[dict[str, Any]]) -> None:
    """Creates the state's objects, status included."""
    for obj in sorted(state, key=lambda each: ORDER.index(each["kind"])):
        body = {key: value for key, value in obj.items() if key != "status"}
        body["metadata"] = {k: v for k, v in obj["metadata"].items() if k not in {"uid", "creationTimestamp"}}
        namespace = obj["metadata"].get("namespace", "")
        if obj["kind"] == "Pod":
            containers = [{"image": "launcher"} | each for each in obj["spec"]["containers"]]
            body["spec"] = obj["spec"] | {"automountServiceAccountToken": False, "containers": containers}
            if obj["metadata"]["namespace"] not in {
                each["metadata"]["name"] for each in state if each["kind"] == "Namespace"
            }:
                await cloud.add_namespace(client, obj["metadata"]["namespace"])
        if obj["kind"] == "Node":
            body["status"] = obj["status"]
        resource = await client.discover(obj["apiVersion"], obj["kind"])
        if resource.namespaced:
            await cloud.add_service_account(client, namespace)
        await client.request("POST", resource.path(namespace), body=body)
        if "status" in obj and obj["kind"] != "Node":
            path = resource.path(namespace, obj["metadata"]["name"], "status")
            content = "application/merge-patch+json"
            await client.request("PATCH", path, body={"status": obj["status"]}, content=content)


@pytest.mark.parametrize("case", [yaml.safe_load(file.read_text()) for file in FILES], ids=[f.stem for f in FILES])
async def test_the_case_holds_on_the_real_apiserver(case: dict[str, Any], cluster: ControlPlane) -> None:
    clock = Clock(case["now"])
    async with Client(config.load(cluster.kubeconfig)) as client:
        await lay(client, case["state"])
        async with cloud.running_controller(cluster.kubeconfig, now=clock) as controller:
            play = Play(client, controller, clock)
            for step in case["steps"]:
                await play.step(step)
