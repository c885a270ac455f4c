"""VirtualMachines that are orders (R45): what their labels order, and the devices that they get. Pure.

The label `gpu.cozystack.io/class` makes a VM an order of one GPU of the class, `gpu.cozystack.io/count` of several. The
controller makes the claim once the VM is stored; the claim's name, and so its set, is the VM's name.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from gpuclaim.api import core, model, names
from gpuclaim.api.reasons import MachineRefusal
from gpuclaim.api.types import GPUClaim, GPUClaimSpec, GPUClass
from gpuclaim.placement.orders import Order

API_VERSION: Final = "kubevirt.io/v1"
KIND: Final = "VirtualMachine"
COUNT_FIELD: Final = f"metadata.labels[{names.COUNT_LABEL}]"
CLASS_FIELD: Final = f"metadata.labels[{names.CLASS_LABEL}]"

# What the set of a launcher pod is taken from where it is there: KubeVirt writes the hostname into vm.kubevirt.io/name.
_SET_FIELDS: Final[Mapping[str, tuple[str, ...]]] = {
    f"spec.template.metadata.labels[{names.SET_LABEL}]": ("metadata", "labels", names.SET_LABEL),
    "spec.template.spec.hostname": ("spec", "hostname"),
}
_COUNT_MAX: Final = 1_000_000  # more than any node has, and a number that every reader takes


@dataclasses.dataclass(frozen=True, slots=True)
class Fault:
    """Why a VM is no order that can be decided; `field` is the one to mend."""

    reason: MachineRefusal
    message: str
    field: str


def order_of(meta: core.ObjectMeta) -> Order | Fault | None:
    """What a VM with this metadata orders, under its own UID; None where it orders nothing.

    With `generateName` neither name nor UID are known in the mutating phase: the order has none then.
    """
    class_name = meta.labels.get(names.CLASS_LABEL)
    if class_name is None:
        return None
    text = meta.labels.get(names.COUNT_LABEL, "1")
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= _COUNT_MAX):
        return Fault(
            MachineRefusal.INVALID_COUNT,
            f"The label {names.COUNT_LABEL} is {text!r}, and must be a number of GPUs, 1 or more.",
            COUNT_FIELD,
        )
    if meta.name and not names.is_dns_label(meta.name):
        return Fault(
            MachineRefusal.INVALID_NAME,
            f"The name of a VM that orders GPUs names their set, and KubeVirt knows its pod by it: at most"
            f" {names.LABEL_MAX} lower-case letters, digits and '-', no dots.",
            "metadata.name",
        )
    return Order(meta.namespace, meta.name, meta.uid, class_name, int(text), meta.name)


def claim_of(order: Order) -> GPUClaim:
    """The claim of a VM's order: of the VM's name, and owned by it, so that it goes when the VM goes."""
    owner = core.OwnerReference(
        api_version=API_VERSION, kind=KIND, name=order.name, uid=order.uid, controller=True, block_owner_deletion=False
    )
    meta = core.ObjectMeta(
        namespace=order.namespace, name=order.name, finalizers=[names.HOLD_FINALIZER], owner_references=[owner]
    )
    return GPUClaim(metadata=meta, spec=GPUClaimSpec(class_name=order.class_name, count=order.count))


def conflict(claim: GPUClaim, order: Order) -> Fault | None:
    """Why a claim that is there already under the VM's name is not what the VM orders; None where it is."""
    if claim.metadata.deletion_timestamp is not None:
        return Fault(
            MachineRefusal.CLAIM_DELETED,
            f"The GPUClaim {order.name!r} of an earlier VM of this name is being deleted: try again in a moment.",
            "metadata.name",
        )
    there = Order.of(claim)
    if (there.class_name, there.count, there.set_name) != (order.class_name, order.count, order.set_name):
        return Fault(
            MachineRefusal.CLAIM_DIFFERS,
            f"There is a GPUClaim {order.name!r} already, and it is another order: {there.count} of class"
            f" {there.class_name!r} in set {there.set_name!r}. Delete it, or give the VM another name.",
            "metadata.name",
        )
    return None


def owner_of(meta: core.ObjectMeta) -> str | None:
    """The UID of the VM that a claim is the order of; None where it is its own."""
    for owner in meta.owner_references:
        group, _, _ = owner.api_version.partition("/")
        if owner.controller and (group, owner.kind, owner.name) == ("kubevirt.io", KIND, meta.name):
            return owner.uid
    return None


def devices(cls: GPUClass, count: int, taken: frozenset[str] = frozenset()) -> list[dict[str, str]]:
    """Entries of `devices.gpus` for that many GPUs of the class, with names that are not `taken`.

    Both modes take `gpus`, not `hostDevices`: what is behind the name, a function or an mdev, decides in KubeVirt how
    the guest gets it; only `gpus` gives a vGPU its display, and it needs no feature gate.
    """
    free = (name for number in range(1, count + len(taken) + 1) if (name := f"gpu-{number}") not in taken)
    return [{"name": next(free), "deviceName": model.resource_name(cls)} for _ in range(count)]


def template(cls: GPUClass, count: int, set_name: str | None = None) -> dict[str, Any]:
    """What a template of VMs with that many GPUs of the class must have (R76).

    Args:
        cls: the class.
        count: GPUs of each VM.
        set_name: the set of claims that the VM uses; without, each VM is an order itself.

    Raises:
        ValueError: `set_name` is no label's value.
    """
    if set_name is not None and (
        len(set_name) > names.LABEL_MAX or re.fullmatch(names.NAMED_LABEL_VALUE, set_name) is None
    ):
        raise ValueError(
            f"{set_name!r} is no name of a set: at most {names.LABEL_MAX} letters, digits, '-', '_' and '.'"
        )
    pod: dict[str, Any] = {"domain": {"devices": {"gpus": devices(cls, count)}}}
    if cls.spec.tolerations:
        pod = {"tolerations": msgspec.to_builtins(cls.spec.tolerations)} | pod
    if set_name is not None:
        return {"spec": {"template": {"metadata": {"labels": {names.SET_LABEL: set_name}}, "spec": pod}}}
    labels = {names.CLASS_LABEL: cls.metadata.name, names.COUNT_LABEL: str(count)}
    return {"metadata": {"labels": labels}, "spec": {"template": {"spec": pod}}}


def fill(machine: Mapping[str, Any], cls: GPUClass, count: int) -> list[dict[str, Any]] | Fault:
    """The JSON patch that gives the VM's template the devices that it lacks of `count` of the class.

    Args:
        machine: the VirtualMachine as it is on the wire, not yet checked against its schema.
        cls: its class.
        count: how many it orders.
    """
    template = _mapping(machine, "spec", "template")
    if template is None:
        return []  # its schema refuses it
    name = str((_mapping(machine, "metadata") or {}).get("name") or "")
    for field, path in _SET_FIELDS.items():
        other = (_mapping(template, *path[:-1]) or {}).get(path[-1])
        if other not in (None, "", name):
            return Fault(
                MachineRefusal.OTHER_SET,
                f"The GPUs that a VM orders are of the set of its own name, and {field} makes its pod one of set"
                f" {other!r}. Leave it away, or order a GPUClaim of that set instead.",
                field,
            )
    resource = model.resource_name(cls)
    given = list(_given(template))
    there = sum(device.get("deviceName") == resource for device in given)
    if there > count:
        return Fault(
            MachineRefusal.ABOVE_ORDER,
            f"The template has {there} devices of {resource}, and the VM orders {count} (label {names.COUNT_LABEL}).",
            COUNT_FIELD,
        )
    if there == count:
        return []
    taken = frozenset(str(device.get("name")) for device in given)
    known = _mapping(template, "spec", "domain", "devices") or {}
    gpus = [*(known.get("gpus") or []), *devices(cls, count - there, taken)]
    return _put(template, ("spec", "domain", "devices", "gpus"), gpus)


def _given(template: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    known = _mapping(template, "spec", "domain", "devices") or {}
    for field in ("gpus", "hostDevices"):
        for device in known.get(field) or ():
            if isinstance(device, dict):
                yield device


def _mapping(value: Any, *path: str) -> dict[str, Any] | None:  # noqa: ANN401 - any JSON
    """What is there, if it is a mapping."""
    for step in path:
        value = value.get(step) if isinstance(value, dict) else None
    return value if isinstance(value, dict) else None


def _put(template: dict[str, Any], path: tuple[str, ...], value: Any) -> list[dict[str, Any]]:  # noqa: ANN401 - any JSON
    """One operation that puts the value there, with what is missing on the way."""
    at, known = "/spec/template", template
    for number, step in enumerate(path):
        at += f"/{step}"
        inner = known.get(step)
        if not isinstance(inner, dict):
            for missing in reversed(path[number + 1 :]):
                value = {missing: value}
            return [{"op": "add", "path": at, "value": value}]
        known = inner
    raise AssertionError("the last step is no mapping")
