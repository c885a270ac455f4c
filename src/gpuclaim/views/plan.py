"""The nodes of a plan, before and after: cells as `views.nodes` draws them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gpuclaim.api.types import GPUClaim, GPUClass, GPUNode
from gpuclaim.views import nodes
from gpuclaim.views.nodes import State


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
    known = list(objects)
    found = nodes.drawn(
        [each for each in known if isinstance(each, GPUNode)],
        [each for each in known if isinstance(each, GPUClaim)],
        nodes.resources_of(each for each in known if isinstance(each, GPUClass)),
    )
    return {each.node.metadata.name: tuple(slot.state for slot in each.slots) for each in found}
