"""Nodes as rows, a cell a GPU. Pure.

With a device plugin kubelet chooses the device when a pod starts, so a hold that no pod uses is drawn on any GPU that
it could get: the number of cells is true, which of them is not known to anybody (R36c).
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from gpuclaim.api import model
from gpuclaim.api.reasons import NodeConditionType
from gpuclaim.api.types import Device, GPUClaim, GPUClass, GPUNode, Health
from gpuclaim.views.table import Cell, Row

HEADER: Final = ("NODE", "GPUS", "FREE", "HELD", "USED", "NOTE")


class State(enum.StrEnum):
    """What one GPU is; the value is its letter on the map."""

    FREE = "."
    HELD = "h"
    ATTACHED = "A"
    FOREIGN = "F"
    UNHEALTHY = "U"
    EXCLUDED = "x"
    UNMANAGED = "-"


LEGEND: Final = (
    ". free  h held, no VM  A attached  F used without a claim  U unhealthy  x excluded  - no device plugin offers it"
)


@dataclass(frozen=True, slots=True)
class Slot:
    """One GPU as kubelet counts: what it is, and the resources that pods ask for it by."""

    state: State
    resources: frozenset[str]
    attached: bool = False
    """Whether a claim's pod uses it, also where the state says something graver."""
    holder: str = ""
    """`namespace/name` of the claim that holds it or, in foreign use, of the pod that uses it; empty for nobody."""
    address: str = ""
    """The PCI address of the function that it is, or is one of the devices of."""


def slots(node: GPUNode, claims: Iterable[GPUClaim], resources: Mapping[str, str]) -> list[Slot]:
    """The node's GPUs in the order of their addresses.

    Args:
        node: what its agent reports and its hoster has set.
        claims: those that hold GPUs on it.
        resources: class name → the resource it is made of; of a class that is not here, any free GPU is drawn as held.
    """
    held = list(claims)
    users = {
        (c.metadata.namespace, c.status.attachment.pod_name): full_name(c)
        for c in held
        if c.status.attachment is not None
    }
    excluded = {exclusion.address for exclusion in node.spec.excluded}
    found = [
        slot
        for device in sorted(node.status.devices, key=lambda each: int(each.address.translate(_DIGITS), 16))
        for slot in _device(device, users, excluded=device.address in excluded)
    ]
    attached = sum(slot.attached for slot in found)
    for claim in sorted(held, key=lambda each: each.status.attachment is None):
        for _ in range(claim.spec.count):
            if claim.status.attachment is not None and attached > 0:
                attached -= 1  # the report shows it already
                continue
            _draw(found, claim, resources.get(claim.spec.class_name))
    return found


_DIGITS: Final = str.maketrans("", "", ":.")


def _draw(found: list[Slot], claim: GPUClaim, resource: str | None) -> None:
    state = State.HELD if claim.status.attachment is None else State.ATTACHED
    for index, slot in enumerate(found):
        if slot.state is State.FREE and (resource is None or resource in slot.resources):
            found[index] = Slot(state, slot.resources, holder=full_name(claim), address=slot.address)
            return


def full_name(claim: GPUClaim) -> str:
    """The claim's namespace and name."""
    return f"{claim.metadata.namespace}/{claim.metadata.name}"


def _device(device: Device, users: Mapping[tuple[str, str], str], *, excluded: bool) -> Iterator[Slot]:
    offered = frozenset(resource.name for resource in device.resources)
    number = max([1, *(max(resource.allocatable, resource.used) for resource in device.resources)])
    used = min(number, sum(resource.used for resource in device.resources))
    foreign = sum((user.namespace, user.name) not in users for user in device.users)
    if used and len(device.users) == foreign:
        foreign = used
    foreign = min(foreign, used)
    rest = State.FREE
    if device.health is not Health.HEALTHY:
        rest = State.UNHEALTHY if device.health is Health.UNHEALTHY else State.UNMANAGED
    elif excluded:
        rest = State.EXCLUDED
    states = [State.FOREIGN] * foreign + [State.ATTACHED] * (used - foreign) + [rest] * (number - used)
    strangers = [f"{user.namespace}/{user.name}" for user in device.users if (user.namespace, user.name) not in users]
    holders = [users[user.namespace, user.name] for user in device.users if (user.namespace, user.name) in users]
    names = {State.FOREIGN: iter(strangers), State.ATTACHED: iter(holders)}
    for state in states:
        # A pod that has several of the function's devices is named with the first of them.
        holder = next(names[state], "") if state in names else ""
        # What is wrong with a GPU matters more than who still uses it.
        shown = rest if rest is State.UNHEALTHY else state
        yield Slot(shown, offered, state is State.ATTACHED, holder, device.address)


def note(node: GPUNode) -> Cell:
    """What keeps the node from new holds, or is wrong with it; empty where nothing is."""
    said = ["cordoned"] if node.spec.cordoned else []
    wrong = False
    for type_, good in _GOOD.items():
        found = model.condition(node.status.conditions, type_)
        if found is not None and found.status != good:
            said.append(found.reason)
            wrong = True
    return Cell(", ".join(said), "red" if wrong else "yellow")


_GOOD: Final = {
    NodeConditionType.REPORTING: "True",
    NodeConditionType.HEALTHY: "True",
    NodeConditionType.OVERCOMMITTED: "False",
    NodeConditionType.FOREIGN_USE: "False",
}


@dataclass(frozen=True, slots=True)
class Drawn:
    """A node, its GPUs, and how many of them claims hold."""

    node: GPUNode
    slots: list[Slot]
    held: int


def by_node(claims: Iterable[GPUClaim]) -> dict[str, list[GPUClaim]]:
    """The claims that each node holds; those that wait for one are left out."""
    on: dict[str, list[GPUClaim]] = {}
    for claim in claims:
        if claim.status.node_name is not None:
            on.setdefault(claim.status.node_name, []).append(claim)
    return on


def drawn(nodes: Iterable[GPUNode], claims: Iterable[GPUClaim], resources: Mapping[str, str]) -> list[Drawn]:
    """Every node by name, as `slots` draws it. O(nodes log nodes + claims)."""
    on = by_node(claims)
    return [
        Drawn(node, slots(node, held, resources), sum(claim.spec.count for claim in held))
        for node in sorted(nodes, key=lambda each: each.metadata.name)
        for held in [on.get(node.metadata.name, [])]
    ]


def resources_of(classes: Iterable[GPUClass]) -> dict[str, str]:
    """Class name → the resource it is made of."""
    return {cls.metadata.name: model.resource_name(cls) for cls in classes}


def rows(found: Iterable[Drawn]) -> Iterator[Row]:
    """A row a node, in the order of HEADER."""
    for each in found:
        states = [slot.state for slot in each.slots]
        yield (
            each.node.metadata.name,
            "".join(states),
            str(states.count(State.FREE)),
            str(each.held),
            str(states.count(State.ATTACHED) + states.count(State.FOREIGN)),
            note(each.node),
        )
