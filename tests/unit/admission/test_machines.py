"""What a VM's labels order, and the devices that it gets (R45, R76)."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from gpuclaim.admission import machines
from gpuclaim.admission.machines import Fault
from gpuclaim.api import core, names
from gpuclaim.api.core import ObjectMeta, OwnerReference
from gpuclaim.api.types import GPUClaim, GPUClass, Mode, Toleration, TolerationOperator
from gpuclaim.placement.orders import Order
from support import cloud
from support.cloud import H200, gpu_class


def meta(name: str = "vm1", **labels: str) -> ObjectMeta:
    named = {f"{names.GROUP}/{key}": value for key, value in labels.items()}
    return ObjectMeta(name=name, namespace="tenant-a", uid="u", labels=named)


def vm(devices: Any = None, **spec: Any) -> dict[str, Any]:
    domain = {} if devices is None else {"devices": devices}
    return {"metadata": {"name": "vm1"}, "spec": {"template": {"spec": {"domain": domain} | spec}}}


def filled(machine: dict[str, Any], count: int, cls: GPUClass | None = None) -> dict[str, Any]:
    """The VM with the patch applied; what the patch does not name is as before."""
    patch = machines.fill(machine, cls or gpu_class(), count)
    assert isinstance(patch, list), patch
    result = copy.deepcopy(machine)
    for operation in patch:
        *path, last = operation["path"].removeprefix("/").split("/")
        at = result
        for step in path:
            at = at[step]
        at[last] = operation["value"]
    return result


def given(machine: dict[str, Any]) -> list[dict[str, str]]:
    found: list[dict[str, str]] = machine["spec"]["template"]["spec"]["domain"]["devices"]["gpus"]
    return found


def fault(machine: dict[str, Any], count: int) -> str:
    found = machines.fill(machine, gpu_class(), count)
    assert isinstance(found, Fault)
    return found.reason


def test_labels_are_an_order_under_the_vms_uid_in_the_set_of_its_name() -> None:
    assert machines.order_of(meta(**{"class": "h200", "count": "2"})) == Order("tenant-a", "vm1", "u", "h200", 2, "vm1")
    alone = machines.order_of(meta(**{"class": "h200"}))
    assert isinstance(alone, Order)
    assert alone.count == 1
    assert machines.order_of(meta(count="2")) is None


@pytest.mark.parametrize("count", ["", "0", "-1", "1.5", "two", "01x", "²", "9999999999", " 1"])
def test_a_count_that_is_no_number_of_gpus(count: str) -> None:
    found = machines.order_of(meta(**{"class": "h200", "count": count}))
    assert isinstance(found, Fault)
    assert (found.reason, found.field) == ("InvalidCount", "metadata.labels[gpu.cozystack.io/count]")


@pytest.mark.parametrize("name", ["a" * 64, "a.b"])
def test_a_name_that_kubevirt_does_not_put_on_the_pod_as_it_is(name: str) -> None:
    found = machines.order_of(meta(name, **{"class": "h200"}))
    assert isinstance(found, Fault)
    assert found.reason == "InvalidName"


def test_a_name_that_is_not_made_yet_is_no_fault() -> None:
    assert isinstance(machines.order_of(meta("", **{"class": "h200"})), Order)


def test_the_claim_has_the_vms_name_and_owner_and_is_recognised_by_them() -> None:
    order = Order("tenant-a", "vm1", "u", "h200", 2, "vm1")
    claim = machines.claim_of(order)
    assert (claim.metadata.name, claim.spec.set, claim.metadata.finalizers) == ("vm1", None, [names.HOLD_FINALIZER])
    assert machines.owner_of(claim.metadata) == "u"
    assert Order.of(claim).set_name == "vm1"
    for other in (
        OwnerReference(api_version="kubevirt.io/v1", kind="VirtualMachine", name="vm2", uid="u", controller=True),
        OwnerReference(api_version="kubevirt.io/v1", kind="VirtualMachine", name="vm1", uid="u"),
        OwnerReference(api_version="x.io/v1", kind="VirtualMachine", name="vm1", uid="u", controller=True),
    ):
        assert machines.owner_of(ObjectMeta(name="vm1", owner_references=[other])) is None


@pytest.mark.parametrize("devices", [None, {}, {"gpus": None}, {"disks": [{"name": "root"}]}])
def test_a_vm_without_gpus_gets_all_that_it_orders(devices: Any) -> None:
    result = filled(vm(devices), 2)
    assert given(result) == [{"name": f"gpu-{n}", "deviceName": H200} for n in (1, 2)]
    for kept in devices or ():
        if kept != "gpus":
            assert result["spec"]["template"]["spec"]["domain"]["devices"][kept] == devices[kept]


def test_it_gets_what_it_lacks_under_names_that_are_free_and_then_nothing_more() -> None:
    mine = {"name": "gpu-1", "deviceName": H200}
    machine = vm({"gpus": [mine, {"name": "other", "deviceName": "x/y"}], "hostDevices": [{"name": "gpu-2"}]})
    once = filled(machine, 2)
    assert given(once) == [*given(machine), {"name": "gpu-3", "deviceName": H200}]
    assert machines.fill(once, gpu_class(), 2) == []
    assert machines.fill(vm({"hostDevices": [mine]}), gpu_class(), 1) == []
    assert fault(vm({"gpus": [mine], "hostDevices": [mine | {"name": "b"}]}), 1) == "AboveOrder"


@pytest.mark.parametrize("machine", [{}, {"spec": None}, {"spec": {"template": 3}}, {"spec": {"template": {}}}])
def test_what_is_no_vm_is_left_to_its_schema(machine: dict[str, Any]) -> None:
    assert isinstance(machines.fill(machine, gpu_class(), 1), list)


def test_a_pod_of_another_set_would_not_get_the_gpus() -> None:
    for hostname, well in (("web", False), ("vm1", True), ("", True)):
        found = machines.fill(vm(hostname=hostname), gpu_class(), 1)
        assert isinstance(found, list) is well
    labelled = vm()
    labelled["spec"]["template"]["metadata"] = {"labels": {names.SET_LABEL: "other"}}
    assert fault(labelled, 1) == "OtherSet"


def test_a_claim_under_the_vms_name_is_the_same_order_or_in_the_way() -> None:
    order = Order("tenant-a", "vm1", "u", "h200", 2, "vm1")

    def reason(claim: GPUClaim) -> str | None:
        found = machines.conflict(claim, order)
        return found.reason if found is not None else None

    assert reason(cloud.claim("vm1", count=2)) is None
    assert reason(cloud.claim("vm1", count=1)) == "ClaimDiffers"
    assert reason(cloud.claim("vm1", count=2, class_name="other")) == "ClaimDiffers"
    assert reason(cloud.claim("vm1", count=2, set="other")) == "ClaimDiffers"


@pytest.mark.parametrize("mode", list(Mode))
def test_the_template_of_a_pool_is_what_admission_would_fill_in(mode: Mode) -> None:
    toleration = Toleration(key="gpu", operator=TolerationOperator.EXISTS)
    cls = gpu_class(mode=mode, tolerations=[toleration])
    made = machines.template(cls, 2)
    labels = made["metadata"]["labels"]
    assert machines.order_of(ObjectMeta(name="vm1", labels=labels)) == Order("", "vm1", "", "h200", 2, "vm1")
    assert made["spec"]["template"]["spec"]["tolerations"] == [{"key": "gpu", "operator": "Exists"}]
    assert machines.fill({"metadata": {"name": "vm1"}, **made}, cls, 2) == []


def test_with_a_set_the_template_orders_nothing_and_its_pods_are_of_the_set() -> None:
    made = machines.template(gpu_class(), 1, "s")
    assert "metadata" not in made
    assert made["spec"]["template"]["metadata"]["labels"] == {names.SET_LABEL: "s"}
    assert "tolerations" not in made["spec"]["template"]["spec"]
    with pytest.raises(ValueError, match="no name of a set"):
        machines.template(gpu_class(), 1, "no set")


def test_the_metadata_of_a_vm_is_all_that_is_read() -> None:
    assert core.VirtualMachine.__struct_fields__ == ("metadata",)
