"""The agent's few words with the apiserver: its own GPUNode (R27), and the phases of its node's pods (R26)."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Final, TypeVar

import msgspec

from gpuclaim.agent import report
from gpuclaim.api import core
from gpuclaim.api.names import API_VERSION
from gpuclaim.api.types import GPUNode, GPUNodeStatus
from gpuclaim.kube.client import ApiError, Client, UnreachableError
from gpuclaim.kube.config import ConfigError
from gpuclaim.kube.resources import resource_of

T = TypeVar("T")

_NOT_FOUND: Final = 404
_FORBIDDEN: Final = 403


class RegistryError(Exception):
    """The apiserver is away or refused; the message is a sentence."""


class Registry:
    """The GPUNode of one node."""

    def __init__(self, client: Client, node: str) -> None:
        """Speak through `client`, which is open, for the Node named `node`."""
        self._client = client
        self._node = node

    async def stored(self) -> GPUNodeStatus | None:
        """The last report; None where there is none.

        Raises:
            RegistryError: it cannot be had.
        """
        found = await self._get(GPUNode)
        return found.status if found is not None else None

    async def phases(self) -> report.Phases:
        """The phase of each pod that is bound to the node.

        Raises:
            RegistryError: they cannot be had.
        """
        listing = self._client.list(core.Pod, field_selector=f"spec.nodeName={self._node}")
        pods, _ = await self._ask(listing, "its pods cannot be listed")
        return {(pod.metadata.namespace, pod.metadata.name): pod.status.phase for pod in pods}

    async def write(self, status: GPUNodeStatus) -> bool:
        """Store the report; the GPUNode is made where there is none, owned by the Node, so that it goes with it.

        Returns:
            Whether it was made.

        Raises:
            RegistryError: the report is not stored, or it is not known.
        """
        try:
            await self._patch(status)
        except ApiError as error:
            if error.code != _NOT_FOUND:
                raise RegistryError(f"the report of {self._node} is refused: {error}") from error
            await self._create()
            await self._ask(self._patch(status), "its report is refused")
            return True
        return False

    async def _patch(self, status: GPUNodeStatus) -> None:
        try:
            # The answer may hold what this version cannot read; nobody asks.
            await self._client.request(
                "PATCH",
                resource_of(GPUNode).path(name=self._node, subresource="status"),
                body={"status": report.body(status)},
                content="application/merge-patch+json",
            )
        except (UnreachableError, ConfigError) as error:
            raise RegistryError(str(error)) from error

    async def _create(self) -> None:
        node = await self._get(core.Node)
        if node is None:
            raise RegistryError(f"the cluster has no Node {self._node}: --node must be the name of this machine's Node")
        owner = {"apiVersion": "v1", "kind": "Node", "name": self._node, "uid": node.metadata.uid}
        metadata = {"name": self._node, "ownerReferences": [owner]}
        new = {"apiVersion": API_VERSION, "kind": "GPUNode", "metadata": metadata}
        await self._ask(
            self._client.request("POST", resource_of(GPUNode).path(), body=new),
            "its GPUNode cannot be made (are the CRDs of gpuclaim installed?)",
        )

    async def _get(self, type_: type[T]) -> T | None:
        assert issubclass(type_, msgspec.Struct)
        try:
            return await self._client.get(type_, self._node)
        except ApiError as error:
            if error.code == _NOT_FOUND:
                return None
            raise RegistryError(f"{type_.__name__} {self._node} cannot be read: {error}") from error
        except msgspec.ValidationError:
            # Written by another version, or by hand: it will be written over.
            return None
        except (UnreachableError, ConfigError) as error:
            raise RegistryError(str(error)) from error

    async def _ask(self, question: Awaitable[T], failure: str) -> T:
        try:
            return await question
        except (ApiError, msgspec.ValidationError) as error:
            raise RegistryError(f"{self._node}: {failure}: {error}") from error
        except (UnreachableError, ConfigError) as error:
            raise RegistryError(str(error)) from error
