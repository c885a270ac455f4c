"""GPUClass, GPUClaim and GPUNode, declared once: every reader and writer uses these, `crd` makes the CRDs from them.

Every string, list and map has a bound, so that the CEL rules fit the apiserver's cost budget. The R numbers are those
of the design.
"""

from __future__ import annotations

import datetime as dt
import enum
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from gpuclaim.api import names
from gpuclaim.api.core import ObjectMeta, Status, Struct


def _keyed(*keys: str) -> dict[str, Any]:
    return {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": list(keys)}


def _says(description: str) -> Meta:
    """What `kubectl explain` says of a field."""
    return Meta(description=description)


def _rules(*rules: tuple[str, str]) -> dict[str, Any]:
    return {"x-kubernetes-validations": [{"rule": rule, "message": message} for rule, message in rules]}


Time = Annotated[dt.datetime, Meta(tz=True)]
Count = Annotated[int, Meta(ge=0, le=2**31 - 1, extra_json_schema={"format": "int32"})]
Positive = Annotated[int, Meta(ge=1, le=2**31 - 1, extra_json_schema={"format": "int32"})]
ClassName = Annotated[str, Meta(min_length=1, max_length=names.LABEL_MAX, pattern=names.DNS_LABEL)]
NodeName = Annotated[str, Meta(min_length=1, max_length=names.SUBDOMAIN_MAX)]
ObjectName = Annotated[str, Meta(min_length=1, max_length=names.SUBDOMAIN_MAX)]
UID = Annotated[str, Meta(max_length=128)]
Address = Annotated[
    str,
    Meta(max_length=16, pattern=names.PCI_ADDRESS, description="The function's PCI address, as sysfs names it."),
]
ReportedResource = Annotated[
    str, Meta(max_length=names.RESOURCE_NAME_MAX, description="The resource by which pods ask for it.")
]
HexID = Annotated[str, Meta(max_length=4, pattern=names.HEX_ID)]
PodName = Annotated[ObjectName, _says("The pod's name.")]
Allocatable = Annotated[Count, _says("Device-plugin devices that kubelet may give to pods.")]
Used = Annotated[Count, _says("Device-plugin devices that pods have.")]
Seconds = Annotated[int, Meta(ge=0, extra_json_schema={"format": "int64"})]


class Condition(Struct, frozen=True, kw_only=True):
    """One observation of the object's state, as metav1.Condition."""

    type: Annotated[str, Meta(min_length=1, max_length=316, description="What it is about.")]
    status: Annotated[Status, _says("Whether it is so.")]
    reason: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=128,
            pattern=r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$",
            description="Why, in a word of a fixed vocabulary.",
        ),
    ]
    message: Annotated[str, Meta(max_length=1024, description="Why, in a sentence.")] = ""
    last_transition_time: Annotated[Time, _says("Since when the status is this.")]
    observed_generation: Annotated[int, Meta(ge=0, description="The object's generation that it was said of.")] = 0


Conditions = Annotated[
    list[Condition], Meta(max_length=16, description="What is observed of it.", extra_json_schema=_keyed("type"))
]


# --- GPUClass ---------------------------------------------------------------------------------------------------------


class Mode(enum.StrEnum):
    """How a VM gets the GPU."""

    PASSTHROUGH = "passthrough"
    VGPU = "vgpu"


class TolerationOperator(enum.StrEnum):
    """How a toleration compares. Gt and Lt are not here: clusters whose gate is off refuse pods with them."""

    EXISTS = "Exists"
    EQUAL = "Equal"


class TaintEffect(enum.StrEnum):
    """What a taint does."""

    NO_SCHEDULE = "NoSchedule"
    PREFER_NO_SCHEDULE = "PreferNoSchedule"
    NO_EXECUTE = "NoExecute"


class Toleration(Struct, frozen=True, kw_only=True):
    """A toleration that launcher pods of the class get (R6)."""

    key: Annotated[
        str,
        Meta(
            max_length=names.SUBDOMAIN_MAX + 1 + names.LABEL_MAX,
            description="The taint's key; empty, with operator Exists, every taint.",
        ),
    ] = ""
    operator: Annotated[TolerationOperator, _says("How key and value are compared; absent, Equal.")] | None = None
    value: Annotated[
        str, Meta(max_length=names.LABEL_MAX, pattern=names.LABEL_VALUE, description="The taint's value, for Equal.")
    ] = ""
    effect: Annotated[TaintEffect, _says("The taint's effect; absent, every effect.")] | None = None
    toleration_seconds: (
        Annotated[
            int,
            Meta(
                description="How long the pod stays on a node that gets the taint; absent, for ever.",
                extra_json_schema={"format": "int64"},
            ),
        ]
        | None
    ) = None


_TOLERATION_RULES = _rules(
    (
        "!has(self.key) || self.key == '' || self.key.matches('"
        + names.LABEL_KEY.replace("\\", "\\\\")
        + "') && self.key.split('/').size() <= 2 && self.key.split('/').all(p, size(p) <= 253)"
        " && size(self.key.split('/')[self.key.split('/').size() - 1]) <= 63",
        "key must be a label key: an optional prefix (at most 253) and '/', then a name (at most 63)",
    ),
    (
        "(has(self.key) && self.key != '') || (has(self.operator) && self.operator == 'Exists')",
        "an empty key needs operator Exists",
    ),
    (
        "!(has(self.operator) && self.operator == 'Exists') || !has(self.value) || self.value == ''",
        "operator Exists takes no value",
    ),
    (
        "!has(self.tolerationSeconds) || (has(self.effect) && self.effect == 'NoExecute')",
        "tolerationSeconds needs effect NoExecute",
    ),
)

ResourceName = Annotated[
    str,
    Meta(
        min_length=3,
        max_length=names.RESOURCE_NAME_MAX,
        pattern=names.RESOURCE_NAME,
        description="The extended resource that the device plugin offers, as domain/name.",
        extra_json_schema=_rules(
            (
                f"size(self.split('/')[0]) <= {names.RESOURCE_DOMAIN_MAX}"
                f" && size(self.split('/')[self.split('/').size() - 1]) <= {names.LABEL_MAX}",
                f"the domain may have {names.RESOURCE_DOMAIN_MAX} characters, the name {names.LABEL_MAX}",
            ),
            ("!self.contains('kubernetes.io/')", "a domain that ends in kubernetes.io is Kubernetes' own"),
            ("!self.startsWith('requests.')", "must not start with 'requests.': that is how a quota names it"),
            (f"!self.startsWith('{names.GROUP}/')", f"the domain {names.GROUP} is that of budget keys"),
        ),
    ),
]


class DevicePluginSource(Struct, frozen=True, kw_only=True):
    """GPUs that a device plugin offers."""

    resource_name: ResourceName


class Source(Struct, frozen=True, kw_only=True):
    """Where the class's GPUs come from: exactly one member (R3)."""

    device_plugin: Annotated[DevicePluginSource, _says("GPUs that a device plugin offers.")] | None = None


class GPUClassSpec(Struct, frozen=True, kw_only=True):
    """What the hoster offers under the class's name."""

    display_name: Annotated[str, Meta(max_length=63, description="The name that the catalogue shows.")] = ""
    description: Annotated[str, Meta(max_length=1024, description="What the catalogue says of it.")] = ""
    mode: Annotated[
        Mode,
        Meta(
            description="passthrough: the VM gets whole functions. vgpu: mediated devices or virtual functions.",
            extra_json_schema=_rules(
                ("self == oldSelf", "mode never changes: pools take their worker template from it")
            ),
        ),
    ]
    source: Annotated[
        Source,
        Meta(
            description="Where the GPUs come from: exactly one member.",
            extra_json_schema=_rules(("has(self.devicePlugin)", "exactly one source is needed: devicePlugin")),
        ),
    ]
    max_count: (
        Annotated[
            Positive,
            Meta(description="The most GPUs of this class in one set. Absent: 1 for vgpu, no limit for passthrough."),
        ]
        | None
    ) = None
    tolerations: Annotated[
        list[Annotated[Toleration, Meta(extra_json_schema=_TOLERATION_RULES)]],
        Meta(
            max_length=16,
            description="Copied onto launcher pods; a node whose taints they do not cover takes no hold of this class.",
            extra_json_schema={"x-kubernetes-list-type": "atomic"},
        ),
    ] = []
    closed: Annotated[bool, Meta(description="No new orders; what is held stays held.")] = False


class Availability(enum.StrEnum):
    """What the catalogue says of a class's supply."""

    AVAILABLE = "Available"
    LIMITED = "Limited"
    SOLD_OUT = "SoldOut"


class GPUClassStatus(Struct, frozen=True, kw_only=True):
    """How much of the class there is, as far as the hoster shows it."""

    availability: Annotated[Availability, _says("What there is of it.")] | None = None
    total: Annotated[Count, _says("GPUs that there are, where the hoster shows counts.")] | None = None
    held: Annotated[Count, _says("GPUs that claims hold, where the hoster shows counts.")] | None = None
    free: Annotated[Count, _says("GPUs that new orders may take, where the hoster shows counts.")] | None = None
    largest_order: Annotated[Count, _says("The largest order of this class that would fit now.")] | None = None
    conditions: Conditions = []


class GPUClass(Struct, frozen=True, kw_only=True):
    """An offer in the hoster's catalogue: a kind of GPU that tenants may order."""

    api_version: Literal["gpu.cozystack.io/v1alpha1"] = "gpu.cozystack.io/v1alpha1"
    kind: Literal["GPUClass"] = "GPUClass"
    metadata: ObjectMeta
    spec: GPUClassSpec
    status: GPUClassStatus = GPUClassStatus()


# --- GPUClaim ---------------------------------------------------------------------------------------------------------


class GPUClaimSpec(Struct, frozen=True, kw_only=True):
    """What the tenant ordered; it never changes (R8)."""

    class_name: Annotated[ClassName, Meta(description="The GPUClass that is ordered from.")]
    count: Annotated[Positive, Meta(description="How many GPUs.")] = 1
    set: (
        Annotated[
            str,
            Meta(
                min_length=1,
                max_length=names.LABEL_MAX,
                pattern=names.NAMED_LABEL_VALUE,
                description="The claims that one VM consumes together carry the same set, by default the claim's name."
                " A launcher pod belongs to the set of its VM's name.",
            ),
        ]
        | None
    ) = None


class NodeRefusal(Struct, frozen=True, kw_only=True):
    """A node's kubelet turned the set's pinned pod away; the node is not tried before `expires_at` (R11)."""

    node_name: Annotated[NodeName, _says("The node that turned the pod away.")]
    reason: Annotated[str, Meta(max_length=128, description="Kubelet's reason.")] = ""
    message: Annotated[str, Meta(max_length=256, description="Kubelet's sentence.")] = ""
    refused_at: Annotated[Time, _says("When.")]
    expires_at: Annotated[Time, _says("Until when the node is not tried; later with each refusal.")]
    pod_uid: Annotated[UID, _says("The UID of the pod that was turned away.")] = msgspec.field(
        default="", name="podUID"
    )


class HistoryEntry(Struct, frozen=True, kw_only=True):
    """The hold went to another node."""

    at: Annotated[Time, _says("When.")]
    from_node: Annotated[NodeName, _says("The node that held the GPUs before.")]
    to_node: Annotated[NodeName, _says("The node that has held them since.")]
    reason: Annotated[str, Meta(max_length=64, description="Why, in a word of a fixed vocabulary.")]
    message: Annotated[str, Meta(max_length=1024, description="Why, in a sentence.")] = ""


class Attachment(Struct, frozen=True, kw_only=True):
    """The pod that uses the claim's GPUs now."""

    pod_name: PodName
    pod_uid: Annotated[UID, _says("The pod's UID.")] = msgspec.field(name="podUID")
    since: Annotated[Time, _says("Since when it uses them.")]


class UsageKind(enum.StrEnum):
    """What an interval of use is about."""

    HELD = "Held"
    ATTACHED = "Attached"


class UsageInterval(Struct, frozen=True, kw_only=True):
    """A time that has ended in which a node held the claim's GPUs, or a pod used them there."""

    kind: Annotated[UsageKind, _says("Held, or attached to a pod.")]
    node_name: Annotated[NodeName, _says("The node.")]
    since: Annotated[Time, _says("Its first second.")]
    until: Annotated[Time, _says("The second after its last.")]
    seconds: (
        Annotated[Seconds, _says("Of several that were joined because there were too many: the sum of them.")] | None
    ) = None


UNRECORDED_MAX = 256
"""The most intervals that wait in a claim for the ledger; beyond half of it, the newest of a kind are joined."""


class Usage(Struct, frozen=True, kw_only=True):
    """Closed totals, written at transitions only: what runs now is since `heldSince` and `attachment.since` (R12)."""

    held_seconds: Annotated[Seconds, _says("Seconds of holds that have ended.")] = 0
    attached_seconds: Annotated[Seconds, _says("Seconds for which pods that have ended used the GPUs.")] = 0
    attached_until: Annotated[Time, _says("When the last of these pods ended.")] | None = None
    unrecorded: Annotated[
        list[UsageInterval],
        Meta(
            max_length=UNRECORDED_MAX,
            description="Intervals that have ended and are not in the ledger yet, oldest first.",
            extra_json_schema={"x-kubernetes-list-type": "atomic"},
        ),
    ] = []


class GPUClaimStatus(Struct, frozen=True, kw_only=True):
    """Where the hold is, and what is known of its use."""

    node_name: Annotated[NodeName, _says("The node that holds the GPUs.")] | None = None
    held_since: Annotated[Time, _says("Since when they are held; a move does not change it.")] | None = None
    node_since: Annotated[Time, _says("Since when this node holds them; absent, since `heldSince`.")] | None = None
    attachment: Annotated[Attachment, _says("The pod that uses them now.")] | None = None
    usage: Annotated[Usage, _says("Closed totals, written at transitions only.")] | None = None
    refusals: Annotated[
        list[NodeRefusal],
        Meta(
            max_length=64,
            description="Nodes whose kubelet turned the set's pod away; none is tried before its expiry.",
            extra_json_schema=_keyed("nodeName"),
        ),
    ] = []
    history: Annotated[
        list[HistoryEntry],
        Meta(
            max_length=names.HISTORY_MAX,
            description="The last moves of the hold, the newest last; where it was bound first is the first entry's"
            " `fromNode`.",
            extra_json_schema={"x-kubernetes-list-type": "atomic"},
        ),
    ] = []
    conditions: Conditions = []


class GPUClaim(Struct, frozen=True, kw_only=True):
    """A tenant's order of GPUs; bound, it holds them on a node until it is deleted, VM on or off."""

    api_version: Literal["gpu.cozystack.io/v1alpha1"] = "gpu.cozystack.io/v1alpha1"
    kind: Literal["GPUClaim"] = "GPUClaim"
    metadata: ObjectMeta
    spec: GPUClaimSpec
    status: GPUClaimStatus = GPUClaimStatus()


# --- GPUNode ----------------------------------------------------------------------------------------------------------


class Exclusion(Struct, frozen=True, kw_only=True):
    """A device that takes no new hold (R13)."""

    address: Address
    reason: Annotated[str, Meta(max_length=256, description="Why, for people.")] = ""


class GPUNodeSpec(Struct, frozen=True, kw_only=True):
    """What the hoster takes out of placement."""

    cordoned: Annotated[bool, _says("The node takes no new hold; what it holds stays.")] = False
    excluded: Annotated[
        list[Exclusion],
        Meta(max_length=256, description="Devices that take no new hold.", extra_json_schema=_keyed("address")),
    ] = []


class Health(enum.StrEnum):
    """What kubelet makes of a function."""

    HEALTHY = "Healthy"
    UNHEALTHY = "Unhealthy"
    UNMANAGED = "Unmanaged"
    """No device plugin offers it, nor did under its present driver."""


class ResourceCount(Struct, frozen=True, kw_only=True):
    """Device-plugin devices of one resource: those that kubelet may give to pods, and those that pods use."""

    name: ReportedResource
    allocatable: Allocatable
    used: Used


class DeviceUser(Struct, frozen=True, kw_only=True):
    """A pod that uses devices of a function."""

    namespace: Annotated[str, Meta(max_length=names.LABEL_MAX, description="The pod's namespace.")]
    name: PodName


class Device(Struct, frozen=True, kw_only=True):
    """One GPU function of the node (R14)."""

    address: Address
    vendor_id: Annotated[HexID, _says("PCI vendor, four hex digits.")] = msgspec.field(default="0000", name="vendorID")
    device_id: Annotated[HexID, _says("PCI device, four hex digits.")] = msgspec.field(default="0000", name="deviceID")
    model: Annotated[str, Meta(max_length=256, description="Its name in the PCI ID database, else its IDs.")] = ""
    driver: Annotated[str, Meta(max_length=64, description="The driver that it is bound to.")] = ""
    iommu_group: Annotated[str, Meta(max_length=16, description="Its IOMMU group.")] = ""
    numa_node: Annotated[int, Meta(ge=0, le=65535, description="Its NUMA node.")] | None = None
    physical_function: Annotated[Address, _says("Of a virtual function: the function that it is part of.")] | None = (
        None
    )
    health: Annotated[Health, _says("What kubelet makes of it; Unmanaged, where no device plugin offers it.")]
    resources: Annotated[
        list[ResourceCount],
        Meta(max_length=32, description="What it is offered as.", extra_json_schema=_keyed("name")),
    ] = []
    users: Annotated[
        list[DeviceUser],
        Meta(max_length=256, description="Pods that use it.", extra_json_schema=_keyed("namespace", "name")),
    ] = []


class GPUNodeStatus(Struct, frozen=True, kw_only=True):
    """What the agent read; the conditions are the controller's (R16)."""

    devices: Annotated[
        list[Device],
        Meta(max_length=1024, description="The node's GPU functions.", extra_json_schema=_keyed("address")),
    ] = []
    unplaced: Annotated[
        list[ResourceCount],
        Meta(
            max_length=256,
            description="What kubelet offers by IDs that lead to no function or group of the node.",
            extra_json_schema=_keyed("name"),
        ),
    ] = []
    resource_names: Annotated[
        list[ReportedResource],
        Meta(
            max_length=256,
            description="Every resource name of the node's GPUs, those that cannot be placed included.",
            extra_json_schema={"x-kubernetes-list-type": "set"},
        ),
    ] = []
    boot_id: Annotated[str, Meta(max_length=64, description="The node's boot when it was reported.")] = msgspec.field(
        default="", name="bootID"
    )
    reported_at: Annotated[Time, _says("When the agent last reported.")] | None = None
    conditions: Conditions = []


class GPUNode(Struct, frozen=True, kw_only=True):
    """A node's GPUs and what kubelet makes of them, reported by the agent under the Node's name."""

    api_version: Literal["gpu.cozystack.io/v1alpha1"] = "gpu.cozystack.io/v1alpha1"
    kind: Literal["GPUNode"] = "GPUNode"
    metadata: ObjectMeta
    spec: GPUNodeSpec = GPUNodeSpec()
    status: GPUNodeStatus = GPUNodeStatus()
