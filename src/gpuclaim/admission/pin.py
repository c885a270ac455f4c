"""The JSON patch that sends a pod to one node (R43). Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from gpuclaim.api.types import Toleration

Operation = dict[str, Any]
_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"


def pin(pod: Mapping[str, Any], node: str, tolerations: Iterable[Toleration]) -> list[Operation]:
    """The patch that adds a required node affinity on `node` and the tolerations that the pod does not have yet.

    Node selector terms are ORed: the requirement goes into every one, but into none that is empty: that one matches no
    node, and with a requirement added it would match this one.

    Args:
        pod: the pod as it is on the wire.
        node: the node's metadata.name.
        tolerations: what the pod needs beside its own.
    """
    spec = pod.get("spec") or {}
    return [*_affinity(spec, node), *_tolerations(spec, tolerations)]


def _affinity(spec: Mapping[str, Any], node: str) -> list[Operation]:
    here = {"key": "metadata.name", "operator": "In", "values": [node]}
    affinity = spec.get("affinity") or {}
    by_node = affinity.get("nodeAffinity") or {}
    required = by_node.get(_REQUIRED) or {}
    terms = required.get("nodeSelectorTerms") or []
    pinned = [_with_field(term, here) for term in terms] or [{"matchFields": [here]}]
    if pinned == terms:
        return []
    value = {**affinity, "nodeAffinity": {**by_node, _REQUIRED: {**required, "nodeSelectorTerms": pinned}}}
    return [{"op": "add", "path": "/spec/affinity", "value": value}]


def _with_field(term: Mapping[str, Any], here: Mapping[str, Any]) -> dict[str, Any]:
    if not term.get("matchExpressions") and not term.get("matchFields"):
        return dict(term)
    fields = [field for field in term.get("matchFields") or () if field != here]
    return {**term, "matchFields": [*fields, here]}


def _tolerations(spec: Mapping[str, Any], tolerations: Iterable[Toleration]) -> list[Operation]:
    present: list[dict[str, Any]] = spec.get("tolerations") or []
    known = [_normal(toleration) for toleration in present]
    added: list[dict[str, Any]] = []
    for toleration in tolerations:
        plain = msgspec.to_builtins(toleration)
        if _normal(plain) not in known:
            known.append(_normal(plain))
            added.append(plain)
    return [{"op": "add", "path": "/spec/tolerations", "value": [*present, *added]}] if added else []


def _normal(toleration: Mapping[str, Any]) -> dict[str, Any]:
    """With what is absent and what is the default made the same."""
    kept = {key: value for key, value in toleration.items() if value not in (None, "")}
    return {"operator": "Equal"} | kept
