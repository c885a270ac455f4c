"""The ledger on SQLite and on a real PostgreSQL: written once, whatever is replayed."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import datetime as dt
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from gpuclaim.api.types import UsageKind
from gpuclaim.ledger import store
from gpuclaim.ledger.errors import LedgerError
from gpuclaim.ledger.store import Ledger
from support import postgresql

from .test_report import moment, record

EVER = (dt.datetime(1, 1, 1, tzinfo=dt.UTC), dt.datetime(9999, 1, 1, tzinfo=dt.UTC))
JOB = record("2026-12-01T00:00:00", "2026-12-01T02:00:00")


@pytest.fixture(scope="module")
def server() -> Iterator[postgresql.Server]:
    with postgresql.running() as running:
        yield running


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'ledger.db'}"
    server: postgresql.Server = request.getfixturevalue("server")
    engine = sa.create_engine(server.url.replace("postgresql:", "postgresql+psycopg:"))
    with engine.begin() as connection:
        connection.execute(sa.text("DROP SCHEMA public CASCADE"))
        connection.execute(sa.text("CREATE SCHEMA public"))
    engine.dispose()
    return server.url


@pytest.fixture
def ledger(url: str) -> Iterator[Ledger]:
    opened = Ledger(url)
    opened.migrate()
    yield opened
    opened.close()


def test_what_is_recorded_is_read_as_it_was(ledger: Ledger) -> None:
    east = dt.timezone(dt.timedelta(hours=2))
    records = [
        JOB,
        dataclasses.replace(JOB, kind=UsageKind.ATTACHED, started_at=moment("2026-12-01T01:00:00").astimezone(east)),
        dataclasses.replace(JOB, claim_uid="v", namespace="tenant-b", count=8, seconds=17),
    ]
    ledger.record(records)
    found = ledger.records(*EVER)
    assert sorted(found, key=lambda r: r.key) == sorted(records, key=lambda r: r.key)
    assert {r.started_at.tzinfo for r in found} == {dt.UTC}


def test_a_replay_changes_nothing(ledger: Ledger) -> None:
    for _ in range(3):
        ledger.record([JOB])
    # Even one that says otherwise, as long as it does not say more.
    ledger.record([dataclasses.replace(JOB, node_name="gpu-9")])
    ledger.record([dataclasses.replace(JOB, ended_at=moment("2026-12-01T01:00:00"), seconds=3600)])
    assert ledger.records(*EVER) == [JOB]


def test_an_interval_that_has_grown_takes_the_place_of_what_it_was(ledger: Ledger) -> None:
    grown = dataclasses.replace(JOB, ended_at=moment("2026-12-01T09:00:00"), seconds=7300)
    ledger.record([JOB])
    ledger.record([grown])
    ledger.record([JOB])
    assert ledger.records(*EVER) == [grown]


def test_a_batch_is_recorded_whole_or_not_at_all(ledger: Ledger) -> None:
    empty = dataclasses.replace(JOB, claim_uid="v", ended_at=JOB.started_at)
    with pytest.raises(LedgerError, match="intervals_not_empty"):
        ledger.record([JOB, empty])
    assert ledger.records(*EVER) == []


def test_only_what_has_a_part_in_the_time_and_the_tenants_is_read(ledger: Ledger) -> None:
    other = dataclasses.replace(JOB, claim_uid="v", namespace="tenant-b")
    ledger.record([JOB, other])
    hour = dt.timedelta(hours=1)
    assert ledger.records(JOB.ended_at, JOB.ended_at + hour) == []
    assert ledger.records(JOB.started_at - hour, JOB.started_at) == []
    assert ledger.records(JOB.started_at + hour, JOB.started_at + hour * 1.5, ["tenant-b"]) == [other]


def test_the_migrations_make_what_the_code_reads_and_two_at_once_do_no_harm(url: str) -> None:
    ledgers = [Ledger(url), Ledger(url)]
    with concurrent.futures.ThreadPoolExecutor() as pool:
        for tried in [pool.submit(each.migrate) for each in ledgers]:
            tried.result()
    ledgers[0].record([JOB])
    ledgers[1].migrate()
    assert ledgers[1].records(*EVER) == [JOB]
    with ledgers[0]._engine.connect() as connection:
        options = {"include_object": lambda _o, _n, kind, *_: kind == "table", "compare_type": True}
        context = MigrationContext.configure(connection, opts=options)
        differences = [d for d in compare_metadata(context, store.INTERVALS.metadata) if d[0] != "remove_index"]
    assert differences == []
    for each in ledgers:
        each.close()


def test_a_database_that_is_away_is_an_error_that_may_be_tried_again() -> None:
    with postgresql.running() as server:
        ledger = Ledger(server.url)
        ledger.migrate()
        ledger.record([JOB])
        server.stop()
        for call in (ledger.migrate, lambda: ledger.record([JOB]), lambda: ledger.records(*EVER)):
            with pytest.raises(LedgerError):
                call()
        server.start()
        ledger.record([JOB])
        assert ledger.records(*EVER) == [JOB]
        ledger.close()


def test_a_file_that_is_no_ledger_says_so_and_is_not_made(tmp_path: Path) -> None:
    missing = tmp_path / "none.db"
    with pytest.raises(LedgerError, match="there is no such file"):
        Ledger(f"sqlite:///{missing}").records(*EVER)
    assert not missing.exists()
    other = tmp_path / "other.db"
    with sqlite3.connect(other) as connection:
        connection.execute("CREATE TABLE t (x)")
    connection.close()
    with pytest.raises(LedgerError, match="there is no ledger in it"):
        Ledger(f"sqlite:///{other}").records(*EVER)
    text = tmp_path / "text"
    text.write_text("no database, and longer than its header would be " * 9)
    with pytest.raises(LedgerError, match="not a database"):
        Ledger(f"sqlite:///{text}").migrate()


@pytest.mark.parametrize(
    "url", ["", "ledger.db", "mysql://h/d", "sqlite://", "sqlite:///:memory:", "postgresql://h:port/d", "://"]
)
def test_a_url_that_can_be_no_ledger_is_refused(url: str) -> None:
    with pytest.raises(LedgerError, match="must be sqlite:///FILE or postgresql://"):
        Ledger(url)


def test_no_password_is_said() -> None:
    ledger = Ledger("postgresql://me:secret@127.0.0.1:1/d")
    with pytest.raises(LedgerError) as caught:
        ledger.migrate()
    assert "secret" not in str(caught.value)
    assert "me:***@127.0.0.1" in str(caught.value)
