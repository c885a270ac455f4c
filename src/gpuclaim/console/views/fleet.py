"""A hoster's map: every node, every GPU, what it is and who has it."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from gpuclaim.api import core, model
from gpuclaim.api.reasons import NodeConditionType
from gpuclaim.api.types import Condition, Device, GPUClaim, GPUClass, GPUNode
from gpuclaim.console.views.tenant import Said
from gpuclaim.views import claims as claim_view
from gpuclaim.views import nodes as node_view
from gpuclaim.views.nodes import State
from gpuclaim.views.picture import SAID

PAGE: Final = 50
"""Nodes on one page of the map."""
SILENT_AFTER: Final = dt.timedelta(minutes=15)
"""As the controller has it by default; what its condition says counts before that."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One GPU on the map: a letter, the CSS class of its state, and what it is in words."""

    letter: str
    kind: str
    words: str


@dataclass(frozen=True, slots=True)
class NodeRow:
    """One node. `notes` is what keeps it from new holds or is wrong; empty where all is well."""

    name: str
    cells: tuple[Cell, ...]
    models: tuple[str, ...]
    free: int
    held: int
    used: int
    notes: tuple[str, ...]
    wrong: bool
    silent: bool
    reported_at: dt.datetime | None

    @property
    def words(self) -> str:
        """What a screen reader says when it changes."""
        return ", ".join(self.notes) or "well"


@dataclass(frozen=True, slots=True)
class Fleet:
    """A page of the map, and what all nodes sum up to; `matching` nodes are asked for, on `pages` pages."""

    rows: tuple[NodeRow, ...]
    nodes: int
    matching: int
    page: int
    pages: int
    counts: tuple[tuple[Cell, int], ...]
    silent: int
    troubled: int


def legend(state: State) -> Cell:
    """A state's letter and words."""
    kind, words = SAID[state]
    return Cell(state.value, kind, words)


def fleet(
    reports: Iterable[GPUNode],
    claims: Iterable[GPUClaim],
    classes: Iterable[GPUClass],
    nodes: Mapping[str, core.Node] | None,
    now: dt.datetime,
    *,
    wanted: str = "",
    trouble: bool = False,
    page: int = 1,
) -> Fleet:
    """The map, by name.

    Args:
        reports: what the agents report.
        claims: all that hold GPUs.
        classes: the catalogue.
        nodes: Kubernetes' own by name; None where they cannot be read.
        now: the present moment.
        wanted: only nodes with this in their name, or held by a claim with it in `namespace/name`.
        trouble: only nodes with which something is wrong.
        page: which page, from 1 on.
    """
    on = node_view.by_node(claims)
    made_of = node_view.resources_of(classes)
    every = [
        _row(report, on.get(report.metadata.name, []), made_of, (nodes or {}).get(report.metadata.name), now)
        for report in sorted(reports, key=lambda each: each.metadata.name)
    ]
    matching = [
        row
        for row in every
        if (not trouble or row.wrong) and (wanted in row.name or _holds_one(on.get(row.name, ()), wanted))
    ]
    pages = max(1, -(-len(matching) // PAGE))
    page = min(max(1, page), pages)
    counted = Counter(cell.letter for row in every for cell in row.cells)
    return Fleet(
        rows=tuple(matching[(page - 1) * PAGE : page * PAGE]),
        nodes=len(every),
        matching=len(matching),
        page=page,
        pages=pages,
        counts=tuple((legend(state), counted[state.value]) for state in State),
        silent=sum(row.silent for row in every),
        troubled=sum(row.wrong for row in every),
    )


def _holds_one(claims: Iterable[GPUClaim], wanted: str) -> bool:
    return any(wanted in node_view.full_name(claim) for claim in claims)


def silent(report: GPUNode, now: dt.datetime) -> bool:
    """Whether nothing has been heard of the node's agent for too long."""
    said = model.condition(report.status.conditions, NodeConditionType.REPORTING)
    at = report.status.reported_at
    return (said is not None and said.status == core.Status.FALSE) or at is None or at + SILENT_AFTER < now


def _row(
    report: GPUNode, held: Sequence[GPUClaim], made_of: Mapping[str, str], node: core.Node | None, now: dt.datetime
) -> NodeRow:
    slots = node_view.slots(report, held, made_of)
    noted = node_view.note(report)
    notes = [part for part in noted.value.split(", ") if part]
    quiet = silent(report, now)
    if quiet and not any(part in {"Silent", "NeverReported", "Rebooted"} for part in notes):
        notes.append("Silent")
    of_node = _of_node(node)
    states = [slot.state for slot in slots]
    return NodeRow(
        name=report.metadata.name,
        cells=tuple(_cell(slot) for slot in slots),
        models=tuple(sorted({device.model for device in report.status.devices if device.model})),
        free=states.count(State.FREE),
        held=sum(claim.spec.count for claim in held),
        used=states.count(State.ATTACHED) + states.count(State.FOREIGN),
        notes=(*notes, *of_node),
        wrong=quiet or (noted.colour == "red" and bool(notes)) or bool(of_node),
        silent=quiet,
        reported_at=report.status.reported_at,
    )


def _of_node(node: core.Node | None) -> list[str]:
    if node is None:
        return []
    ready = any(each.type == "Ready" and each.status == core.Status.TRUE for each in node.status.conditions)
    return ([] if ready else ["NodeNotReady"]) + (["Unschedulable"] if node.spec.unschedulable else [])


def _cell(slot: node_view.Slot) -> Cell:
    kind, words = SAID[slot.state]
    return Cell(slot.state.value, kind, f"{words}: {slot.holder}" if slot.holder else words)


@dataclass(frozen=True, slots=True)
class DeviceRow:
    """One GPU function of a node and what has become of it; several cells where it serves several devices."""

    device: Device
    cells: tuple[Cell, ...]
    holders: tuple[str, ...]
    excluded: str
    """Why it takes no new hold; a dash where nobody said why, empty where it does."""


@dataclass(frozen=True, slots=True)
class HeldRow:
    """A claim that holds GPUs on the node."""

    namespace: str
    name: str
    class_name: str
    count: int
    state: Said
    pod: str


@dataclass(frozen=True, slots=True)
class NodeDetail:
    """Everything of one node."""

    row: NodeRow
    devices: tuple[DeviceRow, ...]
    held: tuple[HeldRow, ...]
    conditions: tuple[Condition, ...]
    unplaced: tuple[str, ...]
    cordoned: bool


def detail(
    report: GPUNode,
    claims: Iterable[GPUClaim],
    classes: Iterable[GPUClass],
    node: core.Node | None,
    now: dt.datetime,
) -> NodeDetail:
    """The node by its report; `claims` may be of other nodes too."""
    held = sorted(node_view.by_node(claims).get(report.metadata.name, []), key=node_view.full_name)
    made_of = node_view.resources_of(classes)
    slots = node_view.slots(report, held, made_of)
    why = {each.address: each.reason or "-" for each in report.spec.excluded}
    devices = []
    for device in report.status.devices:
        here = [slot for slot in slots if slot.address == device.address]
        holders = tuple(dict.fromkeys(slot.holder for slot in here if slot.holder))
        devices.append(DeviceRow(device, tuple(_cell(slot) for slot in here), holders, why.get(device.address, "")))
    return NodeDetail(
        row=_row(report, held, made_of, node, now),
        devices=tuple(sorted(devices, key=lambda each: each.device.address)),
        held=tuple(_held(claim) for claim in held),
        conditions=tuple(report.status.conditions),
        unplaced=tuple(f"{each.name}: {each.allocatable} of them, {each.used} used" for each in report.status.unplaced),
        cordoned=report.spec.cordoned,
    )


def _held(claim: GPUClaim) -> HeldRow:
    cell = claim_view.state(claim)
    pod = claim.status.attachment.pod_name if claim.status.attachment is not None else ""
    meta = claim.metadata
    return HeldRow(
        meta.namespace, meta.name, claim.spec.class_name, claim.spec.count, Said(cell.value, cell.colour), pod
    )
