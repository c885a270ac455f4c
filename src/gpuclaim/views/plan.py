"""The nodes of a plan, before and after: cells as `views.nodes` draws them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gpuclaim.api import model
from gpuclaim.api.types import GPUClaim, GPUClass, GPUNode
from gpuclaim.views.nodes import State, slots


@dataclass(frozen=True, slots=True)
class Change:
    """One node: its GPUs before and after, in the order of their addresses; empty where it was not there."""

    name: str
    before: tuple[State, ...]
    after: tuple[State, ...]

    @property
    def changed(self) -> bool:
        """Whether any GPU is something else."""
        return self.before != self.after


def changes(before: Iterable[object], after: Iterable[object]) -> list[Change]:
    """Every node that has a GPUNode in either of two states, by name. O(objects)."""
    old, new = _drawn(before), _drawn(after)
    return [Change(name, old.get(name, ()), new.get(name, ())) for name in sorted(old.keys() | new.keys())]


def _drawn(objects: Iterable[object]) -> Mapping[str, tuple[State, ...]]:
    nodes: list[GPUNode] = []
    held: dict[str, list[GPUClaim]] = {}
    resources: dict[str, str] = {}
    for obj in objects:
        match obj:
            case GPUNode():
                nodes.append(obj)
            case GPUClass():
                resources[obj.metadata.name] = model.resource_name(obj)
            case GPUClaim() if obj.status.node_name:
                held.setdefault(obj.status.node_name, []).append(obj)
    return {
        node.metadata.name: tuple(slot.state for slot in slots(node, held.get(node.metadata.name, ()), resources))
        for node in nodes
    }
