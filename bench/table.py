"""What a bench measured, as a table for people and as JSON."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
import os
import platform
from collections.abc import Sequence


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One figure beside what it is compared with.

    Attributes:
        what: what was measured, with its unit.
        ours: gpuclaim's figure.
        theirs: the other's figure; empty where there is none.
        against: who the other is.
        target: what the design asks for; empty where it asks for nothing.
        met: whether it was reached; None where it asks for nothing.
        note: the spread, and whatever a reader must know.
    """

    what: str
    ours: str
    theirs: str = ""
    against: str = ""
    target: str = ""
    met: bool | None = None
    note: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What one bench found, or why it was left out."""

    bench: str
    rows: Sequence[Row] = ()
    skipped: str = ""


_HEADS = ("what", "gpuclaim", "other", "against", "target", "reached", "note")


def markdown(results: Sequence[Result]) -> str:
    """The whole table, with a line about the machine."""
    lines = [f"{machine()}.", ""]
    lines += ["| " + " | ".join(_HEADS) + " |", "| " + " | ".join(["---"] * len(_HEADS)) + " |"]
    for result in results:
        for row in result.rows:
            reached = {None: "", True: "yes", False: "**no**"}[row.met]
            cells = (row.what, row.ours, row.theirs, row.against, row.target, reached, row.note)
            lines.append("| " + " | ".join(cells) + " |")
    lines += ["", *(f"`{result.bench}` was left out: {result.skipped}." for result in results if result.skipped)]
    return "\n".join(lines).rstrip() + "\n"


def as_json(results: Sequence[Result]) -> str:
    """The same for programs."""
    return (
        json.dumps({"machine": machine(), "results": [dataclasses.asdict(each) for each in results]}, indent=2) + "\n"
    )


def machine() -> str:
    """When and where: day, cores, load, Python."""
    day = dt.datetime.now(dt.UTC).strftime("%Y-%m-%d %H:%M UTC")
    load = ", ".join(f"{each:.1f}" for each in os.getloadavg())
    return f"{day}, {os.cpu_count()} cores, load {load}, Python {platform.python_version()}"
