"""Reading sysfs: as the kernel lays it out, and as nobody would (R20, R20a, R28)."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from gpuclaim.agent import sysfs
from gpuclaim.agent.sysfs import Scanner, SysfsError, read_boot_id
from gpuclaim.agent.values import Function
from gpuclaim.local.sysfs_tree import Mdev, SimulatedFunction, SysfsTree

A, B, NIC = "0000:3b:00.0", "0000:5e:00.0", "0000:5a:02.0"
UUID = "a0b1c2d3-0001-4a11-8a11-000000000001"


def gpu(address: str = A, driver: str | None = "vfio-pci", **rest: object) -> SimulatedFunction:
    return SimulatedFunction(address=address, driver=driver, **rest)  # type: ignore[arg-type]


def nic(driver: str, group: int = 90) -> SimulatedFunction:
    return SimulatedFunction(
        address=NIC, class_code="0x020000", vendor="0x8086", device="0x1889", driver=driver, group=group
    )


def test_a_function_as_it_stands(tmp_path: Path) -> None:
    SysfsTree(tmp_path, [gpu(group=7, numa=1), nic("iavf")])
    found = Scanner(tmp_path).scan()
    assert found.gpus == {
        A: Function(address=A, vendor="10de", device="2335", driver="vfio-pci", iommu_group="7", numa_node=1)
    }
    assert found.others == {NIC}
    assert not found.unreadable
    assert not found.faults


def test_what_is_not_there_is_empty(tmp_path: Path) -> None:
    SysfsTree(tmp_path, [gpu(driver=None)])
    assert Scanner(tmp_path).scan().gpus[A] == Function(address=A, vendor="10de", device="2335")


def test_virtual_functions_name_their_physical_one(tmp_path: Path) -> None:
    SysfsTree(tmp_path, [gpu(), gpu("0000:3b:00.4", physical_function=A)])
    assert Scanner(tmp_path).scan().gpus["0000:3b:00.4"].physical_function == A


def test_mediated_devices_by_their_bus_or_their_parents(tmp_path: Path) -> None:
    tree = SysfsTree(tmp_path, [gpu(driver="nvidia", mdevs=(Mdev(uuid=UUID, type="nvidia-710"),))])
    scanner = Scanner(tmp_path)
    assert scanner.scan().mdev_parents == {UUID: A}
    assert scanner.scan().mdev_parents == {UUID: A}
    (tree.root / "bus/mdev/devices" / UUID).unlink()
    assert scanner.scan().mdev_parents == {}
    (tree.root / "bus/mdev/devices").rmdir()
    assert scanner.scan().mdev_parents == {UUID: A}


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES, errno.EMFILE])
@pytest.mark.parametrize("call", ["open", "scandir"])
def test_mediated_devices_stay_known_while_their_bus_cannot_be_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int
) -> None:
    other = "a0b1c2d3-0001-4a11-8a11-000000000002"
    tree = SysfsTree(tmp_path, [gpu(driver="nvidia", mdevs=(Mdev(uuid=UUID, type="nvidia-710"),))])
    scanner = Scanner(tmp_path)
    scanner.scan()
    shutil.rmtree(tree.folder(A) / "mdev_supported_types")  # what the parents would say as well
    tree.add(gpu(B, "nvidia", mdevs=(Mdev(uuid=other, type="nvidia-710"),)))
    with monkeypatch.context() as failing:
        fail(failing, call, tmp_path / "bus/mdev/devices", number)
        for _ in range(3):
            found = scanner.scan()
            # And what can be learned of new ones is.
            assert found.mdev_parents == {UUID: A, other: B}
            assert [each for each in found.faults if "cannot list mediated devices" in each]
        assert set(Scanner(tmp_path).scan().mdev_parents) == {other}
    tree.remove(A)
    found = scanner.scan()
    assert found.mdev_parents == {other: B}
    assert not found.faults


@pytest.mark.parametrize("call", ["open", "scandir"])
def test_mediated_devices_stay_known_while_their_parent_cannot_be_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    tree = SysfsTree(tmp_path, [gpu(driver="nvidia", mdevs=(Mdev(uuid=UUID, type="nvidia-710"),))])
    shutil.rmtree(tmp_path / "bus/mdev")
    scanner = Scanner(tmp_path)
    assert scanner.scan().mdev_parents == {UUID: A}
    with monkeypatch.context() as failing:
        fail(failing, call, tree.folder(A) / "mdev_supported_types", errno.EIO)
        found = scanner.scan()
        assert found.mdev_parents == {UUID: A}
        assert found.faults == (f"cannot list the mediated devices of {A}: Input/output error",)
        # The failure is this parent's only; one that was never known stays unknown.
        assert Scanner(tmp_path).scan().mdev_parents == {}
    shutil.rmtree(tree.folder(A) / "mdev_supported_types")
    found = scanner.scan()
    assert (found.mdev_parents, found.faults) == ({}, ())


def fail(patch: pytest.MonkeyPatch, call: str, folder: Path, number: int) -> None:
    """Let one folder fail to be opened, or to be listed."""
    target, real = folder.stat().st_ino, getattr(os, call)

    def failing(path: Any, *args: Any, dir_fd: int | None = None, **more: Any) -> Any:
        inside: Any = {} if dir_fd is None else {"dir_fd": dir_fd}
        try:
            found = os.stat(path, **inside).st_ino  # noqa: PTH116
        except OSError:
            found = None
        if found == target:
            raise OSError(number, os.strerror(number))
        return real(path, *args, **inside, **more)

    patch.setattr(os, call, failing)


def test_groups_of_other_things(tmp_path: Path) -> None:
    audio = SimulatedFunction(address="0000:3b:00.1", class_code="0x040300", driver="vfio-pci", group=7)
    silent = SimulatedFunction(address="0000:86:00.0", class_code="", driver="vfio-pci", group=8)
    SysfsTree(tmp_path, [gpu(driver=None, group=7), audio, nic("vfio-pci"), silent])
    groups = ["7", "8", "90", "91", "../..", "", "x"]
    assert Scanner(tmp_path).scan(groups).vfio_groups == {"90"}
    SysfsTree(tmp_path).bind(NIC, "iavf")
    assert Scanner(tmp_path).scan(groups).vfio_groups == set()


def test_vendors_that_make_no_gpus(tmp_path: Path) -> None:
    vendors = {"0000:01:00.0": "0x1a03", "0000:02:00.0": "0x102b", "0000:03:00.0": "0x1234", "0000:04:00.0": "0x10ee"}
    SysfsTree(tmp_path, [gpu(address, None, vendor=vendor) for address, vendor in vendors.items()])
    assert Scanner(tmp_path).scan().others == set(vendors)


@pytest.mark.parametrize(
    "broken",
    [
        {"class_code": None},
        {"class_code": ""},
        {"class_code": "0xffffff"},
        {"class_code": "junk"},
        {"class_code": "-0x030200"},
        {"class_code": "0" * 5000},
        {"vendor": None},
        {"vendor": "0xffff"},
        {"device": None},
        {"device": "0xffff"},
        {"vendor": "0x10dez"},
    ],
    ids=str,
)
def test_a_function_that_does_not_say_what_it_is(tmp_path: Path, broken: dict[str, str | None]) -> None:
    SysfsTree(tmp_path, [gpu(A), gpu(B, **broken)])
    found = Scanner(tmp_path).scan()
    assert set(found.gpus) == {A}
    if broken.get("class_code") == "0" * 5000:
        assert found.others == {B}  # what was read of it is a number: class 0
    else:
        assert found.unreadable == {B}
        assert B in found.faults[0]


def test_what_a_function_is_survives_a_failing_read(tmp_path: Path) -> None:
    tree = SysfsTree(tmp_path, [gpu()])
    scanner = Scanner(tmp_path)
    scanner.scan()
    (tree.folder(A) / "class").unlink()
    assert set(scanner.scan().gpus) == {A}
    assert set(scanner.scan(afresh=True).gpus) == {A}
    assert Scanner(tmp_path).scan().unreadable == {A}


def test_functions_come_and_go(tmp_path: Path) -> None:
    tree = SysfsTree(tmp_path, [gpu(), gpu(B, group=3), nic("iavf")])
    scanner = Scanner(tmp_path)
    scanner.scan()
    tree.remove(B)
    tree.remove(NIC)
    tree.bind(A, "nvidia")
    found = scanner.scan()
    assert set(found.gpus) == {A}
    assert found.gpus[A].driver == "nvidia"
    assert found.others == set()
    tree.add(gpu(B))
    assert set(scanner.scan().gpus) == {A, B}


def test_files_in_the_place_of_links_and_links_that_loop(tmp_path: Path) -> None:
    tree = SysfsTree(tmp_path, [gpu(driver=None), gpu(B)])
    folder = tree.folder(A)
    (folder / "driver").write_text("vfio-pci")
    (folder / "iommu_group").symlink_to("iommu_group")
    (folder / "physfn").symlink_to("/")
    (folder / "numa_node").unlink()
    (folder / "numa_node").symlink_to("numa_node")
    (tree.folder(B) / "class").unlink()
    (tree.folder(B) / "class").symlink_to("class")
    (tmp_path / "bus/pci/devices/0000:99:00.0").symlink_to("0000:99:00.0")
    (tmp_path / "bus/pci/devices/0000:9a:00.0").write_text("")
    (tmp_path / "bus/mdev/devices" / UUID).symlink_to(UUID)
    found = Scanner(tmp_path).scan()
    assert found.gpus == {A: Function(address=A, vendor="10de", device="2335", iommu_group="")}
    assert found.unreadable == {B, "0000:99:00.0", "0000:9a:00.0"}
    assert found.mdev_parents == {}
    assert len(found.faults) == 4


def test_pipes_and_folders_in_the_place_of_files_keep_nobody(tmp_path: Path) -> None:
    tree = SysfsTree(tmp_path, [gpu(), gpu(B)])
    for address, name in ((A, "class"), (B, "numa_node")):
        (tree.folder(address) / name).unlink()
    os.mkfifo(tree.folder(A) / "class")
    (tree.folder(B) / "numa_node").mkdir()
    found = Scanner(tmp_path).scan()
    assert set(found.gpus) == {B}
    assert found.unreadable == {A}


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_files_that_may_not_be_read(tmp_path: Path) -> None:
    tree = SysfsTree(tmp_path, [gpu(), gpu(B)])
    (tree.folder(A) / "class").chmod(0)
    assert Scanner(tmp_path).scan().unreadable == {A}


def test_a_read_that_fails_halfway(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # As a file of a function that is just being removed does.
    tree = SysfsTree(tmp_path, [gpu(), gpu(B)])
    target = (tree.folder(A) / "class").stat().st_ino
    read = os.read

    def failing(descriptor: int, length: int) -> bytes:
        if os.fstat(descriptor).st_ino == target:
            raise OSError(19, "No such device")
        return read(descriptor, length)

    monkeypatch.setattr(os, "read", failing)
    found = Scanner(tmp_path).scan()
    assert set(found.gpus) == {B}
    assert found.unreadable == {A}


def test_junk_names_are_passed_over(tmp_path: Path) -> None:
    tree = SysfsTree(tmp_path, [gpu()])
    for name in ("x", "0000:3b:00", "0000:3B:00.1", "a b", "0000:3b:00.9", os.fsdecode(b"\xff\xfe")):
        (tree.root / "bus/pci/devices" / name).symlink_to("nowhere")
        (tree.root / "bus/mdev/devices" / name).symlink_to("nowhere")
    found = Scanner(tmp_path).scan()
    assert set(found.gpus) == {A}
    assert not found.others
    assert not found.unreadable


def test_endless_folders_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sysfs, "_ENTRIES_MAX", 10)
    tree = SysfsTree(tmp_path)
    for number in range(50):
        (tree.root / f"bus/pci/devices/0000:00:{number:02x}.0").symlink_to("nowhere")
        (tree.root / f"bus/mdev/devices/{UUID[:-2]}{number:02}").symlink_to("nowhere")
    found = Scanner(tmp_path).scan()
    assert len(found.unreadable) == 10
    assert any("more than 10 entries" in fault for fault in found.faults)


def test_many_functions_are_scanned_in_a_moment(tmp_path: Path) -> None:
    tree = SysfsTree(tmp_path)
    for number in range(5000):
        (tree.root / f"bus/pci/devices/{number:04x}:00:00.0").symlink_to("nowhere")
    found = Scanner(tmp_path).scan()
    assert len(found.unreadable) == 5000
    assert len(found.faults) == 64


def test_no_descriptor_is_left_open(tmp_path: Path) -> None:
    SysfsTree(tmp_path, [gpu(), nic("vfio-pci")])
    scanner = Scanner(tmp_path)
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    for _ in range(20):
        scanner.scan(["90"], afresh=True)
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


def test_a_folder_that_is_no_sysfs(tmp_path: Path) -> None:
    with pytest.raises(SysfsError, match="give the root of a sysfs"):
        Scanner(tmp_path).scan()
    (tmp_path / "bus/pci").mkdir(parents=True)
    (tmp_path / "bus/pci/devices").symlink_to("devices")
    with pytest.raises(SysfsError, match="symbolic links"):
        Scanner(tmp_path).scan()


def test_boot_id(tmp_path: Path) -> None:
    (tmp_path / "boot_id").write_text("4bd2f9fd-7e4f-4d56-8f3c-3b8a6ec2b4ad\n")
    assert read_boot_id(tmp_path / "boot_id") == "4bd2f9fd-7e4f-4d56-8f3c-3b8a6ec2b4ad"
    assert read_boot_id(tmp_path / "none") == ""
