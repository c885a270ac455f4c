"""What the books know of one node, and what that leaves free on it (R30, R30a, R30b)."""

from __future__ import annotations

import datetime as dt
import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from gpuclaim.api import core, model
from gpuclaim.api.types import Device, GPUClaim, GPUNode, Health
from gpuclaim.placement import quantity
from gpuclaim.placement.index import View

Offer: TypeAlias = tuple[tuple[str, int], ...]
"""What one function offers: (resource, device-plugin devices), by name."""

_SUBSETS_OF = 10
_NOTHING: Mapping[str, int] = {}


@dataclass(frozen=True, slots=True)
class PodFacts:
    """A live pod that asks for extended resources or names a set."""

    namespace: str
    name: str
    uid: str
    set_name: str | None
    node: str
    requests: tuple[tuple[str, int], ...]
    lacks: frozenset[str] | None = None
    """What the scheduler found too little of on the pod's node (`placement.unscheduled`); None where it placed the pod,
    or has not tried yet."""

    @property
    def group(self) -> tuple[str, str | None, str]:
        """Whose demand it adds to: its set's, or its own where it names none."""
        return (self.namespace, self.set_name, "" if self.set_name else self.name)


@dataclass(frozen=True, slots=True)
class Spare:
    """A function that counts for nothing (unhealthy, excluded) and yet has users: they do not take from what counts."""

    used: tuple[tuple[str, int], ...]
    users: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Link:
    """Resource names that share functions: each function goes to one of them (R30a)."""

    names: frozenset[str]
    offers: tuple[tuple[dict[str, int], int], ...]

    def cover(self, names: Iterable[str]) -> int:
        """How many devices there are under any of the names, every function counted once."""
        chosen = tuple(names)
        return sum(number * max(offer.get(name, 0) for name in chosen) for offer, number in self.offers)


@dataclass(frozen=True, slots=True)
class Offers:
    """What the classes make of resource names: those that whole functions carry, those that several devices share."""

    passthrough: frozenset[str] = frozenset()
    vgpu: frozenset[str] = frozenset()

    @property
    def all(self) -> frozenset[str]:
        """Every name that a class offers."""
        return self.passthrough | self.vgpu


class NodeFacts:
    """One node: what its Node, its GPUNode, its pods and the holds on it say, and what follows.

    Read it freely; only `Books` changes it. `free` has, for each resource that the agent reports, what a new hold may
    take (negative where too much is held); `eligible` says whether it takes any.
    """

    __slots__ = (
        "agent",
        "allocatable",
        "boot_id",
        "claims",
        "cordoned",
        "credit",
        "deadline",
        "demand",
        "devices",
        "foreign",
        "free",
        "functions",
        "held",
        "links",
        "listed",
        "listed_loose",
        "loose",
        "name",
        "named",
        "pods",
        "present",
        "ready",
        "reported",
        "reported_at",
        "reported_boot",
        "silent",
        "spares",
        "taints",
        "unhealthy",
        "unhealthy_of",
        "unknown",
        "unschedulable",
        "views",
    )

    def __init__(self, name: str) -> None:
        self.name = name
        self.held: dict[str, int] = {}
        """GPUs by class, reservations and the targets of planned moves included."""
        self.claims: list[GPUClaim] = []
        """The claims that are stored as bound here; in no particular order."""
        self.pods: dict[tuple[str, str], PodFacts] = {}
        self.views: tuple[View, ...] = ()
        self.listed: Mapping[str, int] = _NOTHING
        self.listed_loose: Mapping[str, int] = _NOTHING
        self.free: Mapping[str, int] = _NOTHING
        self.loose: Mapping[str, int] = _NOTHING
        self.demand: Mapping[str, int] = _NOTHING
        self.foreign: Mapping[str, int] = _NOTHING
        self.credit: Mapping[tuple[str, str | None, str], Mapping[str, int]] = {}
        self.agent: Mapping[str, int] = _NOTHING
        self.links: Mapping[str, Link] = {}
        self.unknown = 0
        self.silent = False
        self.forget_node()
        self.forget_report()

    def forget_node(self) -> None:
        """The Node is gone, or not seen yet."""
        self.present = self.ready = self.unschedulable = False
        self.taints: tuple[core.Taint, ...] = ()
        self.allocatable: Mapping[str, int] = _NOTHING
        self.boot_id = ""

    def forget_report(self) -> None:
        """The GPUNode is gone, or not seen yet."""
        self.reported = self.cordoned = False
        self.functions: tuple[tuple[Offer, int], ...] = ()
        self.spares: tuple[Spare, ...] = ()
        self.unhealthy: tuple[str, ...] = ()
        self.unhealthy_of: Mapping[str, int] = _NOTHING
        """How many of these functions each resource has lost."""
        self.devices = 0
        self.named: frozenset[str] = frozenset()
        """The resources that GPUs of the node are requested by, those that cannot be placed included (R15)."""
        self.reported_boot = ""
        self.reported_at: dt.datetime | None = None
        self.deadline: dt.datetime | None = None

    def read_node(self, node: core.Node) -> bool:
        """Take what the Node says; whether anything of it is new."""
        status = node.status
        ready = any(c.type == "Ready" and c.status == core.Status.TRUE for c in status.conditions)
        unschedulable = node.spec.unschedulable
        taints = model.keeps_away(node.spec.taints)
        allocatable = {name: quantity.floor(value) for name, value in status.allocatable.items() if "/" in name}
        new = (True, ready, unschedulable, taints, allocatable, status.node_info.boot_id)
        if new == (self.present, self.ready, self.unschedulable, self.taints, self.allocatable, self.boot_id):
            return False
        self.present, self.ready, self.unschedulable, self.taints, self.allocatable, self.boot_id = new
        return True

    def read_report(self, report: GPUNode, silent_after: dt.timedelta) -> bool:
        """Take what the GPUNode says; whether anything but the time of the report is new. O(devices)."""
        status = report.status
        out = {exclusion.address for exclusion in report.spec.excluded}
        functions: dict[Offer, int] = {}
        spares: list[Spare] = []
        unhealthy: list[str] = []
        unhealthy_of: dict[str, int] = {}
        for device in status.devices:
            if device.health is Health.UNHEALTHY:
                unhealthy.append(device.address)
                for resource in device.resources:
                    unhealthy_of[resource.name] = unhealthy_of.get(resource.name, 0) + 1
            if device.health is Health.HEALTHY and device.address not in out:
                offer = tuple(sorted((r.name, r.allocatable) for r in device.resources if r.allocatable > 0))
                if offer:
                    functions[offer] = functions.get(offer, 0) + 1
            elif (spare := _spare(device)) is not None:
                spares.append(spare)
        new = (
            True,
            report.spec.cordoned,
            tuple(sorted(functions.items())),
            tuple(spares),
            tuple(sorted(unhealthy)),
            unhealthy_of,
            len(status.devices),
            frozenset(status.resource_names).union(r.name for d in status.devices for r in d.resources),
            status.boot_id,
        )
        self.reported_at = at = _aware(status.reported_at)
        self.deadline = at + silent_after if at is not None else None
        old = (
            self.reported,
            self.cordoned,
            self.functions,
            self.spares,
            self.unhealthy,
            self.unhealthy_of,
            self.devices,
            self.named,
            self.reported_boot,
        )
        if new == old:
            return False
        (
            self.reported,
            self.cordoned,
            self.functions,
            self.spares,
            self.unhealthy,
            self.unhealthy_of,
            self.devices,
            self.named,
            self.reported_boot,
        ) = new
        return True

    @property
    def rebooted(self) -> bool:
        """The report is of another boot than the Node's (R30b); one that names no boot cannot be compared."""
        return bool(self.boot_id and self.reported_boot and self.boot_id != self.reported_boot)

    @property
    def eligible(self) -> bool:
        """Whether it takes new holds of a class that tolerates its taints."""
        return (
            self.present
            and self.reported
            and self.ready
            and not (self.unschedulable or self.cordoned or self.silent or self.rebooted)
        )

    @property
    def unbacked(self) -> dict[str, int]:
        """What is held of resources that the agent does not report (any more): nothing is behind it."""
        held = {name: count - self.foreign.get(name, 0) for name, count in self.demand.items() if name not in self.free}
        return {name: count for name, count in held.items() if count > 0}

    @property
    def over(self) -> dict[str, int]:
        """What is held beyond what the node has, by resource."""
        return {name: -free for name, free in self.free.items() if free < 0} | self.unbacked

    @property
    def empty(self) -> bool:
        """Nothing is known of it any more."""
        return not (self.present or self.reported or self.held or self.pods)

    def link(self, offers: Offers) -> None:
        """Add up what the agent reports and find the names that share functions. O(distinct functions)."""
        agent: dict[str, int] = {}
        groups: list[set[str]] = []
        for offer, number in self.functions:
            for name, allocatable in offer:
                agent[name] = agent.get(name, 0) + allocatable * number
            # A function that a passthrough name carries is whole: what else it is offered as, short of a vGPU, is it.
            shared = {name for name, _ in offer if name not in offers.vgpu or name in offers.passthrough}
            if len(shared) > 1 and not shared.isdisjoint(offers.passthrough):
                apart = [group for group in groups if group.isdisjoint(shared)]
                groups = [*apart, shared.union(*(group for group in groups if not group.isdisjoint(shared)))]
        self.agent = agent
        self.links = {name: link for group in groups for link in [self._link(group)] for name in group}

    def _link(self, group: set[str]) -> Link:
        counted: dict[Offer, int] = {}
        for offer, number in self.functions:
            part = tuple(entry for entry in offer if entry[0] in group)
            if part:
                counted[part] = counted.get(part, 0) + number
        return Link(frozenset(group), tuple((dict(offer), number) for offer, number in counted.items()))

    def settle(
        self,
        resource_of: Callable[[str], str | None],
        set_holds: Callable[[str, str], Mapping[str, int]],
        offered: frozenset[str],
    ) -> None:
        """Derive demand, foreign use and what is free. O(classes held + pods + spare users).

        `resource_of` gives a class's resource name, None where the class is unknown: what is held of it then counts
        against every resource, for it is one of them. `set_holds(namespace, set)` gives what a set holds here;
        `offered` are the resources of all classes. What else pods ask for is no GPU, and nobody's business here: a
        launcher pod's `devices.kubevirt.io/kvm`, for one.
        """
        demand: dict[str, int] = {}
        self.unknown = 0
        for class_name, count in self.held.items():
            resource = resource_of(class_name)
            if resource is None:
                self.unknown += count
            else:
                demand[resource] = demand.get(resource, 0) + count
        self.credit = {}
        self.foreign = _NOTHING
        if self.pods:
            self._settle_pods(demand, set_holds, offered | self.named)
        self.demand = demand
        self.free = {name: self.room(name, _NOTHING) for name in self.agent}

    def settle_loose(self, resource_of: Callable[[str], str | None], attached: Callable[[str, str], bool]) -> None:
        """Derive, by resource, at most how much could be free if all that is not attached were moved away (R35)."""
        moving: dict[str, int] = {}
        for claim in self.claims:
            resource = resource_of(claim.spec.class_name)
            if resource is not None and not attached(claim.metadata.namespace, model.claim_set(claim)):
                moving[resource] = moving.get(resource, 0) + claim.spec.count
        if not moving:
            self.loose = self.free
            return
        self.loose = {
            name: free
            + sum(moving.get(other, 0) for other in (self.links[name].names if name in self.links else (name,)))
            for name, free in self.free.items()
        }

    def _settle_pods(
        self, demand: dict[str, int], set_holds: Callable[[str, str], Mapping[str, int]], gpus: frozenset[str]
    ) -> None:
        groups = self.requests()
        foreign: dict[str, int] = {}
        bare: set[tuple[str, str | None, str]] = set()
        for group, requests in groups.items():
            holds = set_holds(group[0], group[1]) if group[1] else _NOTHING
            if not holds:
                bare.add(group)
            for resource, count in requests.items():
                excess = count - holds.get(resource, 0)
                if excess > 0 and resource in gpus:
                    foreign[resource] = foreign.get(resource, 0) + excess
                    demand[resource] = demand.get(resource, 0) + excess
        self.foreign = foreign
        if self.spares and bare:
            self.credit = self._found(bare, groups)

    def requests(self) -> dict[tuple[str, str | None, str], dict[str, int]]:
        """What the pods here ask for, by set (or pod)."""
        groups: dict[tuple[str, str | None, str], dict[str, int]] = {}
        for pod in self.pods.values():
            requests = groups.setdefault(pod.group, {})
            for resource, count in pod.requests:
                requests[resource] = requests.get(resource, 0) + count
        return groups

    def requests_of(self, namespace: str, set_name: str) -> dict[str, int]:
        """What the pods of the set here ask for."""
        return self.requests().get((namespace, set_name, ""), {})

    def _found(
        self, bare: set[tuple[str, str | None, str]], groups: Mapping[tuple[str, str | None, str], Mapping[str, int]]
    ) -> dict[tuple[str, str | None, str], dict[str, int]]:
        """What pods without a claim surely use of functions that do not count anyway.

        Where pods with and without claims share such a function, the former are taken to use all they can of it.
        """
        found: dict[tuple[str, str | None, str], dict[str, int]] = {}
        for spare in self.spares:
            users = [self.pods.get(user) for user in spare.users]
            known = [user for user in users if user is not None]
            if len(known) < len(users):
                continue
            for group in {user.group for user in known} & bare:
                others = [pod for pod in known if pod.group != group]
                for resource, used in spare.used:
                    mine = used - sum(dict(pod.requests).get(resource, 0) for pod in others)
                    if mine > 0:
                        credit = found.setdefault(group, {})
                        credit[resource] = min(groups[group].get(resource, 0), credit.get(resource, 0) + mine)
        return found

    def room(self, resource: str, extra: Mapping[str, int]) -> int:
        """What would be left of the resource with `extra` demand (negative: less) on top of what there is.

        The tightest of three bounds: kubelet's count, less everything requested or held; the agent's count of good
        functions, less what takes from them; and, for a name that shares functions, Hall's condition over every set of
        names with it: together they cannot have more than the functions that carry any of them.
        """
        load = self._load(resource, extra)
        kubelet = self.allocatable.get(resource, 0) - self.demand.get(resource, 0) - extra.get(resource, 0)
        least = min(kubelet, self.agent.get(resource, 0) - load)
        link = self.links.get(resource)
        if link is not None:
            # A name without load only adds functions, so leaving it out is never looser.
            loads = {name: self._load(name, extra) for name in link.names if name != resource}
            loads = {name: count for name, count in loads.items() if count > 0}
            if len(loads) > _SUBSETS_OF:
                least = min(least, link.cover((resource,)) - load - sum(loads.values()))
            else:
                for size in range(1, len(loads) + 1):
                    for names in itertools.combinations(loads, size):
                        taken = load + sum(loads[name] for name in names)
                        least = min(least, link.cover((resource, *names)) - taken)
        return least - self.unknown

    def _load(self, resource: str, extra: Mapping[str, int]) -> int:
        load = self.demand.get(resource, 0) + extra.get(resource, 0)
        if self.credit:
            load -= sum(credit.get(resource, 0) for credit in self.credit.values())
        return load

    def takes(self, extra: Mapping[str, int]) -> bool:
        """Whether that much more demand fits: every resource that grows must have room."""
        return all(count <= 0 or self.room(resource, extra) >= 0 for resource, count in extra.items())


def _spare(device: Device) -> Spare | None:
    used = tuple((resource.name, resource.used) for resource in device.resources if resource.used > 0)
    users = tuple(sorted((user.namespace, user.name) for user in device.users))
    return Spare(used, users) if used and users else None


def _aware(moment: dt.datetime | None) -> dt.datetime | None:
    return moment.replace(tzinfo=dt.UTC) if moment is not None and moment.tzinfo is None else moment
