"""The parts of Kubernetes' own kinds that gpuclaim reads, as typed values; unknown fields are dropped on decoding."""

from __future__ import annotations

import datetime as dt
import enum
from typing import Any, Literal

import msgspec


class Struct(msgspec.Struct, rename="camel", omit_defaults=True, frozen=True):
    """Base of every API value: immutable, camelCase on the wire, fields that have their default are not written."""


class OwnerReference(Struct, frozen=True, kw_only=True):
    """metav1.OwnerReference."""

    api_version: str
    kind: str
    name: str
    uid: str
    controller: bool = False
    block_owner_deletion: bool = False


class ObjectMeta(Struct, frozen=True, kw_only=True):
    """metav1.ObjectMeta, without managedFields."""

    name: str = ""
    namespace: str = ""
    generate_name: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: dt.datetime | None = None
    deletion_timestamp: dt.datetime | None = None
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    finalizers: list[str] = []
    owner_references: list[OwnerReference] = []


class Status(enum.StrEnum):
    """The status of a condition."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


class Taint(Struct, frozen=True, kw_only=True):
    """v1.Taint."""

    key: str
    effect: str
    value: str = ""


class NodeCondition(Struct, frozen=True, kw_only=True):
    """v1.NodeCondition."""

    type: str
    status: str = Status.UNKNOWN


class NodeSpec(Struct, frozen=True, kw_only=True):
    """v1.NodeSpec."""

    unschedulable: bool = False
    taints: list[Taint] = []


class NodeSystemInfo(Struct, frozen=True, kw_only=True):
    """v1.NodeSystemInfo."""

    boot_id: str = msgspec.field(default="", name="bootID")


class NodeStatus(Struct, frozen=True, kw_only=True):
    """v1.NodeStatus; quantities as the wire has them."""

    allocatable: dict[str, str | int] = {}
    conditions: list[NodeCondition] = []
    node_info: NodeSystemInfo = NodeSystemInfo()


class Node(Struct, frozen=True, kw_only=True):
    """v1.Node."""

    api_version: Literal["v1"] = "v1"
    kind: Literal["Node"] = "Node"
    metadata: ObjectMeta
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


class ResourceRequirements(Struct, frozen=True, kw_only=True):
    """v1.ResourceRequirements. Of an extended resource requests equal limits; the apiserver fills in the requests."""

    limits: dict[str, str | int] = {}
    requests: dict[str, str | int] = {}


class Container(Struct, frozen=True, kw_only=True):
    """v1.Container."""

    name: str = ""
    resources: ResourceRequirements = ResourceRequirements()
    restart_policy: str = ""


class PodSpec(Struct, frozen=True, kw_only=True):
    """v1.PodSpec."""

    node_name: str = ""
    containers: list[Container] = []
    init_containers: list[Container] = []


class PodCondition(Struct, frozen=True, kw_only=True):
    """v1.PodCondition."""

    type: str
    status: str = Status.UNKNOWN
    reason: str = ""
    message: str = ""
    last_transition_time: dt.datetime | None = None


class ContainerStateTerminated(Struct, frozen=True, kw_only=True):
    """v1.ContainerStateTerminated."""

    finished_at: dt.datetime | None = None


class ContainerState(Struct, frozen=True, kw_only=True):
    """v1.ContainerState."""

    terminated: ContainerStateTerminated | None = None


class ContainerStatus(Struct, frozen=True, kw_only=True):
    """v1.ContainerStatus."""

    state: ContainerState = ContainerState()


class PodStatus(Struct, frozen=True, kw_only=True):
    """v1.PodStatus."""

    phase: str = ""
    reason: str = ""
    message: str = ""
    conditions: list[PodCondition] = []
    container_statuses: list[ContainerStatus] = []
    init_container_statuses: list[ContainerStatus] = []


class Pod(Struct, frozen=True, kw_only=True):
    """v1.Pod."""

    api_version: Literal["v1"] = "v1"
    kind: Literal["Pod"] = "Pod"
    metadata: ObjectMeta
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()


class DeviceClassSpec(Struct, frozen=True, kw_only=True):
    """resource.k8s.io/v1 DeviceClassSpec."""

    extended_resource_name: str = ""


class DeviceClass(Struct, frozen=True, kw_only=True):
    """resource.k8s.io/v1 DeviceClass."""

    api_version: Literal["resource.k8s.io/v1"] = "resource.k8s.io/v1"
    kind: Literal["DeviceClass"] = "DeviceClass"
    metadata: ObjectMeta
    spec: DeviceClassSpec = DeviceClassSpec()


class VirtualMachine(Struct, frozen=True, kw_only=True):
    """kubevirt.io/v1 VirtualMachine, its metadata alone."""

    metadata: ObjectMeta


class Namespace(Struct, frozen=True, kw_only=True):
    """v1.Namespace."""

    api_version: Literal["v1"] = "v1"
    kind: Literal["Namespace"] = "Namespace"
    metadata: ObjectMeta


class ResourceQuotaSpec(Struct, frozen=True, kw_only=True):
    """v1.ResourceQuotaSpec."""

    hard: dict[str, str | int] = {}


class ResourceQuotaStatus(Struct, frozen=True, kw_only=True):
    """v1.ResourceQuotaStatus."""

    hard: dict[str, str | int] = {}
    used: dict[str, str | int] = {}


class ResourceQuota(Struct, frozen=True, kw_only=True):
    """v1.ResourceQuota."""

    api_version: Literal["v1"] = "v1"
    kind: Literal["ResourceQuota"] = "ResourceQuota"
    metadata: ObjectMeta
    spec: ResourceQuotaSpec = ResourceQuotaSpec()
    status: ResourceQuotaStatus = ResourceQuotaStatus()


class StatusCause(Struct, frozen=True, kw_only=True):
    """metav1.StatusCause."""

    reason: str = ""
    message: str = ""
    field: str = ""


class StatusDetails(Struct, frozen=True, kw_only=True):
    """metav1.StatusDetails."""

    group: str = ""
    kind: str = ""
    name: str = ""
    causes: list[StatusCause] = []
    retry_after_seconds: int = 0


class Outcome(Struct, frozen=True, kw_only=True):
    """metav1.Status: how a request ended, where the answer is not an object. Named apart from a condition's status."""

    status: str = ""
    code: int = 0
    reason: str = ""
    message: str = ""
    details: StatusDetails | None = None


def wire(obj: msgspec.Struct) -> dict[str, Any]:
    """The object as plain values for an apiserver or a file, its apiVersion and kind first.

    Encoding alone leaves these two out, as they have defaults.
    """
    head = {"apiVersion": getattr(obj, "api_version"), "kind": getattr(obj, "kind")}  # noqa: B009 - of every kind
    fields: dict[str, Any] = msgspec.to_builtins(obj)
    return head | fields


_SCALE = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}


def whole(quantity: str | int) -> int:
    """A quantity of an extended resource as a number: "2", 2, "1k" (the canonical form of 1000).

    Raises:
        ValueError: it is no whole number of anything.
    """
    if isinstance(quantity, int):
        return quantity
    digits = quantity.rstrip("kMGTi")
    try:
        return int(digits) * _SCALE[quantity[len(digits) :]]
    except (KeyError, ValueError):
        raise ValueError(f"{quantity!r} is no whole quantity") from None
