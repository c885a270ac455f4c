"""A sysfs of simulated PCI functions, laid out as the kernel does: for the simulated nodes of `gpuclaim up`, and tests.

Devices stand under devices/; bus/pci/devices, bus/mdev/devices, kernel/iommu_groups/N/devices, and each function's
driver, iommu_group and physfn are relative links.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Mdev:
    """A mediated device: its UUID and type, as nvidia-710."""

    uuid: str
    type: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedFunction:
    """One PCI function. `class_code`, `vendor` and `device` are what their files say ("0x030200"); None: no such file.

    `files` are further files, by path below the function's folder.
    """

    address: str
    class_code: str | None = "0x030200"
    vendor: str | None = "0x10de"
    device: str | None = "0x2335"
    driver: str | None = None
    group: int | None = None
    numa: int | None = None
    physical_function: str | None = None
    mdevs: tuple[Mdev, ...] = ()
    files: Mapping[str, str] = dataclasses.field(default_factory=dict)


class SysfsTree:
    """The tree below one folder; functions come, go and are bound as on a running node."""

    def __init__(self, root: Path, functions: Iterable[SimulatedFunction] = ()) -> None:
        """Make the folders of the buses below `root`, and the functions."""
        self.root = root
        for folder in ("bus/pci/devices", "bus/pci/drivers", "bus/mdev/devices", "kernel/iommu_groups"):
            (root / folder).mkdir(parents=True, exist_ok=True)
        for function in functions:
            self.add(function)

    def folder(self, address: str) -> Path:
        """The function's folder."""
        return self.root / "devices" / f"pci{address.rpartition(':')[0]}" / address

    def add(self, function: SimulatedFunction) -> None:
        """A function is found; a physical function before its virtual ones."""
        folder = self.folder(function.address)
        folder.mkdir(parents=True)
        texts = {"class": function.class_code, "vendor": function.vendor, "device": function.device}
        texts |= {"numa_node": str(-1 if function.numa is None else function.numa), **function.files}
        for name, text in texts.items():
            if text is not None:
                file = folder / name
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text + "\n")
        if function.group is not None:
            group = self.root / "kernel/iommu_groups" / str(function.group)
            (group / "devices").mkdir(parents=True, exist_ok=True)
            _link(folder / "iommu_group", group)
            _link(group / "devices" / function.address, folder)
        if function.physical_function is not None:
            self._add_virtual(folder, self.folder(function.physical_function))
        for mdev in function.mdevs:
            self._add_mdev(folder, mdev)
        _link(self.root / "bus/pci/devices" / function.address, folder)
        self.bind(function.address, function.driver)

    def bind(self, address: str, driver: str | None) -> None:
        """The function is bound to a driver, or to none."""
        folder = self.folder(address)
        link = folder / "driver"
        if link.is_symlink():
            (link.resolve() / address).unlink(missing_ok=True)
            link.unlink()
        if driver:
            home = self.root / "bus/pci/drivers" / driver
            home.mkdir(parents=True, exist_ok=True)
            _link(link, home)
            _link(home / address, folder)

    def remove(self, address: str) -> None:
        """The function falls off the bus."""
        folder = self.folder(address)
        self.bind(address, None)
        (self.root / "bus/pci/devices" / address).unlink()
        if (folder / "iommu_group").is_symlink():
            ((folder / "iommu_group").resolve() / "devices" / address).unlink()
        for link in (self.root / "bus/mdev/devices").iterdir():
            if link.resolve().parent == folder.resolve():
                link.unlink()
        shutil.rmtree(folder)

    def _add_virtual(self, folder: Path, physical: Path) -> None:
        _link(folder / "physfn", physical)
        number = sum(1 for _ in physical.glob("virtfn*"))
        _link(physical / f"virtfn{number}", folder)

    def _add_mdev(self, parent: Path, mdev: Mdev) -> None:
        folder = parent / mdev.uuid
        folder.mkdir()
        kind = parent / "mdev_supported_types" / mdev.type
        (kind / "devices").mkdir(parents=True, exist_ok=True)
        _link(folder / "mdev_type", kind)
        _link(kind / "devices" / mdev.uuid, folder)
        _link(self.root / "bus/mdev/devices" / mdev.uuid, folder)


def _link(link: Path, target: Path) -> None:
    link.symlink_to(os.path.relpath(target, link.parent))
