"""R11, R37: refusals grow, are forgotten, and are known by the pod that was turned away."""

from __future__ import annotations

import datetime as dt
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuclaim.api import core, names
from gpuclaim.api.core import ObjectMeta
from gpuclaim.api.types import GPUClaim, GPUClaimSpec, GPUClaimStatus
from gpuclaim.placement import refusals

T0 = dt.datetime(2026, 12, 1, 12, tzinfo=dt.UTC)


def pod(uid: str = "pod", phase: str = "Failed", reason: str = "UnexpectedAdmissionError", **spec: Any) -> core.Pod:
    plain = {
        "metadata": {"name": "p", "namespace": "tenant-a", "uid": uid, "labels": {names.VM_NAME_LABEL: "vm1"}},
        "spec": {"nodeName": "gpu-1"} | spec,
        "status": {"phase": phase, "reason": reason, "message": "Allocate failed"},
    }
    return msgspec.convert(plain, core.Pod)


def claim(node: str = "gpu-1") -> GPUClaim:
    return GPUClaim(
        metadata=ObjectMeta(name="vm1", namespace="tenant-a", uid="u"),
        spec=GPUClaimSpec(class_name="h200"),
        status=GPUClaimStatus(node_name=node),
    )


def refuse(of: GPUClaim, uid: str, now: dt.datetime, nodes: tuple[str, ...] = ("gpu-1", "gpu-2")) -> GPUClaim:
    away = refusals.turned_away(pod(uid))
    assert away is not None
    known = refusals.with_refusal(of, away, nodes.__contains__, now)
    return msgspec.structs.replace(of, status=msgspec.structs.replace(of.status, refusals=known))


@pytest.mark.parametrize(
    "reason", ["UnexpectedAdmissionError", "OutOfcpu", f"OutOf{names.GROUP}/x", "TopologyAffinityError", "NodeAffinity"]
)
def test_what_kubelet_rejects(reason: str) -> None:
    away = refusals.turned_away(pod(reason=reason))
    assert away is not None
    assert (away.set_name, away.node, away.pod_uid, away.reason) == ("vm1", "gpu-1", "pod", reason)


@pytest.mark.parametrize(
    "other",
    [
        pod(phase="Running"),
        pod(phase="Succeeded"),
        pod(reason=""),
        pod(reason="Evicted"),
        pod(reason="DeadlineExceeded"),
        pod(nodeName=""),
    ],
)
def test_what_is_no_rejection(other: core.Pod) -> None:
    assert refusals.turned_away(other) is None


def test_a_pod_is_told_once_and_only_where_the_hold_is() -> None:
    away = refusals.turned_away(pod())
    assert away is not None
    assert refusals.concerns(claim(), away)
    assert not refusals.concerns(claim("gpu-2"), away)
    told = refuse(claim(), "pod", T0)
    assert not refusals.concerns(told, away)
    assert not refusals.pending([told], [away])
    assert refusals.pending([told, claim()], [away])


def test_each_repetition_is_twice_as_long_up_to_an_hour() -> None:
    current, now, lengths = claim(), T0, []
    for number in range(6):
        current = refuse(current, f"pod-{number}", now)
        (refusal,) = current.status.refusals
        lengths.append(int((refusal.expires_at - refusal.refused_at).total_seconds() / 60))
        now = refusal.expires_at + dt.timedelta(minutes=1)
    assert lengths == [5, 10, 20, 40, 60, 60]


def test_what_is_long_over_or_of_a_node_that_is_gone_is_forgotten() -> None:
    old = refuse(refuse(claim(), "pod-1", T0), "pod-2", T0 + dt.timedelta(minutes=6))
    again = refuse(old, "pod-3", T0 + dt.timedelta(days=2))
    (refusal,) = again.status.refusals
    assert refusal.expires_at - refusal.refused_at == dt.timedelta(minutes=5)
    elsewhere = msgspec.structs.replace(again, status=msgspec.structs.replace(again.status, node_name="gpu-2"))
    assert refuse(elsewhere, "pod-4", T0 + dt.timedelta(days=2), nodes=("gpu-2",)).status.refusals[0].pod_uid == "pod-4"


@given(st.lists(st.integers(0, 90), max_size=80))
def test_the_list_stays_within_the_schema(minutes: list[int]) -> None:
    current, now = claim(), T0
    nodes = tuple(f"gpu-{n}" for n in range(100))
    for number, pause in enumerate(minutes):
        now += dt.timedelta(minutes=pause)
        away = refusals.TurnedAway("tenant-a", "vm1", "p", f"pod-{number}", f"gpu-{number}", "x", "m" * 1000)
        known = refusals.with_refusal(current, away, nodes.__contains__, now)
        current = msgspec.structs.replace(current, status=msgspec.structs.replace(current.status, refusals=known))
        msgspec.convert(msgspec.to_builtins(current.status), GPUClaimStatus)
        assert away.node in {r.node_name for r in known}
