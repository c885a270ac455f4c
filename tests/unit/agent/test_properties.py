"""What holds for any node and any answers."""

from __future__ import annotations

import datetime as dt
import random
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
groups = st.sampled_from(["0", "1", "2", "3"])
uuids = st.builds("a0b1c2d3-0001-4a11-8a11-00000000000{}".format, st.integers(0, 4))
nvml = st.sampled_from(["GPU-4cf8db2d", "GPU-4cf8db2d::0", "GPU-4cf8db2d::1", "MIG-3a5ee1ab", "MIG-GPU-4c/1/0"])
device_ids = st.one_of(addresses, groups, uuids, nvml, st.sampled_from(["kvm0", "tun1", ""]), st.text(max_size=4))
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


def leads_to(found: Functions, device_id: str, address: str) -> bool:
    """Said anew and the long way round: whether the ID may count for the function."""
    gpu = found.gpus.get(address)
    if gpu is None:
        return False
    return (
        device_id == address
        or found.mdev_parents.get(device_id) == address
        or (device_id == gpu.iommu_group != "" and is_vfio(gpu.driver))
    )


def is_anothers(found: Functions, device_id: str) -> bool:
    """Whether the ID is that of another kind of function."""
    parent = found.mdev_parents.get(device_id)
    return (
        device_id in found.others
        or (parent is not None and (parent in found.others or parent.startswith("css")))
        or device_id in found.vfio_groups
    )


def live_ids(answers: Answers, known: Any, resource: str) -> set[str]:
    return {
        each
        for pod in answers.pods
        if known.get((pod.namespace, pod.name)) not in ("Failed", "Succeeded")
        for each in pod.devices.get(resource, ())
    }


@given(nodes(), all_answers(), phases, st.one_of(st.none(), reports))
def test_every_id_is_counted_once_where_it_leads(
    found: Functions, answers: Answers, known: Any, previous: GPUNodeStatus | None
) -> None:
    status = made(found, answers, known, previous)
    listed = {device.address: {each.name: each for each in device.resources} for device in status.devices}
    unplaced = {each.name: each for each in status.unplaced}
    everything = set(answers.allocatable) | {name for pod in answers.pods for name in pod.devices}
    for resource in everything:
        for given_ids, field in (
            (set(answers.allocatable.get(resource, ())), "allocatable"),
            (live_ids(answers, known, resource), "used"),
        ):
            for address, of in listed.items():
                may = sum(leads_to(found, each, address) for each in given_ids)
                assert (getattr(of[resource], field) if resource in of else 0) <= may
            counted = sum(getattr(of[resource], field) for of in listed.values() if resource in of)
            counted += getattr(unplaced[resource], field) if resource in unplaced else 0
            ours = {each for each in given_ids if shape(each) is not Shape.OTHER and not is_anothers(found, each)}
            assert counted == len(ours)


@given(nodes(), st.lists(groups), phases)
def test_a_group_counts_once(found: Functions, offered: list[str], known: Any) -> None:
    status = made(found, Answers({"nvidia.com/a": offered}), known, None)
    for group in set(offered):
        members = {gpu.address for gpu in found.gpus.values() if gpu.iommu_group == group}
        assert sum(bool(device.resources) for device in status.devices if device.address in members) <= 1


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
