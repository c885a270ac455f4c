"""Running agents whose every pass and every report a test sees, and pods that use up what they report."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias

import msgspec
from grpclib import encoding
from grpclib.client import Channel, UnaryUnaryMethod

from gpuclaim.agent import pciids
from gpuclaim.agent.loop import Agent, AgentConfig
from gpuclaim.agent.machine import Machine
from gpuclaim.agent.pulse import Result
from gpuclaim.agent.registry import Registry
from gpuclaim.api.core import ObjectMeta, Struct
from gpuclaim.api.types import GPUNode, Health
from gpuclaim.kube import resources
from gpuclaim.kube.client import ApiError, Client, UnreachableError
from gpuclaim.kube.resources import Resource, resource_of

if TYPE_CHECKING:
    from pathlib import Path

    from gpuclaim.local.kubelet import Kubelet
    from gpuclaim.local.sysfs_tree import SysfsTree

PATIENCE: Final = 60.0
"""Seconds; far more than anything takes, so that only what never happens fails."""

Summary: TypeAlias = Mapping[str, tuple[Health, Mapping[str, tuple[int, int]], tuple[str, ...]]]
"""A report in short: by address the health, (allocatable, used) by resource, and the users' names."""


def summary(node: GPUNode) -> Summary:
    """A report in short."""
    return {
        device.address: (
            device.health,
            {each.name: (each.allocatable, each.used) for each in device.resources},
            tuple(user.name for user in device.users),
        )
        for device in node.status.devices
    }


class Reports:
    """Every version of one GPUNode, as a watch tells them; an async context manager.

    Attributes:
        seen: all of them, oldest first; None where it was deleted.
    """

    def __init__(self, client: Client, name: str) -> None:
        """Watch through `client` the GPUNode `name`."""
        self.seen: list[GPUNode | None] = []
        self._client = client
        self._selector = f"metadata.name={name}"
        self._changed = asyncio.Condition()
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        found, version = await self._list()
        await self._see(found)
        self._task = asyncio.ensure_future(self._follow(version))
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    @property
    def last(self) -> GPUNode | None:
        """The newest."""
        return self.seen[-1] if self.seen else None

    async def until(self, holds: Callable[[GPUNode], object], *, since: int | None = None) -> GPUNode:
        """The first version that `holds` is true of, among the newest and what comes, or all from number `since` on."""
        looked = max(len(self.seen) - 1, 0) if since is None else since
        try:
            async with asyncio.timeout(PATIENCE), self._changed:
                while True:
                    for node in self.seen[looked:]:
                        if node is not None and holds(node):
                            return node
                    looked = len(self.seen)
                    await self._changed.wait()
        except TimeoutError:
            said = summary(self.last) if self.last is not None else None
            raise AssertionError(f"never reported; the last report is {said}") from None

    async def until_says(self, expected: Summary) -> GPUNode:
        """The first version from now on that says this."""
        return await self.until(lambda node: summary(node) == expected)

    async def until_gone(self) -> None:
        """Returns once there is none."""
        async with asyncio.timeout(PATIENCE), self._changed:
            await self._changed.wait_for(lambda: self.last is None)

    def said_since(self, number: int = 0) -> list[Summary]:
        """What was reported from version `number` on, repetitions and a GPUNode that is only just made left out."""
        said: list[Summary] = []
        for node in self.seen[number:]:
            if node is not None and node.status.reported_at is not None and summary(node) not in said[-1:]:
                said.append(summary(node))
        return said

    async def _list(self) -> tuple[GPUNode | None, str]:
        found, version = await self._client.list(GPUNode, field_selector=self._selector)
        return (found[0] if found else None), version

    async def _follow(self, version: str) -> None:
        while True:
            try:
                changes = self._client.watch(resource_of(GPUNode), since=version, field_selector=self._selector)
                async with contextlib.aclosing(changes):
                    async for kind, item in changes:
                        node = msgspec.json.decode(item, type=GPUNode)
                        version = node.metadata.resource_version
                        if kind != "BOOKMARK":
                            await self._see(None if kind == "DELETED" else node)
            except (ApiError, UnreachableError):
                # The apiserver went; what it serves when it is back is listed, and watched from there.
                version = await self._list_again()

    async def _list_again(self) -> str:
        while True:
            with contextlib.suppress(ApiError, UnreachableError):
                found, version = await self._list()
                await self._see(found)
                return version
            await asyncio.sleep(0.05)

    async def _see(self, node: GPUNode | None) -> None:
        async with self._changed:
            self.seen.append(node)
            self._changed.notify_all()


def assert_each_changed_once(said: Sequence[Summary], *states: Summary) -> None:
    """What was reported goes from state to state, each device at its own time: none of them says anything else."""
    assert said, "nothing was reported"
    for address in states[0]:
        found = [key for key, _ in itertools.groupby(each.get(address) for each in said)]
        expected = [key for key, _ in itertools.groupby(state[address] for state in states)]
        assert found == expected, f"{address} was reported as {found}"
    assert all(each.keys() == states[0].keys() for each in said)


class SeenAgent(Agent):
    """An agent whose passes can be waited for."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._passed = asyncio.Condition()

    async def step(self) -> float:
        wait = await super().step()
        async with self._passed:
            self._passed.notify_all()
        return wait

    async def until_passes(self, *results: Result, count: int = 1) -> None:
        """Returns once `count` more passes have ended in one of these ways."""
        goal = self._ended(results) + count
        async with asyncio.timeout(PATIENCE), self._passed:
            await self._passed.wait_for(lambda: self._ended(results) >= goal)

    def _ended(self, results: tuple[Result, ...]) -> int:
        return sum(self.pulse.passes[result] for result in results)


@contextlib.asynccontextmanager
async def running(kubelet: Kubelet, tree: SysfsTree, client: Client, **settings: Any) -> AsyncIterator[SeenAgent]:
    """An agent in this process, that reads every half second; `settings` are AgentConfig's."""
    fields: dict[str, Any] = {"interval": 0.5, "heartbeat": 60, "phases_every": 1} | settings
    fields = {"device_plugins": kubelet.device_plugins} | fields
    config = AgentConfig(node=kubelet.name, sysfs=tree.root, pod_resources=kubelet.pod_resources, **fields)
    with Machine(
        config.sysfs, config.pod_resources, device_plugins=config.device_plugins, timeout=config.timeout
    ) as machine:
        agent = SeenAgent(config, machine, Registry(client, config.node), pciids.namer({}), chance=lambda: 0.0)
        task = asyncio.ensure_future(agent.run())
        try:
            yield agent
            assert not task.done(), "the agent ended"
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


class ContainerStatus(Struct, frozen=True, kw_only=True):
    """v1 ContainerStatus; only what says which container of the runtime it is."""

    container_id: str = msgspec.field(default="", name="containerID")


class PodStatus(Struct, frozen=True, kw_only=True):
    """v1 PodStatus, with the containers."""

    phase: str = ""
    container_statuses: list[ContainerStatus] = []


class RunningPod(Struct, frozen=True, kw_only=True):
    """v1 Pod, with what the product has no use for."""

    metadata: ObjectMeta
    status: PodStatus = PodStatus()


resources.TYPED[RunningPod] = Resource("v1", "pods", namespaced=True)


def pod(name: str, devices: Mapping[str, int], node: str = "node-a", **spec: Any) -> dict[str, Any]:
    """A pod that is on `node` from the start, with so many devices of each resource."""
    limits = {resource: str(count) for resource, count in devices.items()}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "nodeName": node,
            "automountServiceAccountToken": False,
            "restartPolicy": "Never",
            "containers": [{"name": "c", "image": "i", "resources": {"limits": limits}}],
            **spec,
        },
    }


async def end_containers(kubelet: Kubelet, found: RunningPod) -> None:
    """End a pod's containers in the runtime, with exit code 0: a pod that is not restarted has then Succeeded."""
    async with Channel(path=str(kubelet.directory / "cri.sock"), codec=Bytes()) as channel:
        stop: UnaryUnaryMethod[bytes, bytes] = UnaryUnaryMethod(
            channel, "/runtime.v1.RuntimeService/StopContainer", bytes, bytes
        )
        for each in found.status.container_statuses:
            name = each.container_id.partition("://")[2].encode()
            # StopContainerRequest, written by hand: field 1 is container_id, a string.
            await stop(b"\x0a" + bytes([len(name)]) + name)


class Bytes(encoding.base.CodecBase):
    """Messages that are bytes already."""

    __content_subtype__ = "proto"

    def encode(self, message: Any, message_type: Any) -> bytes:
        assert isinstance(message, bytes)
        return message

    def decode(self, data: bytes, message_type: Any) -> Any:
        return data


def token_kubeconfig(cluster_kubeconfig: Path, folder: Path, token: str) -> tuple[Path, Path]:
    """A kubeconfig of an identity whose token is in a file, and the file; `rotate` changes it."""
    import yaml

    loaded = yaml.safe_load(cluster_kubeconfig.read_text())
    loaded["users"][0]["user"] = {"tokenFile": "token"}
    kubeconfig, file = folder / "kubeconfig", folder / "token"
    kubeconfig.write_text(yaml.safe_dump(loaded))
    rotate(file, token)
    return kubeconfig, file


def rotate(file: Path, token: str) -> None:
    """Put another token into the file in one step, as kubelet does."""
    new = file.with_suffix(".new")
    new.write_text(token)
    new.replace(file)
