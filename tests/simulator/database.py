"""The usage ledger's database: the product's own SQL on a file, away now and then, for all replicas together."""

from __future__ import annotations

import datetime as dt
import functools
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

from gpuclaim.ledger.errors import LedgerError
from gpuclaim.ledger.intervals import Key, Record
from gpuclaim.ledger.store import Ledger
from simulator.loop import Universe

_ALWAYS: Final = (dt.datetime.min.replace(tzinfo=dt.UTC), dt.datetime.max.replace(tzinfo=dt.UTC))


@functools.cache
def _template() -> bytes:
    """A file as the product's migrations make it, once a process: they take longer than a history."""
    with tempfile.TemporaryDirectory(prefix="gpuclaim-simulator-") as folder:
        path = Path(folder) / "ledger.db"
        ledger = Ledger(f"sqlite:///{path}")
        ledger.migrate()
        ledger.close()
        return path.read_bytes()


class Database:
    """What a replica's bookkeeper calls, in a thread; a transaction may have happened though it failed."""

    def __init__(self, universe: Universe, say: Callable[[str, str], None], fault: Callable[[str], None]) -> None:
        self.away_until = 0.0
        self.flaky = 0.0
        """How probable it is that a transaction fails; half of those that do have happened."""
        self.recorded: dict[Key, Record] = {}
        """Every record that a transaction brought, the latest of each key."""
        self._universe = universe
        self._say = say
        self._fault = fault
        # In memory where that is to be had: a disk would be waited for at each of some dozens of transactions.
        memory = Path("/dev/shm")
        where = memory if os.access(memory, os.W_OK) else None
        self._folder = tempfile.TemporaryDirectory(prefix="gpuclaim-simulator-", dir=where)
        path = Path(self._folder.name) / "ledger.db"
        path.write_bytes(_template())
        self._ledger = Ledger(f"sqlite:///{path}")

    def migrate(self) -> None:
        """The schema is there.

        Raises:
            LedgerError: it is away.
        """
        self._reach()

    def record(self, records: list[Record]) -> None:
        """One transaction.

        Raises:
            LedgerError: it is away, or it does not answer.
        """
        self._reach()
        rng, tally = self._universe.rng, self._universe.tally
        fails, happens = rng.random() < self.flaky, rng.random() < 0.5
        if fails and not happens:
            tally["ledger: transaction failed"] += 1
            raise LedgerError("simulated: deadlock")
        self._ledger.record(records)
        for record in records:
            old = self.recorded.get(record.key)
            tally["ledger: interval replayed" if old else "ledger: interval recorded"] += 1
            if old is not None and record.seconds < old.seconds:
                self._fault(f"the interval {record.key} comes again, shorter: {old} and {record} (R51)")
            self.recorded[record.key] = record
        self._say("ledger", f"{len(records)} intervals{' (answer lost)' if fails else ''}")
        if fails:
            tally["ledger: answer lost"] += 1
            raise LedgerError("simulated: connection lost")

    def close(self) -> None:
        """A replica gives its connection back; others keep theirs."""

    def rows(self) -> list[Record]:
        """All that is in it."""
        return self._ledger.records(*_ALWAYS)

    def end(self) -> None:
        """Nobody needs it any more."""
        self._ledger.close()
        self._folder.cleanup()

    def _reach(self) -> None:
        if self._universe.clock.now < self.away_until:
            self._universe.tally["ledger: not reached"] += 1
            raise LedgerError("simulated: connection refused")
