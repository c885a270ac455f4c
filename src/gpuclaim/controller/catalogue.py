"""What the status of a GPUClass, the conditions of a GPUNode and a quota's use must say, from the books. Pure."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping

import msgspec

from gpuclaim.api import core, model
from gpuclaim.api.core import Status
from gpuclaim.api.reasons import NodeConditionType, NodeReason
from gpuclaim.api.types import Condition, GPUClass, GPUClassStatus, GPUNode
from gpuclaim.placement.budget import Limit
from gpuclaim.placement.facts import NodeFacts
from gpuclaim.placement.supply import Supply


def class_status(cls: GPUClass, supply: Supply, *, counts: bool) -> GPUClassStatus:
    """The class's status; with the numbers only where the hoster shows them."""
    shown = supply if counts else None
    return msgspec.structs.replace(
        cls.status,
        availability=supply.availability,
        total=shown.total if shown else None,
        held=shown.held if shown else None,
        free=shown.free if shown else None,
        largest_order=shown.largest if shown else None,
    )


def node_conditions(report: GPUNode, node: NodeFacts, now: dt.datetime) -> list[Condition]:
    """The node's conditions; the same as before as long as nothing has changed, so that nothing is written."""
    conditions = list(report.status.conditions)
    for type_, (status, reason, message) in {
        NodeConditionType.REPORTING: _reporting(node),
        NodeConditionType.HEALTHY: _healthy(node),
        NodeConditionType.OVERCOMMITTED: _overcommitted(node),
        NodeConditionType.FOREIGN_USE: _foreign_use(node),
    }.items():
        new = Condition(
            type=type_,
            status=status,
            reason=reason,
            message=message[:1024],
            last_transition_time=model.utc(now),
            observed_generation=report.metadata.generation,
        )
        conditions = model.with_condition(conditions, new)
    return conditions


def budget_use(limits: Iterable[Limit]) -> dict[tuple[str, str], dict[str, dict[str, str]]]:
    """What each quota's status must say of our keys (R33), as (namespace, name) → {hard, used} → key → quantity."""
    found: dict[tuple[str, str], dict[str, dict[str, str]]] = {}
    for limit in limits:
        status = found.setdefault((limit.namespace, limit.quota), {"hard": {}, "used": {}})
        status["hard"][limit.key] = str(limit.hard)
        status["used"][limit.key] = str(limit.used)
    return found


def without_known(
    wanted: Mapping[str, Mapping[str, str]], known: core.ResourceQuotaStatus
) -> dict[str, dict[str, str]]:
    """The part of a quota's status that is not stored yet."""
    stored = {"hard": known.hard, "used": known.used}
    return {
        part: new
        for part, keys in wanted.items()
        if (new := {key: value for key, value in keys.items() if _number(stored[part].get(key)) != int(value)})
    }


def _number(quantity: str | int | None) -> int | None:
    try:
        return core.whole(quantity) if quantity is not None else None
    except ValueError:
        return None


_Said = tuple[Status, NodeReason, str]


def _reporting(node: NodeFacts) -> _Said:
    if node.reported_at is None:
        return Status.FALSE, NodeReason.NEVER_REPORTED, "the agent has not reported yet"
    if node.silent:
        since = model.utc(node.reported_at).isoformat().replace("+00:00", "Z")
        return Status.FALSE, NodeReason.SILENT, f"the agent has not reported since {since}"
    if node.rebooted:
        return Status.FALSE, NodeReason.REBOOTED, "the node has rebooted since the agent reported"
    return Status.TRUE, NodeReason.REPORTS, "the agent reports"


def _healthy(node: NodeFacts) -> _Said:
    if not node.unhealthy:
        return Status.TRUE, NodeReason.ALL_HEALTHY, "no device that was offered is missing"
    text = f"{len(node.unhealthy)} of {node.devices} devices unhealthy: {', '.join(node.unhealthy)}"
    return Status.FALSE, NodeReason.DEVICES_UNHEALTHY, text


def _overcommitted(node: NodeFacts) -> _Said:
    over = node.over
    if not over:
        return Status.FALSE, NodeReason.WITHIN_CAPACITY, "holds are within what the node has"
    return Status.TRUE, NodeReason.ABOVE_CAPACITY, f"held beyond what the node has: {_counts(over)}"


def _foreign_use(node: NodeFacts) -> _Said:
    if not node.foreign:
        return Status.FALSE, NodeReason.NO_FOREIGN_USE, "no pod without a claim uses GPUs"
    return Status.TRUE, NodeReason.PODS_WITHOUT_CLAIM, f"pods without a claim use {_counts(node.foreign)}"


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} of {name}" for name, count in sorted(counts.items()))
