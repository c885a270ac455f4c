"""How much there is of a class, for the catalogue."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass

from gpuclaim.api import model
from gpuclaim.api.types import Availability
from gpuclaim.placement.books import Books
from gpuclaim.placement.verdict import largest_order


@dataclass(frozen=True, slots=True)
class Supply:
    """GPUs of one class, over all nodes.

    Attributes:
        total: what the agents report and kubelet grants, whether or not the node takes new holds now.
        held: what claims of the class hold, admitted orders included.
        free: what new holds may take now, on nodes that take any of this class.
        largest: the largest order that one node would take now.
    """

    total: int
    held: int
    free: int
    largest: int

    @property
    def availability(self) -> Availability:
        """SoldOut when no order would be taken now, Limited when less than a tenth of all is free."""
        if self.largest < 1:
            return Availability.SOLD_OUT
        return Availability.LIMITED if self.free * 10 < self.total else Availability.AVAILABLE


def supply(books: Books, class_name: str, now: dt.datetime) -> Supply | None:
    """The supply of a class; None where there is no such class. O(nodes)."""
    cls = books.classes.get(class_name)
    if cls is None:
        return None
    largest = largest_order(books, class_name, now)
    resource, tolerations = model.resource_name(cls), tuple(cls.spec.tolerations)
    total = held = free = 0
    for node in books.nodes.values():
        total += min(node.agent.get(resource, 0), node.allocatable.get(resource, 0))
        held += node.held.get(class_name, 0)
        if node.eligible and model.untolerated(node.taints, tolerations) is None:
            free += max(0, node.free.get(resource, 0))
    return Supply(total, held, free, largest)
