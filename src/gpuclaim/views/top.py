"""What `kubectl gpu top` shows at one moment, as lines. Pure."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from gpuclaim.api import model
from gpuclaim.api.types import GPUClaim, GPUClass, GPUNode
from gpuclaim.views import claims, nodes, table, text
from gpuclaim.views.nodes import Drawn, State
from gpuclaim.views.table import Cell, Paint, Row

_CLASSES: Final = ("CLASS", "GPUS", "FREE", "HELD", "ATTACHED", "FOREIGN", "BROKEN", "")
_BAR: Final = 20
_OUT: Final = (State.UNHEALTHY, State.EXCLUDED, State.UNMANAGED)


@dataclass(frozen=True, slots=True)
class Scene:
    """What is known at a moment; None: the viewer may not read it.

    Attributes:
        place: the namespace whose claims these are; empty for all.
        fault: why it may be old, as a sentence; empty where it is not.
    """

    now: dt.datetime
    classes: Sequence[GPUClass] | None
    reports: Sequence[GPUNode] | None
    claims: Sequence[GPUClaim] | None
    place: str = ""
    fault: str = ""


def lines(
    scene: Scene, columns: int | None, rows: int | None = None, skip: int = 0, paint: Paint = table.plain
) -> list[str]:
    """The page: a line on top, the classes, then the nodes, or the claims of who may not see nodes.

    Args:
        scene: what is known.
        columns: the terminal's width; None where nothing has to be cut.
        rows: its height; None where everything is wanted.
        skip: how many of the nodes, or claims, stand above what is shown.
        paint: colours a cell.
    """
    head = [_cut(_title(scene), columns)]
    if scene.fault:
        head += [paint(line, "red") for line in text.folded(scene.fault, columns)]
    drawn = nodes.drawn(scene.reports or (), scene.claims or (), nodes.resources_of(scene.classes or ()))
    counted = list(_class_rows(scene, drawn))
    if counted:
        head += ["", *table.render(_CLASSES, counted, columns, paint).split("\n")]
    header, found = _body(scene, drawn)
    body = table.render(header, found, columns, paint).split("\n") if found else [_cut(_nothing(scene), columns)]
    if rows is None:
        return [*head, "", *body]
    room = max(rows - len(head) - 2, 1)
    # The header stays where it is, if there is one line for it and one for a row.
    fixed = body[:1] if len(body) == len(found) + 1 and room > 1 else []
    moving = body[len(fixed) :]
    room -= len(fixed)
    start = max(0, min(skip, len(moving) - room))
    shown = moving[start : start + room]
    hidden = len(moving) - len(shown)
    foot = "q quits" + (f"  ↑↓ {hidden} lines more" if hidden else "")
    legend = f"{foot}  {nodes.LEGEND}" if scene.reports is not None else foot
    return [*head, "", *fixed, *shown, _cut(legend, columns)][-rows:]


def _title(scene: Scene) -> str:
    moment = f"{scene.now:%H:%M:%S} UTC"
    if scene.reports is None:
        place = f"namespace {scene.place}" if scene.place else "all namespaces"
        return f"{moment}  {len(scene.claims or ())} claims in {place}"
    held = sum(claim.spec.count for claim in scene.claims or () if claim.status.node_name)
    waiting = sum(claim.status.node_name is None for claim in scene.claims or ())
    said = f"{moment}  {len(scene.reports)} nodes  {text.gpus(held)} held"
    return said + (f"  {waiting} claims wait" if waiting else "")


def _nothing(scene: Scene) -> str:
    return "No agent has reported yet." if scene.reports is not None else "Nothing is ordered."


def _body(scene: Scene, drawn: Sequence[Drawn]) -> tuple[Sequence[str], list[Row]]:
    if scene.reports is not None:
        return nodes.HEADER, list(nodes.rows(drawn))
    found = claims.rows(scene.claims or (), scene.now, namespaces=not scene.place, wide=True)
    return claims.HEADER, list(found)


def _class_rows(scene: Scene, drawn: Sequence[Drawn]) -> Iterator[Row]:
    """A row a class; a GPU that two classes offer counts for both."""
    if scene.reports is None:
        return
    slots = [slot for each in drawn for slot in each.slots]
    for cls in sorted(scene.classes or (), key=lambda each: each.metadata.name):
        states = [slot.state for slot in slots if model.resource_name(cls) in slot.resources]
        count = {state: states.count(state) for state in State}
        broken = sum(count[state] for state in _OUT)
        yield (
            cls.metadata.name,
            str(len(states)),
            Cell(str(count[State.FREE]), "" if count[State.FREE] else "yellow"),
            str(count[State.HELD]),
            str(count[State.ATTACHED]),
            Cell(_some(count[State.FOREIGN]), "red"),
            Cell(_some(broken), "red"),
            _bar(states),
        )


def _some(count: int) -> str:
    return str(count) if count else ""


def _bar(states: Sequence[State]) -> str:
    """The states in so many letters, every one that there is at least once."""
    if len(states) <= _BAR:
        return "".join(sorted(states, key=_ORDER.index))
    share = {state: states.count(state) * _BAR / len(states) for state in _ORDER if state in states}
    letters = {state: max(1, int(part)) for state, part in share.items()}
    while (over := sum(letters.values()) - _BAR) != 0:
        # To or from the one that is furthest from its share.
        sign = -1 if over > 0 else 1
        state = max(
            (each for each in letters if sign > 0 or letters[each] > 1),
            key=lambda each: sign * (share[each] - letters[each]),
        )
        letters[state] += sign
    return "".join(state.value * count for state, count in letters.items())


_ORDER: Final = (
    State.ATTACHED,
    State.HELD,
    State.FOREIGN,
    State.UNHEALTHY,
    State.EXCLUDED,
    State.UNMANAGED,
    State.FREE,
)


def _cut(line: str, columns: int | None) -> str:
    return line if columns is None else text.cut(line, columns)
