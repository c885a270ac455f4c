"""Kubelet's pod-resources API served from plain values: for the simulated nodes of `gpuclaim up`, and for tests."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Self

import grpclib
from grpclib.const import Cardinality, Handler, Status
from grpclib.server import Server, Stream

from gpuclaim.agent.proto import podresources_pb2 as pb
from gpuclaim.agent.values import Devices, PodDevices

if TYPE_CHECKING:
    from grpclib.protocol import H2Protocol


class _Server(Server):
    """Drops its connections when it closes, as a kubelet that ends does; grpclib leaves that to the other side."""

    def __init__(self, handlers: list[PodResourcesServer]) -> None:
        super().__init__(handlers)
        self._protocols: list[H2Protocol] = []

    def _protocol_factory(self) -> H2Protocol:
        protocol = super()._protocol_factory()
        self._protocols.append(protocol)
        return protocol

    async def drop(self) -> None:
        self.close()
        await self.wait_closed()
        for protocol in self._protocols:
            if hasattr(protocol, "processor"):
                protocol.processor.close()
        await asyncio.sleep(0)  # transports close in the loop's next round


class PodResourcesServer:
    """Answers as a kubelet with these devices and pods would; an async context manager.

    Attributes:
        allocatable: device IDs that kubelet may give to pods, by resource.
        pods: what pods have; kubelets up to 1.33 list pods in a final phase too.
        fail: when set, the message that every call fails with.
        calls: how many calls were answered.
    """

    def __init__(self, socket: Path, allocatable: Devices | None = None, pods: Iterable[PodDevices] = ()) -> None:
        """Prepare a server on the unix socket `socket`, whose path may have 107 bytes."""
        self.allocatable: Devices = allocatable or {}
        self.pods = list(pods)
        self.fail: str | None = None
        self.calls = 0
        self._socket = socket
        self._server: _Server | None = None

    async def start(self) -> Self:
        """Serve from now on; a socket that a server before this left is replaced."""
        self._socket.unlink(missing_ok=True)
        self._server = _Server([self])
        await self._server.start(path=str(self._socket))
        return self

    async def stop(self) -> None:
        """Stop serving and remove the socket."""
        if self._server is not None:
            await self._server.drop()
            self._server = None
            self._socket.unlink(missing_ok=True)

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def _answers(self) -> None:
        self.calls += 1
        if self.fail is not None:
            raise grpclib.GRPCError(Status.INTERNAL, self.fail)

    async def _allocatable(
        self, stream: Stream[pb.AllocatableResourcesRequest, pb.AllocatableResourcesResponse]
    ) -> None:
        await stream.recv_message()
        self._answers()
        await stream.send_message(pb.AllocatableResourcesResponse(devices=_entries(self.allocatable)))

    async def _list(self, stream: Stream[pb.ListPodResourcesRequest, pb.ListPodResourcesResponse]) -> None:
        await stream.recv_message()
        self._answers()
        answer = pb.ListPodResourcesResponse()
        for pod in self.pods:
            container = pb.ContainerResources(name="compute", devices=_entries(pod.devices))
            answer.pod_resources.add(name=pod.name, namespace=pod.namespace, containers=[container])
        await stream.send_message(answer)

    def __mapping__(self) -> dict[str, Handler]:
        """The calls and what answers them, as grpclib asks for."""
        unary, service = Cardinality.UNARY_UNARY, "/v1.PodResourcesLister/"
        return {
            service + "GetAllocatableResources": Handler(
                self._allocatable, unary, pb.AllocatableResourcesRequest, pb.AllocatableResourcesResponse
            ),
            service + "List": Handler(self._list, unary, pb.ListPodResourcesRequest, pb.ListPodResourcesResponse),
        }


def _entries(devices: Devices) -> list[pb.ContainerDevices]:
    """One entry of each device, as kubelet makes them."""
    return [pb.ContainerDevices(resource_name=name, device_ids=[each]) for name, ids in devices.items() for each in ids]
