"""Why the scheduler leaves a pinned pod Pending: for the node's CPU and memory, or for its GPUs. Pure."""

from __future__ import annotations

import functools
import re
from collections.abc import Container
from typing import Final

from gpuclaim.api import core
from gpuclaim.api.reasons import AttachedReason
from gpuclaim.placement.facts import PodFacts

# noderesources/fit.go of kube-scheduler: "Insufficient cpu", "Insufficient nvidia.com/X", "Too many pods".
_INSUFFICIENT: Final = re.compile(r"Insufficient ([A-Za-z0-9][\w./-]*[A-Za-z0-9])")
_TOO_MANY_PODS: Final = "Too many pods"
_PODS: Final = "pods"


def lacks(pod: core.Pod) -> frozenset[str] | None:
    """The resources that the scheduler found too little of; empty where something else keeps the pod from its node.

    None where it is scheduled, or the scheduler has not said anything yet. A pinned pod has one node to go to, and
    where it is full the scheduler's message speaks of that one: all others fail by the pin.
    """
    if pod.spec.node_name:
        return None
    said = next((c for c in pod.status.conditions if c.type == "PodScheduled"), None)
    if said is None or said.status != core.Status.FALSE or said.reason != "Unschedulable":
        return None
    return _named(said.message)


@functools.lru_cache(maxsize=1024)  # many pods wait for the same, and share the one set of names
def _named(message: str) -> frozenset[str]:
    found = frozenset(_INSUFFICIENT.findall(message))
    return found | {_PODS} if _TOO_MANY_PODS in message else found


def said_of(pod: PodFacts, offered: Container[str]) -> tuple[AttachedReason, str]:
    """Why a pod without a node is not attached: a reason, and a sentence that names resources and nothing of others.

    Args:
        pod: a live pod of the set that has no node.
        offered: the resources that classes offer; a lack of one of these is a lack of GPUs.
    """
    if pod.lacks is None:
        return AttachedReason.POD_PENDING, f"pod {pod.name} is not scheduled yet"
    gpus = sorted(name for name in pod.lacks if name in offered)
    if gpus:
        return (
            AttachedReason.NODE_LACKS_GPUS,
            f"pod {pod.name} waits: {_list(gpus)} of the node that holds its GPUs is used by others or out of order",
        )
    if pod.lacks:
        return (
            AttachedReason.NODE_LACKS_ROOM,
            f"pod {pod.name} waits: the GPUs are held, and their node has too little {_list(sorted(pod.lacks))} left",
        )
    return (
        AttachedReason.POD_UNSCHEDULABLE,
        f"pod {pod.name} waits: it asks for something besides GPUs, CPU and memory that keeps it from the node that"
        " holds its GPUs; its condition PodScheduled says what",
    )


def _list(names: list[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
