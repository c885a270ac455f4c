"""Anything at all in the place of what is read: nothing crashes, blocks, or costs more than its size (R21, R28)."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import datetime as dt
import functools
import os
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from grpclib.const import Cardinality, Handler
from grpclib.server import Server, Stream
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gpuclaim.agent import pciids, resolve, sysfs
from gpuclaim.agent.podresources import PodResources, PodResourcesError
from gpuclaim.agent.proto import podresources_pb2 as pb
from gpuclaim.agent.report import body, needs_phases, report
from gpuclaim.agent.resolve import Miss, Resolver, Shape, as_sysfs_names, shape
from gpuclaim.agent.sysfs import Scanner, SysfsError, read_boot_id
from gpuclaim.agent.values import Answers, Function, Functions, PodDevices
from gpuclaim.api import names
from gpuclaim.api.types import GPUNodeStatus
from gpuclaim.local.podresources_server import PodResourcesServer
from gpuclaim.local.sysfs_tree import Mdev, SimulatedFunction, SysfsTree
from support.agents import Bytes

A, B = "0000:3b:00.0", "0000:5e:00.0"
UUID = "a0b1c2d3-0001-4a11-8a11-000000000001"
R = "nvidia.com/GH100_H200"
NODE = Functions(
    gpus={A: Function(address=A, vendor="10de", device="2335", driver="vfio-pci", iommu_group="12")},
    others={B},
    mdev_parents={UUID: A},
)

# --- device IDs -------------------------------------------------------------------------------------------------------

anything = st.text(alphabet=st.characters(exclude_categories=["Cs"]))
near = st.one_of(
    st.from_regex(r"\A([0-9a-fA-F]{1,9}:)?[0-9a-fA-F]{1,3}:[0-9a-fA-F]{1,3}\.[0-9a-f]\n?\Z"),
    st.from_regex(r"\A[0-9a-fA-F]{7,9}(-[0-9a-fA-F]{4}){2,4}-[0-9a-fA-F]{11,13}\Z"),
    st.from_regex(r"\A\d{1,40}\Z"),
    st.from_regex(r"\A(GPU|MIG|gpu)-?[0-9a-zA-Z/-]{0,50}(::\d{0,3}){0,5}\Z"),
    st.from_regex(r"\A[0-9a-f]{0,4}(:{0,3}[0-9]{0,4}){0,6}\Z"),
    st.sampled_from([A, A.upper(), UUID, UUID.upper(), "12", "٣", "012", f"{A}::1", "12::0", "0:1", f"{A}\n", f" {A}"]),
)


@settings(max_examples=500)
@given(st.one_of(anything, near))
@example("x" + "::1" * 100_000)
@example("12" + "::1" * 100_000)
@example("::1" * 100_000 + "x")
@example("0" * 1_000_000)
@example("0" * 1_000_000 + ":00:00.0")
def test_any_string_leads_to_a_gpu_or_says_why_not(device_id: str) -> None:
    found, target = shape(device_id), Resolver(NODE)(device_id)
    if isinstance(target, str):
        assert target in NODE.gpus
        assert found in (Shape.PCI, Shape.MDEV, Shape.GROUP)
    else:
        assert target is Miss.NO_GPU if found is Shape.OTHER else target in Miss
    if found is Shape.PCI:
        address = as_sysfs_names(device_id)
        assert re.fullmatch(names.PCI_ADDRESS, address)
        assert as_sysfs_names(address) == address
        assert shape(address) is Shape.PCI
    if found is not Shape.OTHER:
        assert device_id.isascii()
        assert device_id == device_id.strip()
    assert resolve.groups_named([device_id]) <= {device_id}


# --- kubelet's answers ------------------------------------------------------------------------------------------------

ids = st.lists(st.one_of(anything, near), max_size=6)
resources = st.one_of(anything, st.text(min_size=names.RESOURCE_NAME_MAX - 1, max_size=names.RESOURCE_NAME_MAX + 1))
holdings = st.dictionaries(st.one_of(st.just(R), resources), ids, max_size=4)
pods = st.lists(st.builds(PodDevices, anything, anything, holdings), max_size=4)


def assert_can_be_stored(status: GPUNodeStatus) -> None:
    """The apiserver would take it: it is JSON, and within the schema's bounds."""
    written = msgspec.json.encode(body(status))
    read = msgspec.json.decode(written, type=GPUNodeStatus)
    assert msgspec.structs.replace(read, reported_at=status.reported_at) == status


def reported(found: Functions, answers: Answers, boot_id: str = "b") -> GPUNodeStatus:
    made = functools.partial(report, found, answers, {}, boot_id=boot_id, name_model=pciids.namer({}))
    return made(made(None, now=NOW), now=NOW)


NOW = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


@settings(max_examples=60)
@given(holdings, pods, st.one_of(anything, st.text(min_size=63, max_size=70)))
def test_a_report_of_any_answers_can_be_stored(
    allocatable: dict[str, list[str]], held: list[PodDevices], boot: str
) -> None:
    # Names of pods are kubelet's own, checked by the apiserver; those of resources and devices are the plugin's.
    held = [dataclasses.replace(pod, namespace=f"n{number}", name=f"p{number}") for number, pod in enumerate(held)]
    answers = Answers(allocatable, tuple(held))
    needs_phases(NODE, answers)
    assert_can_be_stored(reported(NODE, answers, boot))


@settings(max_examples=50)
@given(holdings, pods)
def test_any_strings_come_over_the_socket_as_they_are(
    allocatable: dict[str, list[str]], held: list[PodDevices]
) -> None:
    async def read() -> Answers:
        with tempfile.TemporaryDirectory(prefix="gpuclaim-") as folder:
            socket = Path(folder, "kubelet.sock")
            async with PodResourcesServer(socket, allocatable, held):
                with PodResources(socket) as kubelet:
                    return await kubelet.read()

    def plain(devices: Any) -> dict[str, set[str]]:
        return {name: set(each) for name, each in devices.items() if each}

    answers = asyncio.run(read())
    assert plain(answers.allocatable) == plain(allocatable)
    assert [(pod.namespace, pod.name, plain(pod.devices)) for pod in answers.pods] == [
        (pod.namespace, pod.name, plain(pod.devices)) for pod in held
    ]


class _Answering:
    """A server whose messages are any bytes."""

    def __init__(self, message: bytes) -> None:
        self._message = message

    async def _answer(self, stream: Stream[bytes, bytes]) -> None:
        await stream.recv_message()
        await stream.send_message(self._message)

    def __mapping__(self) -> dict[str, Handler]:
        handler = Handler(self._answer, Cardinality.UNARY_UNARY, bytes, bytes)
        return {f"/v1.PodResourcesLister/{method}": handler for method in ("GetAllocatableResources", "List")}


@st.composite
def mangled(draw: st.DrawFn) -> bytes:
    whole: bytes = pb.ListPodResourcesResponse(
        pod_resources=[
            pb.PodResources(
                name="p",
                namespace="t",
                containers=[
                    pb.ContainerResources(
                        name="c", devices=[pb.ContainerDevices(resource_name=R, device_ids=[A, "12", UUID])]
                    )
                ],
            )
        ]
    ).SerializeToString()
    at, length = draw(st.integers(0, len(whole))), draw(st.integers(0, 4))
    return whole[:at] + draw(st.binary(max_size=8)) + whole[at + length :]


@settings(max_examples=60)
@given(st.one_of(st.binary(max_size=200), mangled()))
@example(b"\x0a\x02\x0a\x00\xff")
@example(b"\x0a\x04\x0a\x02\xff\xfe")
def test_any_bytes_are_an_answer_or_a_failure(message: bytes) -> None:
    async def read() -> Answers | None:
        with tempfile.TemporaryDirectory(prefix="gpuclaim-") as folder:
            socket = Path(folder, "kubelet.sock")
            server = Server([_Answering(message)], codec=Bytes())
            await server.start(path=str(socket))
            try:
                with PodResources(socket, timeout=30) as kubelet:
                    return await kubelet.read()
            except PodResourcesError:
                return None
            finally:
                server.close()

    answers = asyncio.run(read())
    if answers is not None:
        needs_phases(NODE, answers)
        reported(NODE, answers)


# --- sysfs ------------------------------------------------------------------------------------------------------------


class Calls:
    """Counts what the reader asks of the kernel, and fails what could keep it or have no end."""

    def __init__(self) -> None:
        self.count: Counter[str] = Counter()
        self.bytes = 0
        self.failing: Callable[[str, str], bool] = lambda _call, _name: False
        self._open, self._read, self._link, self._list = os.open, os.read, os.readlink, os.scandir

    @contextlib.contextmanager
    def counted(self) -> Iterator[None]:
        self.count.clear()
        self.bytes = 0
        with pytest.MonkeyPatch.context() as patch:
            for name in ("open", "read", "readlink", "scandir"):
                patch.setattr(os, name, getattr(self, name))
            yield

    def open(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        self._note("open", path)
        # A pipe with nobody at its other end would keep for ever whoever opens it otherwise.
        assert flags & (os.O_NONBLOCK | os.O_DIRECTORY), path
        assert not flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT), path
        return self._open(path, flags, mode, dir_fd=dir_fd)

    def read(self, descriptor: int, length: int) -> bytes:
        self._note("read", "")
        self.bytes += length
        return self._read(descriptor, length)

    def readlink(self, path: Any, *, dir_fd: int | None = None) -> str:
        self._note("readlink", path)
        return str(self._link(path, dir_fd=dir_fd))

    def scandir(self, path: Any) -> Any:
        self._note("scandir", path)
        return self._list(path)

    def _note(self, call: str, name: object) -> None:
        self.count[call] += 1
        if self.failing(call, str(name)):
            raise OSError(5, "Input/output error")


def junk(path: Path, kind: str, data: bytes) -> None:
    """Something else in the place of a file or link."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    KINDS[kind](path, data)


def _sparse(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    os.truncate(path, 64 * 2**20)


def _closed(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    path.chmod(0)


def _name(data: bytes) -> str:
    return os.fsdecode(bytes(set(data) - {0, 0x2F})[:50].strip(b".") or b"x")


KINDS: dict[str, Callable[[Path, bytes], object]] = {
    "nothing": lambda _path, _data: None,
    "bytes": lambda path, data: path.write_bytes(data),
    "megabytes": _sparse,
    "folder": lambda path, _: path.mkdir(),
    "full folder": lambda path, data: (path / _name(data)).mkdir(parents=True),
    "pipe": lambda path, _: os.mkfifo(path),
    "loop": lambda path, _: path.symlink_to(path.name),
    "loop through itself": lambda path, _: path.symlink_to(f"../{path.parent.name}/{path.name}/x"),
    "dangling": lambda path, data: path.symlink_to(f"nowhere/{_name(data)}"),
    "endless": lambda path, _: path.symlink_to("/dev/zero"),
    "closed": _closed,
}
_OF_A = ("class", "vendor", "device", "numa_node", "driver", "iommu_group", "physfn", "mdev_supported_types")
PLACES = (
    *(f"bus/pci/devices/{A}/{name}" for name in _OF_A),
    f"bus/pci/devices/{A}/mdev_supported_types/t-1",
    f"bus/pci/devices/{A}/mdev_supported_types/t-1/devices",
    *(f"bus/pci/devices/{B}/{name}" for name in ("class", "vendor", "physfn")),
    f"bus/pci/devices/{B}",
    "bus/pci/devices/0000:ff:00.0",
    "bus/pci/devices",
    "bus/mdev/devices",
    f"bus/mdev/devices/{UUID}",
    "kernel/iommu_groups",
    "kernel/iommu_groups/13/devices",
)
numbers = st.sampled_from(
    [b"0x030200", b"0xffffff", b"0xffff", b"-1", b"1_0", b"0x_1", b"99999", b"\xd9\xa3", b" 0x10de\n\n"]
)
contents = st.one_of(st.binary(max_size=100), numbers)
ruins = st.lists(st.tuples(st.sampled_from(PLACES), st.sampled_from(sorted(KINDS)), contents), max_size=6)


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="gpuclaim-") as name:
        yield Path(name)


def standing(root: Path) -> SysfsTree:
    return SysfsTree(
        root,
        [
            SimulatedFunction(address=A, driver="nvidia", group=12, mdevs=(Mdev(uuid=UUID, type="t-1"),)),
            SimulatedFunction(address=B, driver="vfio-pci", group=13, physical_function=A),
        ],
    )


def is_within(root: Path, folder: Path) -> bool:
    try:
        return folder.is_dir() and folder.resolve().is_relative_to(root.resolve())
    except (OSError, RuntimeError):
        return False  # links that loop


@settings(max_examples=200)
@given(before=ruins, after=ruins, failing=st.one_of(st.none(), st.integers(1, 40)))
def test_any_tree_is_read_in_a_bounded_way(before: Any, after: Any, failing: int | None) -> None:
    with tempfile.TemporaryDirectory(prefix="gpuclaim-") as name:
        root = Path(name)
        standing(root)
        scanner, calls = Scanner(root), Calls()
        # Any one call in so many fails, as under a function that is just being removed.
        if failing is not None:
            calls.failing = lambda _call, _name: calls.count.total() % failing == 0
        for changes in (before, after):
            for place, kind, data in changes:
                if is_within(root, (root / place).parent):
                    junk(root / place, kind, data)
            for afresh in (False, True):
                try:
                    with calls.counted():
                        found = scanner.scan(["12", "13", "14"], afresh=afresh)
                except SysfsError:
                    continue
                assert calls.count.total() < 100
                assert calls.bytes <= 64 * calls.count["read"]
                sets = [set(found.gpus), set(found.others), set(found.unreadable)]
                assert sum(map(len, sets)) == len(set.union(*sets))
                offered = Answers({R: [A, B, UUID, "12", "13"]})
                assert_can_be_stored(reported(found, offered))


def test_a_pipe_that_somebody_writes_to(folder: Path) -> None:
    tree = standing(folder)
    for name in ("class", "numa_node"):
        junk(tree.folder(A) / name, "pipe", b"")
    # With a writer that says nothing a read would wait, where without one it ends.
    writers = [os.open(tree.folder(A) / name, os.O_RDWR) for name in ("class", "numa_node")]
    junk(folder / "boot_id", "pipe", b"")
    writers.append(os.open(folder / "boot_id", os.O_RDWR))
    try:
        with Calls().counted():
            assert Scanner(folder).scan().unreadable == {A}
            assert read_boot_id(folder / "boot_id") == ""
    finally:
        for each in writers:
            os.close(each)


def test_tens_of_thousands_of_functions_cost_one_read_each_and_once(folder: Path) -> None:
    count = 20_000
    network = folder / "devices/network"
    network.mkdir(parents=True)
    (network / "class").write_text("0x020000\n")
    SysfsTree(folder)
    for number in range(count):
        (folder / f"bus/pci/devices/{number:04x}:00:00.0").symlink_to("../../../devices/network")
    scanner, calls = Scanner(folder), Calls()
    with calls.counted():
        assert len(scanner.scan().others) == count
    assert calls.count["open"] <= count + 2
    assert calls.count["read"] == count
    assert calls.bytes <= 64 * count
    with calls.counted():
        assert len(scanner.scan().others) == count
    assert calls.count.total() <= 4


def test_endless_mediated_devices_end(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sysfs, "_TYPES_MAX", 5)
    monkeypatch.setattr(sysfs, "_ENTRIES_MAX", 30)
    tree = standing(folder)
    (folder / "bus/mdev/devices" / UUID).unlink()
    (folder / "bus/mdev/devices").rmdir()
    for kind in range(20):
        for number in range(20):
            (tree.folder(A) / f"mdev_supported_types/t-{kind}/devices/{UUID[:-4]}{kind:02}{number:02}").mkdir(
                parents=True
            )
    found = Scanner(folder).scan()
    assert len(found.mdev_parents) == 30
    assert set(found.mdev_parents.values()) == {A}
    # Types without a device end too: the bus, the parents' lists of types, and so many of the types.
    shutil.rmtree(tree.folder(A) / "mdev_supported_types")
    for kind in range(20):
        (tree.folder(A) / f"mdev_supported_types/t-{kind}/devices").mkdir(parents=True)
    calls = Calls()
    with calls.counted():
        assert Scanner(folder).scan().mdev_parents == {}
    assert calls.count["scandir"] == 1 + 1 + 5


@given(st.one_of(anything, st.from_regex(r"\A(10de|1002|C 03)  .{0,9}\n(\t\t?[0-9a-f]{0,5} {0,3}.{0,9}\n){0,4}\Z")))
def test_any_database_of_names(text: str) -> None:
    model = pciids.namer(pciids.parse(text))
    assert len(model(Function(address=A, vendor="10de", device="2335"))) <= 256
