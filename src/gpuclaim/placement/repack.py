"""Room for an order by moving holds that are not attached, the fewest GPUs (R35).

One target node at a time, from the one that lacks the least: sets are taken off it, cheapest selection first, and each
is placed whole on another node, which may in turn pass on sets of its own. Sets of the same classes and counts are
interchangeable, and so are nodes with the same room and the same such sets, so that few of either are looked at. Within
`STEPS` the answer has the fewest GPUs moved over all plans whose sets go straight to their new place; plans with a
further hop are sought only where there is none of these. Beyond, it is the best found. Counted steps, not a
clock, end the search: the same books give the same plan.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Final, TypeAlias

from gpuclaim.api import model
from gpuclaim.api.types import GPUClaim
from gpuclaim.placement import fit
from gpuclaim.placement.books import Books
from gpuclaim.placement.facts import NodeFacts
from gpuclaim.placement.fit import Party
from gpuclaim.placement.index import View
from gpuclaim.placement.orders import Move

STEPS: Final = 2000
"""How often a node or a place is tried for one order: some tens of milliseconds."""
LOOKS: Final = 256
"""How many target nodes are looked at for one order."""
HOP_LOOKS: Final = 64
"""How many nodes are looked at for one set that finds no room as things stand."""
_SELECTIONS: Final = 2000
_SAME_SIZE: Final = 32

Shape: TypeAlias = tuple[tuple[tuple[str, int], ...], frozenset[str]]


@dataclasses.dataclass(frozen=True, slots=True)
class Unit:
    """A set that may be moved: it stands whole on one node, and nothing uses it or is about to change it."""

    who: Party
    need: Mapping[str, int]
    gpus: int
    shape: Shape


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """Where the order goes once the moves are made, in this order: each goes into room that is free by then."""

    node: str
    moves: tuple[Move, ...]
    gpus: int


def plan(books: Books, who: Party, now: dt.datetime, hops: int = 2) -> Plan | None:
    """The cheapest moves found after which the whole set, with its order, stands on one node; None for no such.

    O(1) where no node could have room with everything movable gone, and where nothing changed since last asked.
    """
    if who.order is None or who.order_class is None or fit.classes_of(books, who) is None:
        return None
    if who.alone:
        key = ("plan", who.order.class_name, who.order.count)
        return books.remembered(key, lambda: _plan(books, who, now, hops))
    return _plan(books, who, now, hops)


def _plan(books: Books, who: Party, now: dt.datetime, hops: int) -> Plan | None:
    for depth in range(hops):
        found = _Search(books, who, now).run(depth)
        if found is not None:
            return found
    return None


class _Search:
    """One search; `extra` is what its moves so far add to (or take from) each node's demand."""

    def __init__(self, books: Books, who: Party, now: dt.datetime) -> None:
        self.books, self.who, self.now = books, who, now
        self.steps = STEPS
        self.extra: dict[str, dict[str, int]] = {}
        self.moves: list[tuple[Unit, str]] = []
        self.moved: set[tuple[str, str]] = {(who.namespace, who.set_name)}

    def run(self, depth: int) -> Plan | None:
        best: Plan | None = None
        seen: set[tuple[object, ...]] = set()
        for facts in itertools.islice(self.targets(), LOOKS):
            growth = fit.growth(self.books, self.who, facts)
            own = fit.moves_to(self.who, facts.name)
            own_gpus = sum(c.spec.count for c in self.who.members if c.status.node_name != facts.name)
            lack = max((-facts.room(r, growth) for r, count in growth.items() if count > 0), default=0)
            limit = best.gpus - own_gpus if best is not None else math.inf
            if lack >= limit:
                if own_gpus == 0 and not self.who.members:
                    break  # targets come by what they lack
                continue
            units = self.units(facts)
            shapes = tuple(unit.shape for unit in units)
            same = (tuple(sorted(growth.items())), tuple(sorted(facts.free.items())), shapes, own_gpus)
            if same in seen:
                continue
            seen.add(same)
            self.steps -= 1
            if self.steps <= 0:
                break
            _add(self.extra, facts.name, growth, 1)
            gpus = self.clear(facts, growth, limit, depth, frozenset((facts.name,)))
            _add(self.extra, facts.name, growth, -1)
            moves = self._in_order() if gpus is not None else None
            if gpus is not None and moves is not None:
                best = Plan(facts.name, (*moves, *own), gpus + own_gpus)
            self._undo(0)
        return best

    def _in_order(self) -> list[Move] | None:
        """The moves, each into room that is free by then; None where two would have to change places."""
        pending = sorted(self.moves, key=lambda move: (move[0].who.namespace, move[0].who.set_name))
        made: list[Move] = []
        extra: dict[str, dict[str, int]] = {}
        while pending:
            free = (m for m in pending if self.books.nodes[m[1]].takes(_sum(extra.get(m[1]), m[0].need)))
            move = next(free, None)
            if move is None:
                return None
            pending.remove(move)
            unit, node = move
            _add(extra, node, unit.need, 1)
            _add(extra, unit.who.homes[0], unit.need, -1)
            made += fit.moves_to(unit.who, node)
        return made

    def targets(self) -> Iterator[NodeFacts]:
        """Nodes that could take the whole set if emptied of what may move, from the one that lacks the least."""
        who, books = self.who, self.books
        assert who.order_class is not None
        bound = fit.anchored(who)
        if bound is not None:
            names: Iterator[str] = iter(bound)
        else:
            resource = model.resource_name(who.order_class)
            need = fit.need_of(books, who)[resource]
            view = books.view(who.order_class)
            loose = view.loose_of(resource)
            if not who.members and (loose.largest() < need or not books.in_sum(resource, need)):
                return
            listed = (name for _, name in view.of(resource).descending())
            full = (name for name in loose.ascending(1) if books.nodes[name].free.get(resource, 0) <= 0)
            names = itertools.chain(listed, full)
        for name in names:
            facts = books.nodes.get(name)
            if facts is not None and fit.may_stand(books, who, facts):
                growth = fit.growth(books, who, facts)
                if all(facts.loose.get(r, 0) >= count for r, count in growth.items() if count > 0):
                    yield facts

    def units(self, facts: NodeFacts) -> list[Unit]:
        """The sets on the node that may be moved and were not yet, in order of their shape and name."""
        known = self.books.remembered(("units", facts.name), lambda: self._units(facts))
        return [unit for unit in known if (unit.who.namespace, unit.who.set_name) not in self.moved]

    def _units(self, facts: NodeFacts) -> list[Unit]:
        sets = {(c.metadata.namespace, model.claim_set(c)) for c in facts.claims}
        found = (self._unit(facts.name, namespace, set_name) for namespace, set_name in sets)
        return sorted(
            (unit for unit in found if unit is not None),
            key=lambda u: (u.gpus, u.shape[0], sorted(u.shape[1]), u.who.namespace, u.who.set_name),
        )

    def _unit(self, node: str, namespace: str, set_name: str) -> Unit | None:
        books = self.books
        if books.attached(namespace, set_name) or books.in_flight(namespace, set_name):
            return None
        who = fit.party(books, namespace, set_name, None, self.now)
        if who.homes != (node,) or any(_stays(books, claim) for claim in who.members):
            return None
        classes = tuple(sorted((claim.spec.class_name, claim.spec.count) for claim in who.members))
        return Unit(who, fit.need_of(books, who), sum(count for _, count in classes), (classes, who.out))

    def clear(
        self, facts: NodeFacts, growth: Mapping[str, int], limit: float, depth: int, barred: frozenset[str]
    ) -> int | None:
        """Move the cheapest selection of sets off the node, which has grown too much; how many GPUs that moves.

        The moves are left in `self.moves`; None, with nothing moved, where no selection below `limit` has a place.
        """
        units = self.units(facts)
        groups = [list(group) for _, group in itertools.groupby(units, key=lambda unit: unit.shape)]
        failed: list[tuple[int, ...]] = []
        for gpus, selection in self._selections(facts, growth, groups, limit):
            if any(all(a >= b for a, b in zip(selection, other, strict=True)) for other in failed):
                continue
            chosen = [unit for group, count in zip(groups, selection, strict=True) for unit in group[:count]]
            mark = len(self.moves)
            hop = self.place(chosen[::-1], limit - gpus, depth, barred)
            if hop is not None:
                return gpus + hop
            self._undo(mark)
            if self.steps <= 0:
                return None
            failed.append(selection)
        return None

    def _selections(
        self, facts: NodeFacts, growth: Mapping[str, int], groups: list[list[Unit]], limit: float
    ) -> list[tuple[int, tuple[int, ...]]]:
        """How many sets of each shape to take away so that the growth fits, the fewest GPUs first."""
        extra = self.extra.get(facts.name, {})
        lack = max((-facts.room(r, extra) for r, count in growth.items() if count > 0), default=0)
        # More of one shape than cover what is lacking alone are never needed, but with several resources or names.
        most = [len(group) for group in groups]
        if len(growth) == 1 and not any(resource in facts.links for resource in growth):
            alone = [group[0].need.get(next(iter(growth)), 0) for group in groups]
            most = [min(n, math.ceil(lack / each)) if each else 0 for n, each in zip(most, alone, strict=True)]
        found: list[tuple[int, tuple[int, ...]]] = []
        choices = itertools.product(*(range(count + 1) for count in most))
        for selection in itertools.islice(choices, _SELECTIONS):
            gpus = sum(group[0].gpus * count for group, count in zip(groups, selection, strict=True))
            if not lack <= gpus < limit:
                continue
            total = dict(extra)
            for group, count in zip(groups, selection, strict=True):
                for resource, need in group[0].need.items():
                    total[resource] = total.get(resource, 0) - need * count
            if all(facts.room(r, total) >= 0 for r, count in growth.items() if count > 0):
                found.append((gpus, selection))
        return sorted(found, key=lambda entry: (entry[0], sum(entry[1]), entry[1]))

    def place(self, units: list[Unit], spare: float, depth: int, barred: frozenset[str]) -> int | None:
        """Find each set a node, the largest first; the GPUs that further hops move, None where not all have a place."""
        if not units:
            return 0
        unit, rest = units[0], units[1:]
        for node in self.places(unit):
            mark = self._move(unit, node)
            hop = self.place(rest, spare, depth, barred)
            if hop is not None:
                return hop
            self._undo(mark)
            if self.steps <= 0:
                return None
        return self._hop(units, spare, depth, barred) if depth else None

    def _hop(self, units: list[Unit], spare: float, depth: int, barred: frozenset[str]) -> int | None:
        """Place the first set on a node that passes on sets of its own."""
        unit, rest = units[0], units[1:]
        resource, need = next(iter(unit.need.items()))
        nodes = self.books.nodes
        seen: set[tuple[object, ...]] = set()
        loose = itertools.islice(self._view(unit).loose_of(resource).ascending(need), HOP_LOOKS)
        for name in sorted(loose, key=lambda name: (-nodes[name].free.get(resource, 0), name)):
            facts = nodes[name]
            if name in barred or not fit.may_stand(self.books, unit.who, facts):
                continue
            shapes = tuple(other.shape for other in self.units(facts))
            like = (tuple(sorted(facts.free.items())), shapes, tuple(sorted(self.extra.get(name, {}).items())))
            if like in seen:
                continue
            seen.add(like)
            self.steps -= 1
            if self.steps <= 0:
                return None
            mark = self._move(unit, name)
            moved = self.clear(facts, unit.need, spare, depth - 1, barred | {name})
            hop = self.place(rest, spare - moved, depth, barred) if moved is not None else None
            if moved is not None and hop is not None:
                return moved + hop
            self._undo(mark)
        return None

    def places(self, unit: Unit) -> Iterator[str]:
        """Nodes that take the set as things stand after the moves so far, the tightest first, one of each likeness."""
        resource, need = next(iter(unit.need.items()))
        nodes = self.books.nodes
        seen: set[tuple[object, ...]] = set()
        same = 0
        changed = (name for name in sorted(self.extra) if nodes[name].free.get(resource, 0) < need)
        for name in itertools.chain(self._view(unit).of(resource).ascending(need), changed):
            facts = nodes[name]
            extra = self.extra.get(name)
            like = (*(facts.free.get(r, 0) for r in unit.need), *(sorted(extra.items()) if extra else ()))
            if name in unit.who.homes or like in seen:
                same += 1
                if same > _SAME_SIZE:
                    return
                continue
            self.steps -= 1
            if self.steps <= 0:
                return
            if facts.takes(_sum(extra, unit.need)) and fit.may_stand(self.books, unit.who, facts):
                seen.add(like)
                yield name

    def _view(self, unit: Unit) -> View:
        return self.books.view(self.books.classes[unit.who.members[0].spec.class_name])

    def _move(self, unit: Unit, node: str) -> int:
        mark = len(self.moves)
        self.moves.append((unit, node))
        self.moved.add((unit.who.namespace, unit.who.set_name))
        _add(self.extra, node, unit.need, 1)
        _add(self.extra, unit.who.homes[0], unit.need, -1)
        return mark

    def _undo(self, mark: int) -> None:
        while len(self.moves) > mark:
            unit, node = self.moves.pop()
            self.moved.discard((unit.who.namespace, unit.who.set_name))
            _add(self.extra, node, unit.need, -1)
            _add(self.extra, unit.who.homes[0], unit.need, 1)


def _sum(extra: Mapping[str, int] | None, growth: Mapping[str, int]) -> Mapping[str, int]:
    if not extra:
        return growth
    return {resource: extra.get(resource, 0) + growth.get(resource, 0) for resource in extra.keys() | growth.keys()}


def _add(extras: dict[str, dict[str, int]], node: str, growth: Mapping[str, int], sign: int) -> None:
    extra = extras.setdefault(node, {})
    for resource, count in growth.items():
        left = extra.get(resource, 0) + sign * count
        if left:
            extra[resource] = left
        else:
            extra.pop(resource, None)
    if not extra:
        del extras[node]


def _stays(books: Books, claim: GPUClaim) -> bool:
    """It is about to go anyway, or what it needs is not known."""
    return claim.metadata.deletion_timestamp is not None or claim.spec.class_name not in books.classes


def largest(books: Books, who: Party, now: dt.datetime, fits: int) -> int:
    """The largest count of the order's class that could be taken with moves, given that `fits` needs none.

    Found by bisection, so O(log GPUs of a node) searches, and none where nothing may be moved.
    """
    assert who.order is not None
    if who.alone:
        return books.remembered(("largest", who.order.class_name), lambda: _largest(books, who, now, fits))
    return _largest(books, who, now, fits)


def _largest(books: Books, who: Party, now: dt.datetime, fits: int) -> int:
    assert who.order is not None
    assert who.order_class is not None
    resource = model.resource_name(who.order_class)
    low, high = fits, books.view(who.order_class).loose_of(resource).largest()
    while low < high:
        middle = (low + high + 1) // 2
        order = dataclasses.replace(who.order, count=middle)
        if plan(books, dataclasses.replace(who, order=order), now) is not None:
            low = middle
        else:
            high = middle - 1
    return low
