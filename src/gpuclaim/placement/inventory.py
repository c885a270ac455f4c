"""What there is to hold: classes, nodes and what each has free, kept as their objects come and go."""

from __future__ import annotations

import datetime as dt
import functools
import heapq
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final, Protocol

from gpuclaim.api import core, model, names
from gpuclaim.api.types import GPUClass, GPUNode, Mode, Toleration
from gpuclaim.placement.facts import NodeFacts, Offers
from gpuclaim.placement.index import View

_BEGINNING: Final = dt.datetime.min.replace(tzinfo=dt.UTC)


class Holders(Protocol):
    """What is asked of those who hold, when it is worked out what a node has free."""

    def set_holds_on(self, node: str, namespace: str, set_name: str) -> dict[str, int]:
        """What the set takes on the node, by resource."""

    def attached(self, namespace: str, set_name: str) -> bool:
        """Whether the set has a pod, and so does not move."""


class Inventory:
    """Classes and nodes. What follows for a node that was touched is worked out when next asked for.

    Attributes:
        revision: grows with every change, those that `advance` finds included.
        now: the time that this was last brought to.
    """

    def __init__(self, holders: Holders, silent_after: dt.timedelta) -> None:
        """Sets up; a node whose report is older than `silent_after` is silent (R30)."""
        self.revision = 0
        self.now = _BEGINNING
        self._holders = holders
        self._silent_after = silent_after
        self._classes: dict[str, GPUClass] = {}
        self._offers = Offers()
        self._device_classes: dict[str, str] = {}
        self._linked: dict[str, int] = {}
        self._views: dict[tuple[Toleration, ...], View] = {}
        self._nodes: dict[str, NodeFacts] = {}
        self._dirty: set[str] = set()
        self._changed: set[str] = set()
        self._deadlines: list[tuple[dt.datetime, str]] = []
        self._watched: dict[str, dt.datetime] = {}

    # --- objects in and out -------------------------------------------------------------------------------------------

    def put_class(self, name: str, cls: GPUClass | None) -> None:
        """The class is this now, or (None) is gone."""
        self.revision += 1
        old = self._classes.pop(name, None)
        if cls is not None:
            self._classes[name] = cls
        if _source(old) == _source(cls):
            return
        self._offers = Offers(
            frozenset(model.resource_name(c) for c in self._classes.values() if c.spec.mode is Mode.PASSTHROUGH),
            frozenset(model.resource_name(c) for c in self._classes.values() if c.spec.mode is Mode.VGPU),
        )
        wanted = {tuple(c.spec.tolerations) for c in self._classes.values()}
        self._views = {key: self._views.get(key) or View(key) for key in wanted}
        for node in self._nodes.values():
            self._link(node)
        self._dirty.update(self._nodes)

    def put_device_class(self, name: str, device_class: core.DeviceClass | None) -> None:
        """The DeviceClass (DRA) is this now, or (None) is gone."""
        self.revision += 1
        if device_class is not None:
            self._device_classes[name] = device_class.spec.extended_resource_name
        else:
            self._device_classes.pop(name, None)

    def apply_node(self, node: core.Node) -> None:
        """The Node is this now."""
        facts = self.facts(node.metadata.name)
        if facts.read_node(node):
            self.touch(facts.name)

    def apply_report(self, report: GPUNode) -> None:
        """The GPUNode is this now."""
        facts = self.facts(report.metadata.name)
        if facts.read_report(report, self._silent_after):
            self._link(facts)
            self.touch(facts.name)
        self._watch(facts)

    def forget(self, name: str, forget: Callable[[NodeFacts], None]) -> None:
        """The Node or the GPUNode of the name is gone, as `forget` says."""
        self.revision += 1
        facts = self._nodes.get(name)
        if facts is not None:
            forget(facts)
            self._link(facts)
            self._watch(facts)
            self.touch(name)

    def _link(self, facts: NodeFacts) -> None:
        for sign in (-1, 1):
            for resource in facts.links:
                self._linked[resource] = self._linked.get(resource, 0) + sign
            if sign < 0:
                facts.link(self._offers)

    # --- what is held -------------------------------------------------------------------------------------------------

    def facts(self, name: str) -> NodeFacts:
        """What is known of the node; who changes it says so with `touch`."""
        facts = self._nodes.get(name)
        if facts is None:
            facts = self._nodes[name] = NodeFacts(name)
        return facts

    def known(self, name: str) -> NodeFacts | None:
        """What is known of the node, if anything; what it has free may be out of date."""
        return self._nodes.get(name)

    def hold(self, node: str, class_name: str, count: int) -> None:
        """So many more of the class are held on the node, or (negative) less."""
        facts = self.facts(node)
        left = facts.held.get(class_name, 0) + count
        if left:
            facts.held[class_name] = left
        else:
            del facts.held[class_name]
        self.touch(node)

    def touch(self, node: str) -> None:
        """Something of the node has changed."""
        self.revision += 1
        self._dirty.add(node)

    # --- time and derived state ---------------------------------------------------------------------------------------

    def advance(self, now: dt.datetime) -> None:
        """Find the nodes that are silent at `now`; a clock that was set back is followed. O(what changed)."""
        back = now < self.now
        self.now = now
        if back:
            self.revision += 1
            for facts in self._nodes.values():
                self._watch(facts)
        while self._deadlines and self._deadlines[0][0] < now:
            deadline, name = heapq.heappop(self._deadlines)
            if self._watched.get(name) == deadline:
                del self._watched[name]
            found = self._nodes.get(name)
            if found is not None:
                self._watch(found)

    def _watch(self, facts: NodeFacts) -> None:
        """Set whether the node is silent, and see to it that the end of its time is noticed."""
        deadline = facts.deadline
        silent = facts.reported and (deadline is None or deadline < self.now)
        if silent is not facts.silent:
            facts.silent = silent
            self.touch(facts.name)
        if deadline is None or silent:
            return
        # A later deadline is looked up when the queued one comes; an earlier one (a clock set back) must be queued.
        queued = self._watched.get(facts.name)
        if queued is None or deadline < queued:
            self._watched[facts.name] = deadline
            heapq.heappush(self._deadlines, (deadline, facts.name))

    def settle(self) -> None:
        """Work out what the nodes that were touched have free."""
        if not self._dirty:
            return
        self._changed |= self._dirty
        for name in self._dirty:
            facts = self._nodes.get(name)
            if facts is None:
                continue
            facts.settle(self.resource, functools.partial(self._holders.set_holds_on, name), self.resources)
            facts.settle_loose(self.resource, self._holders.attached)
            self._list(facts)
            if facts.empty:
                del self._nodes[name]
        self._dirty.clear()

    def _list(self, facts: NodeFacts) -> None:
        """Enter the node's free counts into the views that see it."""
        listed, loose = (facts.free, facts.loose) if facts.eligible else ({}, {})
        views = (
            tuple(v for v in self._views.values() if model.untolerated(facts.taints, v.tolerations) is None)
            if listed
            else ()
        )
        for view in facts.views:
            stays = view in views
            view.replace(facts.name, facts.listed, listed if stays else {})
            view.replace_loose(facts.name, facts.listed_loose, loose if stays else {})
        for view in views:
            if view not in facts.views:
                view.replace(facts.name, {}, listed)
                view.replace_loose(facts.name, {}, loose)
        facts.views, facts.listed, facts.listed_loose = views, listed, loose

    def take_changed_nodes(self) -> set[str]:
        """The nodes of which anything may have changed since this was last asked; there is one who asks."""
        self.settle()
        changed, self._changed = self._changed, set()
        return changed

    # --- reading ------------------------------------------------------------------------------------------------------

    @property
    def classes(self) -> Mapping[str, GPUClass]:
        """Every class by name."""
        return MappingProxyType(self._classes)

    @property
    def nodes(self) -> Mapping[str, NodeFacts]:
        """Every node that anything is known of, up to date."""
        self.settle()
        return MappingProxyType(self._nodes)

    def resource(self, class_name: str) -> str | None:
        """The class's resource name; None where there is no such class, or its source is of a kind unknown here."""
        cls = self._classes.get(class_name)
        return (model.resource_name(cls) or None) if cls is not None else None

    @property
    def resources(self) -> frozenset[str]:
        """The resource names that classes offer."""
        return self._offers.all

    def asked(self, name: str) -> str | None:
        """The resource of a class that a pod asks for by this name; None where it is no class's.

        A DeviceClass (DRA) that is mapped to the resource has a name of its own beside it.
        """
        if name.startswith(names.DEVICE_CLASS_PREFIX):
            name = self._device_classes.get(name.removeprefix(names.DEVICE_CLASS_PREFIX), "")
        return name if name in self.resources else None

    @property
    def resource_names(self) -> frozenset[str]:
        """Every name by which pods ask for a resource of a class."""
        implicit = (names.DEVICE_CLASS_PREFIX + name for name, real in self._device_classes.items() if self.asked(real))
        return self.resources.union(implicit)

    def view(self, cls: GPUClass) -> View:
        """The nodes that take holds of the class, by what they have free."""
        self.settle()
        return self._views[tuple(cls.spec.tolerations)]

    def in_sum(self, resource: str, count: int) -> bool:
        """Whether that many are free of the resource over all nodes; where not, no moves make room. O(classes).

        True also where it cannot be told: names that share functions free each other's.
        """
        if self._linked.get(resource):
            return True
        return sum(view.of(resource).total for view in self._views.values()) >= count


def _source(cls: GPUClass | None) -> tuple[object, ...] | None:
    return (model.resource_name(cls), cls.spec.mode, tuple(cls.spec.tolerations)) if cls is not None else None
