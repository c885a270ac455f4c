"""What must survive of a claim from one stored state to the next, as functions that say what did not: for tests. Pure.

`invariants` looks at one state of everything; here two states of one claim are compared, the second right after the
first, or later: all that is said holds for any two.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Container, Iterator
from typing import TypeAlias

from gpuclaim.api.types import GPUClaim, GPUClaimStatus, Usage, UsageInterval, UsageKind

Key: TypeAlias = tuple[str, UsageKind, dt.datetime]
"""Claim UID, kind and start: what names an interval, as `ledger.intervals.Key` has it."""


def lost(
    before: GPUClaim,
    after: GPUClaim | None,
    now: dt.datetime,
    *,
    recorded: Container[Key] | None,
    nodes: Container[str],
) -> list[str]:
    """What the claim said and does not say any more, though it must.

    Args:
        before: the claim as it was stored.
        after: the claim of the same UID as it is stored now; None where it is gone.
        now: the present moment.
        recorded: what the ledger has; None where there is no ledger.
        nodes: those that have been there all the while; what others refused is forgotten with them.
    """
    who = f"{before.metadata.namespace}/{before.metadata.name}"
    if after is None:
        return [f"{who}: {each}" for each in _at_its_end(before, recorded)]
    found = [
        *_hold(before, after),
        *_refusals(before.status, after.status, now, nodes),
        *_history(before.status, after.status),
        *_usage(before, after, recorded),
    ]
    return [f"{who}: {each}" for each in found]


def _hold(before: GPUClaim, after: GPUClaim) -> Iterator[str]:
    old, new = before.status, after.status
    if old.node_name and not new.node_name:
        yield f"the hold on {old.node_name} is lost"
    if old.held_since is None or new.held_since == old.held_since:
        return
    if after.metadata.deletion_timestamp is None:
        yield f"held since {old.held_since}, and now since {new.held_since}, without having been deleted (R50)"


def _refusals(old: GPUClaimStatus, new: GPUClaimStatus, now: dt.datetime, nodes: Container[str]) -> Iterator[str]:
    kept = {refusal.node_name: refusal for refusal in new.refusals}
    for refusal in old.refusals:
        if refusal.expires_at <= now or refusal.node_name not in nodes:
            continue
        after = kept.get(refusal.node_name)
        if after is None or after.expires_at < refusal.expires_at:
            yield f"the refusal by {refusal.node_name} until {refusal.expires_at} is lost or ends earlier (R37)"


def _history(old: GPUClaimStatus, new: GPUClaimStatus) -> Iterator[str]:
    if old.history and old.history[-1] not in new.history and len(new.history) <= len(old.history):
        yield f"the move to {old.history[-1].to_node} is no longer in its history (R36)"


def _usage(before: GPUClaim, after: GPUClaim, recorded: Container[Key] | None) -> Iterator[str]:
    old, new = before.status.usage or Usage(), after.status.usage or Usage()
    if new.held_seconds < old.held_seconds or new.attached_seconds < old.attached_seconds:
        yield "its closed totals have become less (R12)"
    if recorded is None:
        return
    waiting = {(each.kind, each.since): each for each in new.unrecorded}
    for interval in _owed(before, after.status):
        there = waiting.get((interval.kind, interval.since))
        known = (before.metadata.uid, interval.kind, interval.since) in recorded
        if not known and (there is None or there.until < interval.until) and not _joined(interval, new):
            yield f"the interval {_said(interval)} is in no status and in no ledger (R50)"


def _owed(before: GPUClaim, new: GPUClaimStatus) -> Iterator[UsageInterval]:
    """The intervals that waited, and those that have ended since: by a pod's end, a move, a release."""
    status = before.status
    usage, old, held = status.usage or Usage(), status.attachment, _held_here_since(status)
    yield from usage.unrecorded
    after = new.usage or Usage()
    if old is not None and (new.attachment is None or new.attachment.pod_uid != old.pod_uid):
        yield from _ended(status, UsageKind.ATTACHED, old.since, after.attached_until)
    if held is not None and new.held_since is not None and new.node_name != status.node_name:
        yield from _ended(status, UsageKind.HELD, held, new.node_since)
    if held is not None and status.held_since is not None and new.held_since is None:
        paid = dt.timedelta(seconds=after.held_seconds - usage.held_seconds)
        yield from _ended(status, UsageKind.HELD, held, status.held_since + paid)


def _ended(
    status: GPUClaimStatus, kind: UsageKind, since: dt.datetime, until: dt.datetime | None
) -> Iterator[UsageInterval]:
    # Several may have ended between the two states: of this one no more is known than that it was not empty.
    if until is not None and until > since:
        until = min(until, since + dt.timedelta(seconds=1))
        yield UsageInterval(kind=kind, node_name=status.node_name or "", since=since, until=until)


def _joined(interval: UsageInterval, new: Usage) -> bool:
    """Whether one that stands for several has taken it in (`ledger.intervals.joined`)."""
    return any(
        each.kind is interval.kind and each.seconds is not None and each.since <= interval.since < each.until
        for each in new.unrecorded
    )


def _at_its_end(claim: GPUClaim, recorded: Container[Key] | None) -> Iterator[str]:
    status = claim.status
    if claim.metadata.deletion_timestamp is None and status.node_name:
        yield "it is gone, and nobody had deleted it"
    if recorded is None or not status.node_name:
        return
    if status.held_since is not None or status.attachment is not None:
        yield f"it is gone while its use goes on: held since {status.held_since} (R50)"
    for interval in (status.usage or Usage()).unrecorded:
        if (claim.metadata.uid, interval.kind, interval.since) not in recorded:
            yield f"it is gone, and the interval {_said(interval)} is in no ledger (R50)"


def _held_here_since(status: GPUClaimStatus) -> dt.datetime | None:
    return (status.node_since or status.held_since) if status.held_since is not None else None


def _said(interval: UsageInterval) -> str:
    return f"{interval.kind} on {interval.node_name}, {interval.since} to {interval.until}"
