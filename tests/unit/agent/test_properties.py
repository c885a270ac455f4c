"""What holds for any node and any answers."""

from __future__ import annotations

import dataclasses
import datetime as dt
import random
from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gpuclaim.agent import pciids
from gpuclaim.agent.report import report
from gpuclaim.agent.resolve import Shape, shape
from gpuclaim.agent.values import Answers, Function, Functions, PodDevices, is_vfio
from gpuclaim.api.types import Device, GPUNodeStatus, Health, ResourceCount

NOW = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)

# Few values, so that IDs often lead to something and things often collide.
addresses = st.builds(
    "{:04x}:{:02x}:00.{}".format, st.sampled_from([0, 1, 0x10000]), st.integers(0, 3), st.integers(0, 1)
)
spellings = st.sampled_from(
    [str, str.upper, lambda address: address.removeprefix("0000:"), lambda address: address.rjust(16, "0")[-16:]]
)
groups = st.sampled_from(["0", "1", "2", "3"])
uuids = st.builds("a0b1c2d3-0001-4a11-8a11-00000000000{}".format, st.integers(0, 4))
nvml = st.sampled_from(["GPU-4cf8db2d", "GPU-4cf8db2d::0", "GPU-4cf8db2d::1", "MIG-3a5ee1ab", "MIG-GPU-4c/1/0"])
device_ids = st.one_of(
    st.builds(lambda spell, address: spell(address), spellings, addresses),
    groups,
    st.builds(lambda spell, uuid: spell(uuid), st.sampled_from([str, str.upper]), uuids),
    nvml,
    st.sampled_from(["kvm0", "tun1", ""]),
    st.text(max_size=4),
)
resources = st.sampled_from(["nvidia.com/a", "nvidia.com/b", "example.com/c", "devices.kubevirt.io/kvm"])
devices = st.dictionaries(resources, st.lists(device_ids, max_size=8), max_size=4)
drivers = st.sampled_from(["", "vfio-pci", "nvidia", "xe-vfio-pci"])


@st.composite
def nodes(draw: st.DrawFn) -> Functions:
    gpus = draw(
        st.lists(
            st.builds(
                Function,
                address=addresses,
                vendor=st.just("10de"),
                device=st.just("2335"),
                driver=drivers,
                iommu_group=st.one_of(st.just(""), groups),
                physical_function=st.one_of(st.none(), addresses),
            ),
            unique_by=lambda gpu: gpu.address,
        )
    )
    known = {gpu.address for gpu in gpus}
    rest = draw(st.sets(addresses)) - known
    unreadable = {each for each in rest if draw(st.booleans())}
    held = {gpu.iommu_group for gpu in gpus}
    return Functions(
        gpus={gpu.address: gpu for gpu in gpus},
        others=frozenset(rest - unreadable),
        unreadable=frozenset(unreadable),
        mdev_parents=draw(st.dictionaries(uuids, st.one_of(addresses, st.just("css_0.0.0313")))),
        vfio_groups=frozenset(draw(st.sets(groups)) - held),
    )


@st.composite
def all_answers(draw: st.DrawFn) -> Answers:
    pods = draw(st.dictionaries(st.tuples(st.sampled_from("tu"), st.sampled_from("pqr")), devices, max_size=4))
    return Answers(draw(devices), tuple(PodDevices(*name, held) for name, held in pods.items()))


phases = st.dictionaries(
    st.tuples(st.sampled_from("tu"), st.sampled_from("pqr")), st.sampled_from(["Running", "Failed", "Succeeded"])
)
reports = st.builds(
    GPUNodeStatus,
    devices=st.lists(
        st.builds(
            Device,
            address=addresses,
            driver=drivers,
            physical_function=st.one_of(st.none(), addresses),
            health=st.sampled_from(Health),
            resources=st.lists(
                st.builds(ResourceCount, name=resources, allocatable=st.just(1), used=st.just(0)),
                unique_by=lambda each: each.name,
            ),
        ),
        unique_by=lambda device: device.address,
    ),
    boot_id=st.sampled_from(["", "b", "c"]),
)


def made(found: Functions, answers: Answers, known: Any, previous: GPUNodeStatus | None) -> GPUNodeStatus:
    return report(found, answers, known, previous, boot_id="b", name_model=pciids.namer({}), now=NOW)


@dataclasses.dataclass(frozen=True)
class Thing:
    """What an ID stands for: a function, or of one a mediated device; or an ID that leads nowhere, as it is spelt."""

    address: str | None
    part: str = ""


def thing(found: Functions, device_id: str) -> Thing | None:
    """Said anew, the long way round, and of what the strategies make only; None for what is no GPU's."""
    if shape(device_id) is Shape.PCI:
        *domain, bus, rest = device_id.lower().split(":")
        address = f"{int(domain[0] if domain else '0', 16):04x}:{bus}:{rest}"
        if address in found.others:
            return None
        return Thing(address) if address in found.gpus else Thing(None, address)
    if shape(device_id) is Shape.MDEV:
        uuid = device_id.lower()
        parent = found.mdev_parents.get(uuid)
        if parent is not None and (parent in found.others or parent.startswith("css")):
            return None
        return Thing(parent, uuid) if parent in found.gpus else Thing(None, uuid)
    if shape(device_id) is Shape.GROUP:
        members = [gpu for gpu in found.gpus.values() if gpu.iommu_group == device_id]
        if not members and device_id in found.vfio_groups:
            return None
        on_vfio = [gpu.address for gpu in members if is_vfio(gpu.driver)]
        # No bus of the strategies has two digits that differ in length, so a wider domain is the greater one.
        return Thing(min(on_vfio, key=lambda each: (len(each), each))) if on_vfio else Thing(None, device_id)
    return Thing(None, device_id) if shape(device_id) is Shape.NVML else None


def numbers(things: Iterable[Thing]) -> Counter[str | None]:
    """How many GPUs, or parts of one, there are of each function, and of those that lead nowhere.

    A function counts once, whatever names it; where its mediated devices are listed too, they are what counts.
    """
    distinct = set(things)
    split = {each.address for each in distinct if each.part}
    return Counter(each.address for each in distinct if each.part or each.address not in split)


def live_ids(answers: Answers, known: Any, resource: str) -> set[str]:
    return {
        each
        for pod in answers.pods
        if known.get((pod.namespace, pod.name)) not in ("Failed", "Succeeded")
        for each in pod.devices.get(resource, ())
    }


@given(nodes(), all_answers(), phases, st.one_of(st.none(), reports))
def test_every_thing_is_counted_once_where_its_ids_lead(
    found: Functions, answers: Answers, known: Any, previous: GPUNodeStatus | None
) -> None:
    status = made(found, answers, known, previous)
    counted: dict[str, dict[str | None, ResourceCount]] = defaultdict(dict)
    for device in status.devices:
        for each in device.resources:
            counted[each.name][device.address] = each
    for each in status.unplaced:
        counted[each.name][None] = each
    everything = set(answers.allocatable) | {name for pod in answers.pods for name in pod.devices}
    for resource in everything | set(counted):
        given_ids = {
            "allocatable": set(answers.allocatable.get(resource, ())),
            "used": live_ids(answers, known, resource),
        }
        for field, ids in given_ids.items():
            expected = numbers(each for each in (thing(found, device_id) for device_id in ids) if each is not None)
            reported = Counter({place: getattr(count, field) for place, count in counted[resource].items()})
            # No function for an ID that does not lead to it, none left out, and the sum is that of the things.
            assert +reported == expected
            assert reported.total() == expected.total()


@given(nodes(), all_answers(), phases)
def test_only_mediated_devices_are_several_of_a_function(found: Functions, answers: Answers, known: Any) -> None:
    for device in made(found, answers, known, None).devices:
        parts = sum(parent == device.address for parent in found.mdev_parents.values())
        for each in device.resources:
            assert max(each.allocatable, each.used) <= max(1, parts)


@given(nodes(), all_answers(), phases)
def test_another_spelling_beside_the_first_changes_nothing(found: Functions, answers: Answers, known: Any) -> None:
    doubled = Answers(
        {name: [*ids, *map(respelt, ids)] for name, ids in answers.allocatable.items()},
        tuple(
            PodDevices(pod.namespace, pod.name, {name: [*map(respelt, ids), *ids] for name, ids in pod.devices.items()})
            for pod in answers.pods
        ),
    )
    assert made(found, doubled, known, None) == made(found, answers, known, None)


def respelt(device_id: str) -> str:
    """The same address or UUID, written otherwise; any other ID as it is."""
    if shape(device_id) is Shape.PCI and device_id.count(":") == 1:
        return f"00000000:{device_id.upper()}"
    return device_id.swapcase() if shape(device_id) in (Shape.PCI, Shape.MDEV) else device_id


@given(nodes(), st.lists(groups), st.lists(groups), phases)
def test_a_group_counts_once(found: Functions, offered: list[str], held: list[str], known: Any) -> None:
    pods = tuple(PodDevices("t", f"p{number}", {"nvidia.com/a": [group]}) for number, group in enumerate(held))
    status = made(found, Answers({"nvidia.com/a": offered}, pods), known, None)
    for group in {*offered, *held}:
        members = {gpu.address for gpu in found.gpus.values() if gpu.iommu_group == group}
        carrying = [device for device in status.devices if device.address in members and device.resources]
        assert len(carrying) <= 1
        for device in carrying:
            assert device.resources == [
                ResourceCount(name="nvidia.com/a", allocatable=int(group in offered), used=int(group in held))
            ]


@given(nodes(), all_answers(), phases, reports)
def test_what_was_offered_is_in_sight_until_the_next_boot(
    found: Functions, answers: Answers, known: Any, previous: GPUNodeStatus
) -> None:
    status = made(found, answers, known, previous)
    health = {device.address: device.health for device in status.devices}
    same_boot = previous.boot_id in ("", "b")
    for device in previous.devices:
        if device.health is Health.UNMANAGED or device.address in found.gpus or device.address in found.others:
            continue
        if same_boot and device.physical_function is None:
            assert health[device.address] is Health.UNHEALTHY
        elif not same_boot:
            assert device.address not in health
    for address in health.keys() - found.gpus.keys():
        assert address in {device.address for device in previous.devices}
        assert not any(each.allocatable or each.used for each in resources_of(status, address))


def resources_of(status: GPUNodeStatus, address: str) -> list[ResourceCount]:
    return next(device.resources for device in status.devices if device.address == address)


@given(nodes(), all_answers(), phases, st.one_of(st.none(), reports), st.randoms(use_true_random=False))
def test_order_never_matters(
    found: Functions, answers: Answers, known: Any, previous: GPUNodeStatus | None, chance: random.Random
) -> None:
    def shuffled(mapping: Any) -> Any:
        items = [
            (key, chance.sample(value, len(value)) if isinstance(value, list) else value)
            for key, value in mapping.items()
        ]
        return dict(chance.sample(items, len(items)))

    mixed = Functions(
        gpus=shuffled(found.gpus),
        others=found.others,
        unreadable=found.unreadable,
        mdev_parents=shuffled(found.mdev_parents),
        vfio_groups=found.vfio_groups,
    )
    pods = [PodDevices(pod.namespace, pod.name, shuffled(pod.devices)) for pod in answers.pods]
    other = Answers(shuffled(answers.allocatable), tuple(chance.sample(pods, len(pods))))
    assert made(mixed, other, shuffled(known), previous) == made(found, answers, known, previous)


@given(nodes(), all_answers(), phases, st.one_of(st.none(), reports))
def test_a_second_pass_changes_nothing(
    found: Functions, answers: Answers, known: Any, previous: GPUNodeStatus | None
) -> None:
    first = made(found, answers, known, previous)
    assert made(found, answers, known, first) == first
