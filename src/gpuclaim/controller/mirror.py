"""Objects of the apiserver into the books, and word of what changed to those that write."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Generic, TypeVar

from gpuclaim.api import core, model
from gpuclaim.api.types import GPUClaim, GPUClass, GPUNode
from gpuclaim.controller.binder import Binder
from gpuclaim.controller.machines import Machines
from gpuclaim.controller.reporter import Reporter
from gpuclaim.placement.books import Books, Known

T = TypeVar("T", bound=Known)

KINDS: tuple[type[Known], ...] = (
    GPUClass,
    core.DeviceClass,
    core.Namespace,
    core.ResourceQuota,
    core.Node,
    GPUNode,
    core.Pod,
    GPUClaim,
)
"""Every kind that the books take, in the order in which it is best learnt."""

OPTIONAL: frozenset[type[Known]] = frozenset({core.DeviceClass})
"""The kinds of it that not every cluster serves."""


@dataclasses.dataclass
class Mirror(Generic[T]):
    """The receiver of one kind's informer."""

    kind: type[T]
    books: Books
    binder: Binder
    reporter: Reporter
    classes_changed: Callable[[], None]
    machines: Machines

    def changed(self, obj: T) -> None:
        """Enters the object."""
        old_set = self._set_of_pod(obj.metadata.namespace, obj.metadata.name) if self.kind is core.Pod else None
        self.books.apply(obj)
        if isinstance(obj, core.Pod):
            self.binder.pod_seen(obj)
        if isinstance(obj, GPUClaim):
            self.machines.claim_seen(obj)
            self.binder.claim_changed(obj)
        elif isinstance(obj, GPUNode):
            self.reporter.node_changed(obj)
            self._room()
        elif isinstance(obj, core.ResourceQuota):
            self.reporter.quota_changed(obj)
            self._room()
        elif isinstance(obj, core.Pod):
            self._pod(obj.metadata.namespace, {old_set, model.pod_set(obj.metadata.labels)})
        else:
            self._room()

    def gone(self, namespace: str, name: str) -> None:
        """Strikes the object."""
        old_set = self._set_of_pod(namespace, name) if self.kind is core.Pod else None
        self.books.remove(self.kind, namespace, name)
        if self.kind is core.Pod:
            self.binder.pod_gone(namespace, name)
            self._pod(namespace, {old_set})
            return
        if self.kind is GPUClaim:
            self.machines.claim_gone(namespace, name)
            self.binder.claim_gone()
        elif self.kind is core.Node:
            self.binder.node_gone(name)
        elif self.kind is GPUNode:
            self.reporter.node_gone(name)
        elif self.kind is core.ResourceQuota:
            self.reporter.quota_gone(namespace, name)
        self._room()

    def _set_of_pod(self, namespace: str, name: str) -> str | None:
        pod = self.books.pod(namespace, name)
        return pod.set_name if pod is not None else None

    def _pod(self, namespace: str, sets: set[str | None]) -> None:
        for name in sets - {None}:
            self.binder.set_changed(namespace, str(name))
        self._room()

    def _room(self) -> None:
        self.binder.room_changed()
        if self.kind is GPUClass or self.kind is core.DeviceClass:
            self.classes_changed()
