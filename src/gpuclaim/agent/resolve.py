"""Where a device ID leads, by its shape alone and never by knowing the plugin (R21-R24). Pure; no order matters."""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable
from typing import Final, TypeAlias

from gpuclaim.agent.values import Functions, address_number, is_vfio

_PCI: Final = re.compile(r"(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}:[0-9a-f]{2}\.[0-7])", re.IGNORECASE)
_UUID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
_NUMBER: Final = re.compile(r"[0-9]{1,16}")
# GPU-<uuid>, MIG-<uuid>, MIG-GPU-<uuid>/<instance>/<instance>; and 0:1, a MIG device by index.
_NVML: Final = re.compile(r"(GPU|MIG)-[0-9A-Za-z-]+(/[0-9]+/[0-9]+)?|[0-9]+:[0-9]+")
_REPLICA: Final = re.compile(r"(.+)::[0-9]+")
_LONGEST: Final = 256
"""Far more than any shape has: what a plugin may send is bounded only by the size of kubelet's answer."""


class Shape(enum.Enum):
    """What a device ID looks like."""

    PCI = enum.auto()
    """A PCI address, of any case; the domain may be wide, or absent for 0000."""
    MDEV = enum.auto()
    """The UUID of a mediated device."""
    GROUP = enum.auto()
    """A decimal number, as IOMMU groups are."""
    NVML = enum.auto()
    """An ID that only the driver's library can place, or one of several replicas of a GPU (R24)."""
    OTHER = enum.auto()


class Miss(enum.Enum):
    """Why a device ID leads to no GPU."""

    UNPLACED = enum.auto()
    """It has the shape of a GPU's, but no function or group of the node is its."""
    NO_GPU = enum.auto()
    """It leads to something that is no GPU, or its shape says nothing: nobody's business here (R14)."""


Target: TypeAlias = str | Miss
"""The address of the GPU function that a device ID leads to, or why none."""


def shape(device_id: str) -> Shape:
    """The shape of a device ID (R21, R24).

    A replica (`…::n`) of a GPU or an index is one that cannot be placed: several stand for one device.
    """
    if len(device_id) > _LONGEST:
        return Shape.OTHER
    if replica := _REPLICA.fullmatch(device_id):
        return Shape.OTHER if shape(replica[1]) is Shape.OTHER else Shape.NVML
    for pattern, result in ((_PCI, Shape.PCI), (_UUID, Shape.MDEV), (_NUMBER, Shape.GROUP), (_NVML, Shape.NVML)):
        if pattern.fullmatch(device_id):
            return result
    return Shape.OTHER


def as_sysfs_names(address: str) -> str:
    """A PCI address as sysfs writes it: lower case, the domain of four digits or as many more as it needs."""
    match = _PCI.fullmatch(address)
    assert match is not None
    return f"{int(match[1] or '0', 16):04x}:{match[2].lower()}"


def canonical(device_id: str) -> str:
    """The ID in one spelling: addresses as sysfs has them, UUIDs in lower case, all else as it is."""
    match shape(device_id):
        case Shape.PCI:
            return as_sysfs_names(device_id)
        case Shape.MDEV:
            return device_id.lower()
        case _:
            return device_id


def groups_named(device_ids: Iterable[str]) -> frozenset[str]:
    """Those of the IDs that may name an IOMMU group."""
    return frozenset(each for each in device_ids if _NUMBER.fullmatch(each))


class Resolver:
    """Resolves device IDs against one reading of the node; O(functions) to make, O(1) an ID."""

    def __init__(self, functions: Functions) -> None:
        self._functions = functions
        self._known: dict[str, Target] = {}
        # Group → its lowest GPU on a vfio driver; None where it has GPUs and none is on one.
        self._groups: dict[str, str | None] = {}
        for gpu in functions.gpus.values():
            if not gpu.iommu_group:
                continue
            lowest = self._groups.setdefault(gpu.iommu_group, None)
            lower = lowest is None or address_number(gpu.address) < address_number(lowest)
            if is_vfio(gpu.driver) and lower:
                self._groups[gpu.iommu_group] = gpu.address

    def __call__(self, device_id: str) -> Target:
        """Where the ID leads."""
        target = self._known.get(device_id)
        if target is None:
            target = self._known[device_id] = self._resolve(device_id)
        return target

    def _resolve(self, device_id: str) -> Target:
        match shape(device_id):
            case Shape.PCI:
                return self._function(as_sysfs_names(device_id))
            case Shape.MDEV:
                return self._mdev(device_id.lower())
            case Shape.GROUP:
                return self._group(device_id)
            case Shape.NVML:
                return Miss.UNPLACED
            case Shape.OTHER:
                return Miss.NO_GPU

    def _function(self, address: str) -> Target:
        if address in self._functions.gpus:
            return address
        # What did not say what it is may be a GPU that is dying: that must show.
        return Miss.NO_GPU if address in self._functions.others else Miss.UNPLACED

    def _mdev(self, uuid: str) -> Target:
        parent = self._functions.mdev_parents.get(uuid)
        if parent is None:
            return Miss.UNPLACED
        # A parent that is no PCI function is a channel or a crypto adapter.
        return self._function(parent) if _PCI.fullmatch(parent) else Miss.NO_GPU

    def _group(self, group: str) -> Target:
        if group in self._groups:
            return self._groups[group] or Miss.UNPLACED
        return Miss.NO_GPU if group in self._functions.vfio_groups else Miss.UNPLACED
