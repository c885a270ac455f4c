"""The fixed vocabularies: why an order is refused, and the types and reasons of conditions."""

from __future__ import annotations

import enum


class Refusal(enum.StrEnum):
    """Why an order is refused (R42)."""

    UNKNOWN_CLASS = "UnknownClass"
    CLASS_CLOSED = "ClassClosed"
    ABOVE_MAX_COUNT = "AboveMaxCount"
    OVER_BUDGET = "OverBudget"
    INSUFFICIENT_CAPACITY = "InsufficientCapacity"
    SET_ATTACHED = "SetAttached"


class PodRefusal(enum.StrEnum):
    """Why a pod that asks for GPUs is turned away when it is created (R43, R44)."""

    NOT_BOUND = "SetNotBound"
    SET_IN_USE = "SetInUse"
    NODE_REFUSED = "NodeUnderRefusal"
    ABOVE_HOLD = "AboveHold"
    WRONG_NODE = "WrongNode"
    NO_CLAIM = "NoClaim"


class MachineRefusal(enum.StrEnum):
    """Why a VirtualMachine that is an order is turned away (R45), beside a `Refusal` of what it orders."""

    INVALID_COUNT = "InvalidCount"
    INVALID_NAME = "InvalidName"
    OTHER_SET = "OtherSet"
    ABOVE_ORDER = "AboveOrder"
    CLAIM_DIFFERS = "ClaimDiffers"
    CLAIM_DELETED = "ClaimBeingDeleted"


class ClaimCondition(enum.StrEnum):
    """Condition types of a GPUClaim."""

    BOUND = "Bound"
    ATTACHED = "Attached"
    HEALTHY = "Healthy"


class NodeConditionType(enum.StrEnum):
    """Condition types of a GPUNode."""

    REPORTING = "Reporting"
    HEALTHY = "Healthy"
    OVERCOMMITTED = "Overcommitted"
    FOREIGN_USE = "ForeignUse"


class NodeReason(enum.StrEnum):
    """Reasons of a GPUNode's conditions."""

    REPORTS = "Reports"
    NEVER_REPORTED = "NeverReported"
    SILENT = "Silent"
    REBOOTED = "Rebooted"
    ALL_HEALTHY = "AllHealthy"
    DEVICES_UNHEALTHY = "DevicesUnhealthy"
    WITHIN_CAPACITY = "WithinCapacity"
    ABOVE_CAPACITY = "AboveCapacity"
    NO_FOREIGN_USE = "NoForeignUse"
    PODS_WITHOUT_CLAIM = "PodsWithoutClaim"


class BoundReason(enum.StrEnum):
    """Reasons of a claim's Bound condition; while it is not bound, a `Refusal` stands there."""

    BOUND = "Bound"
    MOVED = "Moved"
    WAITS_FOR_POD = "WaitsForPod"
    WAITS_FOR_LEDGER = "WaitsForLedger"


class MoveReason(enum.StrEnum):
    """Why a hold went to another node."""

    MADE_ROOM = "MadeRoom"
    SET_GREW = "SetGrew"
    SET_UNITED = "SetUnited"
    NODE_REFUSED = "NodeRefused"
    NODE_UNFIT = "NodeUnfit"


class EventReason(enum.StrEnum):
    """Reasons of the Events on a claim."""

    BOUND = "Bound"
    WAITING = "Waiting"
    MOVED = "Moved"
    NODE_REFUSED = "NodeRefused"
    POD_WAITS = "PodWaits"
    UNHEALTHY = "Unhealthy"
    HEALTHY = "Healthy"
    RELEASED = "Released"


class HealthyReason(enum.StrEnum):
    """Reasons of a claim's Healthy condition: how the node is that holds its GPUs."""

    NODE_WELL = "NodeWell"
    NODE_GONE = "NodeGone"
    NODE_NOT_READY = "NodeNotReady"
    NODE_DRAINED = "NodeDrained"
    NODE_SILENT = "NodeSilent"
    NODE_REBOOTED = "NodeRebooted"
    GPUS_MISSING = "GPUsMissing"


class AttachedReason(enum.StrEnum):
    """Reasons of a claim's Attached condition."""

    POD_RUNS = "PodRuns"
    POD_PENDING = "PodPending"
    NODE_LACKS_ROOM = "NodeLacksRoom"
    NODE_LACKS_GPUS = "NodeLacksGPUs"
    POD_UNSCHEDULABLE = "PodUnschedulable"
    POD_ELSEWHERE = "PodElsewhere"
    NO_POD = "NoPod"
