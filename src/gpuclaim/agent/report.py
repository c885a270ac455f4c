"""From what was read to the GPUNode's status (R14, R15, R25, R26). Pure; no order of the input matters."""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, TypeAlias

import msgspec

from gpuclaim.agent.resolve import Miss, Resolver, Shape, canonical, shape
from gpuclaim.agent.values import Answers, Function, Functions, PodDevices, address_number
from gpuclaim.api import model, names
from gpuclaim.api.types import Device, DeviceUser, GPUNodeStatus, Health, ResourceCount

Phases: TypeAlias = Mapping[tuple[str, str], str]
"""The phase of each pod of the node, by namespace and name."""

# The bounds of the schema: a report beyond one of them would be refused whole.
_DEVICES_MAX: Final = 1024
_RESOURCES_MAX: Final = 32
_USERS_MAX: Final = 256
_NAMES_MAX: Final = 256


_WHOLE: Final = ""
"""The function itself, among the things that device IDs stand for."""


@dataclasses.dataclass(slots=True)
class _Count:
    """The distinct things that device IDs of one resource stand for, of those that led to one place.

    Of a function these are itself, by whatever ID, and its mediated devices by their UUIDs; of what leads nowhere each
    ID in its one spelling.
    """

    allocatable: set[str] = dataclasses.field(default_factory=set)
    used: set[str] = dataclasses.field(default_factory=set)


def _number(things: set[str]) -> int:
    """How many GPUs or parts of one the things are: a function whose parts are listed is not one more beside them."""
    return len(things - {_WHOLE}) or len(things)


_Counts: TypeAlias = defaultdict[str, _Count]


def _counts() -> _Counts:
    return defaultdict(_Count)


@dataclasses.dataclass(slots=True)
class _Tally:
    """All device IDs, counted where they lead."""

    placed: defaultdict[str, _Counts] = dataclasses.field(default_factory=lambda: defaultdict(_counts))
    users: defaultdict[str, set[tuple[str, str]]] = dataclasses.field(default_factory=lambda: defaultdict(set))
    unplaced: _Counts = dataclasses.field(default_factory=_counts)
    nvml: set[str] = dataclasses.field(default_factory=set)
    foreign: set[str] = dataclasses.field(default_factory=set)
    """Resources some device of which is no GPU."""

    def find(self, resolver: Resolver, resource: str, device_id: str) -> tuple[_Count, str, str] | None:
        """Where to count the ID, as what, and the function that it leads to ("" for none); None: it is no GPU's."""
        target = resolver(device_id)
        if target is Miss.NO_GPU:
            self.foreign.add(resource)
            return None
        if target is Miss.UNPLACED:
            if shape(device_id) is Shape.NVML:
                self.nvml.add(resource)
            return self.unplaced[resource], canonical(device_id), ""
        assert isinstance(target, str)
        thing = canonical(device_id) if shape(device_id) is Shape.MDEV else _WHOLE
        return self.placed[target][resource], thing, target


def _tally(resolver: Resolver, answers: Answers, live: Iterable[PodDevices]) -> _Tally:
    tally = _Tally()
    for resource, device_id in _pairs(answers.allocatable.items()):
        if found := tally.find(resolver, resource, device_id):
            count, thing, _ = found
            count.allocatable.add(thing)
    for pod in live:
        for resource, device_id in _pairs(pod.devices.items()):
            if found := tally.find(resolver, resource, device_id):
                count, thing, address = found
                count.used.add(thing)
                if address:
                    tally.users[address].add((pod.namespace, pod.name))
    return tally


def _pairs(devices: Iterable[tuple[str, Iterable[str]]]) -> Iterator[tuple[str, str]]:
    for resource, ids in devices:
        if len(resource) <= names.RESOURCE_NAME_MAX:
            for device_id in ids:
                yield resource, device_id


def needs_phases(functions: Functions, answers: Answers) -> bool:
    """Whether some pod has a device that is, or may be, a GPU: only then the pods' phases matter."""
    resolver = Resolver(functions)
    return any(
        resolver(each) is not Miss.NO_GPU for pod in answers.pods for ids in pod.devices.values() for each in ids
    )


def report(
    functions: Functions,
    answers: Answers,
    phases: Phases,
    previous: GPUNodeStatus | None,
    *,
    boot_id: str,
    name_model: Callable[[Function], str],
    now: dt.datetime,
) -> GPUNodeStatus:
    """The status that says what was read.

    A pod that `phases` does not know counts as live: kubelet says that it has devices, and may have them for as long
    as it clears up (R26). `previous` is the report before this; one of another boot says nothing (R15a).
    """
    live = (pod for pod in answers.pods if phases.get((pod.namespace, pod.name)) not in model.FINAL_PHASES)
    tally = _tally(Resolver(functions), answers, live)
    before = {each.address: each for each in previous.devices} if previous and same_boot(previous, boot_id) else {}
    devices = [
        _device(gpu, tally, before.get(gpu.address), name_model(gpu))
        for gpu in functions.gpus.values()
        # Of the many virtual functions only those that a resource is or was reported for (R20a).
        if gpu.physical_function is None or gpu.address in tally.placed or gpu.address in before
    ]
    devices += [_silent(each) for each in before.values() if _is_missed(each, functions, before)]
    devices.sort(key=lambda device: (not device.resources, address_number(device.address)))
    devices = sorted(devices[:_DEVICES_MAX], key=lambda device: address_number(device.address))
    resource_names = {resource.name for device in devices for resource in device.resources} | tally.nvml
    # An address or number that leads nowhere may be a GPU's, unless the resource's other devices are something else.
    resource_names |= tally.unplaced.keys() - tally.foreign
    return GPUNodeStatus(
        devices=devices,
        unplaced=_resources(tally.unplaced)[:_NAMES_MAX],
        resource_names=sorted(resource_names)[:_NAMES_MAX],
        boot_id=boot_id[:64],
        reported_at=model.utc(now),
    )


def same_boot(previous: GPUNodeStatus, boot_id: str) -> bool:
    """Whether a report may be of this boot (R15a): it is, or one of the two does not say which boot it is of."""
    return not previous.boot_id or not boot_id or previous.boot_id == boot_id


def _device(function: Function, tally: _Tally, before: Device | None, model_name: str) -> Device:
    counts: Mapping[str, _Count] = tally.placed.get(function.address, {})
    health = _health(function, counts, before)
    if health is Health.UNHEALTHY and before is not None and before.driver == function.driver:
        # Kubelet may no longer know the resource at all: what it was offered as stays in sight.
        counts = {each.name: _Count() for each in before.resources} | dict(counts)
    users = sorted(tally.users.get(function.address, ()))
    return Device(
        address=function.address,
        vendor_id=function.vendor,
        device_id=function.device,
        model=model_name,
        driver=function.driver,
        iommu_group=function.iommu_group,
        numa_node=function.numa_node,
        physical_function=function.physical_function,
        health=health,
        resources=_resources(counts)[:_RESOURCES_MAX],
        users=[DeviceUser(namespace=namespace, name=name) for namespace, name in users[:_USERS_MAX]],
    )


def _is_missed(device: Device, functions: Functions, before: Mapping[str, Device]) -> bool:
    """Whether a device of the report before must stay in sight, though sysfs says nothing of it now.

    It does while it is there without saying what it is, and after it has gone where it was ever offered (R25). It ends
    with the boot; where something else has its address; and for a virtual function where its physical one was given
    another driver, which is how they are done away with.
    """
    if device.address in functions.unreadable:
        return True
    if device.address in functions.gpus or device.address in functions.others or device.health is Health.UNMANAGED:
        return False
    now = functions.gpus.get(device.physical_function or "")
    then = before.get(device.physical_function or "")
    return now is None or then is None or now.driver == then.driver


def without_gone(status: GPUNodeStatus, functions: Functions) -> GPUNodeStatus:
    """The report less what has gone from sysfs: what is remembered when the hoster has the node taken stock of anew."""
    there = [each for each in status.devices if each.address in functions.gpus or each.address in functions.unreadable]
    return msgspec.structs.replace(status, devices=there)


def _silent(before: Device) -> Device:
    """A GPU of the report before that no longer says what it is: half removed, dead (R28) or gone (R25)."""
    resources = [ResourceCount(name=each.name, allocatable=0, used=0) for each in before.resources]
    health = Health.UNMANAGED if before.health is Health.UNMANAGED else Health.UNHEALTHY
    return msgspec.structs.replace(before, health=health, resources=resources, users=[])


def _health(function: Function, counts: Mapping[str, _Count], before: Device | None) -> Health:
    if any(count.allocatable for count in counts.values()):
        return Health.HEALTHY
    # That a pod has it proves as well that it was once allocatable.
    offered = before is not None and before.driver == function.driver and before.health is not Health.UNMANAGED
    return Health.UNHEALTHY if offered or counts else Health.UNMANAGED


def _resources(counts: Mapping[str, _Count]) -> list[ResourceCount]:
    return [
        ResourceCount(name=name, allocatable=_number(count.allocatable), used=_number(count.used))
        for name, count in sorted(counts.items())
    ]


def says_the_same(one: GPUNodeStatus | None, other: GPUNodeStatus) -> bool:
    """Whether two reports differ in the time of reporting at most."""
    return one is not None and msgspec.structs.replace(one, reported_at=other.reported_at, conditions=[]) == other


def loses(before: GPUNodeStatus | None, after: GPUNodeStatus) -> bool:
    """Whether something that was allocatable before is not any more."""
    if before is None:
        return False
    new = {(device.address, each.name): each.allocatable for device in after.devices for each in device.resources}
    new |= {("", each.name): each.allocatable for each in after.unplaced}
    old = [((device.address, each.name), each.allocatable) for device in before.devices for each in device.resources]
    old += [(("", each.name), each.allocatable) for each in before.unplaced]
    return any(new.get(key, 0) < count for key, count in old)


def body(status: GPUNodeStatus) -> dict[str, Any]:
    """The fields of the status that the agent owns, for a merge patch (R27) or for printing.

    Empty lists are written out: in a merge patch an absent field would leave the old value.
    """
    written = msgspec.to_builtins(status)
    assert isinstance(written, dict)
    devices = [{"resources": []} | device for device in written.get("devices", ())]
    return {
        "devices": devices,
        "unplaced": written.get("unplaced", []),
        "resourceNames": written.get("resourceNames", []),
        "bootID": status.boot_id,
        "reportedAt": written.get("reportedAt"),
    }
