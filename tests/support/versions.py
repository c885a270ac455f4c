"""Every version of the objects of a kind, as the apiserver stored them one after the other."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, Generic, Self, TypeVar

import msgspec

from gpuclaim.api.types import GPUClaim, GPUNode
from gpuclaim.kube.client import Client
from gpuclaim.kube.resources import resource_of

T = TypeVar("T", GPUClaim, GPUNode)


class Versions(Generic[T]):
    """Watches from when it is entered until it is left."""

    def __init__(self, client: Client, kind: type[T], namespace: str = "") -> None:
        self._client = client
        self._kind: type[T] = kind
        self._namespace = namespace
        self._seen: list[T] = []
        self._more = asyncio.Condition()

    async def __aenter__(self) -> Self:
        there, version = await self._client.list(self._kind, self._namespace)
        self._seen += there
        self._task = asyncio.create_task(self._follow(version))
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    async def _follow(self, version: str) -> None:
        changes = self._client.watch(resource_of(self._kind), self._namespace, since=version)
        async with contextlib.aclosing(changes):
            async for kind, item in changes:
                if kind in {"ADDED", "MODIFIED"}:
                    async with self._more:
                        self._seen.append(msgspec.json.decode(item, type=self._kind))
                        self._more.notify_all()

    async def first(self, name: str, holds: Callable[[T], Any]) -> T:
        """The first version of the object of which `holds` is true, once there is one."""
        async with asyncio.timeout(60), self._more:
            await self._more.wait_for(lambda: any(holds(each) for each in self.of(name)))
        return next(each for each in self.of(name) if holds(each))

    async def now(self, name: str, holds: Callable[[T], Any]) -> T:
        """The newest version of the object, once `holds` is true of it."""
        async with asyncio.timeout(60), self._more:
            await self._more.wait_for(lambda: any(map(holds, self.of(name)[-1:])))
        return self.of(name)[-1]

    def of(self, name: str) -> list[T]:
        """The versions of one object, that which there was at first included."""
        return [each for each in self._seen if each.metadata.name == name]
