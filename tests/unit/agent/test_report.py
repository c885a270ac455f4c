"""The report, case by case where tests/cases/agent has none (R14-R15a, R25, R26, R28)."""

from __future__ import annotations

import datetime as dt

import msgspec
import pytest

from gpuclaim.agent import pciids
from gpuclaim.agent.report import Phases, body, loses, needs_phases, report, says_the_same, without_gone
from gpuclaim.agent.values import Answers, Devices, Function, Functions, PodDevices
from gpuclaim.api.types import Device, GPUNodeStatus, Health, ResourceCount

NOW = dt.datetime(2026, 1, 1, 12, 0, 0, 999, tzinfo=dt.UTC)
A, B, VF = "0000:3b:00.0", "0000:5e:00.0", "0000:3b:00.4"
R = "nvidia.com/GH100_H200"


def gpu(address: str, driver: str = "vfio-pci", **rest: str) -> Function:
    return Function(address=address, vendor="10de", device="2335", driver=driver, **rest)  # type: ignore[arg-type]


def functions(*gpus: Function, unreadable: frozenset[str] = frozenset()) -> Functions:
    return Functions(gpus={each.address: each for each in gpus}, unreadable=unreadable)


def make(
    found: Functions,
    allocatable: Devices | None = None,
    pods: tuple[PodDevices, ...] = (),
    phases: Phases | None = None,
    previous: GPUNodeStatus | None = None,
    boot_id: str = "boot-1",
) -> GPUNodeStatus:
    answers = Answers(allocatable or {}, pods)
    return report(found, answers, phases or {}, previous, boot_id=boot_id, name_model=pciids.namer({}), now=NOW)


def health(status: GPUNodeStatus) -> dict[str, Health]:
    return {each.address: each.health for each in status.devices}


def counts(status: GPUNodeStatus, address: str) -> dict[str, tuple[int, int]]:
    device = next(each for each in status.devices if each.address == address)
    return {each.name: (each.allocatable, each.used) for each in device.resources}


def test_a_device_is_described() -> None:
    found = Function(address=A, vendor="10de", device="2335", driver="vfio-pci", iommu_group="7", numa_node=1)
    status = make(functions(found), {R: [A]})
    assert status.devices == [
        Device(
            address=A,
            vendor_id="10de",
            device_id="2335",
            model="NVIDIA [10de:2335]",
            driver="vfio-pci",
            iommu_group="7",
            numa_node=1,
            health=Health.HEALTHY,
            resources=[ResourceCount(name=R, allocatable=1, used=0)],
        )
    ]
    assert status.boot_id == "boot-1"
    assert status.reported_at == dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)


def test_unhealthy_stays_until_it_is_offered_again() -> None:
    good = make(functions(gpu(A)), {R: [A]})
    lost = make(functions(gpu(A)), previous=good)
    still = make(functions(gpu(A)), previous=lost)
    assert health(lost) == health(still) == {A: Health.UNHEALTHY}
    assert counts(still, A) == {R: (0, 0)}
    assert still.resource_names == [R]
    assert health(make(functions(gpu(A)), {R: [A]}, previous=still)) == {A: Health.HEALTHY}


def test_another_driver_forgets() -> None:
    good = make(functions(gpu(A)), {R: [A]})
    status = make(functions(gpu(A, driver="nvidia")), previous=good)
    assert health(status) == {A: Health.UNMANAGED}
    assert counts(status, A) == {}
    assert status.resource_names == []


def test_another_boot_forgets() -> None:
    good = make(functions(gpu(A)), {R: [A]})
    assert health(make(functions(gpu(A)), previous=good, boot_id="boot-2")) == {A: Health.UNMANAGED}
    assert health(make(functions(gpu(A)), previous=good, boot_id="")) == {A: Health.UNHEALTHY}


def test_another_name_replaces_the_old_one() -> None:
    good = make(functions(gpu(A)), {R: [A]})
    status = make(functions(gpu(A)), {"example.com/h200": [A]}, previous=good)
    assert counts(status, A) == {"example.com/h200": (1, 0)}
    assert status.resource_names == ["example.com/h200"]


def test_a_device_that_a_pod_has_was_offered_once() -> None:
    status = make(functions(gpu(A)), pods=(PodDevices("t", "p", {R: [A]}),))
    assert health(status) == {A: Health.UNHEALTHY}
    assert counts(status, A) == {R: (0, 1)}
    assert [(user.namespace, user.name) for user in status.devices[0].users] == [("t", "p")]


@pytest.mark.parametrize(("phase", "used"), [("Running", 1), ("Pending", 1), ("Unknown", 1), ("", 1), ("Failed", 0)])
def test_phases(phase: str, used: int) -> None:
    pods = (PodDevices("t", "p", {R: [A]}),)
    assert counts(make(functions(gpu(A)), {R: [A]}, pods, {("t", "p"): phase}), A) == {R: (1, used)}


def test_a_pod_that_the_apiserver_does_not_know_counts() -> None:
    pods = (PodDevices("t", "p", {R: [A]}),)
    assert counts(make(functions(gpu(A)), {R: [A]}, pods, {("t", "q"): "Failed"}), A) == {R: (1, 1)}


def test_two_pods_with_one_device_use_it_once() -> None:
    pods = (PodDevices("t", "p", {R: [A]}), PodDevices("t", "q", {R: [A]}))
    status = make(functions(gpu(A)), {R: [A]}, pods)
    assert counts(status, A) == {R: (1, 1)}
    assert len(status.devices[0].users) == 2


def test_virtual_functions_are_listed_once_they_were_reported() -> None:
    both = functions(gpu(A, "nvidia"), gpu(VF, "nvidia", physical_function=A))
    assert set(health(make(both))) == {A}
    good = make(both, {R: [VF]})
    assert good.devices[1].physical_function == A
    assert health(make(both, previous=good)) == {A: Health.UNMANAGED, VF: Health.UNHEALTHY}


def test_a_gpu_that_fell_silent_stays() -> None:
    good = make(functions(gpu(A), gpu(B)), {R: [A, B]})
    status = make(functions(gpu(A), unreadable=frozenset({B})), {R: [A, B]}, previous=good)
    assert health(status) == {A: Health.HEALTHY, B: Health.UNHEALTHY}
    assert counts(status, B) == {R: (0, 0)}
    assert status.unplaced == [ResourceCount(name=R, allocatable=1, used=0)]


@pytest.mark.parametrize(
    "ids",
    [[A, "12"], [A, A.upper()], [A, A.removeprefix("0000:")], [A, f"0000{A}", "12", A.upper()]],
    ids=" ".join,
)
def test_a_function_counts_once_for_each_resource_by_whatever_ids(ids: list[str]) -> None:
    node = functions(gpu(A, iommu_group="12"))
    assert counts(make(node, {R: ids}), A) == {R: (1, 0)}
    # Kubelet may give two of the IDs to two pods. It is in use, by both.
    pods = tuple(PodDevices("t", f"p{number}", {R: [each]}) for number, each in enumerate(ids))
    status = make(node, {R: ids}, pods)
    assert counts(status, A) == {R: (1, 1)}
    assert [user.name for user in status.devices[0].users] == [pod.name for pod in pods]
    # Any one of them is enough for it to be offered, and to be in use.
    for offered in ids:
        for held in ids:
            status = make(node, {R: [offered]}, (PodDevices("t", "p", {R: [held]}),))
            assert (health(status), counts(status, A)) == ({A: Health.HEALTHY}, {R: (1, 1)})


def test_a_function_counts_for_each_of_two_resources() -> None:
    status = make(functions(gpu(A, iommu_group="12")), {R: [A, "12"], "example.com/h200": ["12"]})
    assert counts(status, A) == {R: (1, 0), "example.com/h200": (1, 0)}


def test_a_group_stands_for_its_lowest_gpu_and_not_for_the_others() -> None:
    node = functions(gpu(A, iommu_group="12"), gpu(B, iommu_group="12"))
    status = make(node, {R: ["12", B]}, (PodDevices("t", "p", {R: [B]}),))
    assert (counts(status, A), counts(status, B)) == ({R: (1, 0)}, {R: (1, 1)})
    status = make(node, {R: ["12", A]}, (PodDevices("t", "p", {R: ["12"]}),))
    assert (counts(status, A), counts(status, B)) == ({R: (1, 1)}, {})


def test_mediated_devices_are_several_and_their_function_is_not_one_more() -> None:
    uuids = [f"a0b1c2d3-0001-4a11-8a11-00000000000{number}" for number in range(3)]
    node = Functions(gpus={A: gpu(A, "nvidia")}, mdev_parents=dict.fromkeys(uuids, A))
    assert counts(make(node, {R: [*uuids, uuids[0].upper()]}), A) == {R: (3, 0)}
    pods = (PodDevices("t", "p", {R: [A]}),)
    assert counts(make(node, {R: [*uuids, A]}, pods), A) == {R: (3, 1)}


def test_an_address_that_leads_nowhere_is_unplaced_once_however_it_is_spelt() -> None:
    status = make(functions(gpu(A)), {R: [B, B.upper(), B.removeprefix("0000:"), "GPU-1::0", "GPU-1::1"]})
    assert status.unplaced == [ResourceCount(name=R, allocatable=3, used=0)]


def test_a_function_that_was_offered_and_is_gone_is_unhealthy_until_the_next_boot() -> None:
    good = make(functions(gpu(A), gpu(B, iommu_group="7")), {R: [A, B]})
    pods = (PodDevices("t", "p", {R: [B]}),)
    # The plugin goes on offering it for a while: nothing is counted for what is not there.
    gone = make(functions(gpu(A)), {R: [A, B]}, pods, previous=good)
    assert health(gone) == {A: Health.HEALTHY, B: Health.UNHEALTHY}
    assert (counts(gone, B), gone.devices[1].users, gone.devices[1].iommu_group) == ({R: (0, 0)}, [], "7")
    assert gone.unplaced == [ResourceCount(name=R, allocatable=1, used=1)]
    later = make(functions(gpu(A)), {R: [A]}, previous=gone)
    assert health(later) == health(gone)
    assert loses(good, gone)
    back = make(functions(gpu(A), gpu(B)), {R: [A, B]}, previous=later)
    assert health(back) == {A: Health.HEALTHY, B: Health.HEALTHY}
    assert set(health(make(functions(gpu(A)), {R: [A]}, previous=later, boot_id="boot-2"))) == {A}


def test_a_function_that_is_gone_and_was_never_offered_is_not_missed() -> None:
    before = make(functions(gpu(A), gpu(B)), {R: [A]})
    assert set(health(make(functions(gpu(A)), {R: [A]}, previous=before))) == {A}


def test_something_else_in_its_place_ends_the_memory_of_a_function() -> None:
    good = make(functions(gpu(A), gpu(B)), {R: [A, B]})
    found = Functions(gpus={A: gpu(A)}, others={B})
    assert set(health(make(found, {R: [A]}, previous=good))) == {A}


def test_virtual_functions_go_with_the_driver_of_their_physical_one() -> None:
    both = functions(gpu(A, "nvidia"), gpu(VF, "nvidia", physical_function=A))
    good = make(both, {R: [VF]})
    # They were there, and are not: that is a fault.
    lost = make(functions(gpu(A, "nvidia")), previous=good)
    assert health(lost) == {A: Health.UNMANAGED, VF: Health.UNHEALTHY}
    assert health(make(functions(), previous=lost)) == {VF: Health.UNHEALTHY}
    # The GPU is given to VMs whole from now on.
    assert health(make(functions(gpu(A)), previous=lost)) == {A: Health.UNMANAGED}


def test_what_is_gone_is_left_out_when_stock_is_taken_anew() -> None:
    found = functions(gpu(A), unreadable=frozenset({VF}))
    status = make(found, {R: [A]}, previous=make(functions(gpu(A), gpu(B), gpu(VF)), {R: [A, B, VF]}))
    assert set(health(status)) == {A, B, VF}
    assert set(health(without_gone(status, found))) == {A, VF}


def test_names_that_cannot_be_placed_join_those_of_other_things_do_not() -> None:
    found = Functions(gpus={}, others={"0000:07:00.0"})
    allocatable = {
        "nvidia.com/gpu": ["GPU-4cf8db2d"],
        "nvidia.com/index": ["0"],
        "intel.com/sriov": ["0000:07:00.0", "0000:07:00.1"],
        "devices.kubevirt.io/kvm": ["kvm0"],
    }
    status = make(found, allocatable)
    assert status.resource_names == ["nvidia.com/gpu", "nvidia.com/index"]
    # The address that leads nowhere is still said.
    assert [each.name for each in status.unplaced] == ["intel.com/sriov", "nvidia.com/gpu", "nvidia.com/index"]


def test_a_report_fits_the_schema_whatever_the_node_has() -> None:
    many = [gpu(f"{number:04x}:00:00.0") for number in range(1100)]
    allocatable: dict[str, list[str]] = {f"example.com/{number}": ["ffff:00:00.0"] for number in range(300)}
    allocatable |= {f"nvidia.com/{number}": [many[-1].address] for number in range(40)}
    allocatable["x/" + "y" * 1000] = [A]
    pods = tuple(PodDevices("t", f"p{number}", {"nvidia.com/1": [many[-1].address]}) for number in range(300))
    status = make(functions(*many), allocatable, pods)
    assert msgspec.convert(msgspec.to_builtins(status), GPUNodeStatus) == status
    assert len(status.devices) == 1024
    # What is offered is never what is left out.
    assert status.devices[-1].address == many[-1].address


def test_needs_phases() -> None:
    found = functions(gpu(A))
    assert not needs_phases(found, Answers({R: [A]}))
    assert not needs_phases(found, Answers({}, (PodDevices("t", "p", {"devices.kubevirt.io/kvm": ["kvm0"]}),)))
    assert needs_phases(found, Answers({}, (PodDevices("t", "p", {R: [A]}),)))


def test_body_clears_what_is_gone() -> None:
    assert body(GPUNodeStatus()) == {
        "devices": [],
        "unplaced": [],
        "resourceNames": [],
        "bootID": "",
        "reportedAt": None,
    }
    written = body(make(functions(gpu(A))))
    assert written["devices"][0]["resources"] == []
    assert written["reportedAt"] == "2026-01-01T12:00:00Z"
    assert "conditions" not in written


def test_says_the_same() -> None:
    one = make(functions(gpu(A)), {R: [A]})
    later = msgspec.structs.replace(one, reported_at=NOW + dt.timedelta(minutes=1))
    assert says_the_same(one, later)
    assert not says_the_same(None, later)
    assert not says_the_same(make(functions(gpu(A))), later)


def test_loses() -> None:
    two, one = make(functions(gpu(A), gpu(B)), {R: [A, B]}), make(functions(gpu(A), gpu(B)), {R: [A]})
    assert loses(two, one)
    assert not loses(one, two)
    assert not loses(None, one)
    unplaced = make(functions(), {"nvidia.com/gpu": ["GPU-1"]})
    assert loses(unplaced, make(functions()))


def test_model_names() -> None:
    names = pciids.parse(
        "# comment\n10de  NVIDIA Corporation\n\t2335  GH100 [H200 SXM 141GB]\n\t\t10de 18be  subsystem\n"
        "1af4  Red Hat\n\t2331  no GPU vendor\n\nC 03  Display controller\n\t00  VGA compatible controller\nx\n\t\n"
    )
    assert names == {("10de", "2335"): "GH100 [H200 SXM 141GB]"}
    assert pciids.namer(names)(gpu(A)) == "NVIDIA GH100 [H200 SXM 141GB]"
