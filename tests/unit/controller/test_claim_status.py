"""A claim's status, from one state to the next."""

from __future__ import annotations

import datetime as dt
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from gpuclaim.api import model
from gpuclaim.api.core import ObjectMeta
from gpuclaim.api.reasons import Refusal
from gpuclaim.api.types import GPUClaim, GPUClaimSpec, GPUClaimStatus
from gpuclaim.controller import claim_status
from gpuclaim.controller.claim_status import SetPod
from gpuclaim.placement.orders import Verdict
from gpuclaim.placement.scenario import merge_patch

T0 = dt.datetime(2026, 12, 1, 12, tzinfo=dt.UTC)
HERE = SetPod("virt-launcher-vm1-x", "uid-pod", "gpu-1")


def later(seconds: float) -> dt.datetime:
    return T0 + dt.timedelta(seconds=seconds)


def claim(**status: Any) -> GPUClaim:
    return GPUClaim(
        metadata=ObjectMeta(name="vm1", namespace="tenant-a", uid="u", generation=1),
        spec=GPUClaimSpec(class_name="h200", count=2),
        status=GPUClaimStatus(**status),
    )


def with_status(of: GPUClaim, status: GPUClaimStatus) -> GPUClaim:
    return msgspec.structs.replace(of, status=status)


def conditions(status: GPUClaimStatus) -> dict[str, tuple[str, str]]:
    return {c.type: (c.status, c.reason) for c in status.conditions}


def test_bound_says_where_since_when_and_what() -> None:
    status = claim_status.bound(claim(), "gpu-1", T0)
    assert (status.node_name, status.held_since) == ("gpu-1", T0)
    assert conditions(status) == {"Bound": ("True", "Bound")}
    assert status.conditions[0].message == "2 GPUs of class h200 held on node gpu-1"


def test_a_move_keeps_the_time_it_is_held_since() -> None:
    first = with_status(claim(), claim_status.bound(claim(), "gpu-1", T0))
    moved = claim_status.bound(first, "gpu-2", later(60))
    assert (moved.node_name, moved.held_since) == ("gpu-2", T0)
    assert conditions(moved) == {"Bound": ("True", "Moved")}
    assert moved.conditions[0].last_transition_time == T0


def test_waiting_says_why() -> None:
    verdict = Verdict(admitted=False, reason=Refusal.INSUFFICIENT_CAPACITY, message="no room")
    status = claim_status.waiting(claim(), verdict, T0)
    assert conditions(status) == {"Bound": ("False", "InsufficientCapacity")}
    assert status.node_name is None


def test_attached_while_the_pod_is_on_the_node_and_its_time_is_closed_after() -> None:
    held = with_status(claim(), claim_status.bound(claim(), "gpu-1", T0))
    runs = with_status(held, claim_status.attached(held, HERE, later(10)))
    assert runs.status.attachment is not None
    assert runs.status.attachment.since == later(10)
    assert claim_status.attached(runs, HERE, later(50)) == runs.status  # no write while nothing changes (R12)
    over = claim_status.attached(runs, None, later(70))
    assert over.attachment is None
    assert over.usage is not None
    assert over.usage.attached_seconds == 60
    assert conditions(over)["Attached"] == ("False", "NoPod")


def test_another_pod_of_the_set_is_another_attachment() -> None:
    held = with_status(claim(), claim_status.bound(claim(), "gpu-1", T0))
    runs = with_status(held, claim_status.attached(held, HERE, T0))
    next_pod = SetPod("virt-launcher-vm1-y", "uid-2", "gpu-1")
    status = claim_status.attached(runs, next_pod, later(5))
    assert status.attachment is not None
    assert (status.attachment.pod_uid, status.attachment.since) == ("uid-2", later(5))
    assert status.usage is not None
    assert status.usage.attached_seconds == 5


def test_a_pod_that_is_not_scheduled_or_elsewhere_is_not_attached() -> None:
    held = with_status(claim(), claim_status.bound(claim(), "gpu-1", T0))
    pending = claim_status.attached(held, SetPod("p", "u", ""), T0)
    elsewhere = claim_status.attached(held, SetPod("p", "u", "gpu-9"), T0)
    assert conditions(pending)["Attached"] == ("False", "PodPending")
    assert conditions(elsewhere)["Attached"] == ("False", "PodElsewhere")


def test_a_deleted_claim_says_what_it_waits_for() -> None:
    held = with_status(claim(), claim_status.bound(claim(), "gpu-1", T0))
    meta = msgspec.structs.replace(held.metadata, deletion_timestamp=later(1))
    status = claim_status.attached(msgspec.structs.replace(held, metadata=meta), HERE, later(2))
    bound = model.condition(status.conditions, "Bound")
    assert bound is not None
    assert (bound.reason, bound.message) == ("WaitsForPod", "deleted; held until pod virt-launcher-vm1-x has ended")


_json = st.recursive(
    st.none() | st.integers() | st.text("xyz", max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=8,
)
_objects = st.dictionaries(st.sampled_from("abcd"), _json.filter(lambda v: v is not None), max_size=4)


class Holder(msgspec.Struct):
    value: dict[str, Any]


def without_nulls(value: Any) -> Any:
    """A merge patch cannot write a null inside an object; our values have none."""
    return {k: without_nulls(v) for k, v in value.items() if v is not None} if isinstance(value, dict) else value


@given(_objects, _objects)
def test_a_merge_patch_makes_the_one_of_the_other(before: dict[str, Any], after: dict[str, Any]) -> None:
    before, after = without_nulls(before), without_nulls(after)
    patch = claim_status.merge_patch(Holder(before), Holder(after))
    assert merge_patch({"value": before}, patch) == {"value": after}
    assert (patch == {}) == (before == after)
