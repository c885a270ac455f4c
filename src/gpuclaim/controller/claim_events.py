"""Which Events a change of a claim's status is worth, in a tenant's words. Pure.

Node names are those that the claim's own status says; of other tenants nothing is said.
"""

from __future__ import annotations

import dataclasses

from gpuclaim.api import model
from gpuclaim.api.core import Status
from gpuclaim.api.reasons import AttachedReason, ClaimCondition, EventReason
from gpuclaim.api.types import Condition, GPUClaim, GPUClaimStatus

_POD_WAITS = frozenset(
    {AttachedReason.NODE_LACKS_ROOM, AttachedReason.NODE_LACKS_GPUS, AttachedReason.POD_UNSCHEDULABLE}
)


@dataclasses.dataclass(frozen=True, slots=True)
class Said:
    """What an Event says: reason, sentence, and whether somebody should look into it."""

    reason: EventReason
    note: str
    warning: bool = False


def between(claim: GPUClaim, after: GPUClaimStatus) -> list[Said]:
    """What has happened to a claim whose status becomes `after`: what changed, and nothing that only grew older."""
    before = claim.status
    said: list[Said] = []
    bound = model.condition(after.conditions, ClaimCondition.BOUND)
    if after.node_name and not before.node_name:
        said.append(Said(EventReason.BOUND, _of_bound(bound, after.node_name)))
    elif after.node_name and after.node_name != before.node_name:
        said.append(Said(EventReason.MOVED, after.history[-1].message if after.history else ""))
    known = {refusal.pod_uid for refusal in before.refusals}
    said += [
        Said(
            EventReason.NODE_REFUSED,
            f"node {refusal.node_name} turned the pod away ({refusal.reason}), and is not tried again before"
            f" {refusal.expires_at.isoformat().replace('+00:00', 'Z')}: {refusal.message}",
            warning=True,
        )
        for refusal in after.refusals
        if refusal.pod_uid not in known
    ]
    if (waits := _turned(claim, after, ClaimCondition.BOUND)) and waits.status is Status.FALSE:
        said.append(Said(EventReason.WAITING, waits.message, warning=True))
    if (pod := _turned(claim, after, ClaimCondition.ATTACHED)) and pod.reason in _POD_WAITS:
        said.append(Said(EventReason.POD_WAITS, pod.message, warning=True))
    if well := _turned(claim, after, ClaimCondition.HEALTHY):
        if well.status is Status.FALSE:
            said.append(Said(EventReason.UNHEALTHY, well.message, warning=True))
        elif model.condition(before.conditions, ClaimCondition.HEALTHY) is not None:
            said.append(Said(EventReason.HEALTHY, well.message))
    return said


def released(claim: GPUClaim) -> list[Said]:
    """What is said when a deleted claim is let go."""
    count = claim.spec.count
    if not claim.status.node_name:
        return []
    text = f"{count} GPU{'' if count == 1 else 's'} of class {claim.spec.class_name} given back"
    return [Said(EventReason.RELEASED, text)]


def _turned(claim: GPUClaim, after: GPUClaimStatus, type_: ClaimCondition) -> Condition | None:
    """The condition where its reason is new: a sentence whose figures change alone is no news."""
    old = model.condition(claim.status.conditions, type_)
    new = model.condition(after.conditions, type_)
    if new is None or (old is not None and (old.status, old.reason) == (new.status, new.reason)):
        return None
    return new


def _of_bound(condition: Condition | None, node: str) -> str:
    return condition.message if condition is not None else f"held on node {node}"
