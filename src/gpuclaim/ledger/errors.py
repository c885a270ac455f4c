"""What goes wrong with a ledger; apart, so that who runs without one loads no SQL."""

from __future__ import annotations


class LedgerError(Exception):
    """The ledger cannot be used, now or at all; the message says why and holds no password."""
