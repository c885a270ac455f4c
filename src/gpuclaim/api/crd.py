"""The CustomResourceDefinitions, made from the types.

msgspec writes JSON schema; the apiserver wants a structural schema, which knows no $ref, no union with null, and no
title. Defaults of the types are for readers in Python: the apiserver fills in only what `_DEFAULTS` names.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from gpuclaim.api import names
from gpuclaim.api.types import GPUClaim, GPUClass, GPUNode

Schema = dict[str, Any]

_RULE_NUMBER: Final = re.compile(r" \(R\d+\w?\)")
_DEFAULTS: Final = {(GPUClaim, "spec.count"): 1}


@dataclasses.dataclass(frozen=True, slots=True)
class Kind:
    """What a CRD says beside its schema. `columns` are (name, type, JSON path, description, wide only)."""

    type: type[msgspec.Struct]
    plural: str
    singular: str
    short: tuple[str, ...]
    namespaced: bool
    required: tuple[str, ...]
    rules: tuple[Mapping[str, str], ...] = ()
    selectable: tuple[str, ...] = ()
    columns: tuple[tuple[str, str, str, str, bool], ...] = ()


_AGE: Final = ("Age", "date", ".metadata.creationTimestamp", "", False)


def _condition(type_: str, field: str = "status") -> str:
    return f'.status.conditions[?(@.type=="{type_}")].{field}'


KINDS: Final = (
    Kind(
        type=GPUClass,
        plural="gpuclasses",
        singular="gpuclass",
        short=("gclass",),
        namespaced=False,
        required=("spec",),
        rules=(
            {
                "rule": f"size(self.metadata.name) <= {names.LABEL_MAX}"
                f" && self.metadata.name.matches('{names.DNS_LABEL}')",
                "message": "the name must be a DNS label (at most 63 lower-case letters, digits and '-'):"
                " it becomes part of a quota key",
            },
            {
                "rule": f"self.metadata.name != '{names.TOTAL}'",
                "message": f"the name '{names.TOTAL}' is the quota key of all classes together",
            },
        ),
        columns=(
            ("Mode", "string", ".spec.mode", "How a VM gets the GPU.", False),
            ("Availability", "string", ".status.availability", "What there is of it.", False),
            ("Max", "integer", ".spec.maxCount", "The most in one set.", False),
            ("Closed", "boolean", ".spec.closed", "Whether it takes no new orders.", False),
            ("Description", "string", ".spec.displayName", "", False),
            ("Resource", "string", ".spec.source.devicePlugin.resourceName", "What pods ask for.", True),
            _AGE,
        ),
    ),
    Kind(
        type=GPUClaim,
        plural="gpuclaims",
        singular="gpuclaim",
        short=("gclaim",),
        namespaced=True,
        required=("spec",),
        rules=(
            {
                "rule": f"has(self.spec.set) || size(self.metadata.name) <= {names.LABEL_MAX}",
                "message": "without spec.set the name is the set, and a set has at most 63 characters",
            },
        ),
        selectable=(".status.nodeName",),
        columns=(
            ("Class", "string", ".spec.className", "What was ordered.", False),
            ("Count", "integer", ".spec.count", "How many GPUs.", False),
            ("Bound", "string", _condition("Bound"), "Whether they are held.", False),
            ("Attached", "string", _condition("Attached"), "Whether a pod uses them.", False),
            ("Node", "string", ".status.nodeName", "Where they are held.", False),
            ("Set", "string", ".spec.set", "What is consumed together.", True),
            ("Reason", "string", _condition("Bound", "reason"), "Why it is or is not bound.", True),
            _AGE,
        ),
    ),
    Kind(
        type=GPUNode,
        plural="gpunodes",
        singular="gpunode",
        short=("gnode",),
        namespaced=False,
        required=(),
        columns=(
            ("Reporting", "string", _condition("Reporting"), "Whether its agent reports.", False),
            ("Healthy", "string", _condition("Healthy"), "Whether all its devices are.", False),
            ("Cordoned", "boolean", ".spec.cordoned", "Whether it takes no new hold.", False),
            ("Reported", "date", ".status.reportedAt", "When the agent last reported.", False),
            ("Resources", "string", ".status.resourceNames", "What its GPUs are asked for by.", True),
            _AGE,
        ),
    ),
)


def definitions() -> list[dict[str, Any]]:
    """The CRDs of GPUClass, GPUClaim and GPUNode as plain values (apiextensions.k8s.io/v1), the same every time."""
    return [_definition(kind) for kind in KINDS]


def schema(kind: Kind) -> Schema:
    """The structural schema of a kind, as openAPIV3Schema."""
    whole = msgspec.json.schema(kind.type)
    made = _structural(whole, whole["$defs"] | {"ObjectMeta": {"type": "object"}})
    properties = made["properties"]
    properties["apiVersion"], properties["kind"] = {"type": "string"}, {"type": "string"}
    properties["metadata"] = {"type": "object"}
    _require(made, kind.required)
    if kind.rules:
        made["x-kubernetes-validations"] = [dict(rule) for rule in kind.rules]
    for (owner, path), default in _DEFAULTS.items():
        if owner is kind.type:
            field = made
            for step in path.split("."):
                field = field["properties"][step]
            field["default"] = default
    if kind.type is GPUClaim:
        rule = {"rule": "self == oldSelf", "message": "an order never changes: delete the claim and order anew"}
        properties["spec"]["x-kubernetes-validations"] = [rule]
    return made


def _definition(kind: Kind) -> dict[str, Any]:
    name = kind.type.__name__
    version: dict[str, Any] = {
        "name": names.VERSION,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": schema(kind)},
        "subresources": {"status": {}},
        "additionalPrinterColumns": [_column(*column) for column in kind.columns],
    }
    if kind.selectable:
        version["selectableFields"] = [{"jsonPath": path} for path in kind.selectable]
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{kind.plural}.{names.GROUP}",
            # Deleting a CRD deletes every hold (R64).
            "annotations": {"helm.sh/resource-policy": "keep"},
        },
        "spec": {
            "group": names.GROUP,
            "scope": "Namespaced" if kind.namespaced else "Cluster",
            "names": {
                "kind": name,
                "listKind": f"{name}List",
                "plural": kind.plural,
                "singular": kind.singular,
                "shortNames": list(kind.short),
                "categories": ["gpu"],
            },
            "versions": [version],
        },
    }


def _column(name: str, type_: str, path: str, description: str, wide: bool) -> dict[str, Any]:
    column: dict[str, Any] = {"name": name, "type": type_, "jsonPath": path}
    if description:
        column["description"] = description
    return column | ({"priority": 1} if wide else {})


def _require(made: Schema, required: tuple[str, ...]) -> None:
    made.pop("required", None)
    if required:
        made["required"] = list(required)


def _structural(part: Mapping[str, Any], defs: Mapping[str, Schema]) -> Schema:
    """One node of the schema and all below it, structural."""
    if "$ref" in part:
        target = defs[part["$ref"].rpartition("/")[2]]
        beside = {key: value for key, value in part.items() if key not in {"$ref", "$defs"}}
        return _structural({**target, **beside}, defs)
    if "anyOf" in part:
        (real,) = (choice for choice in part["anyOf"] if choice != {"type": "null"})
        beside = {key: value for key, value in part.items() if key not in {"anyOf", "default"}}
        return _structural({**real, **beside}, defs)
    made: Schema = {}
    for key, value in part.items():
        if key == "properties":
            made[key] = {name: _structural(field, defs) for name, field in value.items()}
        elif key in {"items", "additionalProperties"}:
            made[key] = _structural(value, defs)
        elif key == "description":
            # The design's numbers are for us, not for `kubectl explain`.
            made[key] = _RULE_NUMBER.sub("", value)
        elif key not in {"title", "default", "$defs"} and not (key == "required" and not value):
            made[key] = value
    if "enum" in made:
        made["type"] = "string"
    return made
