"""Reads the node's PCI functions below the root of a sysfs (R20). I/O only.

The layout is the kernel's: Documentation/ABI/testing/sysfs-bus-pci, sysfs-bus-vfio-mdev and sysfs-kernel-iommu_groups.
Anything may be missing, unreadable, junk or endless; what is read is bounded, and what fails is said and skipped (R28).
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import re
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Final, Literal, TypeAlias

from gpuclaim.agent.values import GPU_VENDORS, Function, Functions, address_number, is_gpu_class, is_vfio
from gpuclaim.api import names

BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")

_ENTRIES_MAX: Final = 65_536
"""Folders are read to this many entries: the functions of a hundred full servers."""
_TYPES_MAX: Final = 256
"""So many types of mediated devices of one parent are looked at; real ones have about twenty."""
_FAULTS_MAX: Final = 64
_READ_MAX: Final = 64
# A FIFO or a device node in place of a file must not keep us.
_FLAGS: Final = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY

_ADDRESS: Final = re.compile(names.PCI_ADDRESS)
_UUID: Final = re.compile(names.MDEV_UUID)
_NAME: Final = re.compile(r"[A-Za-z0-9_.+-]{1,64}")
_GROUP: Final = re.compile(r"[0-9]{1,16}")


class SysfsError(Exception):
    """Nothing can be said of the node's functions; the message is a sentence that says what to do."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Identity:
    """What a GPU function is, as long as it is there: the kernel reads it once."""

    vendor: str
    device: str
    numa_node: int | None
    physical_function: str | None


_MDEVS: Final = "bus/mdev/devices"
_NO_INODE: Final = 0
_OTHER: Final = "other"
_Verdict: TypeAlias = _Identity | Literal["other"]


class Scanner:
    """Reads one sysfs again and again.

    It remembers what each function is under the inode of its link in bus/pci/devices, which is a new one after a
    function was removed and found again: a steady pass costs one listing, and a few calls for each GPU.
    """

    def __init__(self, root: Path) -> None:
        """Take `root` for the root of a sysfs, as /sys."""
        self._root = root
        self._verdicts: dict[str, tuple[int, _Verdict]] = {}
        self._parents: dict[str, tuple[int, str]] = {}

    def scan(self, groups: Iterable[str] = (), *, afresh: bool = False) -> Functions:
        """All functions of the node as they are now.

        Args:
            groups: IOMMU groups to look into where no GPU is in them.
            afresh: ask each function anew what it is.

        Raises:
            SysfsError: the functions cannot be listed.
        """
        folder = self._root / "bus/pci/devices"
        faults: list[str] = []
        try:
            bus = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise SysfsError(
                f"cannot list PCI functions in {folder}: {error.strerror}; give the root of a sysfs, such as /sys"
            ) from None
        try:
            listed = self._listed(bus, folder, faults)
            gpus, others, unreadable = self._functions(bus, listed, faults, afresh=afresh)
            parents = self._mdev_parents(bus, gpus, faults)
            held = {gpu.iommu_group for gpu in gpus.values()}
            foreign = (each for each in groups if each not in held and self._is_foreign(bus, each, unreadable))
            return Functions(
                gpus=gpus,
                others=others,
                unreadable=unreadable,
                mdev_parents=parents,
                vfio_groups=frozenset(foreign),
                faults=tuple(faults[:_FAULTS_MAX]),
            )
        finally:
            os.close(bus)

    def _listed(self, bus: int, folder: Path, faults: list[str]) -> dict[str, int]:
        try:
            with os.scandir(bus) as entries:
                listed = {entry.name: entry.inode() for entry in _bounded(entries, folder, faults)}
        except OSError as error:
            raise SysfsError(f"cannot list PCI functions in {folder}: {error.strerror}") from None
        return {name: inode for name, inode in listed.items() if _ADDRESS.fullmatch(name)}

    def _functions(
        self, bus: int, listed: dict[str, int], faults: list[str], *, afresh: bool
    ) -> tuple[dict[str, Function], set[str], set[str]]:
        gpus: dict[str, Function] = {}
        others: set[str] = set()
        unreadable: set[str] = set()
        known, self._verdicts = self._verdicts, {}
        for address, inode in listed.items():
            remembered = known.get(address)
            if remembered is not None and remembered[0] != inode:
                remembered = None
            verdict = remembered[1] if remembered is not None and not afresh else _identify(bus, address)
            if verdict is None and remembered is not None:
                # It said once what it is, and is the same function: only the answer failed.
                verdict = remembered[1]
            if verdict is None:
                unreadable.add(address)
                faults.append(f"{address} does not say what it is: its class, vendor or device cannot be read")
                continue
            self._verdicts[address] = (inode, verdict)
            if isinstance(verdict, str):
                others.add(address)
            else:
                gpus[address] = _gpu(bus, address, verdict)
        return gpus, others, unreadable

    def _mdev_parents(self, bus: int, gpus: Iterable[str], faults: list[str]) -> dict[str, str]:
        """The parent of each mediated device.

        What was known stays where a folder cannot be read (R28): that the devices were gone would be a guess.
        """
        try:
            self._parents = self._on_mdev_bus(faults)
        except FileNotFoundError:
            # No mdev bus: no mediated devices, unless only a part of sysfs is mounted here.
            self._parents = self._of_parents(bus, gpus, faults)
        except OSError as error:
            faults.append(f"cannot list mediated devices in {self._root / _MDEVS}: {error.strerror}")
            known = self._parents | self._of_parents(bus, gpus, faults)
            self._parents = dict(itertools.islice(known.items(), _ENTRIES_MAX))
        return {uuid: parent for uuid, (_, parent) in self._parents.items()}

    def _on_mdev_bus(self, faults: list[str]) -> dict[str, tuple[int, str]]:
        """By UUID the inode of each mediated device's link, and its parent.

        Raises:
            OSError: the bus cannot be listed.
        """
        folder = self._root / _MDEVS
        found: dict[str, tuple[int, str]] = {}
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            with os.scandir(descriptor) as entries:
                for entry in _bounded(entries, folder, faults):
                    uuid, inode = entry.name, entry.inode()
                    if not _UUID.fullmatch(uuid):
                        continue
                    remembered = self._parents.get(uuid)
                    if remembered is None or remembered[0] != inode:
                        parent = _last(_link(descriptor, uuid), 2)
                        if not parent:
                            faults.append(f"the parent of the mediated device {uuid} cannot be read")
                            continue
                        remembered = (inode, parent)
                    found[uuid] = remembered
        finally:
            os.close(descriptor)
        return found

    def _of_parents(self, bus: int, gpus: Iterable[str], faults: list[str]) -> dict[str, tuple[int, str]]:
        """The same from the parents' side, which tells no inode."""
        return dict(itertools.islice(self._children(bus, gpus, faults), _ENTRIES_MAX))

    def _children(self, bus: int, gpus: Iterable[str], faults: list[str]) -> Iterator[tuple[str, tuple[int, str]]]:
        for address in sorted(gpus, key=address_number):
            try:
                for kind in _names(bus, f"{address}/mdev_supported_types", faults)[:_TYPES_MAX]:
                    for uuid in _names(bus, f"{address}/mdev_supported_types/{kind}/devices", faults):
                        if _UUID.fullmatch(uuid):
                            yield uuid, (_NO_INODE, address)
            except OSError as error:
                faults.append(f"cannot list the mediated devices of {address}: {error.strerror}")
                yield from ((uuid, each) for uuid, each in self._parents.items() if each[1] == address)

    def _is_foreign(self, bus: int, group: str, unreadable: Collection[str]) -> bool:
        """Whether the IOMMU group has functions on a vfio driver (R22), and none that may yet turn out to be a GPU."""
        if not _GROUP.fullmatch(group):
            return False
        try:
            with os.scandir(self._root / "kernel/iommu_groups" / group / "devices") as entries:
                members = [entry.name for entry in itertools.islice(entries, _ENTRIES_MAX)]
        except OSError:
            return False
        members = [each for each in members if _ADDRESS.fullmatch(each)]
        return not any(each in unreadable for each in members) and any(
            is_vfio(_last(_link(bus, f"{each}/driver"))) for each in members
        )


def read_boot_id(path: Path = BOOT_ID) -> str:
    """The ID of the node's boot (R15a); empty where it cannot be read.

    Where this runs in a container it is the node's all the same: the kernel has one.
    """
    return _read(path) or ""


def _identify(bus: int, address: str) -> _Verdict | None:
    """What the function is; None where it does not say, or says all ones as one that is gone does."""
    class_code = _number(bus, f"{address}/class", 0xFFFFFF)
    if class_code is None:
        return None
    if not is_gpu_class(class_code):
        return _OTHER
    vendor = _number(bus, f"{address}/vendor", 0xFFFF)
    if vendor is None:
        return None
    vendor_id = f"{vendor:04x}"
    if vendor_id not in GPU_VENDORS:
        return _OTHER
    device = _number(bus, f"{address}/device", 0xFFFF)
    if device is None:
        return None
    numa = _read(f"{address}/numa_node", bus)
    physical = _last(_link(bus, f"{address}/physfn"))
    return _Identity(
        vendor=vendor_id,
        device=f"{device:04x}",
        numa_node=int(numa) if numa is not None and numa.isascii() and numa.isdigit() and len(numa) < 5 else None,
        physical_function=physical if _ADDRESS.fullmatch(physical) else None,
    )


def _gpu(bus: int, address: str, identity: _Identity) -> Function:
    driver = _last(_link(bus, f"{address}/driver"))
    group = _last(_link(bus, f"{address}/iommu_group"))
    return Function(
        address=address,
        vendor=identity.vendor,
        device=identity.device,
        driver=driver if _NAME.fullmatch(driver) else "",
        iommu_group=group if _GROUP.fullmatch(group) else "",
        numa_node=identity.numa_node,
        physical_function=identity.physical_function,
    )


def _names(bus: int, folder: str, faults: list[str]) -> list[str]:
    """The names in a folder; none where there is no such folder.

    Raises:
        OSError: it cannot be listed.
    """
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=bus)
    except (FileNotFoundError, NotADirectoryError):
        return []
    try:
        with os.scandir(descriptor) as entries:
            return [entry.name for entry in _bounded(entries, folder, faults)]
    finally:
        os.close(descriptor)


def _bounded(entries: Iterator[os.DirEntry[str]], folder: Path | str, faults: list[str]) -> Iterator[os.DirEntry[str]]:
    yield from itertools.islice(entries, _ENTRIES_MAX)
    if next(entries, None) is not None:
        faults.append(f"{folder} has more than {_ENTRIES_MAX} entries; the rest is not looked at")


def _read(path: Path | str, folder: int | None = None) -> str | None:
    """The beginning of a file, without the white space around it; None where it cannot be read."""
    try:
        descriptor = os.open(path, _FLAGS, dir_fd=folder)
        try:
            return os.read(descriptor, _READ_MAX).decode("ascii", "replace").strip()
        finally:
            os.close(descriptor)
    except OSError:
        return None


def _number(bus: int, path: str, all_ones: int) -> int | None:
    """A hexadecimal number below `all_ones`; None where the file says nothing of the kind."""
    text = _read(path, bus)
    try:
        number = int(text or "", 16)
    except ValueError:
        return None
    return number if 0 <= number < all_ones else None


def _link(folder: int, path: str) -> str:
    try:
        return os.readlink(path, dir_fd=folder)
    except OSError:
        return ""


def _last(target: str, back: int = 1) -> str:
    """The last part of a link's target, or the one that many from the end."""
    parts = target.rsplit("/", back)
    return parts[-back] if len(parts) >= back else ""
