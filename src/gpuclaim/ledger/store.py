"""The ledger in SQL: SQLite, or PostgreSQL by psycopg (R51).

A row is one interval, written once: claim, kind and start are its key, so that a replay changes nothing. The one thing
that may change is an interval that grew while the database was away (`intervals.joined`).

Calls block; the controller makes them in a thread. SQLAlchemy's Core and not its ORM, and not its asyncio half, which
would need greenlet, for a few statements a minute.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import make_url

from gpuclaim.api.types import UsageKind
from gpuclaim.ledger.errors import LedgerError
from gpuclaim.ledger.intervals import Record

_LOCK: Final = 0x67707563
"""The advisory lock under which PostgreSQL's schema is brought up to date: "gpuc"."""
_TIMEOUT_SECONDS: Final = 10
_POSTGRESQL: Final = {
    "connect_timeout": _TIMEOUT_SECONDS,
    "options": f"-c statement_timeout={_TIMEOUT_SECONDS * 1000} -c timezone=UTC",
    # A database that vanished without a word is noticed.
    "tcp_user_timeout": _TIMEOUT_SECONDS * 1000,
}


class _Utc(sa.TypeDecorator[dt.datetime]):
    """A moment; SQLite keeps no time zones, so there it is UTC."""

    impl = sa.DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: dt.datetime | None, dialect: sa.Dialect) -> dt.datetime | None:
        """As it is stored."""
        if value is None:
            return None
        utc = value.astimezone(dt.UTC)
        return utc.replace(tzinfo=None) if dialect.name == "sqlite" else utc

    def process_result_value(self, value: dt.datetime | None, dialect: sa.Dialect) -> dt.datetime | None:
        """As it was."""
        if value is None:
            return None
        return value.replace(tzinfo=dt.UTC) if dialect.name == "sqlite" else value.astimezone(dt.UTC)


INTERVALS: Final = sa.Table(
    "intervals",
    sa.MetaData(),
    sa.Column("claim_uid", sa.Text, primary_key=True),
    sa.Column("kind", sa.Text, primary_key=True),
    sa.Column("started_at", _Utc, primary_key=True),
    sa.Column("ended_at", _Utc, nullable=False),
    sa.Column("seconds", sa.BigInteger, nullable=False),
    sa.Column("namespace", sa.Text, nullable=False),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("class_name", sa.Text, nullable=False),
    sa.Column("count", sa.Integer, nullable=False),
    sa.Column("set_name", sa.Text, nullable=False),
    sa.Column("node_name", sa.Text, nullable=False),
)
"""As the migrations make it; a test compares the two."""


class Ledger:
    """A ledger at a URL: `sqlite:///FILE` (four slashes for an absolute path) or `postgresql://USER@HOST/DATABASE`."""

    def __init__(self, url: str) -> None:
        """Sets up; nothing is connected yet.

        Raises:
            LedgerError: it is no URL of a database that can be a ledger.
        """
        try:
            parsed = make_url(url)
        except (sa.exc.ArgumentError, ValueError):
            raise LedgerError("the ledger must be sqlite:///FILE or postgresql://USER@HOST/DATABASE") from None
        options: dict[str, Any]
        match parsed.drivername:
            case "sqlite" if parsed.database and parsed.database != ":memory:":
                options = {"timeout": _TIMEOUT_SECONDS}
            case "postgresql" | "postgresql+psycopg":
                parsed = parsed.set(drivername="postgresql+psycopg")
                options = {key: value for key, value in _POSTGRESQL.items() if key not in parsed.query}
            case _:
                raise LedgerError("the ledger must be sqlite:///FILE or postgresql://USER@HOST/DATABASE")
        self._file = Path(parsed.database or "") if parsed.drivername == "sqlite" else None
        self._engine = sa.create_engine(
            parsed, connect_args=options, pool_pre_ping=True, pool_size=1, hide_parameters=True
        )

        if self._file is not None:
            _take_over_transactions(self._engine)

    def __str__(self) -> str:
        return self._engine.url.render_as_string(hide_password=True)

    def close(self) -> None:
        """Closes the connections that it keeps."""
        self._engine.dispose()

    def migrate(self) -> None:
        """Brings the schema up to date; two that do so at a time do no harm.

        Raises:
            LedgerError: it could not be done.
        """
        # Here and not above: the reports need no Alembic, nor do followers.
        from alembic import command, util
        from alembic.config import Config

        config = Config()
        config.set_main_option("script_location", str(Path(__file__).parent / "migrations").replace("%", "%%"))
        with self._connected(writes=True) as connection:
            if connection.dialect.name == "postgresql":
                connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK)))
            config.attributes["connection"] = connection
            try:
                command.upgrade(config, "head")
            except util.CommandError as error:
                raise LedgerError(f"{self}: its schema is of a newer gpuclaim, or of none: {error}") from None

    def record(self, records: Sequence[Record]) -> None:
        """Has the records in the ledger, in one transaction; those that are there already change nothing.

        Raises:
            LedgerError: whether it happened is not known; it may be tried again as it is.
        """
        if not records:
            return
        rows = [_row(record) for record in records]
        with self._connected(writes=True) as connection:
            insert = postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert
            statement = insert(INTERVALS)
            new = statement.excluded
            grown = statement.on_conflict_do_update(
                index_elements=[INTERVALS.c.claim_uid, INTERVALS.c.kind, INTERVALS.c.started_at],
                set_={"ended_at": new.ended_at, "seconds": new.seconds},
                where=new.ended_at > INTERVALS.c.ended_at,
            )
            connection.execute(grown, rows)

    def records(self, start: dt.datetime, end: dt.datetime, namespaces: Iterable[str] = ()) -> list[Record]:
        """The intervals that have a part in the time from `start` up to `end`, of some namespaces or of all.

        Raises:
            LedgerError: they cannot be read.
        """
        if self._file is not None and not self._file.exists():
            raise LedgerError(f"{self}: there is no such file")
        wanted = list(namespaces)
        columns = INTERVALS.c
        query = sa.select(INTERVALS).where(columns.ended_at > start, columns.started_at < end)
        if wanted:
            query = query.where(columns.namespace.in_(wanted))
        with self._connected() as connection:
            if not sa.inspect(connection).has_table(INTERVALS.name):
                raise LedgerError(f"{self}: there is no ledger in it (a controller with --ledger makes it)")
            found = connection.execute(query.order_by(columns.started_at, columns.claim_uid, columns.kind))
            return [Record(**dict(row) | {"kind": UsageKind(row["kind"])}) for row in found.mappings()]

    @contextlib.contextmanager
    def _connected(self, *, writes: bool = False) -> Iterator[sa.Connection]:
        try:
            with self._engine.execution_options(writes=writes).begin() as connection:
                yield connection
        except (sa.exc.SQLAlchemyError, OSError) as error:
            # The driver's own words; a statement is of no use to who reads it.
            said = str(getattr(error, "orig", None) or error).strip().splitlines()
            raise LedgerError(f"{self}: {said[0] if said else type(error).__name__}") from error


def _take_over_transactions(engine: sa.Engine) -> None:
    """Has SQLite begin when we say so: Python's driver begins at an INSERT only, and a migration's step is none."""

    @sa.event.listens_for(engine, "connect")
    def _(connection: sqlite3.Connection, _record: object) -> None:
        connection.isolation_level = None

    @sa.event.listens_for(engine, "begin")
    def _(connection: sa.Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE" if connection.get_execution_options().get("writes") else "BEGIN")


def _row(record: Record) -> dict[str, Any]:
    return {column.name: getattr(record, column.name) for column in INTERVALS.c} | {"kind": record.kind.value}
