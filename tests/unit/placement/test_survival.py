"""What must survive of a claim: a whole life loses nothing, and whatever is taken out of it is missed."""

from __future__ import annotations

import dataclasses
import datetime as dt
import itertools
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from gpuclaim.api.core import ObjectMeta
from gpuclaim.api.types import GPUClaim, GPUClaimSpec, GPUClaimStatus, NodeRefusal
from gpuclaim.controller import claim_status
from gpuclaim.controller.claim_status import SetPod
from gpuclaim.ledger import intervals
from gpuclaim.ledger.intervals import Past
from gpuclaim.placement import survival
from gpuclaim.placement.survival import Key

NOW = dt.datetime(2026, 12, 1, 12, tzinfo=dt.UTC)
KEEP = Past(keep=True)
NODES = {"gpu-1", "gpu-2"}


def at(minutes: int) -> dt.datetime:
    return NOW + dt.timedelta(minutes=minutes)


@dataclasses.dataclass
class Moment:
    claim: GPUClaim
    recorded: set[Key] = dataclasses.field(default_factory=set)


def life() -> list[Moment]:
    """A claim is bound, used, turned away, moved, used again, deleted and let go; the ledger hears of it twice."""
    claim = GPUClaim(
        metadata=ObjectMeta(name="train", namespace="tenant-a", uid="uid-1"), spec=GPUClaimSpec(class_name="h200")
    )
    moments = [Moment(claim)]

    def step(status: GPUClaimStatus, recorded: set[Key] | None = None, deleted: dt.datetime | None = None) -> None:
        last = moments[-1]
        meta = msgspec.structs.replace(
            last.claim.metadata, deletion_timestamp=deleted or last.claim.metadata.deletion_timestamp
        )
        new = msgspec.structs.replace(last.claim, metadata=meta, status=status)
        moments.append(Moment(new, last.recorded | (recorded or set())))

    def latest() -> GPUClaim:
        return moments[-1].claim

    step(claim_status.bound(claim, "gpu-1", at(0), past=KEEP))
    step(claim_status.attached(latest(), SetPod("vm", "pod-1", "gpu-1"), at(10), KEEP))
    step(claim_status.attached(latest(), None, at(30), KEEP))
    refusal = NodeRefusal(node_name="gpu-1", refused_at=at(31), expires_at=at(600), pod_uid="pod-2")
    step(msgspec.structs.replace(latest().status, refusals=[refusal]))
    step(claim_status.bound(latest(), "gpu-2", at(32), past=KEEP))
    step(latest().status, {record.key for record in intervals.unrecorded(latest())})
    step(intervals.without(latest(), intervals.unrecorded(latest())))
    step(claim_status.attached(latest(), SetPod("vm", "pod-3", "gpu-2"), at(40), KEEP))
    step(latest().status, deleted=at(50))
    step(claim_status.released(latest(), at(60), KEEP))
    step(latest().status, {record.key for record in intervals.unrecorded(latest())})
    return moments


def lost(before: Moment, after: Moment) -> list[str]:
    return survival.lost(before.claim, after.claim, at(61), recorded=after.recorded, nodes=NODES)


def test_a_life_loses_nothing_between_any_two_of_its_states() -> None:
    for before, after in itertools.combinations(life(), 2):
        assert lost(before, after) == []


def test_a_claim_whose_use_is_in_the_ledger_may_go() -> None:
    last = life()[-1]
    assert survival.lost(last.claim, None, at(61), recorded=last.recorded, nodes=NODES) == []


def test_a_claim_goes_neither_undeleted_nor_unpaid() -> None:
    moments = life()
    bound, deleted, released = moments[1], moments[-3], moments[-2]
    assert "nobody had deleted it" in survival.lost(bound.claim, None, at(61), recorded=None, nodes=NODES)[0]
    went = survival.lost(deleted.claim, None, at(61), recorded=deleted.recorded, nodes=NODES)
    assert "its use goes on" in went[0]
    unpaid = survival.lost(released.claim, None, at(61), recorded=released.recorded, nodes=NODES)
    assert unpaid
    assert all("in no ledger" in each for each in unpaid)


def without(**fields: Any) -> Callable[[GPUClaimStatus], GPUClaimStatus]:
    return lambda status: msgspec.structs.replace(status, **fields)


def unpaid(status: GPUClaimStatus) -> GPUClaimStatus:
    assert status.usage is not None
    return msgspec.structs.replace(status, usage=msgspec.structs.replace(status.usage, unrecorded=[]))


@pytest.mark.parametrize(
    ("number", "taken_out", "said"),
    [
        (2, without(node_name=None), "the hold on gpu-1 is lost"),
        (2, without(held_since=at(5)), "without having been deleted"),
        (2, without(held_since=None), "without having been deleted"),
        (5, without(refusals=[]), "the refusal by gpu-1"),
        (7, without(history=[]), "the move to gpu-2"),
        (7, without(usage=None), "totals have become less"),
        (3, unpaid, "Attached on gpu-1"),
        (4, unpaid, "Attached on gpu-1"),
        (5, unpaid, "Held on gpu-1"),
        (10, unpaid, "Held on gpu-2"),
        (10, unpaid, "Attached on gpu-2"),
    ],
)
def test_what_is_taken_out_is_missed(number: int, taken_out: Callable[[Any], Any], said: str) -> None:
    moments = life()
    before, after = moments[number - 1], moments[number]
    claim = msgspec.structs.replace(after.claim, status=taken_out(after.claim.status))
    found = lost(before, Moment(claim, after.recorded))
    assert any(said in each for each in found), found


def test_a_refusal_is_forgotten_with_its_node_and_at_its_end() -> None:
    moments = life()
    before = moments[4]
    claim = msgspec.structs.replace(before.claim, status=without(refusals=[])(before.claim.status))
    assert survival.lost(before.claim, claim, at(61), recorded=None, nodes=NODES)
    assert survival.lost(before.claim, claim, at(61), recorded=None, nodes={"gpu-2"}) == []
    assert survival.lost(before.claim, claim, at(601), recorded=None, nodes=NODES) == []


def test_without_a_ledger_no_interval_is_waited_for() -> None:
    moments = life()
    claim = msgspec.structs.replace(moments[3].claim, status=unpaid(moments[3].claim.status))
    assert survival.lost(moments[2].claim, claim, at(61), recorded=None, nodes=NODES) == []
