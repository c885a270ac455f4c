"""`gpuclaim usage` on a ledger, with no cluster: what it prints, and what it says of bad input."""

from __future__ import annotations

import csv
import datetime as dt
import io
import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gpuclaim.api.types import UsageKind
from gpuclaim.cli.main import main
from gpuclaim.ledger import focus
from gpuclaim.ledger.intervals import Record
from gpuclaim.ledger.report import month_of
from gpuclaim.ledger.store import Ledger

HOUR = 3600


def record(name: str, namespace: str, count: int, hours: int, kind: UsageKind = UsageKind.HELD) -> Record:
    """From one hour before December, UTC, on."""
    start = month_of(2026, 12, dt.UTC).start - dt.timedelta(hours=1)
    return Record(
        claim_uid=name,
        kind=kind,
        started_at=start,
        ended_at=start + dt.timedelta(hours=hours),
        seconds=hours * HOUR,
        namespace=namespace,
        name=name,
        class_name="h200",
        count=count,
        set_name=name,
        node_name="gpu-1",
    )


@pytest.fixture
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A ledger of two tenants, and no cluster within reach."""
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "no-kubeconfig"))
    monkeypatch.delenv("GPUCLAIM_LEDGER", raising=False)
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    opened = Ledger(url)
    opened.migrate()
    opened.record(
        [
            record("vm1", "tenant-a", 2, 4),
            record("vm1", "tenant-a", 2, 2, UsageKind.ATTACHED),
            record("vm2", "tenant-b", 1, 1),
        ]
    )
    opened.close()
    return url


@pytest.fixture
def prices(tmp_path: Path) -> str:
    file = tmp_path / "prices.yaml"
    file.write_text("currency: EUR\nclasses:\n  h200: {held: 3.50, attached: 0.25}\n")
    return str(file)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["usage", *arguments])


def test_the_table_has_a_line_for_each_tenant_class_and_month_and_a_total(ledger: str, prices: str) -> None:
    result = run("--ledger", ledger, "--from", "2026-11-01", "--to", "2026-12-31", "--prices", prices, "-o", "table")
    assert result.exit_code == 0
    assert [line.split() for line in result.stdout.splitlines()] == [
        ["NAMESPACE", "CLASS", "MONTH", "HELD", "GPU-H", "ATTACHED", "GPU-H", "COST", "EUR"],
        ["tenant-a", "h200", "2026-11", "2.00", "2.00", "7.50"],
        ["tenant-a", "h200", "2026-12", "6.00", "2.00", "21.50"],
        ["tenant-b", "h200", "2026-11", "1.00", "0.00", "3.50"],
        ["TOTAL", "9.00", "4.00", "32.50"],
    ]
    assert "The cluster cannot be read, so what runs or has not been recorded is missing" in result.stderr


def test_json_says_what_is_missing_and_money_is_text(ledger: str, prices: str) -> None:
    found = json.loads(run("--ledger", ledger, "--month", "2026-12", "--prices", prices).stdout)
    assert (found["from"], found["to"], found["currency"]) == (
        "2026-12-01T00:00:00+00:00",
        "2027-01-01T00:00:00+00:00",
        "EUR",
    )
    assert found["lines"] == [
        {
            "namespace": "tenant-a",
            "class": "h200",
            "month": "2026-12",
            "heldGPUSeconds": 6 * HOUR,
            "attachedGPUSeconds": 2 * HOUR,
            "cost": "21.50",
        }
    ]
    assert len(found["notes"]) == 1


def test_csv_by_claim_of_one_tenant_in_its_time_zone(ledger: str) -> None:
    result = run(
        *("--ledger", ledger, "--month", "2026-12", "--timezone", "Europe/Berlin"),
        *("--namespace", "tenant-b", "--by", "claim,node", "-o", "csv"),
    )
    rows = list(csv.reader(io.StringIO(result.stdout)))
    # In Berlin it was December already.
    assert rows == [["claim", "node", "held_gpu_seconds", "attached_gpu_seconds"], ["vm2", "gpu-1", "3600", "0"]]


def test_focus_is_csv_with_its_columns(ledger: str, prices: str) -> None:
    result = run("--ledger", ledger, "--month", "2026-12", "--prices", prices, "-o", "focus", "--provider", "Cloud Ltd")
    rows = list(csv.DictReader(io.StringIO(result.stdout)))
    assert [tuple(row) for row in rows] == [focus.COLUMNS] * 2
    assert {(r["x_UsageKind"], r["BilledCost"], r["ProviderName"]) for r in rows} == {
        ("Held", "21.00", "Cloud Ltd"),
        ("Attached", "0.50", "Cloud Ltd"),
    }


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--month", "2026-13"], "'2026-13' is no month such as 2026-12"),
        (["--month", "2026-12", "--from", "2026-12-01"], "give --month, or --from and --to"),
        (["--from", "01.12.2026"], "'01.12.2026' is no day such as 2026-12-01"),
        (["--from", "2026-12-02", "--to", "2026-12-01"], "--from is after --to"),
        (["--timezone", "Mars"], "'Mars' is no time zone such as Europe/Berlin"),
        (["--timezone", "../etc"], "is no time zone"),
        (["--by", "tenant"], "must be one or more of namespace, class, month, day, claim, node"),
        (["--by", "day,day"], "has one of them twice"),
        (["-o", "focus"], "--output focus needs --prices"),
        (["--prices", "/nowhere.yaml"], "/nowhere.yaml: No such file or directory"),
        ([], "there is neither a --ledger nor a cluster to read"),
        (["--ledger", "sqlite:////nowhere.db"], "there is no such file"),
        (["--ledger", "mysql://h/d"], "the ledger must be sqlite:///FILE or postgresql://"),
    ],
)
@pytest.mark.usefixtures("ledger")
def test_bad_input_is_an_error_that_says_what_is_wrong(arguments: list[str], message: str) -> None:
    result = run(*arguments)
    assert result.exit_code in {1, 2}
    assert message in result.stderr
    assert result.stdout == ""


def test_a_class_without_a_price_stops_the_report(ledger: str, tmp_path: Path) -> None:
    file = tmp_path / "other.yaml"
    file.write_text("currency: EUR\nclasses: {l40s: 1}\n")
    result = run("--ledger", ledger, "--month", "2026-12", "--prices", str(file))
    assert result.exit_code == 1
    assert f"{file}: class h200 was used and has no price" in result.stderr
    assert result.stdout == ""
