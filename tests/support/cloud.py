"""Nodes, classes and a controller on a real apiserver, for tests that order GPUs."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from gpuclaim.api import core, crd
from gpuclaim.api.core import ObjectMeta
from gpuclaim.api.types import (
    Device,
    DevicePluginSource,
    GPUClaim,
    GPUClaimSpec,
    GPUClass,
    GPUClassSpec,
    GPUNode,
    Health,
    Mode,
    ResourceCount,
    Source,
)
from gpuclaim.controller.app import Controller, ControllerConfig
from gpuclaim.controller.front import HttpsConfig
from gpuclaim.kube import config
from gpuclaim.kube.client import ApiError, Client
from gpuclaim.kube.lease import Timing
from gpuclaim.kube.resources import resource_of

H200 = "nvidia.com/GH100_H200"
T = TypeVar("T", bound=msgspec.Struct)


def gpu_class(name: str = "h200", resource: str = H200, **spec: Any) -> GPUClass:
    """A passthrough class, unless `spec` says otherwise."""
    source = Source(device_plugin=DevicePluginSource(resource_name=resource))
    fields: dict[str, Any] = {"mode": Mode.PASSTHROUGH, "source": source} | spec
    return GPUClass(metadata=ObjectMeta(name=name), spec=GPUClassSpec(**fields))


def claim(name: str, namespace: str = "tenant-a", class_name: str = "h200", count: int = 1, **spec: Any) -> GPUClaim:
    """An order."""
    meta = ObjectMeta(name=name, namespace=namespace)
    return GPUClaim(metadata=meta, spec=GPUClaimSpec(class_name=class_name, count=count, **spec))


async def add_namespace(client: Client, name: str) -> None:
    """A tenant's namespace."""
    await client.create(core.Namespace(metadata=ObjectMeta(name=name)))


async def add_service_account(client: Client, namespace: str = "default") -> None:
    """What pods of the namespace need where no controller-manager runs."""
    body = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default", "namespace": namespace}}
    with contextlib.suppress(ApiError):
        await client.request("POST", f"/api/v1/namespaces/{namespace}/serviceaccounts", body=body)


async def add_node(client: Client, name: str, gpus: int, resource: str = H200, **status: Any) -> None:
    """A Ready node of `gpus` GPUs, with the report that its agent would have made now."""
    body = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, "kubevirt.io/schedulable": "true"}},
        "status": {
            "allocatable": {"cpu": "64", "memory": "1Ti", "pods": "110", resource: str(gpus)},
            "capacity": {"cpu": "64", "memory": "1Ti", "pods": "110", resource: str(gpus)},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }
    await client.request("POST", "/api/v1/nodes", body=body)
    devices = [
        Device(
            address=f"0000:{16 + index:02x}:00.0",
            health=Health.HEALTHY,
            resources=[ResourceCount(name=resource, allocatable=1, used=0)],
        )
        for index in range(gpus)
    ]
    await client.create(GPUNode(metadata=ObjectMeta(name=name)))
    report = {
        "devices": msgspec.to_builtins(devices),
        "resourceNames": [resource],
        "reportedAt": dt.datetime.now(dt.UTC).isoformat(),
    }
    await client.patch(GPUNode, name, {"status": report | status}, subresource="status")


@contextlib.asynccontextmanager
async def running_controller(
    kubeconfig: Path,
    identity: str = "controller",
    now: Callable[[], dt.datetime] | None = None,
    client: Client | None = None,
    **settings: Any,
) -> AsyncIterator[Controller]:
    """A controller in this process, taking orders; by default with a client of its own and this machine's clock."""
    ready = asyncio.Event()
    https = HttpsConfig(
        url="https://127.0.0.1:0",
        **{name: settings.pop(name) for name in ("certificate_life", "certificate_folder") if name in settings},
    )
    fields: dict[str, Any] = {"timing": Timing(duration=6, retry=0.5, margin=2)} | settings
    clock: dict[str, Any] = {"now": now} if now is not None else {}
    async with contextlib.AsyncExitStack() as stack:
        if client is None:
            client = await stack.enter_async_context(Client(config.load(kubeconfig)))
        controller = Controller(client, ControllerConfig(https=https, identity=identity, **fields), **clock)
        task = asyncio.ensure_future(controller.run(ready.set))
        waiting = asyncio.ensure_future(ready.wait())
        try:
            await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED, timeout=60)
            if task.done():
                task.result()
            assert ready.is_set(), "the controller takes no orders after a minute"
            yield controller
        finally:
            waiting.cancel()
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


async def until(
    client: Client, type_: type[T], name: str, namespace: str, holds: Callable[[T], object], seconds: float = 60
) -> T:
    """The object once `holds` is true of it; watched, not polled."""
    async with asyncio.timeout(seconds):
        while True:
            found, version = await client.list(type_, namespace, field_selector=f"metadata.name={name}")
            for obj in found:
                if holds(obj):
                    return obj
            async with _changes(client, type_, name, namespace, version) as changes:
                async for kind, item in changes:
                    obj = msgspec.json.decode(item, type=type_)
                    if kind in {"ADDED", "MODIFIED"} and holds(obj):
                        return obj


async def until_gone(client: Client, type_: type[T], name: str, namespace: str, seconds: float = 60) -> None:
    """Returns once there is no such object."""
    async with asyncio.timeout(seconds):
        found, version = await client.list(type_, namespace, field_selector=f"metadata.name={name}")
        if not found:
            return
        async with _changes(client, type_, name, namespace, version) as changes:
            async for kind, _ in changes:
                if kind == "DELETED":
                    return


async def changed(client: Client, type_: type[msgspec.Struct], namespace: str, since: str) -> None:
    """Returns once any object of the kind has changed since that resourceVersion."""
    async with contextlib.aclosing(client.watch(resource_of(type_), namespace, since=since)) as changes:
        async for kind, _ in changes:
            if kind != "BOOKMARK":
                return


async def once_admitted(client: Client, order: GPUClaim, seconds: float = 60) -> GPUClaim:
    """The order once it is taken: what was just given back, or has just come, is known a moment later."""
    async with asyncio.timeout(seconds):
        while True:
            with contextlib.suppress(ApiError):
                return await client.create(order)


def _changes(
    client: Client, type_: type[msgspec.Struct], name: str, namespace: str, since: str
) -> contextlib.aclosing[AsyncGenerator[tuple[str, msgspec.Raw]]]:
    selector = f"metadata.name={name}"
    return contextlib.aclosing(client.watch(resource_of(type_), namespace, since=since, field_selector=selector))


async def all_of(work: Iterable[Awaitable[T]]) -> list[T | BaseException]:
    """Everything at once; what fails is among the results."""
    return await asyncio.gather(*work, return_exceptions=True)


async def install_crds(client: Client, definitions: Iterable[dict[str, Any]] | None = None) -> None:
    """CRDs, gpuclaim's by default, served."""
    for definition in crd.definitions() if definitions is None else definitions:
        await client.apply(definition)
        name = definition["metadata"]["name"]
        path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
        async with asyncio.timeout(60):
            while not _established(await client.request("GET", f"{path}/{name}")):  # noqa: ASYNC110
                await asyncio.sleep(0.02)


def _established(body: bytes) -> bool:
    conditions = msgspec.json.decode(body).get("status", {}).get("conditions") or ()
    return any(c["type"] == "Established" and c["status"] == "True" for c in conditions)


async def exists(client: Client, path: str) -> bool:
    """Whether there is an object at this path of the API."""
    try:
        await client.request("GET", path)
    except ApiError as error:
        if error.code != 404:
            raise
        return False
    return True
