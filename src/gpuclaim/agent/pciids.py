"""Names of GPU models, from the PCI ID database where the node has one. Pure but for `load`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, TypeAlias

from gpuclaim.agent.values import GPU_VENDORS, Function

Model: TypeAlias = Callable[[Function], str]

WELL_KNOWN: Final = (Path("/usr/share/misc/pci.ids"), Path("/usr/share/hwdata/pci.ids"), Path("/usr/share/pci.ids"))
_SIZE_MAX: Final = 16 * 2**20
_MODEL_MAX: Final = 256


def parse(text: str) -> Mapping[tuple[str, str], str]:
    """Vendor and device ID → the device's name, of vendors that make GPUs; lines that make no sense are skipped.

    The format is that of pci.ids(5): a vendor's line begins with its ID, its devices' with a tab, subsystems with two.
    """
    names: dict[tuple[str, str], str] = {}
    vendor = ""
    for line in text.splitlines():
        if line[:1] not in ("\t", "#", ""):
            # Classes follow the vendors, as "C 03  Display controller".
            vendor = line[:4].lower() if line[4:6] == "  " else ""
        elif vendor in GPU_VENDORS and line[:1] == "\t" and line[1:2] not in ("\t", "#", ""):
            names[vendor, line[1:5].lower()] = line[5:].strip()[:_MODEL_MAX]
    return names


def namer(names: Mapping[tuple[str, str], str]) -> Model:
    """Names a function's model: "NVIDIA GA102GL [RTX A5000]" where the database knows it, else "NVIDIA [10de:2231]"."""

    def model(function: Function) -> str:
        vendor = GPU_VENDORS.get(function.vendor, function.vendor)
        known = names.get((function.vendor, function.device)) or f"[{function.vendor}:{function.device}]"
        return f"{vendor} {known}"[:_MODEL_MAX]

    return model


def load(path: Path | None = None) -> Model:
    """The namer of this file, or of the first well-known one that can be read, or of none.

    Raises:
        OSError: the file named cannot be read.
    """
    for candidate in (path,) if path is not None else WELL_KNOWN:
        try:
            with candidate.open("rb") as file:
                return namer(parse(file.read(_SIZE_MAX).decode(errors="replace")))
        except OSError:
            if path is not None:
                raise
    return namer({})
