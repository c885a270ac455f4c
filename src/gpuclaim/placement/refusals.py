"""What follows when a node's kubelet turns a set's pinned pod away (R11, R37). Pure."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from gpuclaim.api import core, model
from gpuclaim.api.types import GPUClaim, NodeRefusal

# What kubelet gives as the reason of a pod that it rejects: pkg/kubelet/lifecycle, pkg/kubelet/cm/topologymanager and
# cm/devicemanager. `OutOf…` stands for every resource.
REASONS: Final = frozenset(
    {
        "UnexpectedAdmissionError",
        "TopologyAffinityError",
        "NodeAffinity",
        "NodeName",
        "NodeShutdown",
        "InvalidNodeInfo",
        "AdmissionFailed",
    }
)
_BEGINNING: Final = dt.datetime.min.replace(tzinfo=dt.UTC)
_FIRST: Final = dt.timedelta(minutes=5)
_LONGEST: Final = dt.timedelta(hours=1)
_REMEMBERED: Final = dt.timedelta(hours=24)
"""A refusal that ended longer ago does not make the next one longer."""
_MOST: Final = 64
_MESSAGE: Final = 256


@dataclass(frozen=True, slots=True)
class TurnedAway:
    """A pod of a set that kubelet rejected."""

    namespace: str
    set_name: str
    pod: str
    pod_uid: str
    node: str
    reason: str
    message: str
    created: dt.datetime | None = None

    def before(self, other: TurnedAway) -> bool:
        """Whether this pod was made earlier, in an earlier second: the node turned `other` away after it."""
        return (self.created or _BEGINNING) < (other.created or _BEGINNING)


def turned_away(pod: core.Pod) -> TurnedAway | None:
    """The pod as one that a kubelet rejected; None where it is none, or belongs to no set."""
    set_name = model.pod_set(pod.metadata.labels)
    status = pod.status
    if status.phase != "Failed" or not pod.spec.node_name or set_name is None:
        return None
    if status.reason not in REASONS and not status.reason.startswith("OutOf"):
        return None
    meta = pod.metadata
    return TurnedAway(
        meta.namespace,
        set_name,
        meta.name,
        meta.uid,
        pod.spec.node_name,
        status.reason,
        status.message,
        meta.creation_timestamp,
    )


def concerns(claim: GPUClaim, away: TurnedAway) -> bool:
    """Whether the claim's status still has to say so: it is bound there, and does not name that pod yet."""
    return claim.status.node_name == away.node and all(r.pod_uid != away.pod_uid for r in claim.status.refusals)


def with_refusal(
    claim: GPUClaim, away: TurnedAway, present: Callable[[str], bool], now: dt.datetime
) -> list[NodeRefusal]:
    """The claim's refusals with this one: five minutes, twice as long when the node repeats it, an hour at most.

    Those of nodes that are gone, or that ended a day ago, are forgotten.
    """
    now = model.utc(now)
    kept = [r for r in claim.status.refusals if present(r.node_name) and r.expires_at > now - _REMEMBERED]
    before = next((r for r in kept if r.node_name == away.node), None)
    length = _FIRST if before is None else min(_LONGEST, 2 * (before.expires_at - before.refused_at))
    new = NodeRefusal(
        node_name=away.node,
        reason=away.reason,
        message=away.message[:_MESSAGE],
        refused_at=now,
        expires_at=now + length,
        pod_uid=away.pod_uid,
    )
    others = sorted((r for r in kept if r.node_name != away.node), key=lambda r: r.expires_at)
    return sorted([*others[-(_MOST - 1) :], new], key=lambda r: r.node_name)


def pending(claims: Iterable[GPUClaim], aways: Iterable[TurnedAway]) -> bool:
    """Whether any claim of a set still lacks a refusal: until then no pod of it may be pinned."""
    rejected = tuple(aways)
    return any(concerns(claim, away) for claim in claims for away in rejected)
