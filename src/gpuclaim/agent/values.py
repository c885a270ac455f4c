"""What the agent reads, as plain values: the node's PCI functions, and kubelet's answers. Pure."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Collection, Iterator, Mapping
from typing import Final

_DISPLAY: Final = 0x03
_ACCELERATOR: Final = 0x12

GPU_VENDORS: Final[Mapping[str, str]] = {
    "10de": "NVIDIA",
    "1002": "AMD",
    "8086": "Intel",
    "1d94": "Hygon",
    "1e3e": "Iluvatar CoreX",
    "1ed5": "Moore Threads",
    "9999": "MetaX",
}
"""Vendors that make GPUs, by the ID that the PCI ID database gives them (R20a). AMD's 1022 is its processors'."""


def is_gpu_class(class_code: int) -> bool:
    """Whether a class code (24 bits: base, sub, interface) is a display controller's or an accelerator's (R20a)."""
    return class_code >> 16 in (_DISPLAY, _ACCELERATOR)


def is_vfio(driver: str) -> bool:
    """Whether a driver of this name hands functions to VMs: `vfio-pci`, and variants such as `xe-vfio-pci` (R22)."""
    return "vfio" in driver.replace("_", "-").split("-")


def address_number(address: str) -> int:
    """The number that a PCI address is: domain, bus, device and function, by which "lowest" is meant (R23)."""
    return int(address.replace(":", "").replace(".", ""), 16)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Function:
    """One GPU function, physical or virtual.

    `address` is as sysfs names it; `vendor` and `device` are four hex digits; `driver` and `iommu_group` are empty
    where there is none; `numa_node` is None where the kernel knows none (it says -1).
    """

    address: str
    vendor: str
    device: str
    driver: str = ""
    iommu_group: str = ""
    numa_node: int | None = None
    physical_function: str | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Functions:
    """What one reading of sysfs found.

    `gpus` by address, virtual functions included; `others` are addresses of functions that are no GPUs; `unreadable`
    those of functions that did not say what they are; `mdev_parents` the name of each mediated device's parent, by the
    device's UUID; `vfio_groups` those of the IOMMU groups asked for that hold no GPU but a function on a vfio driver.
    `faults` says what could not be read, a sentence each.
    """

    gpus: Mapping[str, Function]
    others: Collection[str] = frozenset()
    unreadable: Collection[str] = frozenset()
    mdev_parents: Mapping[str, str] = dataclasses.field(default_factory=dict)
    vfio_groups: Collection[str] = frozenset()
    faults: tuple[str, ...] = ()


Devices = Mapping[str, Collection[str]]
"""Device IDs by the resource that they are devices of."""


@dataclasses.dataclass(frozen=True, slots=True)
class PodDevices:
    """The devices that kubelet says a pod has."""

    namespace: str
    name: str
    devices: Devices


@dataclasses.dataclass(frozen=True, slots=True)
class Answers:
    """What kubelet answered: the devices that it may give to pods, and those that pods have."""

    allocatable: Devices
    pods: tuple[PodDevices, ...] = ()

    def device_ids(self) -> Iterator[str]:
        """Every device ID in the answers; one may come more than once."""
        everything = itertools.chain([self.allocatable], (pod.devices for pod in self.pods))
        return itertools.chain.from_iterable(ids for devices in everything for ids in devices.values())
