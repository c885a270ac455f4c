"""The guard: admission policies by which the apiserver itself turns away pods that hold nothing (R44). Pure.

Two policies say the same of different classes. One names the resources of all classes that the leader has taken up: one
look at a pod, however many classes there are, and it holds while no controller runs. The other's parameters are the
classes that do not say yet that they are taken up, normally none: a class that is made while no controller runs is
guarded too. The chart has the latter, so that it holds before a controller ever ran.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final

from gpuclaim.api import names

KNOWN: Final = "gpuclaim-guard"
NEW: Final = "gpuclaim-guard-new-classes"
VM_ORDERS: Final = "gpuclaim-vm-orders"
LABELS: Final[Mapping[str, str]] = {"app.kubernetes.io/name": "gpuclaim"}

_NAMES_A_SET: Final = " || ".join(
    f"(has(object.metadata.labels) && '{label}' in object.metadata.labels && object.metadata.labels['{label}'] != '')"
    for label in (names.SET_LABEL, names.VM_NAME_LABEL)
)
_PARAMETER: Final = "params.spec.source.devicePlugin.resourceName"
_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"


def policies(
    resources: Iterable[str], exempt: Iterable[str] = (), owner: Mapping[str, Any] = MappingProxyType({})
) -> list[dict[str, Any]]:
    """Every policy and its binding.

    Args:
        resources: the names by which pods ask for the classes that the leader has taken up.
        exempt: namespaces whose pods are not looked at.
        owner: the ownerReference of what they go with; empty, they stay until somebody deletes them.
    """
    spared = sorted(set(exempt))
    listed = _policy(KNOWN, asks_for(resources))
    made = [
        listed,
        _binding(KNOWN, spared),
        new_classes(),
        new_classes_binding(spared),
        vm_orders(),
        _binding(VM_ORDERS, []),
    ]
    return owned(made, owner)


def owned(made: list[dict[str, Any]], owner: Mapping[str, Any]) -> list[dict[str, Any]]:
    """These objects as ones that go with their owner; as they are where it is empty."""
    if not owner:
        return made
    return [each | {"metadata": each["metadata"] | {"ownerReferences": [dict(owner)]}} for each in made]


def owner(stored: Mapping[str, Any]) -> dict[str, Any]:
    """The ownerReference to a cluster-scoped object as the apiserver has it."""
    meta = stored["metadata"]
    return {"apiVersion": stored["apiVersion"], "kind": stored["kind"], "name": meta["name"], "uid": meta["uid"]}


def new_classes() -> dict[str, Any]:
    """The policy about classes that no leader has taken up yet; always the same."""
    asks = _asks_for(_PARAMETER)
    policy = _policy(NEW, f"has(params.spec.source.devicePlugin) && ({asks})")
    # Where the kind GPUClass is not served it cannot be judged. There is nothing to guard then, and it must not stop
    # every pod of the cluster.
    policy["spec"]["failurePolicy"] = "Ignore"
    policy["spec"]["paramKind"] = {"apiVersion": names.API_VERSION, "kind": "GPUClass"}
    return policy


def new_classes_binding(exempt: Iterable[str] = ()) -> dict[str, Any]:
    """Its binding."""
    binding = _binding(NEW, sorted(set(exempt)))
    unlabelled = {"matchExpressions": [{"key": names.GUARDED_LABEL, "operator": "DoesNotExist"}]}
    binding["spec"]["paramRef"] = {"selector": unlabelled, "parameterNotFoundAction": "Allow"}
    return binding


def vm_orders() -> dict[str, Any]:
    """The policy by which a VM's order does not change (R45): like a claim's, it is decided once."""
    same = " && ".join(
        f"{_label('object', label)} == {_label('oldObject', label)}" for label in (names.CLASS_LABEL, names.COUNT_LABEL)
    )
    message = (
        f"The labels {names.CLASS_LABEL} and {names.COUNT_LABEL} are an order, which is decided when the VM is made and"
        " does not change: make the VM anew, or order more with a GPUClaim whose set is the VM's name."
    )
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": VM_ORDERS, "labels": dict(LABELS)},
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {
                "resourceRules": [
                    {
                        "apiGroups": ["kubevirt.io"],
                        "apiVersions": ["*"],
                        "operations": ["UPDATE"],
                        "resources": ["virtualmachines"],
                    }
                ]
            },
            "validations": [{"expression": same, "message": message, "reason": "Forbidden"}],
        },
    }


def asks_for(resources: Iterable[str]) -> str:
    """The CEL expression that is true of a pod with a container, or init container, that asks for one of them."""
    wanted = ", ".join(f"'{name}'" for name in sorted(set(resources)))
    return _asks_for(f"[{wanted}]", several=True) if wanted else "false"


def _asks_for(wanted: str, *, several: bool = False) -> str:
    # Requests are enough: of an extended resource they equal the limits, and the apiserver has filled them in. Neither
    # ephemeral containers nor the pod as a whole can ask for one.
    some = (
        "c.resources.requests.exists(r, r in {wanted} && c.resources.requests[r] != '0')"
        if several
        else "{wanted} in c.resources.requests && c.resources.requests[{wanted}] != '0'"
    ).replace("{wanted}", wanted)
    asks = f"has(c.resources) && has(c.resources.requests) && {some}"
    return (
        f"object.spec.containers.exists(c, {asks})"
        f" || (has(object.spec.initContainers) && object.spec.initContainers.exists(c, {asks}))"
    )


def _policy(name: str, asks: str) -> dict[str, Any]:
    required = f"object.spec.affinity.nodeAffinity.{_REQUIRED}"
    here = "has(term.matchFields) && term.matchFields.exists(f, f.key == 'metadata.name' && f.operator == 'In')"
    # A term without requirements matches no node, and the pin leaves it alone.
    nothing = "(!has(term.matchFields) || size(term.matchFields) == 0)"
    nothing += " && (!has(term.matchExpressions) || size(term.matchExpressions) == 0)"
    pinned = (
        f"has(object.spec.affinity) && has(object.spec.affinity.nodeAffinity) && has({required})"
        f" && {required}.nodeSelectorTerms.all(term, ({here}) || ({nothing}))"
    )
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": name, "labels": dict(LABELS)},
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {
                "resourceRules": [
                    {
                        "apiGroups": [""],
                        "apiVersions": ["v1"],
                        "operations": ["CREATE", "UPDATE"],
                        "resources": ["pods"],
                    }
                ]
            },
            "matchConditions": [{"name": "asks-for-a-gpu", "expression": asks}],
            "validations": [
                {
                    "expression": f"request.operation != 'CREATE' || {_NAMES_A_SET}",
                    "message": "The pod asks for GPUs and belongs to no set: order a GPUClaim, and name its set in the"
                    f" label {names.SET_LABEL} (a VM's pod belongs to the set of the VM's name).",
                    "reason": "Forbidden",
                },
                {
                    "expression": f"request.operation != 'CREATE' || ({pinned})",
                    "message": "The pod was not sent to the node that holds the GPUs of its set: no gpuclaim controller"
                    " runs, or it has not taken up the class yet. Try again.",
                    "reason": "Forbidden",
                },
                {
                    "expression": f"request.operation != 'UPDATE' || {_set_of('object')} == {_set_of('oldObject')}",
                    "message": f"A pod that has GPUs stays in its set: the labels {names.SET_LABEL} and"
                    f" {names.VM_NAME_LABEL} name it and do not change.",
                    "reason": "Forbidden",
                },
            ],
        },
    }


def _set_of(pod: str) -> str:
    first, second = (_label(pod, label) for label in (names.SET_LABEL, names.VM_NAME_LABEL))
    return f"({first} != '' ? {first} : {second})"


def _label(what: str, label: str) -> str:
    return f"{what}.metadata.?labels[?'{label}'].orValue('')"


def _binding(name: str, exempt: list[str]) -> dict[str, Any]:
    spec: dict[str, Any] = {"policyName": name, "validationActions": ["Deny"]}
    if exempt:
        outside = {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": exempt}
        spec["matchResources"] = {"namespaceSelector": {"matchExpressions": [outside]}}
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": name, "labels": dict(LABELS)},
        "spec": spec,
    }
