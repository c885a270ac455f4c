"""What is wrong with a node, as far as what it holds is concerned (R36). Pure."""

from __future__ import annotations

from typing import Final

from gpuclaim.api.reasons import HealthyReason
from gpuclaim.placement.facts import NodeFacts

SAID: Final = {
    HealthyReason.NODE_WELL: "the node that holds the GPUs is well",
    HealthyReason.NODE_GONE: "the node that holds the GPUs is gone",
    HealthyReason.NODE_NOT_READY: "the node that holds the GPUs is not ready",
    HealthyReason.NODE_DRAINED: "the node that holds the GPUs takes no pods: it is cordoned or being drained",
    HealthyReason.NODE_SILENT: "nothing has been heard of the node's GPUs for some time",
    HealthyReason.NODE_REBOOTED: "the node has rebooted, and its GPUs have not been reported since",
    HealthyReason.GPUS_MISSING: "more GPUs are held on the node than are left there",
}
"""A sentence for each, in which nothing changes with time."""

DOWN: Final = frozenset({HealthyReason.NODE_GONE, HealthyReason.NODE_NOT_READY, HealthyReason.NODE_DRAINED})
"""Where a VM that is switched on could not start."""


def ailment(node: NodeFacts | None) -> HealthyReason:
    """The worst that is wrong with the node; `NODE_WELL` when nothing is."""
    if node is None or not node.present:
        return HealthyReason.NODE_GONE
    if not node.ready:
        return HealthyReason.NODE_NOT_READY
    if node.unschedulable:
        return HealthyReason.NODE_DRAINED
    if node.silent:
        return HealthyReason.NODE_SILENT
    if node.rebooted:
        return HealthyReason.NODE_REBOOTED
    return HealthyReason.GPUS_MISSING if lacking(node) else HealthyReason.NODE_WELL


def lacking(node: NodeFacts) -> int:
    """By how many GPUs more is held than there is."""
    return sum(node.over.values())
