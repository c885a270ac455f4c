"""Which Events a change of a claim's status is worth."""

from __future__ import annotations

import msgspec

from gpuclaim.api.reasons import HealthyReason, MoveReason, Refusal
from gpuclaim.api.types import GPUClaim, GPUClaimStatus, NodeRefusal
from gpuclaim.controller import claim_events, claim_status
from gpuclaim.controller.claim_status import SetPod
from gpuclaim.placement import unscheduled
from gpuclaim.placement.facts import PodFacts
from gpuclaim.placement.orders import Verdict

from .test_claim_status import T0, claim, later, with_status


def said(of: GPUClaim, after: GPUClaimStatus) -> list[tuple[str, bool]]:
    return [(each.reason.value, each.warning) for each in claim_events.between(of, after)]


def bound(node: str = "gpu-1") -> GPUClaim:
    return with_status(claim(), claim_status.bound(claim(), node, T0))


def test_a_bind_is_told_once() -> None:
    after = claim_status.bound(claim(), "gpu-1", T0)
    (event,) = claim_events.between(claim(), after)
    assert (event.reason, event.note) == ("Bound", "2 GPUs of class h200 held on node gpu-1")
    assert said(bound(), after) == []


def test_a_move_says_from_where_to_where_and_why() -> None:
    after = claim_status.bound(bound(), "gpu-2", later(9), MoveReason.NODE_UNFIT)
    (event,) = claim_events.between(bound(), after)
    text = "moved from node gpu-1 to node gpu-2 as the node is down, drained or short of GPUs"
    assert (event.reason, event.note, event.warning) == ("Moved", text, False)
    (entry,) = after.history
    assert (entry.from_node, entry.to_node, entry.reason, entry.message) == ("gpu-1", "gpu-2", "NodeUnfit", text)
    assert entry.at == later(9)


def test_the_history_keeps_the_last_moves() -> None:
    moved = bound("n0")
    for number in range(1, 41):
        moved = with_status(moved, claim_status.bound(moved, f"n{number}", later(number)))
    assert len(moved.status.history) == 16
    assert [moved.status.history[n].to_node for n in (0, -1)] == ["n25", "n40"]


def test_to_wait_is_told_when_the_reason_changes_and_not_when_its_figures_do() -> None:
    def waits(of: GPUClaim, reason: Refusal, text: str) -> GPUClaimStatus:
        return claim_status.waiting(of, Verdict(admitted=False, reason=reason, message=text), T0)

    first = waits(claim(), Refusal.INSUFFICIENT_CAPACITY, "2 would fit")
    assert said(claim(), first) == [("Waiting", True)]
    waiting = with_status(claim(), first)
    assert said(waiting, waits(waiting, Refusal.INSUFFICIENT_CAPACITY, "1 would fit")) == []
    assert said(waiting, waits(waiting, Refusal.OVER_BUDGET, "used up")) == [("Waiting", True)]


def test_a_refusal_of_a_node_is_told_once_a_pod() -> None:
    refusal = NodeRefusal(
        node_name="gpu-1",
        reason="UnexpectedAdmissionError",
        message="Allocate failed",
        refused_at=T0,
        expires_at=later(300),
        pod_uid="pod-1",
    )
    after = msgspec.structs.replace(bound().status, refusals=[refusal])
    (event,) = claim_events.between(bound(), after)
    assert event.reason == "NodeRefused"
    assert "gpu-1 turned the pod away (UnexpectedAdmissionError)" in event.note
    assert "2026-12-01T12:05:00Z" in event.note
    known = with_status(bound(), after)
    assert said(known, after) == []
    again = msgspec.structs.replace(refusal, pod_uid="pod-2", expires_at=later(900))
    assert said(known, msgspec.structs.replace(after, refusals=[again])) == [("NodeRefused", True)]


def test_a_pod_that_waits_for_room_is_told_and_one_that_only_has_not_been_scheduled_yet_is_not() -> None:
    def pod(lacks: frozenset[str] | None) -> SetPod:
        facts = PodFacts("tenant-a", "p", "u", "vm1", "", (), lacks)
        return SetPod("p", "u", "", unscheduled.said_of(facts, {"nvidia.com/X"}))

    fresh = claim_status.attached(bound(), pod(None), T0)
    assert said(bound(), fresh) == []
    waits = claim_status.attached(bound(), pod(frozenset({"cpu"})), T0)
    (event,) = claim_events.between(bound(), waits)
    assert (event.reason, event.warning) == ("PodWaits", True)
    assert "too little cpu left" in event.note


def test_what_is_wrong_with_the_node_is_told_and_that_it_is_over() -> None:
    well = claim_status.healthy(bound(), HealthyReason.NODE_WELL, T0)
    assert said(bound(), well) == []
    ill = claim_status.healthy(with_status(bound(), well), HealthyReason.NODE_NOT_READY, later(1))
    assert said(with_status(bound(), well), ill) == [("Unhealthy", True)]
    assert said(with_status(bound(), ill), well) == [("Healthy", False)]


def test_only_what_was_held_is_given_back() -> None:
    assert [each.note for each in claim_events.released(bound())] == ["2 GPUs of class h200 given back"]
    assert claim_events.released(claim()) == []
