"""What the user of a bench may choose."""

from __future__ import annotations

import dataclasses
import os
import sys
from pathlib import Path


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """`quick` makes everything smaller; `openb` is the folder of the openb tables, None where it is not known."""

    quick: bool
    openb: Path | None

    @classmethod
    def of(cls, *, quick: bool, openb: Path | None) -> Options:
        """With what the environment says."""
        named = os.environ.get("GPUCLAIM_OPENB")
        return cls(quick=quick, openb=openb or (Path(named) if named else None))


def say(line: str) -> None:
    """Tell what is going on, beside the result."""
    print(f"  {line}", file=sys.stderr, flush=True)
