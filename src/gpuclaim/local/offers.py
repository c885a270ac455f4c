"""What the cloud of `gpuclaim up` offers, and the hardware that its nodes pretend to have. Pure."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Mapping, Sequence
from typing import Final

from gpuclaim.api.core import ObjectMeta
from gpuclaim.api.types import DevicePluginSource, GPUClass, GPUClassSpec, Mode, Source
from gpuclaim.local.sysfs_tree import Mdev, SimulatedFunction

_NVIDIA: Final = "10de"
_BUSES: Final = (0x18, 0x2A, 0x3A, 0x5D, 0x9A, 0xAB, 0xBA, 0xDB)
# Every server has one, and it is no GPU (R20a).
_BOARD_CONTROLLER: Final = SimulatedFunction(
    address="0000:03:00.0", class_code="0x030000", vendor="0x1a03", device="0x2000", driver="ast"
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """One class of the catalogue, and the GPU that serves it.

    Attributes:
        name: the GPUClass's name.
        display_name: what the catalogue shows.
        description: what the catalogue says of it.
        mode: how a VM gets it.
        resource: the extended resource that pods ask for.
        device: the GPU's PCI device ID, four hex digits; the vendor is NVIDIA.
        model: the GPU's name in the PCI ID database.
        vgpu: the type name of its vGPUs; empty for passthrough.
        per_gpu: how many device-plugin devices one GPU serves.
    """

    name: str
    display_name: str
    description: str
    mode: Mode
    resource: str
    device: str
    model: str
    vgpu: str = ""
    per_gpu: int = 1

    def gpu_class(self) -> GPUClass:
        """The GPUClass that offers it."""
        return GPUClass(
            metadata=ObjectMeta(name=self.name),
            spec=GPUClassSpec(
                display_name=self.display_name,
                description=self.description,
                mode=self.mode,
                source=Source(device_plugin=DevicePluginSource(resource_name=self.resource)),
            ),
        )


H200: Final = Offer(
    name="h200",
    display_name="NVIDIA H200 141 GB",
    description="A whole H200 for one VM: training and large models.",
    mode=Mode.PASSTHROUGH,
    resource="nvidia.com/GH100_H200_SXM_141GB",
    device="2335",
    model="GH100 [H200 SXM 141GB]",
)
A16: Final = Offer(
    name="a16",
    display_name="NVIDIA A16-4Q vGPU",
    description="A quarter of an A16 GPU, 4 GB: desktops and small models.",
    mode=Mode.VGPU,
    resource="nvidia.com/NVIDIA_A16-4Q",
    device="25b6",
    model="GA107GL [A2 / A16]",
    vgpu="NVIDIA A16-4Q",
    per_gpu=4,
)
CATALOGUE: Final = (H200, A16)


@dataclasses.dataclass(frozen=True, slots=True)
class NodePlan:
    """A simulated node: its name, what its GPUs serve, and how many GPUs it has."""

    name: str
    offer: Offer
    gpus: int

    @property
    def orderable(self) -> int:
        """How many of its class can be ordered here."""
        return self.gpus * self.offer.per_gpu


def layout(nodes: int | None = None, gpus: int | None = None) -> tuple[NodePlan, ...]:
    """The nodes of the cloud; every third serves vGPUs.

    Args:
        nodes: how many; 3 when None.
        gpus: GPUs of each; when None, 4 of a node that serves whole GPUs, 2 of one that serves vGPUs.
    """
    offers = [A16 if number % 3 == 0 else H200 for number in range(1, (nodes or 3) + 1)]
    return tuple(
        NodePlan(f"gpu-{number}", offer, gpus or (2 if offer is A16 else 4)) for number, offer in enumerate(offers, 1)
    )


def hardware(plan: NodePlan) -> tuple[list[SimulatedFunction], Mapping[str, Sequence[str]]]:
    """The node's PCI functions, and the device-plugin devices that each GPU serves, by its address."""
    functions, devices = [_BOARD_CONTROLLER], {}
    for index in range(plan.gpus):
        address = _address(index)
        mdevs = [Mdev(uuid=_uuid(plan.name, index, each), type="nvidia-710") for each in range(plan.offer.per_gpu)]
        vgpu = plan.offer.mode is Mode.VGPU
        functions.append(
            SimulatedFunction(
                address=address,
                class_code="0x030200",
                vendor=f"0x{_NVIDIA}",
                device=f"0x{plan.offer.device}",
                driver="nvidia" if vgpu else "vfio-pci",
                group=40 + index,
                numa=0 if index < plan.gpus / 2 else 1,
                mdevs=tuple(mdevs) if vgpu else (),
            )
        )
        devices[address] = [mdev.uuid for mdev in mdevs] if vgpu else [address]
    return functions, devices


def pci_ids() -> str:
    """The lines of a PCI ID database that name the GPUs of the catalogue."""
    lines = [f"\t{offer.device}  {offer.model}" for offer in CATALOGUE]
    return "\n".join([f"{_NVIDIA}  NVIDIA Corporation", *lines, ""])


def _address(index: int) -> str:
    domain, place = divmod(index, len(_BUSES))
    return f"{domain:04x}:{_BUSES[place]:02x}:00.0"


def _uuid(node: str, gpu: int, index: int) -> str:
    return str(uuid.uuid5(uuid.NAMESPACE_URL, f"{node}/{gpu}/{index}"))
