"""Any Kubernetes quantity as a whole number."""

from __future__ import annotations

import decimal

_SUFFIXES = {
    "n": "1e-9",
    "u": "1e-6",
    "m": "1e-3",
    "k": "1e3",
    "M": "1e6",
    "G": "1e9",
    "T": "1e12",
    "P": "1e15",
    "E": "1e18",
    "Ki": str(2**10),
    "Mi": str(2**20),
    "Gi": str(2**30),
    "Ti": str(2**40),
    "Pi": str(2**50),
    "Ei": str(2**60),
}


def floor(quantity: str | int) -> int:
    """The quantity, rounded down; 0 for what is none, so that a budget or a node that cannot be read grants nothing."""
    if isinstance(quantity, int):
        return quantity
    if quantity.isdecimal() and quantity.isascii():
        return int(quantity)
    digits = quantity.rstrip("numkMGTPEi")
    suffix = quantity[len(digits) :]
    try:
        scale = decimal.Decimal(_SUFFIXES[suffix] if suffix else 1)
        return int((decimal.Decimal(digits) * scale).to_integral_value(decimal.ROUND_FLOOR))
    except (KeyError, ArithmeticError, ValueError):
        return 0
