"""A device plugin that speaks kubelet's real API, with devices that a test changes as it goes."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Self

import grpclib
from grpclib.client import Channel, UnaryUnaryMethod
from grpclib.const import Cardinality, Handler, Status
from grpclib.server import Server, Stream

from support.proto import deviceplugin_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from grpclib.protocol import H2Protocol

_VERSION = "v1beta1"


class _Server(Server):
    """Drops its connections when it closes, as a plugin that ends does; grpclib leaves that to the other side."""

    def __init__(self, handlers: list[DevicePlugin]) -> None:
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


class DevicePlugin:
    """Offers devices of one resource to the kubelet whose device-plugin folder is given.

    async with DevicePlugin(kubelet.device_plugins, "nvidia.com/GA102GL_A10", ["0000:3b:00.0"]) as plugin:
        plugin.set_health("0000:3b:00.0", healthy=False)

    Attributes:
        fail_allocate: when set, the message that every Allocate fails with.
        prefer: device IDs that kubelet is told to prefer, when it asks for a choice.
        allocated: the device IDs of each container, in the order of the Allocate calls.
    """

    def __init__(self, folder: Path, resource: str, devices: Iterable[str] | Mapping[str, int | None] = ()) -> None:
        """Prepare a plugin; `devices` are the IDs of healthy devices, or map each to its NUMA node (None: unknown)."""
        numa = dict(devices) if isinstance(devices, Mapping) else dict.fromkeys(devices)
        self.resource = resource
        self.fail_allocate: str | None = None
        self.prefer: list[str] = []
        self.allocated: list[list[str]] = []
        self._folder = folder
        self._endpoint = resource.replace("/", "-") + ".sock"
        self._numa: dict[str, int | None] = numa
        self._healthy = dict.fromkeys(numa, True)
        self._watchers: set[asyncio.Event] = set()
        self._server: _Server | None = None

    async def start(self) -> Self:
        """Serve and register. Also after a restart of kubelet, which removes the sockets of all plugins."""
        await self.stop()
        self._server = _Server([self])
        await self._server.start(path=str(self._folder / self._endpoint))
        async with Channel(path=str(self._folder / "kubelet.sock")) as channel:
            register: UnaryUnaryMethod[pb.RegisterRequest, pb.Empty] = UnaryUnaryMethod(
                channel, "/v1beta1.Registration/Register", pb.RegisterRequest, pb.Empty
            )
            await register(
                pb.RegisterRequest(
                    version=_VERSION, endpoint=self._endpoint, resource_name=self.resource, options=self._options()
                )
            )
        return self

    async def stop(self) -> None:
        """Stop serving: kubelet takes every device for unhealthy."""
        if self._server is not None:
            await self._server.drop()
            self._server = None

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def set_health(self, device: str, *, healthy: bool) -> None:
        """Tell kubelet that a device is healthy, or is not."""
        self._healthy[device] = healthy
        self._changed()

    def add(self, device: str, numa: int | None = None) -> None:
        """Offer one device more."""
        self._numa[device], self._healthy[device] = numa, True
        self._changed()

    def remove(self, device: str) -> None:
        """Offer a device no longer: kubelet forgets it, where an unhealthy one stays in the Node's capacity."""
        del self._numa[device], self._healthy[device]
        self._changed()

    def _changed(self) -> None:
        for watcher in self._watchers:
            watcher.set()

    def _options(self) -> pb.DevicePluginOptions:
        return pb.DevicePluginOptions(get_preferred_allocation_available=True)

    def _devices(self) -> pb.ListAndWatchResponse:
        return pb.ListAndWatchResponse(
            devices=[
                pb.Device(
                    ID=device,
                    health="Healthy" if self._healthy[device] else "Unhealthy",
                    topology=None if numa is None else pb.TopologyInfo(nodes=[pb.NUMANode(ID=numa)]),
                )
                for device, numa in self._numa.items()
            ]
        )

    async def _get_options(self, stream: Stream[pb.Empty, pb.DevicePluginOptions]) -> None:
        await stream.recv_message()
        await stream.send_message(self._options())

    async def _list_and_watch(self, stream: Stream[pb.Empty, pb.ListAndWatchResponse]) -> None:
        await stream.recv_message()
        changed = asyncio.Event()
        self._watchers.add(changed)
        try:
            while True:
                changed.clear()
                await stream.send_message(self._devices())
                await changed.wait()
        finally:
            self._watchers.discard(changed)

    async def _get_preferred(
        self, stream: Stream[pb.PreferredAllocationRequest, pb.PreferredAllocationResponse]
    ) -> None:
        request = await stream.recv_message()
        assert request
        answer = pb.PreferredAllocationResponse()
        for container in request.container_requests:
            must = list(container.must_include_deviceIDs)
            liked = [each for each in self.prefer if each in container.available_deviceIDs and each not in must]
            rest = sorted(set(container.available_deviceIDs) - {*must, *liked})
            chosen = (must + liked + rest)[: container.allocation_size]
            answer.container_responses.add(deviceIDs=chosen)
        await stream.send_message(answer)

    async def _allocate(self, stream: Stream[pb.AllocateRequest, pb.AllocateResponse]) -> None:
        request = await stream.recv_message()
        assert request
        if self.fail_allocate is not None:
            raise grpclib.GRPCError(Status.INTERNAL, self.fail_allocate)
        answer = pb.AllocateResponse()
        for container in request.container_requests:
            devices = sorted(container.devices_ids)
            self.allocated.append(devices)
            answer.container_responses.add(envs={"PCI_RESOURCE": ",".join(devices)})
        await stream.send_message(answer)

    async def _pre_start(self, stream: Stream[pb.PreStartContainerRequest, pb.PreStartContainerResponse]) -> None:
        await stream.recv_message()
        await stream.send_message(pb.PreStartContainerResponse())

    def __mapping__(self) -> dict[str, Handler]:
        unary, to_stream = Cardinality.UNARY_UNARY, Cardinality.UNARY_STREAM
        service = "/v1beta1.DevicePlugin/"
        return {
            service + "GetDevicePluginOptions": Handler(self._get_options, unary, pb.Empty, pb.DevicePluginOptions),
            service + "ListAndWatch": Handler(self._list_and_watch, to_stream, pb.Empty, pb.ListAndWatchResponse),
            service + "GetPreferredAllocation": Handler(
                self._get_preferred, unary, pb.PreferredAllocationRequest, pb.PreferredAllocationResponse
            ),
            service + "Allocate": Handler(self._allocate, unary, pb.AllocateRequest, pb.AllocateResponse),
            service + "PreStartContainer": Handler(
                self._pre_start, unary, pb.PreStartContainerRequest, pb.PreStartContainerResponse
            ),
        }
