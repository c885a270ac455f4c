"""The nodes that take new holds, ordered by how much of a resource they have free."""

from __future__ import annotations

import bisect
from collections.abc import Container, Iterator, Mapping

from gpuclaim.api.types import Toleration


class Buckets:
    """Node names by a small number.

    Lists kept in order by bisection: at 5,000 names an insertion moves 40 KB at most, less than a tree's bookkeeping.
    """

    __slots__ = ("_counts", "_names", "total")

    def __init__(self) -> None:
        self.total = 0
        """The sum over all names."""
        self._counts: list[int] = []
        self._names: dict[int, list[str]] = {}

    def add(self, name: str, count: int) -> None:
        """Put the node into the bucket of `count`."""
        self.total += count
        names = self._names.get(count)
        if names is None:
            self._names[count] = [name]
            bisect.insort(self._counts, count)
        else:
            bisect.insort(names, name)

    def discard(self, name: str, count: int) -> None:
        """Take the node, which is there, out of the bucket of `count`."""
        self.total -= count
        names = self._names[count]
        if len(names) == 1:
            del self._names[count]
            del self._counts[bisect.bisect_left(self._counts, count)]
        else:
            del names[bisect.bisect_left(names, name)]

    def best(self, at_least: int) -> str | None:
        """The first name of the lowest bucket from `at_least` on: O(log buckets)."""
        position = bisect.bisect_left(self._counts, at_least)
        return self._names[self._counts[position]][0] if position < len(self._counts) else None

    def largest(self) -> int:
        """The highest bucket; 0 when there is none."""
        return self._counts[-1] if self._counts else 0

    def ascending(self, at_least: int) -> Iterator[str]:
        """Names from the tightest fit on, each bucket in order of names."""
        for count in self._counts[bisect.bisect_left(self._counts, at_least) :]:
            yield from self._names[count]

    def descending(self) -> Iterator[tuple[int, str]]:
        """Buckets and names, from the most free down."""
        for count in reversed(self._counts):
            for name in self._names[count]:
                yield count, name

    def items(self) -> list[tuple[int, str]]:
        """Everything in order; for tests and invariants."""
        return [(count, name) for count in self._counts for name in self._names[count]]


EMPTY = Buckets()


class View:
    """What the classes with the same tolerations see: for each resource, the nodes whose taints they tolerate."""

    __slots__ = ("loose", "resources", "tolerations")

    def __init__(self, tolerations: tuple[Toleration, ...]) -> None:
        self.tolerations = tolerations
        self.resources: dict[str, Buckets] = {}
        self.loose: dict[str, Buckets] = {}

    def loose_of(self, resource: str) -> Buckets:
        """The buckets of the resource by what would be free, at most, if all were moved that may be (R35)."""
        return self.loose.get(resource, EMPTY)

    def of(self, resource: str) -> Buckets:
        """The buckets of the resource."""
        return self.resources.get(resource, EMPTY)

    def replace(self, name: str, old: Mapping[str, int], new: Mapping[str, int]) -> None:
        """The node's free counts were `old` and are `new`; only positive ones are listed."""
        _replace(self.resources, name, old, new)

    def replace_loose(self, name: str, old: Mapping[str, int], new: Mapping[str, int]) -> None:
        """The same for what would be free after moves."""
        _replace(self.loose, name, old, new)

    def best(self, resource: str, at_least: int, out: Container[str]) -> str | None:
        """The best fit that is not `out`: O(log buckets), and a step for each node that is."""
        buckets = self.of(resource)
        name = buckets.best(at_least)
        if name is None or name not in out:
            return name
        return next((name for name in buckets.ascending(at_least) if name not in out), None)


def _replace(resources: dict[str, Buckets], name: str, old: Mapping[str, int], new: Mapping[str, int]) -> None:
    for resource, count in old.items():
        if count > 0 and new.get(resource) != count:
            resources[resource].discard(name, count)
    for resource, count in new.items():
        if count > 0 and old.get(resource) != count:
            resources.setdefault(resource, Buckets()).add(name, count)
