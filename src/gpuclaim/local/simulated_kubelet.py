"""What the kubelet of a simulated node decides: which pods it takes, on which devices, and what it says of them. Pure.

Order of checks, reasons and messages are those of the real one: k8s.io/kubernetes pkg/kubelet/cm/devicemanager (devices
first), then pkg/kubelet/lifecycle/predicate.go (node affinity). CPU, memory and taints are left to the scheduler.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeAlias

from gpuclaim.api import core, model
from gpuclaim.api.core import Struct

Devices: TypeAlias = "Mapping[str, tuple[str, ...]]"
"""Device IDs by the resource that they are devices of."""

_REJECTED: Final = "Pod was rejected: "


class Container(core.Container, frozen=True, kw_only=True):
    """v1.Container, with what its status repeats."""

    image: str = ""


class ReadinessGate(Struct, frozen=True, kw_only=True):
    """v1.PodReadinessGate."""

    condition_type: str


class PodSpec(Struct, frozen=True, kw_only=True):
    """v1.PodSpec, as far as a kubelet looks here; `affinity` as the wire has it."""

    node_name: str = ""
    containers: list[Container] = []
    init_containers: list[Container] = []
    node_selector: dict[str, str] = {}
    affinity: dict[str, Any] | None = None
    readiness_gates: list[ReadinessGate] = []


class PodCondition(Struct, frozen=True, kw_only=True):
    """v1.PodCondition."""

    type: str
    status: str = core.Status.UNKNOWN


class PodStatus(Struct, frozen=True, kw_only=True):
    """v1.PodStatus."""

    phase: str = ""
    conditions: list[PodCondition] = []


class Pod(Struct, frozen=True, kw_only=True):
    """v1.Pod, as the kubelet of a simulated node reads it."""

    metadata: core.ObjectMeta
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()


@dataclasses.dataclass(frozen=True, slots=True)
class Rejection:
    """A pod is turned away: phase Failed, with this reason and message."""

    reason: str
    message: str


class DeviceLedger:
    """The devices of one node: what its plugins list, what is healthy, which pod has what.

    Devices are given in the order in which the plugin lists them; a real kubelet promises no order.
    """

    def __init__(self, devices: Devices) -> None:
        """Begin with every device healthy and free."""
        self.devices = dict(devices)
        self._unhealthy: frozenset[str] = frozenset()
        self._given: dict[str, Devices] = {}

    @property
    def allocatable(self) -> dict[str, tuple[str, ...]]:
        """The healthy devices, given or not; what kubelet lists as allocatable."""
        return {name: tuple(each for each in ids if each not in self._unhealthy) for name, ids in self.devices.items()}

    @property
    def unhealthy(self) -> frozenset[str]:
        """The IDs of the devices that their plugin calls unhealthy."""
        return self._unhealthy

    def set_unhealthy(self, ids: Iterable[str]) -> bool:
        """Make exactly these devices unhealthy, pods keep what they have; return whether that changed anything."""
        known = {each for listed in self.devices.values() for each in listed}
        wanted = frozenset(ids) & known
        changed = wanted != self._unhealthy
        self._unhealthy = wanted
        return changed

    def given(self, uid: str) -> Devices | None:
        """What the pod has; None where it was not admitted."""
        return self._given.get(uid)

    def give(self, uid: str, requests: Mapping[str, int]) -> Devices | Rejection:
        """Give a pod devices, all that it asks for or none; resources that no plugin of the node offers are ignored."""
        if (before := self._given.get(uid)) is not None:
            return before
        taken = {each for devices in self._given.values() for ids in devices.values() for each in ids}
        chosen: dict[str, tuple[str, ...]] = {}
        for name, healthy in self.allocatable.items():
            needed = requests.get(name, 0)
            if not needed:
                continue
            if not healthy:
                return _unexpected(f"no healthy devices present; cannot allocate unhealthy devices {name}")
            free = [each for each in healthy if each not in taken]
            if len(free) < needed:
                return _unexpected(
                    f"requested number of devices unavailable for {name}. Requested: {needed}, Available: {len(free)}"
                )
            chosen[name] = tuple(free[:needed])
        self._given[uid] = chosen
        return chosen

    def take_back(self, uid: str) -> None:
        """Free what the pod has."""
        self._given.pop(uid, None)


def admit(pod: Pod, node: str, labels: Mapping[str, str], ledger: DeviceLedger) -> Rejection | None:
    """Take a pod that is bound to `node`, giving it its devices in `ledger`, or say why not."""
    requests = model.pod_requests(
        core.Pod(
            metadata=pod.metadata,
            spec=core.PodSpec(containers=[*pod.spec.containers], init_containers=[*pod.spec.init_containers]),
        )
    )
    given = ledger.give(pod.metadata.uid, requests)
    if isinstance(given, Rejection):
        return given
    if not selects(pod.spec, node, labels):
        ledger.take_back(pod.metadata.uid)
        return Rejection(
            "NodeAffinity", "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector"
        )
    return None


def selects(spec: PodSpec, node: str, labels: Mapping[str, str]) -> bool:
    """Whether the pod's node selector and required node affinity match a node of this name and these labels."""
    if any(labels.get(key) != value for key, value in spec.node_selector.items()):
        return False
    by_node = (spec.affinity or {}).get("nodeAffinity") or {}
    required = by_node.get("requiredDuringSchedulingIgnoredDuringExecution")
    if required is None:
        return True
    terms = required.get("nodeSelectorTerms") or []
    return any(_term_matches(term, {"metadata.name": node}, labels) for term in terms)


def running(pod: Pod, now: dt.datetime, host_ip: str, pod_ip: str) -> dict[str, Any]:
    """The status of a pod whose containers all run since `now`."""
    at = stamp(now)
    started = {"ready": True, "started": True, "restartCount": 0, "state": {"running": {"startedAt": at}}}
    done = {"startedAt": at, "finishedAt": at, "exitCode": 0, "reason": "Completed"}
    ended = {"ready": True, "started": False, "restartCount": 0, "state": {"terminated": done}}
    init = [
        _container(each, started if each.restart_policy == "Always" else ended) for each in pod.spec.init_containers
    ]
    conditions = ["PodReadyToStartContainers", "Initialized", "ContainersReady"]
    return {
        "phase": "Running",
        "startTime": at,
        "hostIP": host_ip,
        "hostIPs": [{"ip": host_ip}],
        "podIP": pod_ip,
        "podIPs": [{"ip": pod_ip}],
        "conditions": [*(_condition(each, now, on=True) for each in conditions), ready(pod, now)],
        "containerStatuses": [_container(each, started) for each in pod.spec.containers],
        **({"initContainerStatuses": init} if init else {}),
    }


def ready(pod: Pod, now: dt.datetime) -> dict[str, Any]:
    """The Ready condition of a pod whose containers run: true once all its readiness gates are."""
    return _condition("Ready", now, on=gates_open(pod))


def gates_open(pod: Pod) -> bool:
    """Whether every readiness gate's condition is true; KubeVirt's launcher pods have one."""
    true = {each.type for each in pod.status.conditions if each.status == core.Status.TRUE}
    return all(gate.condition_type in true for gate in pod.spec.readiness_gates)


def says_ready(pod: Pod) -> bool:
    """Whether the stored status says that the pod is ready."""
    return any(each.type == "Ready" and each.status == core.Status.TRUE for each in pod.status.conditions)


def ended(pod: Pod, now: dt.datetime) -> dict[str, Any]:
    """The status of a pod whose containers have all ended at `now`, with success."""
    at = stamp(now)
    done = {"terminated": {"finishedAt": at, "exitCode": 0, "reason": "Completed"}}
    state = {"ready": False, "started": False, "restartCount": 0, "state": done}
    return {
        "phase": "Succeeded",
        "conditions": [_condition(each, now, on=False) for each in ("Ready", "ContainersReady")],
        "containerStatuses": [_container(each, state) for each in pod.spec.containers],
    }


def rejected(rejection: Rejection, now: dt.datetime) -> dict[str, Any]:
    """The status of a pod that was turned away."""
    return {
        "phase": "Failed",
        "reason": rejection.reason,
        "message": _REJECTED + rejection.message,
        "startTime": stamp(now),
    }


def stamp(moment: dt.datetime) -> str:
    """A moment, in UTC, as metav1.Time has it."""
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def _unexpected(why: str) -> Rejection:
    return Rejection("UnexpectedAdmissionError", f"Allocate failed due to {why}, which is unexpected")


def _condition(type_: str, now: dt.datetime, *, on: bool) -> dict[str, Any]:
    return {"type": type_, "status": str(on), "lastTransitionTime": stamp(now)}


def _container(container: Container, state: Mapping[str, Any]) -> dict[str, Any]:
    fixed = {"name": container.name, "image": container.image, "imageID": f"simulated://{container.image}"}
    return fixed | {"containerID": f"simulated://{container.name}"} | dict(state)


def _term_matches(term: Mapping[str, Any], fields: Mapping[str, str], labels: Mapping[str, str]) -> bool:
    """Whether a node selector term matches; one without requirements matches no node."""
    expressions, on_fields = term.get("matchExpressions") or [], term.get("matchFields") or []
    if not expressions and not on_fields:
        return False
    return all(_requirement_matches(each, labels) for each in expressions) and all(
        _requirement_matches(each, fields) for each in on_fields
    )


def _requirement_matches(requirement: Mapping[str, Any], values: Mapping[str, str]) -> bool:
    actual: str | None = values.get(requirement["key"])
    listed = requirement.get("values") or []
    match requirement.get("operator"):
        case "In":
            return actual in listed
        case "NotIn":
            return actual not in listed
        case "Exists":
            return actual is not None
        case "DoesNotExist":
            return actual is None
        case "Gt" | "Lt" as operator:
            try:
                left, right = int(actual or ""), int(listed[0])
            except (ValueError, IndexError):
                return False
            return left > right if operator == "Gt" else left < right
        case _:
            return False
