"""Asks kubelet which devices it may give to pods, and which pods have (R20): pod-resources v1, gRPC on a unix socket.

Fields and limits are those of k8s.io/kubelet/pkg/apis/podresources/v1 and kubelet's own client of it.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Final, Self, TypeVar

import google.protobuf.message
import grpclib
from grpclib import exceptions
from grpclib.client import Channel, Handler, UnaryUnaryMethod
from grpclib.const import Status
from grpclib.protocol import H2Protocol

from gpuclaim.agent.proto import podresources_pb2 as pb
from gpuclaim.agent.values import Answers, Devices, PodDevices

DEFAULT_SOCKET: Final = Path("/var/lib/kubelet/pod-resources/kubelet.sock")
DEVICE_PLUGINS: Final = Path("/var/lib/kubelet/device-plugins")
"""Where device plugins have their sockets; kubelet has no other place for them."""

_ANSWER_MAX: Final = 16 * 2**20
"""Bytes of an answer; as many as kubelet's own client takes."""

Request = TypeVar("Request")
Answer = TypeVar("Answer")


class PodResourcesError(Exception):
    """Kubelet did not answer; the message is a sentence that says what to do."""


class _Protocol(H2Protocol):
    """Drops a connection on which more comes than an answer may have."""

    received = 0

    def data_received(self, data: bytes) -> None:
        self.received += len(data)
        if self.received > _ANSWER_MAX:
            self.processor.close(f"more than {_ANSWER_MAX} bytes")
        else:
            super().data_received(data)


class _Channel(Channel):
    def _protocol_factory(self) -> H2Protocol:
        return _Protocol(Handler(), self._config, self._h2_config)

    def expect_answer(self) -> None:
        if isinstance(self._protocol, _Protocol):
            self._protocol.received = 0


class PodResources:
    """A connection to one kubelet, made when it is needed and anew when kubelet was restarted; a context manager."""

    def __init__(self, socket: Path, *, timeout: float = 10.0) -> None:
        """Prepare; nothing is opened yet. `timeout` is in seconds, for each of the two calls."""
        self._socket = socket
        self._timeout = timeout
        self._channel: _Channel | None = None

    async def read(self) -> Answers:
        """What kubelet may give to pods and what they have.

        Raises:
            PodResourcesError: there is no socket, or no whole answer came in time.
        """
        allocatable = await self._call(
            "GetAllocatableResources", pb.AllocatableResourcesRequest(), pb.AllocatableResourcesResponse
        )
        listed = await self._call("List", pb.ListPodResourcesRequest(), pb.ListPodResourcesResponse)
        return Answers(
            _devices(allocatable.devices),
            tuple(
                PodDevices(pod.namespace, pod.name, _devices(each for c in pod.containers for each in c.devices))
                for pod in listed.pod_resources
            ),
        )

    def close(self) -> None:
        """Close the connection."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def _call(self, method: str, request: Request, answer: type[Answer]) -> Answer:
        reused = self._channel is not None
        try:
            async with asyncio.timeout(self._timeout):
                try:
                    return await self._once(method, request, answer)
                except exceptions.StreamTerminatedError:
                    # The kubelet that the connection was to has ended; there may be the next already.
                    self.close()
                    if not reused:
                        raise
                    return await self._once(method, request, answer)
        except (
            OSError,  # TimeoutError is one
            grpclib.GRPCError,
            exceptions.StreamTerminatedError,
            exceptions.ProtocolError,
            google.protobuf.message.DecodeError,
            NotImplementedError,
            AssertionError,
            ValueError,
        ) as error:
            # The connection may be half of something; the next call gets its own.
            self.close()
            raise PodResourcesError(self._say(method, error)) from error

    async def _once(self, method: str, request: Request, answer: type[Answer]) -> Answer:
        if self._channel is None:
            self._channel = _Channel(path=str(self._socket))
        call: UnaryUnaryMethod[Request, Answer] = UnaryUnaryMethod(
            self._channel, f"/v1.PodResourcesLister/{method}", type(request), answer
        )
        self._channel.expect_answer()
        return await call(request)

    def _say(self, method: str, error: BaseException) -> str:
        match error:
            case FileNotFoundError():
                return f"there is no socket {self._socket}: is kubelet running, and its pod-resources folder mounted?"
            case PermissionError():
                return f"the socket {self._socket} may not be opened: the agent must run as a user who may"
            case TimeoutError():
                return f"kubelet at {self._socket} did not answer {method} within {self._timeout:g} s"
            case OSError(errno=errno.ECONNREFUSED | errno.ECONNRESET | errno.ENOTSOCK):
                return f"nobody answers at {self._socket}: is kubelet running?"
            case OSError():
                return f"cannot connect to {self._socket}: {error}"
            case grpclib.GRPCError(status=Status.UNIMPLEMENTED):
                return f"kubelet at {self._socket} has no {method}: Kubernetes 1.28 or later is needed"
            case grpclib.GRPCError():
                return f"kubelet at {self._socket} refused {method}: {error.message or error.status.name}"
            case exceptions.StreamTerminatedError():
                return f"the connection to {self._socket} broke: {error}"
            case _:
                return f"what answers {method} at {self._socket} is no kubelet: {str(error) or type(error).__name__}"


def _devices(entries: Iterable[pb.ContainerDevices]) -> Devices:
    """Device IDs by resource. Kubelet makes one entry of each device, or of each NUMA node."""
    devices: dict[str, set[str]] = {}
    for entry in entries:
        devices.setdefault(entry.resource_name, set()).update(entry.device_ids)
    return devices
