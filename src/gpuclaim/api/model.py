"""The shared model: what a class, a claim or a pod means, resolved in one place for every reader."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping

import msgspec

from gpuclaim.api import core, names
from gpuclaim.api.types import Condition, GPUClaim, GPUClass, Mode, TaintEffect, Toleration, TolerationOperator

FINAL_PHASES = frozenset({"Succeeded", "Failed"})
_KEEPS_AWAY = frozenset({TaintEffect.NO_SCHEDULE, TaintEffect.NO_EXECUTE})


def max_count(cls: GPUClass) -> int | None:
    """The most GPUs of the class in one set (R5); None where there is no limit."""
    if cls.spec.max_count is not None:
        return cls.spec.max_count
    return 1 if cls.spec.mode is Mode.VGPU else None


def resource_name(cls: GPUClass) -> str:
    """The extended resource that pods ask for; empty where the class has a source of a kind unknown here."""
    plugin = cls.spec.source.device_plugin
    return plugin.resource_name if plugin is not None else ""


def claim_set(claim: GPUClaim) -> str:
    """The set that the claim belongs to (R9)."""
    return claim.spec.set or claim.metadata.name


def pod_set(labels: Mapping[str, str]) -> str | None:
    """The set that a pod with these labels belongs to (R9); None where it names none."""
    return labels.get(names.SET_LABEL) or labels.get(names.VM_NAME_LABEL) or None


def is_live(pod: core.Pod) -> bool:
    """Whether the pod may use devices: any phase but Succeeded and Failed, being deleted included (R36b)."""
    return pod.status.phase not in FINAL_PHASES


def pod_requests(pod: core.Pod) -> dict[str, int]:
    """How many of each extended resource (`domain/name`) the pod takes on its node, as the scheduler counts.

    The containers' and sidecars' sum, or the most that one init container needs beside the sidecars started before it.
    """
    running: dict[str, int] = {}
    peak: dict[str, int] = {}
    for container in pod.spec.init_containers:
        for name, quantity in _extended(container):
            if container.restart_policy == "Always":
                running[name] = running.get(name, 0) + quantity
                peak[name] = max(peak.get(name, 0), running[name])
            else:
                peak[name] = max(peak.get(name, 0), running.get(name, 0) + quantity)
    for container in pod.spec.containers:
        for name, quantity in _extended(container):
            running[name] = running.get(name, 0) + quantity
    return {name: max(running.get(name, 0), peak.get(name, 0)) for name in running.keys() | peak.keys()}


def _extended(container: core.Container) -> Iterable[tuple[str, int]]:
    resources = container.resources
    for name in resources.limits.keys() | resources.requests.keys():
        if "/" in name:
            yield name, core.whole(resources.limits.get(name) or resources.requests.get(name) or 0)


def tolerates(toleration: Toleration, taint: core.Taint) -> bool:
    """Whether the toleration covers the taint, as k8s.io/component-helpers does it."""
    if toleration.effect is not None and toleration.effect != taint.effect:
        return False
    if toleration.key and toleration.key != taint.key:
        return False
    return toleration.operator is TolerationOperator.EXISTS or (
        toleration.key != "" and toleration.value == taint.value
    )


def keeps_away(taints: Iterable[core.Taint]) -> tuple[core.Taint, ...]:
    """The taints that take a node out of placement unless they are tolerated: NoSchedule and NoExecute (R30)."""
    return tuple(taint for taint in taints if taint.effect in _KEEPS_AWAY)


def untolerated(taints: Iterable[core.Taint], tolerations: Iterable[Toleration]) -> core.Taint | None:
    """The first of the taints that keeps pods away and that none of the tolerations covers."""
    known = tuple(tolerations)
    return next((taint for taint in keeps_away(taints) if not any(tolerates(t, taint) for t in known)), None)


def with_condition(conditions: Iterable[Condition], new: Condition) -> list[Condition]:
    """The conditions with `new` in the place of the one of its type; its transition time moves only with its status."""
    kept = list(conditions)
    for index, old in enumerate(kept):
        if old.type == new.type:
            if old.status == new.status:
                new = msgspec.structs.replace(new, last_transition_time=old.last_transition_time)
            kept[index] = new
            return kept
    return [*kept, new]


def condition(conditions: Iterable[Condition], type_: str) -> Condition | None:
    """The condition of this type, if there is one."""
    return next((c for c in conditions if c.type == type_), None)


def utc(moment: dt.datetime) -> dt.datetime:
    """The moment in UTC and whole seconds, as Kubernetes stores times."""
    return moment.astimezone(dt.UTC).replace(microsecond=0)
