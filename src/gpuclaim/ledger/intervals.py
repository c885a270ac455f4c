"""Which intervals of use follow from a claim's states (R12, R50). Pure.

A claim's status is the truth: what ends is closed there, in the write that says so, and waits there in
`usage.unrecorded` until the ledger has it. Times are whole seconds; intervals take in their start and not their end.
Intervals of one claim and kind never overlap and are never empty, so that claim, kind and start name one.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Container, Iterable, Sequence
from typing import Final, TypeAlias

import msgspec

from gpuclaim.api import model
from gpuclaim.api.types import (
    UNRECORDED_MAX,
    Attachment,
    GPUClaim,
    GPUClaimStatus,
    Usage,
    UsageInterval,
    UsageKind,
)

_OF_A_KIND: Final = UNRECORDED_MAX // 2

Key: TypeAlias = tuple[str, UsageKind, dt.datetime]
"""Claim UID, kind, start."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One interval as the ledger keeps it; `count` GPUs for `seconds`, which is less than its length if joined."""

    claim_uid: str
    kind: UsageKind
    started_at: dt.datetime
    ended_at: dt.datetime
    seconds: int
    namespace: str
    name: str
    class_name: str
    count: int
    set_name: str
    node_name: str

    @property
    def key(self) -> Key:
        """What it is one of."""
        return (self.claim_uid, self.kind, self.started_at)


@dataclasses.dataclass(frozen=True, slots=True)
class PodEnd:
    """A pod that has ended: where it ran, since when it was scheduled there, and when it ended."""

    name: str
    uid: str
    node: str
    since: dt.datetime
    until: dt.datetime


@dataclasses.dataclass(frozen=True, slots=True)
class Past:
    """What is known of a claim's use beside its status: its set's pods that have ended, and whether a ledger waits."""

    ended: tuple[PodEnd, ...] = ()
    keep: bool = False


# --- a claim's intervals ----------------------------------------------------------------------------------------------


def unrecorded(claim: GPUClaim) -> list[Record]:
    """The intervals that have ended and wait for the ledger."""
    usage = claim.status.usage
    return [_record(claim, interval) for interval in usage.unrecorded] if usage is not None else []


def running(claim: GPUClaim, now: dt.datetime) -> list[Record]:
    """The intervals that have not ended, as if they did now."""
    status, now = claim.status, model.utc(now)
    if status.node_name is None:
        return []
    starts = {UsageKind.HELD: _held_here_since(status)}
    if status.attachment is not None:
        starts[UsageKind.ATTACHED] = status.attachment.since
    return [
        _record(claim, UsageInterval(kind=kind, node_name=status.node_name, since=since, until=now))
        for kind, since in starts.items()
        if since is not None and since < now
    ]


def _record(claim: GPUClaim, interval: UsageInterval) -> Record:
    return Record(
        claim_uid=claim.metadata.uid,
        kind=interval.kind,
        started_at=interval.since,
        ended_at=interval.until,
        seconds=_seconds(interval),
        namespace=claim.metadata.namespace,
        name=claim.metadata.name,
        class_name=claim.spec.class_name,
        count=claim.spec.count,
        set_name=model.claim_set(claim),
        node_name=interval.node_name,
    )


# --- transitions ------------------------------------------------------------------------------------------------------


def placed(status: GPUClaimStatus, node: str, now: dt.datetime, *, keep: bool = True) -> GPUClaimStatus:
    """The status once `node` holds the GPUs, anew or after a move, which ends the interval on the old node.

    Args:
        status: as it is.
        node: where the hold is from now on.
        now: the present moment.
        keep: whether there is a ledger that the interval waits for.
    """
    now = model.utc(now)
    if status.node_name is None:
        return msgspec.structs.replace(status, node_name=node, held_since=status.held_since or now)
    if status.node_name == node:
        return status
    status = detached(status, now, keep=keep)
    since = _held_here_since(status)
    if since is None:
        # It has been released, and only waits for the ledger.
        return msgspec.structs.replace(status, node_name=node)
    now = max(now, since)
    status = _closed(status, UsageKind.HELD, since, now, keep=keep)
    return msgspec.structs.replace(status, node_name=node, node_since=now)


def attached(
    status: GPUClaimStatus, pod_name: str, pod_uid: str, now: dt.datetime, *, scheduled: dt.datetime | None = None
) -> GPUClaimStatus:
    """The status once the pod uses the GPUs: since it was scheduled, where that is known and nothing else was then."""
    now = model.utc(now)
    held = _held_here_since(status)
    if held is None:
        # Released, and taken again by a pod that came before the ledger answered.
        held = now
        status = msgspec.structs.replace(status, held_since=now, node_since=None)
    free = max(held, status.usage.attached_until) if status.usage and status.usage.attached_until else held
    since = max(free, min(now, model.utc(scheduled) if scheduled is not None else now))
    return msgspec.structs.replace(status, attachment=Attachment(pod_name=pod_name, pod_uid=pod_uid, since=since))


def detached(
    status: GPUClaimStatus, now: dt.datetime, *, ended: dt.datetime | None = None, keep: bool = True
) -> GPUClaimStatus:
    """The status once the attached pod has ended: at `ended`, or now where nobody saw when. Unchanged without one."""
    old = status.attachment
    if old is None:
        return status
    until = max(old.since, min(model.utc(now), model.utc(ended) if ended is not None else model.utc(now)))
    status = _closed(status, UsageKind.ATTACHED, old.since, until, keep=keep)
    used = status.usage or Usage()
    usage = msgspec.structs.replace(
        used,
        attached_seconds=used.attached_seconds + _length(old.since, until),
        attached_until=max(used.attached_until or until, until),
    )
    return msgspec.structs.replace(status, attachment=None, usage=usage)


def caught_up(
    status: GPUClaimStatus, ended: Iterable[PodEnd], now: dt.datetime, *, keep: bool = True
) -> GPUClaimStatus:
    """The status once it says what pods did that have ended, those included that nobody saw run.

    Args:
        status: as it is.
        ended: pods of the claim's set, in any order, and any number of times.
        now: the present moment.
        keep: whether there is a ledger that the intervals wait for.
    """
    for pod in sorted(ended, key=lambda pod: pod.until):
        old, held = status.attachment, _held_here_since(status)
        if old is not None and old.pod_uid == pod.uid:
            status = detached(status, now, ended=pod.until, keep=keep)
        elif old is None and held is not None and pod.node == status.node_name:
            last = status.usage.attached_until if status.usage is not None else None
            if model.utc(pod.until) > max(held, last or held):
                status = attached(status, pod.name, pod.uid, now, scheduled=pod.since)
                status = detached(status, now, ended=pod.until, keep=keep)
    return status


def released(status: GPUClaimStatus, deleted: dt.datetime, now: dt.datetime, *, keep: bool = True) -> GPUClaimStatus:
    """The status of a deleted claim whose set has no pod any more.

    What it waits for from here on is not the tenant's time: it was held until the claim was deleted or, if later, its
    last pod ended. The node keeps its GPUs for it until it is gone. Unchanged where it has been released.

    Args:
        status: as it is.
        deleted: when the claim was deleted.
        now: the present moment.
        keep: whether there is a ledger that the intervals wait for.
    """
    status = detached(status, now, keep=keep)
    since, first = _held_here_since(status), status.held_since
    if since is None or first is None:
        return status
    last = status.usage.attached_until if status.usage is not None else None
    until = max(since, min(model.utc(now), max(model.utc(deleted), last or since)))
    status = _closed(status, UsageKind.HELD, since, until, keep=keep)
    used = status.usage or Usage()
    usage = msgspec.structs.replace(used, held_seconds=used.held_seconds + _length(first, until))
    return msgspec.structs.replace(status, held_since=None, node_since=None, usage=usage)


def without(claim: GPUClaim, recorded: Container[Record]) -> GPUClaimStatus:
    """The claim's status less the intervals that the ledger has."""
    usage = claim.status.usage
    if usage is None or not usage.unrecorded:
        return claim.status
    left = [interval for interval in usage.unrecorded if _record(claim, interval) not in recorded]
    if len(left) == len(usage.unrecorded):
        return claim.status
    return msgspec.structs.replace(claim.status, usage=msgspec.structs.replace(usage, unrecorded=left))


def joined(intervals: Sequence[UsageInterval], new: UsageInterval, most: int = _OF_A_KIND) -> list[UsageInterval]:
    """The intervals and `new` after them; where there are `most` of its kind already, the newest of them takes it in.

    The sum of the seconds stays exact; of the nodes only the first is kept. `new` has never been stored, so the ledger
    cannot have it beside the joined one; it may have the one that grows, and lets it (`store.Ledger.record`).
    """
    kept = list(intervals)
    alike = [index for index, old in enumerate(kept) if old.kind is new.kind]
    if len(alike) < most:
        return [*kept, new]
    index = alike[-1]
    seconds = _seconds(kept[index]) + _seconds(new)
    kept[index] = msgspec.structs.replace(kept[index], until=new.until, seconds=seconds)
    return kept


def _held_here_since(status: GPUClaimStatus) -> dt.datetime | None:
    return (status.node_since or status.held_since) if status.held_since is not None else None


def _closed(
    status: GPUClaimStatus, kind: UsageKind, since: dt.datetime, until: dt.datetime, *, keep: bool
) -> GPUClaimStatus:
    if not keep or until <= since or status.node_name is None:
        return status
    used = status.usage or Usage()
    new = UsageInterval(kind=kind, node_name=status.node_name, since=since, until=until)
    usage = msgspec.structs.replace(used, unrecorded=joined(used.unrecorded, new))
    return msgspec.structs.replace(status, usage=usage)


def _seconds(interval: UsageInterval) -> int:
    return interval.seconds if interval.seconds is not None else _length(interval.since, interval.until)


def _length(since: dt.datetime, until: dt.datetime) -> int:
    return max(0, int((until - since).total_seconds()))
