"""What a claim's status must say, from what is known of it (R10a, R12, R38). Pure."""

from __future__ import annotations

import dataclasses
import datetime as dt
from typing import Any, Final

import msgspec

from gpuclaim.api import model, names
from gpuclaim.api.core import Status
from gpuclaim.api.reasons import AttachedReason, BoundReason, ClaimCondition, HealthyReason, MoveReason
from gpuclaim.api.types import Condition, GPUClaim, GPUClaimStatus, HistoryEntry
from gpuclaim.ledger import intervals
from gpuclaim.ledger.intervals import Past
from gpuclaim.placement.ailment import SAID
from gpuclaim.placement.orders import Verdict


@dataclasses.dataclass(frozen=True, slots=True)
class SetPod:
    """The live pod of a claim's set; `node` is empty until it is scheduled, and `waits` says why it is not."""

    name: str
    uid: str
    node: str
    waits: tuple[AttachedReason, str] | None = None
    scheduled: dt.datetime | None = None
    """Since when it is on its node, where it says so."""


_NO_PAST: Final = Past()

SAID_OF_MOVES: Final = {
    MoveReason.MADE_ROOM: "to make room for an order",
    MoveReason.SET_GREW: "to make room for another claim of the set",
    MoveReason.SET_UNITED: "to bring the set together on one node",
    MoveReason.NODE_REFUSED: "as the node had turned the set's pod away",
    MoveReason.NODE_UNFIT: "as the node is down, drained or short of GPUs",
}
"""Why a hold moved, as the end of a sentence; nothing of others is in it."""


def bound(
    claim: GPUClaim, node: str, now: dt.datetime, why: MoveReason = MoveReason.MADE_ROOM, past: Past = _NO_PAST
) -> GPUClaimStatus:
    """The status once the claim holds its GPUs on `node`, anew or moved there; a move gets a line in the history."""
    status = claim.status
    moved = status.node_name is not None and status.node_name != node
    history = status.history
    if moved:
        text = f"moved from node {status.node_name} to node {node} {SAID_OF_MOVES[why]}"
        entry = HistoryEntry(
            at=model.utc(now), from_node=status.node_name or "", to_node=node, reason=why, message=text
        )
        history = [*history, entry][-names.HISTORY_MAX :]
    return _with(
        msgspec.structs.replace(
            intervals.placed(_caught_up(status, past, now), node, now, keep=past.keep), history=history
        ),
        claim,
        ClaimCondition.BOUND,
        Status.TRUE,
        BoundReason.MOVED if moved else BoundReason.BOUND,
        f"{_gpus(claim)} held on node {node}",
        now,
    )


def waiting(claim: GPUClaim, verdict: Verdict, now: dt.datetime) -> GPUClaimStatus:
    """The status of a claim that is stored and does not fit (R38)."""
    reason = verdict.reason or "Unknown"
    return _with(claim.status, claim, ClaimCondition.BOUND, Status.FALSE, reason, verdict.message, now)


def attached(claim: GPUClaim, pod: SetPod | None, now: dt.datetime, past: Past = _NO_PAST) -> GPUClaimStatus:
    """The status of a bound claim, by the live pod of its set: whether it is attached, and the usage that has ended."""
    status = _caught_up(claim.status, past, now)
    here = pod if pod is not None and pod.node and pod.node == status.node_name else None
    old = status.attachment
    if old is not None and (here is None or here.uid != old.pod_uid):
        status = intervals.detached(status, now, keep=past.keep)
    if here is not None and status.attachment is None:
        status = intervals.attached(status, here.name, here.uid, now, scheduled=here.scheduled)
    if here is not None:
        condition = (Status.TRUE, AttachedReason.POD_RUNS, f"pod {here.name} uses them")
    elif pod is not None and pod.node:
        text = f"pod {pod.name} runs on node {pod.node}, not where the hold is"
        condition = (Status.FALSE, AttachedReason.POD_ELSEWHERE, text)
    elif pod is not None:
        reason, text = pod.waits or (AttachedReason.POD_PENDING, f"pod {pod.name} is not scheduled yet")
        condition = (Status.FALSE, reason, text)
    else:
        condition = (Status.FALSE, AttachedReason.NO_POD, f"no pod of set {model.claim_set(claim)} runs")
    status = _with(status, claim, ClaimCondition.ATTACHED, *condition, now)
    if claim.metadata.deletion_timestamp is not None and pod is not None:
        text = f"deleted; held until pod {pod.name} has ended"
        status = _with(status, claim, ClaimCondition.BOUND, Status.TRUE, BoundReason.WAITS_FOR_POD, text, now)
    return status


def released(claim: GPUClaim, now: dt.datetime, past: Past) -> GPUClaimStatus:
    """The status of a deleted claim whose set has no pod: its time has ended, and it waits for the ledger (R10a)."""
    deleted = claim.metadata.deletion_timestamp or now
    status = intervals.released(_caught_up(claim.status, past, now), deleted, now, keep=past.keep)
    text = f"no pod of set {model.claim_set(claim)} runs"
    status = _with(status, claim, ClaimCondition.ATTACHED, Status.FALSE, AttachedReason.NO_POD, text, now)
    text = "deleted; held until its usage is in the ledger, at no cost to the tenant"
    return _with(status, claim, ClaimCondition.BOUND, Status.TRUE, BoundReason.WAITS_FOR_LEDGER, text, now)


def healthy(claim: GPUClaim, node: HealthyReason, now: dt.datetime) -> GPUClaimStatus:
    """The status of a bound claim, by what is wrong with its node (R36)."""
    well = Status.TRUE if node is HealthyReason.NODE_WELL else Status.FALSE
    return _with(claim.status, claim, ClaimCondition.HEALTHY, well, node, SAID[node], now)


def _caught_up(status: GPUClaimStatus, past: Past, now: dt.datetime) -> GPUClaimStatus:
    return intervals.caught_up(status, past.ended, now, keep=past.keep)


def merge_patch(old: msgspec.Struct, new: msgspec.Struct) -> dict[str, Any]:
    """The JSON merge patch (RFC 7386) that makes `new` of `old`, both as plain values; empty where they are equal."""
    before: dict[str, Any] = msgspec.to_builtins(old)
    after: dict[str, Any] = msgspec.to_builtins(new)
    return _difference(before, after)


def _difference(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    patch: dict[str, Any] = {key: None for key in before if key not in after}
    for key, value in after.items():
        old = before.get(key)
        if isinstance(value, dict) and isinstance(old, dict):
            if inner := _difference(old, value):
                patch[key] = inner
        elif value != old:
            patch[key] = value
    return patch


def _with(
    status: GPUClaimStatus,
    claim: GPUClaim,
    type_: ClaimCondition,
    value: Status,
    reason: str,
    message: str,
    now: dt.datetime,
) -> GPUClaimStatus:
    condition = Condition(
        type=type_,
        status=value,
        reason=reason,
        message=message,
        last_transition_time=model.utc(now),
        observed_generation=claim.metadata.generation,
    )
    return msgspec.structs.replace(status, conditions=model.with_condition(status.conditions, condition))


def _gpus(claim: GPUClaim) -> str:
    count = claim.spec.count
    return f"{count} GPU{'' if count == 1 else 's'} of class {claim.spec.class_name}"
