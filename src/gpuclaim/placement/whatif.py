"""What would become of a state if nodes came, GPUs went or a node were emptied (R36, R74). Pure.

What is decided is decided by the controller's own functions; this only changes the state before.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass

import msgspec

from gpuclaim.api import core
from gpuclaim.api.types import GPUNode, GPUNodeSpec, Health
from gpuclaim.placement import drain as draining
from gpuclaim.placement import evacuation, quantity
from gpuclaim.placement.ailment import lacking
from gpuclaim.placement.drain import Leaving
from gpuclaim.placement.scenario import Simulation
from gpuclaim.placement.verdict import largest_with_moves, place_set


class WhatIfError(ValueError):
    """What was asked for cannot be supposed of this state; the message is a sentence."""


@dataclass(frozen=True, slots=True)
class Loss:
    """What follows when devices of a node are gone.

    `leaving` are the sets that go elsewhere, or would and find no room; `short` is by how many GPUs the node then holds
    more than it has: VMs that run keep them.
    """

    leaving: tuple[Leaving, ...]
    short: int


def add(simulation: Simulation, like: str, count: int) -> list[str]:
    """Adds so many nodes like one that is there, with nothing held or used on them; their names.

    Raises:
        WhatIfError: there is no such node, or it is not one with GPUs.
    """
    node, report = _node(simulation, like), _report(simulation, like)
    devices = [
        msgspec.structs.replace(
            device, users=[], resources=[msgspec.structs.replace(each, used=0) for each in device.resources]
        )
        for device in report.status.devices
    ]
    made: list[str] = []
    for number in range(1, count + 1):
        name = f"{like}-new-{number}"
        if ("Node", "", name) in simulation.objects:
            raise WhatIfError(f"there is a node {name} already")
        meta = core.ObjectMeta(name=name, labels=node.metadata.labels)
        spec = msgspec.structs.replace(node.spec, unschedulable=False)
        simulation.put(msgspec.structs.replace(node, metadata=meta, spec=spec))
        status = msgspec.structs.replace(report.status, devices=devices, conditions=[])
        simulation.put(
            msgspec.structs.replace(report, metadata=core.ObjectMeta(name=name), spec=GPUNodeSpec(), status=status)
        )
        made.append(name)
    simulation.settle()
    return made


def lose(simulation: Simulation, address: str, node: str | None = None) -> tuple[str, Loss]:
    """The GPU at the address fails; the node that it is of, and what follows. The moves are made.

    Raises:
        WhatIfError: no node has such a GPU, or several have and none is named.
    """
    having = [
        obj.metadata.name
        for (kind, _, name), obj in simulation.objects.items()
        if kind == "GPUNode" and isinstance(obj, GPUNode) and node in (None, name)
        for device in obj.status.devices
        if device.address == address
    ]
    if not having:
        raise WhatIfError(f"{f'node {node}' if node else 'no node'} has {'no ' if node else 'a '}GPU {address}")
    if len(having) > 1:
        raise WhatIfError(f"nodes {', '.join(sorted(having))} have a GPU {address}: say which, as NODE/{address}")
    name = having[0]
    _break(simulation, name, address)
    leaving: list[Leaving] = []
    asked: set[tuple[str, str]] = set()
    watch = evacuation.Watch(dt.timedelta())
    # One set at a time, as the binder does it: the next look sees what the one before has freed.
    while True:
        found = watch.leaving(simulation.books, simulation.now)
        fresh = [each for each in found if each.node == name and (each.namespace, each.set_name) not in asked]
        if not fresh:
            break
        first = fresh[0]
        asked.add((first.namespace, first.set_name))
        verdict = place_set(simulation.books, first.namespace, first.set_name, simulation.now, avoid=frozenset((name,)))
        leaving.append(Leaving(first.namespace, first.set_name, first.count, verdict))
        simulation.make(verdict.moves)
    return name, Loss(tuple(leaving), lacking(simulation.books.nodes[name]))


def drain(simulation: Simulation, name: str) -> list[Leaving]:
    """Empties the node as `kubectl drain` does: what leaves it and where to, or why it stays. The moves are made.

    Raises:
        WhatIfError: there is no such node.
    """
    if name not in simulation.books.nodes:
        raise WhatIfError(f"there is no node {name}")
    node = simulation.objects.get(("Node", "", name))
    if isinstance(node, core.Node):
        simulation.put(msgspec.structs.replace(node, spec=msgspec.structs.replace(node.spec, unschedulable=True)))
    found = draining.drain(simulation.books, name, simulation.now)
    for leaving in found:
        simulation.make(leaving.verdict.moves)
    return found


def largest(simulation: Simulation) -> dict[str, int]:
    """By class, the largest order of a tenant without a budget that would be taken now, moves included."""
    books = simulation.books
    return {name: largest_with_moves(books, name, simulation.now) for name in sorted(books.classes)}


def _break(simulation: Simulation, name: str, address: str) -> None:
    report = _report(simulation, name)
    devices, gone = [], {}
    for device in report.status.devices:
        if device.address == address:
            if device.health is not Health.UNHEALTHY:
                gone = {each.name: each.allocatable for each in device.resources}
            left = [msgspec.structs.replace(each, allocatable=0) for each in device.resources]
            device = msgspec.structs.replace(device, health=Health.UNHEALTHY, resources=left)
        devices.append(device)
    simulation.put(msgspec.structs.replace(report, status=msgspec.structs.replace(report.status, devices=devices)))
    node = simulation.objects.get(("Node", "", name))
    if isinstance(node, core.Node):
        allocatable = dict(node.status.allocatable)
        for resource, count in gone.items():
            allocatable[resource] = max(0, quantity.floor(allocatable.get(resource, 0)) - count)
        status = msgspec.structs.replace(node.status, allocatable=allocatable)
        simulation.put(msgspec.structs.replace(node, status=status))


def _node(simulation: Simulation, name: str) -> core.Node:
    found = simulation.objects.get(("Node", "", name))
    if not isinstance(found, core.Node):
        raise WhatIfError(f"there is no node {name}")
    return found


def _report(simulation: Simulation, name: str) -> GPUNode:
    found = simulation.objects.get(("GPUNode", "", name))
    if not isinstance(found, GPUNode):
        raise WhatIfError(f"node {name} has no GPUNode: no agent reports its GPUs")
    return found
