"""A pod that waits for CPU or memory is told apart from one that waits for GPUs."""

from __future__ import annotations

import msgspec
import pytest

from gpuclaim.api import core
from gpuclaim.placement import unscheduled

from .build import GPU, books, claim, cls, gpus, pod

# As kube-scheduler 1.37 says it of a pod that is pinned to one of three nodes.
PINNED = "0/3 nodes are available: {}, 2 node(s) didn't satisfy plugin(s) [NodeAffinity]. preemption: 0/3 nodes are"
PREEMPTION = " available: 1 No preemption victims found for incoming pod, 2 Preemption is not helpful for scheduling."


def waiting(said: str, reason: str = "Unschedulable", status: str = "False") -> core.Pod:
    condition = core.PodCondition(type="PodScheduled", status=status, reason=reason, message=said)
    one = pod("virt-launcher-vm1-x", "vm1", phase="Pending")
    return msgspec.structs.replace(one, status=core.PodStatus(phase="Pending", conditions=[condition]))


@pytest.mark.parametrize(
    ("what", "lacks"),
    [
        ("1 Insufficient cpu", {"cpu"}),
        ("1 Insufficient cpu, 1 Insufficient memory", {"cpu", "memory"}),
        (f"1 Insufficient {GPU}", {GPU}),
        ("1 Insufficient memory.", {"memory"}),
        ("1 Too many pods", {"pods"}),
        ("1 node(s) had untolerated taint(s)", set()),
    ],
)
def test_what_the_scheduler_found_too_little_of(what: str, lacks: set[str]) -> None:
    assert unscheduled.lacks(waiting(PINNED.format(what) + PREEMPTION)) == frozenset(lacks)


@pytest.mark.parametrize(
    "one",
    [
        waiting("1 Insufficient cpu", reason="SchedulingGated"),
        waiting("", status="True"),
        pod("p", "vm1", phase="Pending"),
        msgspec.structs.replace(waiting("1 Insufficient cpu"), spec=core.PodSpec(node_name="gpu-1")),
    ],
)
def test_a_pod_that_is_scheduled_or_was_not_tried_lacks_nothing(one: core.Pod) -> None:
    assert unscheduled.lacks(one) is None


@pytest.mark.parametrize(
    ("what", "reason", "words"),
    [
        ("1 Insufficient cpu, 1 Insufficient memory", "NodeLacksRoom", "too little cpu and memory left"),
        ("1 Too many pods", "NodeLacksRoom", "too little pods"),
        (f"1 Insufficient cpu, 1 Insufficient {GPU}", "NodeLacksGPUs", f"{GPU} of the node"),
        ("1 node(s) didn't match pod topology spread constraints", "PodUnschedulable", "PodScheduled"),
    ],
)
def test_the_books_keep_enough_to_say_why(what: str, reason: str, words: str) -> None:
    known = books(cls(), gpus("gpu-1", 1), claim("vm1", "gpu-1"), waiting(PINNED.format(what) + PREEMPTION))
    (facts,) = known.pods_of_set("tenant-a", "vm1")
    said, sentence = unscheduled.said_of(facts, known.resources)
    assert said == reason
    assert words in sentence
    assert "3 nodes" not in sentence


def test_of_pods_without_a_set_nothing_more_is_kept() -> None:
    loose = msgspec.structs.replace(waiting("1 Insufficient cpu"), metadata=core.ObjectMeta(name="p", namespace="t"))
    kept = books(cls(), loose).pod("t", "p")
    assert kept is not None
    assert kept.lacks is None


def test_pods_that_wait_for_the_same_share_what_is_kept() -> None:
    first, second = (unscheduled.lacks(waiting(PINNED.format("1 Insufficient cpu"))) for _ in range(2))
    assert first is second
