"""Which path of the apiserver serves which kind."""

from __future__ import annotations

import dataclasses
import datetime as dt
from typing import Any, Literal

import msgspec

from gpuclaim.api import core, types
from gpuclaim.api.core import ObjectMeta, Struct


class LeaseSpec(Struct, frozen=True, kw_only=True):
    """coordination.k8s.io/v1 LeaseSpec."""

    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: dt.datetime | None = None
    renew_time: dt.datetime | None = None
    lease_transitions: int = 0


class Lease(Struct, frozen=True, kw_only=True):
    """coordination.k8s.io/v1 Lease."""

    api_version: Literal["coordination.k8s.io/v1"] = "coordination.k8s.io/v1"
    kind: Literal["Lease"] = "Lease"
    metadata: ObjectMeta
    spec: LeaseSpec = LeaseSpec()


class ObjectReference(Struct, frozen=True, kw_only=True):
    """v1.ObjectReference."""

    api_version: str = ""
    kind: str = ""
    namespace: str = ""
    name: str = ""
    uid: str = ""


class EventSeries(Struct, frozen=True, kw_only=True):
    """events.k8s.io/v1 EventSeries."""

    count: int
    last_observed_time: dt.datetime


class Event(Struct, frozen=True, kw_only=True):
    """events.k8s.io/v1 Event."""

    api_version: Literal["events.k8s.io/v1"] = "events.k8s.io/v1"
    kind: Literal["Event"] = "Event"
    metadata: ObjectMeta
    event_time: dt.datetime | None = None
    reporting_controller: str = ""
    reporting_instance: str = ""
    action: str = ""
    reason: str = ""
    regarding: ObjectReference = ObjectReference()
    note: str = ""
    type: str = ""
    series: EventSeries | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Resource:
    """A kind as the apiserver serves it."""

    api_version: str
    plural: str
    namespaced: bool

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """The path of one object, or of a list (no name): of a namespace, or of all of them (no namespace)."""
        parts = ["/apis" if "/" in self.api_version else "/api", self.api_version]
        if self.namespaced and namespace:
            parts += ["namespaces", namespace]
        parts.append(self.plural)
        parts += [part for part in (name, subresource) if part]
        return "/".join(parts)


_GPU = "gpu.cozystack.io/v1alpha1"
TYPED: dict[type, Resource] = {
    types.GPUClass: Resource(_GPU, "gpuclasses", namespaced=False),
    types.GPUClaim: Resource(_GPU, "gpuclaims", namespaced=True),
    types.GPUNode: Resource(_GPU, "gpunodes", namespaced=False),
    core.Node: Resource("v1", "nodes", namespaced=False),
    core.Pod: Resource("v1", "pods", namespaced=True),
    core.Namespace: Resource("v1", "namespaces", namespaced=False),
    core.ResourceQuota: Resource("v1", "resourcequotas", namespaced=True),
    Event: Resource("events.k8s.io/v1", "events", namespaced=True),
    core.DeviceClass: Resource("resource.k8s.io/v1", "deviceclasses", namespaced=False),
    core.VirtualMachine: Resource("kubevirt.io/v1", "virtualmachines", namespaced=True),
    Lease: Resource("coordination.k8s.io/v1", "leases", namespaced=True),
}


def resource_of(type_: type[msgspec.Struct]) -> Resource:
    """The resource of a typed kind.

    Raises:
        KeyError: no such kind is known here.
    """
    return TYPED[type_]


def from_discovery(api_version: str, listed: dict[str, Any], kind: str) -> Resource | None:
    """The resource of a kind in an APIResourceList; None where it lists no such kind."""
    for item in listed.get("resources", ()):
        if item["kind"] == kind and "/" not in item["name"]:
            return Resource(api_version, item["name"], namespaced=item["namespaced"])
    return None
