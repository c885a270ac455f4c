"""Tables as kubectl lays them out, in the columns that a terminal has. Pure.

Not a library's: prettytable wraps cells and draws frames, tabulate and rich take 0.1 s to import
(docs/why/dependencies.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from gpuclaim.views import text

GAP: Final = 3
_LEAST: Final = 5
"""A column is never narrower than this; where that is not enough, each row becomes a list of lines."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A value, and the colour that says the same to who sees it."""

    value: str
    colour: str = ""


Row: TypeAlias = Sequence[Cell | str]
Paint: TypeAlias = Callable[[str, str], str]


def plain(value: str, colour: str) -> str:  # noqa: ARG001 - the shape of Paint
    """Without colours."""
    return value


def render(header: Sequence[str], rows: Iterable[Row], columns: int | None = None, paint: Paint = plain) -> str:
    """The table; `columns` is the terminal's width, None where nothing has to be cut.

    Every value is made safe for a terminal here. A column that no row fills is left out.
    """
    table = [[_cell(each) for each in row] for row in rows]
    used = [n for n in range(len(header)) if any(row[n].value for row in table)] or [0]
    heads = [header[n] for n in used]
    table = [[row[n] for n in used] for row in table]
    widths = [max([text.width(head), *(text.width(row[n].value) for row in table)]) for n, head in enumerate(heads)]
    if columns is not None:
        fitted = _fit(widths, columns)
        if fitted is None:
            return "\n\n".join(_record(heads, row, columns, paint) for row in table)
        widths = fitted
    lines = [[Cell(head) for head in heads], *table]
    return "\n".join(_line(line, widths, paint) for line in lines)


def _cell(value: Cell | str) -> Cell:
    return Cell(text.safe(value)) if isinstance(value, str) else Cell(text.safe(value.value), value.colour)


def _fit(widths: list[int], columns: int) -> list[int] | None:
    """The widths, the widest made narrower until all fit; None where they cannot."""
    fitted = list(widths)
    over = sum(fitted) + GAP * (len(fitted) - 1) - columns
    while over > 0:
        widest = max(range(len(fitted)), key=lambda n: fitted[n])
        if fitted[widest] <= _LEAST:
            return None
        fitted[widest] -= 1
        over -= 1
    return fitted


def _line(cells: Sequence[Cell], widths: Sequence[int], paint: Paint) -> str:
    parts = []
    for n, (cell, room) in enumerate(zip(cells, widths, strict=True)):
        value = text.cut(cell.value, room)
        fill = "" if n == len(widths) - 1 else " " * (room - text.width(value) + GAP)
        parts.append((paint(value, cell.colour) if cell.colour else value) + fill)
    return "".join(parts).rstrip()


def _record(heads: Sequence[str], row: Sequence[Cell], columns: int, paint: Paint) -> str:
    lines = []
    for head, cell in zip(heads, row, strict=True):
        if cell.value:
            value = text.cut(f"{head}: {cell.value}", columns)
            lines.append(paint(value, cell.colour) if cell.colour else value)
    return "\n".join(lines)
