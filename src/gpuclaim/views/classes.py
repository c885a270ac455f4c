"""The catalogue as rows. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from gpuclaim.api import model
from gpuclaim.api.types import Availability, GPUClass
from gpuclaim.views.table import Cell, Row

HEADER: Final = ("NAME", "AVAILABLE", "FREE", "LARGEST", "MODE", "MAX", "WHAT IT IS", "RESOURCE", "DESCRIPTION")
_COLOURS: Final = {Availability.AVAILABLE: "green", Availability.LIMITED: "yellow", Availability.SOLD_OUT: "red"}


def available(cls: GPUClass) -> Cell:
    """Whether it can be ordered, as far as the hoster shows it."""
    if cls.spec.closed:
        return Cell("Closed", "red")
    shown = cls.status.availability
    return Cell(shown.value, _COLOURS[shown]) if shown is not None else Cell("Unknown")


def rows(classes: Iterable[GPUClass], *, wide: bool) -> Iterator[Row]:
    """A row a class, in the order of HEADER."""
    for cls in sorted(classes, key=lambda each: each.metadata.name):
        status, most = cls.status, model.max_count(cls)
        yield (
            cls.metadata.name,
            available(cls),
            f"{status.free} of {status.total}" if status.free is not None and status.total is not None else "",
            str(status.largest_order) if status.largest_order is not None else "",
            cls.spec.mode.value,
            str(most) if most is not None else "",
            cls.spec.display_name,
            *((model.resource_name(cls), cls.spec.description) if wide else ("", "")),
        )
