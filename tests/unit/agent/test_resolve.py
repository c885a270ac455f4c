"""Where device IDs lead (R20a-R24)."""

from __future__ import annotations

import pytest

from gpuclaim.agent.resolve import Miss, Resolver, Shape, as_sysfs_names, groups_named, shape
from gpuclaim.agent.values import Function, Functions, address_number, is_gpu_class, is_vfio

UUID = "a0b1c2d3-0001-4a11-8a11-000000000001"


def gpu(address: str, driver: str = "vfio-pci", group: str = "") -> Function:
    return Function(address=address, vendor="10de", device="2335", driver=driver, iommu_group=group)


def resolver(*gpus: Function, **rest: object) -> Resolver:
    return Resolver(Functions(gpus={each.address: each for each in gpus}, **rest))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("device_id", "expected"),
    [
        ("0000:3b:00.0", Shape.PCI),
        ("0000:3B:00.0", Shape.PCI),
        ("00000000:3B:00.0", Shape.PCI),
        ("10000:e1:00.0", Shape.PCI),
        ("3b:00.0", Shape.PCI),
        ("0000:3b:00.8", Shape.OTHER),
        ("0000:3b:00.0\n", Shape.OTHER),
        (UUID, Shape.MDEV),
        (UUID.upper(), Shape.MDEV),
        ("0", Shape.GROUP),
        ("117", Shape.GROUP),
        ("٣", Shape.OTHER),  # an Arabic digit
        ("1" * 17, Shape.OTHER),
        ("GPU-4cf8db2d-06c0-7d70-1a51-e59b25b2c16c", Shape.NVML),
        ("GPU-4cf8db2d-06c0-7d70-1a51-e59b25b2c16c::11", Shape.NVML),
        ("MIG-3a5ee1ab-2c39-5b6c-9d1e-2f6a1de5c1aa", Shape.NVML),
        ("MIG-GPU-4cf8db2d-06c0-7d70-1a51-e59b25b2c16c/7/0", Shape.NVML),
        ("MIG-GPU-4cf8db2d-06c0-7d70-1a51-e59b25b2c16c/7/0::1", Shape.NVML),
        ("0:1", Shape.NVML),
        ("0::1", Shape.NVML),
        ("kvm0", Shape.OTHER),
        ("kvm::0", Shape.OTHER),
        ("tun117", Shape.OTHER),
        ("", Shape.OTHER),
        ("::1", Shape.OTHER),
    ],
)
def test_shape(device_id: str, expected: Shape) -> None:
    assert shape(device_id) is expected


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("0000:3B:00.0", "0000:3b:00.0"),
        ("00000000:3B:00.0", "0000:3b:00.0"),
        ("3b:00.0", "0000:3b:00.0"),
        ("0010000:e1:00.0", "10000:e1:00.0"),
    ],
)
def test_an_address_however_written_leads_to_its_function(written: str, name: str) -> None:
    assert as_sysfs_names(written) == name
    assert resolver(gpu(name))(written) == name


def test_functions_that_are_no_gpu_are_told_from_those_that_are_not_there() -> None:
    resolve = resolver(gpu("0000:3b:00.0"), others={"0000:07:00.0"}, unreadable={"0000:5e:00.0"})
    assert resolve("0000:07:00.0") is Miss.NO_GPU
    assert resolve("0000:99:00.0") is Miss.UNPLACED
    assert resolve("0000:5e:00.0") is Miss.UNPLACED  # it may be a GPU


def test_a_group_is_its_lowest_gpu_by_number() -> None:
    # By its letters "10000:…" would come before "9000:…".
    resolve = resolver(gpu("10000:01:00.0", group="15"), gpu("9000:01:00.0", group="15"))
    assert resolve("15") == "9000:01:00.0"


def test_a_group_counts_through_vfio_only() -> None:
    gpus = (gpu("0000:41:00.0", driver="nvidia", group="15"), gpu("0000:42:00.0", group="15"))
    assert resolver(*gpus)("15") == "0000:42:00.0"
    assert resolver(gpus[0])("15") is Miss.UNPLACED
    # Its audio function on vfio changes nothing: the group has a GPU that is not ready.
    assert resolver(gpus[0], vfio_groups={"15"})("15") is Miss.UNPLACED


def test_a_group_without_gpu_is_nobodys_business() -> None:
    resolve = resolver(vfio_groups={"90"})
    assert resolve("90") is Miss.NO_GPU
    assert resolve("91") is Miss.UNPLACED


def test_mediated_devices() -> None:
    parents = {UUID: "0000:3b:00.0", UUID[:-1] + "2": "0000:07:00.0", UUID[:-1] + "3": "css_0.0.0313"}
    resolve = resolver(gpu("0000:3b:00.0", driver="nvidia"), others={"0000:07:00.0"}, mdev_parents=parents)
    assert resolve(UUID.upper()) == "0000:3b:00.0"
    assert resolve(UUID[:-1] + "2") is Miss.NO_GPU
    assert resolve(UUID[:-1] + "3") is Miss.NO_GPU
    assert resolve(UUID[:-1] + "4") is Miss.UNPLACED


def test_groups_named() -> None:
    assert groups_named(["7", "0000:3b:00.0", "kvm0", UUID, "12"]) == {"7", "12"}


@pytest.mark.parametrize(
    "driver", ["vfio-pci", "nvgrace_gpu_vfio_pci", "mlx5_vfio_pci", "xe-vfio-pci", "virtio_vfio_pci"]
)
def test_variants_are_vfio_drivers(driver: str) -> None:
    assert is_vfio(driver)


@pytest.mark.parametrize("driver", ["", "nvidia", "pcieport", "notvfio-pci", "amdgpu"])
def test_other_drivers(driver: str) -> None:
    assert not is_vfio(driver)


def test_gpu_classes() -> None:
    assert [is_gpu_class(code) for code in (0x030000, 0x030200, 0x038000, 0x120000)] == [True] * 4
    assert [is_gpu_class(code) for code in (0x040300, 0x068000, 0x060400, 0x020000, 0x000300)] == [False] * 5


def test_addresses_order_by_number() -> None:
    ordered = ["0000:00:00.0", "0000:00:00.7", "0000:00:1f.0", "0000:ff:00.0", "ffff:00:00.0", "10000:00:00.0"]
    assert sorted(ordered, key=address_number) == ordered
