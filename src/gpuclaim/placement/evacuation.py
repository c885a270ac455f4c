"""Which sets have to leave their node (R36). Pure."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass

from gpuclaim.api import model
from gpuclaim.placement.ailment import DOWN, ailment, lacking
from gpuclaim.placement.books import Books
from gpuclaim.placement.facts import NodeFacts


@dataclass(frozen=True, slots=True)
class Leaving:
    """A set that has to leave a node; `count` is its GPUs."""

    namespace: str
    set_name: str
    node: str
    count: int


class Watch:
    """Since when each node cannot run what it holds.

    A node is given some time before its sets leave: a kubelet that restarts or a device that comes back soon moves
    nothing. A node that is silent or has rebooted is waited for; GPUNode.spec.cordoned leaves its holds alone.
    """

    def __init__(self, grace: dt.timedelta) -> None:
        self.grace = grace
        self._since: dict[str, dt.datetime] = {}

    def clock_stepped(self, step: dt.timedelta) -> None:
        """The clock was set, by `step`: the grace of each node is as long as it would have been."""
        self._since = {name: since + step for name, since in self._since.items()}

    def leaving(self, books: Books, now: dt.datetime) -> list[Leaving]:
        """The sets that are not attached and whose node has been unfit for longer than the grace.

        All of a node that cannot run them. Of a node that only has too little, one at a time, so that no more GPUs move
        than must: the next call sees what that one has freed. O(nodes + claims on unfit nodes).
        """
        books.advance(now)
        unfit = [node for node in books.nodes.values() if node.claims and (ailment(node) in DOWN or lacking(node) > 0)]
        self._since = {node.name: self._since.get(node.name, now) for node in unfit}
        found: list[Leaving] = []
        for node in unfit:
            if now - self._since[node.name] >= self.grace:
                sets = _movable(books, node)
                found += sets if ailment(node) in DOWN else _enough(sets, lacking(node), books)
        return found


def _movable(books: Books, node: NodeFacts) -> list[Leaving]:
    """The node's sets that have no pod, the smallest first."""
    names = {(claim.metadata.namespace, model.claim_set(claim)) for claim in node.claims}
    sets = [
        Leaving(namespace, name, node.name, sum(c.spec.count for c in books.claims_of_set(namespace, name)))
        for namespace, name in names
        if not books.attached(namespace, name)
    ]
    return sorted(sets, key=lambda each: (each.count, each.namespace, each.set_name))


def _enough(sets: list[Leaving], missing: int, books: Books) -> list[Leaving]:
    """The smallest set that alone is enough, else the largest; none while one is on its way."""
    if any(books.in_flight(each.namespace, each.set_name) for each in sets):
        return []
    alone = [each for each in sets if each.count >= missing]
    return alone[:1] or sets[-1:]
