"""GPU-seconds and money by tenant, class and month: borders, time zones, prices, FOCUS."""

from __future__ import annotations

import datetime as dt
import zoneinfo
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuclaim.api.core import ObjectMeta
from gpuclaim.api.types import GPUClaim, GPUClaimSpec, GPUClaimStatus, Usage, UsageInterval, UsageKind
from gpuclaim.ledger import focus, prices, report
from gpuclaim.ledger.intervals import Record
from gpuclaim.ledger.prices import PriceError, Prices
from gpuclaim.ledger.report import By, Line, Period

UTC = dt.UTC
BERLIN = zoneinfo.ZoneInfo("Europe/Berlin")
HOUR = 3600
EUR = prices.read("currency: EUR\nclasses:\n  h200: 3.50\n  l40s: {held: 1, attached: 0.25}\n")


def moment(text: str) -> dt.datetime:
    return dt.datetime.fromisoformat(text).replace(tzinfo=UTC)


def record(start: str, end: str, **fields: Any) -> Record:
    since, until = moment(start), moment(end)
    known: dict[str, Any] = {
        "claim_uid": "u",
        "kind": UsageKind.HELD,
        "started_at": since,
        "ended_at": until,
        "seconds": int((until - since).total_seconds()),
        "namespace": "tenant-a",
        "name": "vm1",
        "class_name": "h200",
        "count": 1,
        "set_name": "vm1",
        "node_name": "gpu-1",
    }
    return Record(**known | fields)


YEAR = Period(moment("2026-01-01"), moment("2027-01-01"))


def test_an_interval_over_a_month_s_end_is_in_both_months() -> None:
    lines = report.tally([record("2026-11-30T23:00", "2026-12-01T02:00", count=2)], YEAR)
    assert lines == [
        Line(("tenant-a", "h200", "2026-11"), 2 * HOUR, 0, None),
        Line(("tenant-a", "h200", "2026-12"), 4 * HOUR, 0, None),
    ]


def test_a_month_is_that_of_the_time_zone() -> None:
    lines = report.tally([record("2026-11-30T22:30", "2026-12-01T00:00")], YEAR, (By.MONTH,), zone=BERLIN)
    assert lines == [Line(("2026-11",), HOUR // 2, 0, None), Line(("2026-12",), HOUR, 0, None)]


def test_the_days_on_which_clocks_change_have_23_and_25_hours() -> None:
    year = record("2025-12-31T23:00", "2026-12-31T23:00")
    lines = {line.group[0]: line.held for line in report.tally([year], YEAR, (By.DAY,), zone=BERLIN)}
    assert (lines["2026-03-29"], lines["2026-10-25"], lines["2026-07-01"]) == (23 * HOUR, 25 * HOUR, 24 * HOUR)
    months = {line.group[0]: line.held for line in report.tally([year], YEAR, (By.MONTH,), zone=BERLIN)}
    assert (months["2026-03"], months["2026-10"]) == (31 * 24 * HOUR - HOUR, 31 * 24 * HOUR + HOUR)


def test_only_the_period_counts() -> None:
    day = Period(moment("2026-12-05"), moment("2026-12-06"))
    records = [
        record("2026-12-04T23:00", "2026-12-05T01:00"),
        record("2026-12-05T23:00", "2026-12-07", kind=UsageKind.ATTACHED, count=3),
        record("2026-12-06", "2026-12-07"),
    ]
    assert report.tally(records, day, ()) == [Line((), HOUR, 3 * HOUR, None)]
    assert report.tally(records[2:], day, ()) == []


def test_groups_are_what_was_asked_for() -> None:
    records = [
        record("2026-12-01", "2026-12-02"),
        record("2026-12-01", "2026-12-02", namespace="tenant-b", class_name="l40s", name="vm2", node_name="gpu-2"),
    ]
    assert [line.group for line in report.tally(records, YEAR, (By.CLAIM, By.NODE, By.DAY, By.MONTH))] == [
        ("vm1", "gpu-1", "2026-12-01", "2026-12"),
        ("vm2", "gpu-2", "2026-12-01", "2026-12"),
    ]


def test_money_is_exact_and_rounded_once_a_line() -> None:
    parts = [record("2026-12-01T00:00:00", "2026-12-01T00:00:20", claim_uid=str(n)) for n in range(180)]
    (line,) = report.tally(parts, YEAR, prices=EUR)
    assert (line.held, line.cost) == (HOUR, Decimal("3.50"))
    mixed = [
        record("2026-12-01", "2026-12-02", class_name="l40s", count=4),
        record("2026-12-01", "2026-12-02", class_name="l40s", count=4, kind=UsageKind.ATTACHED),
        record("2026-12-01", "2026-12-02"),
    ]
    (line,) = report.tally(mixed, YEAR, (By.NAMESPACE,), prices=EUR)
    assert line.cost == Decimal("204.00")  # 96 + 24 + 84


def test_a_class_without_a_price_is_an_error_and_not_free() -> None:
    with pytest.raises(PriceError, match="class b200 was used and has no price"):
        report.tally([record("2026-12-01", "2026-12-02", class_name="b200")], YEAR, prices=EUR)


@given(
    st.lists(
        st.tuples(st.integers(0, 10**7), st.integers(1, 10**7), st.integers(1, 8), st.integers(1, 100)), max_size=5
    ),
    st.sampled_from([UTC, BERLIN, zoneinfo.ZoneInfo("Pacific/Apia"), zoneinfo.ZoneInfo("America/Santiago")]),
    st.sampled_from([(), (By.MONTH,), (By.DAY,), (By.CLASS, By.DAY)]),
)
def test_however_it_is_cut_nothing_is_lost_or_doubled(
    spans: list[tuple[int, int, int, int]], zone: dt.tzinfo, by: tuple[By, ...]
) -> None:
    start = moment("2026-01-05")
    records = [
        record(
            (start + dt.timedelta(seconds=since)).replace(tzinfo=None).isoformat(),
            (start + dt.timedelta(seconds=since + length)).replace(tzinfo=None).isoformat(),
            count=count,
            seconds=max(1, length * part // 100),  # some are joined
        )
        for since, length, count, part in spans
    ]
    lines = report.tally(records, YEAR, by, zone=zone)
    assert sum(line.held for line in lines) == sum(r.count * r.seconds for r in records)


# --- what runs --------------------------------------------------------------------------------------------------------


def claim(**status: Any) -> GPUClaim:
    return GPUClaim(
        metadata=ObjectMeta(name="vm1", namespace="tenant-a", uid="u"),
        spec=GPUClaimSpec(class_name="h200"),
        status=GPUClaimStatus(node_name="gpu-1", **status),
    )


def test_what_runs_counts_up_to_now_and_what_the_ledger_has_counts_once() -> None:
    start, end, now = moment("2026-12-01T00:00"), moment("2026-12-01T01:00"), moment("2026-12-01T05:00")
    runs = claim(held_since=start)
    ledger = [record("2026-12-01T00:00", "2026-12-01T01:00")]
    assert [r.seconds for r in report.combined([], [runs], now)] == [5 * HOUR]
    # Read before its end was recorded.
    assert report.combined(ledger, [runs], now) == ledger
    interval = UsageInterval(kind=UsageKind.HELD, node_name="gpu-1", since=start, until=end)
    waits = claim(usage=Usage(unrecorded=[interval]))
    assert report.combined([], [waits], now) == ledger
    assert report.combined(ledger, [waits], now) == ledger
    grown = UsageInterval(kind=UsageKind.HELD, node_name="gpu-1", since=start, until=now, seconds=2 * HOUR)
    assert [r.seconds for r in report.combined(ledger, [claim(usage=Usage(unrecorded=[grown]))], now)] == [2 * HOUR]


# --- prices -----------------------------------------------------------------------------------------------------------


def test_prices_are_decimals_as_they_stand_there() -> None:
    assert prices.read("currency: CHF\ndecimals: 4\nclasses: {a: 0.1, b: {attached: 2}}") == Prices(
        "CHF",
        {
            "a": {UsageKind.HELD: Decimal("0.1"), UsageKind.ATTACHED: Decimal(0)},
            "b": {UsageKind.HELD: Decimal(0), UsageKind.ATTACHED: Decimal(2)},
        },
        4,
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the file must be a mapping"),
        ("- 1", "line 1: the file must be a mapping"),
        ("a: [", "it is no YAML"),
        ("classes: {}", "'currency' is missing"),
        ("currency: EUR", "'classes' is missing"),
        ("currency: Euro\nclasses: {}", "line 1: the currency must be an ISO 4217 code"),
        ("currency: EUR\nclasses: {}\nprice: 3", "line 3: there is no 'price' here"),
        ("currency: EUR\nclasses:\n  a: -1", "line 3: a price is a plain number such as 3.50, not '-1'"),
        ("currency: EUR\nclasses:\n  a: 3,50", "line 3: a price is a plain number"),
        ("currency: EUR\nclasses:\n  a: .nan", "line 3: a price is a plain number"),
        ("currency: EUR\nclasses:\n  a: {hold: 1}", "a price has held and attached, no 'hold'"),
        ("currency: EUR\nclasses:\n  a: 1\n  a: 2", "line 4: 'a' stands there twice"),
        ("currency: EUR\nclasses:\n  a: [1]", "line 3: a price must be a mapping"),
        ("currency: EUR\ndecimals: 9\nclasses: {}", "line 2: decimals must be 0 to 6"),
        ("currency: [EUR]\nclasses: {}", "line 1: a single value is expected"),
    ],
)
def test_prices_that_cannot_be_used_say_where_and_why(text: str, message: str) -> None:
    with pytest.raises(PriceError) as caught:
        prices.read(text)
    assert message in str(caught.value)


# --- FOCUS ------------------------------------------------------------------------------------------------------------

MANDATORY = {
    *("BilledCost", "BillingAccountId", "BillingAccountName", "BillingCurrency", "BillingPeriodEnd"),
    *("BillingPeriodStart", "ChargeCategory", "ChargeClass", "ChargeDescription", "ChargePeriodEnd"),
    *("ChargePeriodStart", "ContractedCost", "EffectiveCost", "InvoiceIssuerName", "ListCost", "PricingQuantity"),
    *("PricingUnit", "ProviderName", "PublisherName", "ServiceCategory", "ServiceName", "ServiceSubcategory"),
}


def test_focus_rows_have_every_mandatory_column_and_times_in_utc() -> None:
    records = [
        record("2026-11-30T22:30", "2026-12-01T00:00", count=2),
        record("2026-11-30T22:30", "2026-11-30T23:00", kind=UsageKind.ATTACHED, count=2),
    ]
    rows = focus.rows(records, YEAR, EUR, zone=BERLIN, provider="Cloud Ltd")
    assert all(tuple(row) == focus.COLUMNS for row in rows)
    assert set(focus.COLUMNS) >= MANDATORY
    assert [(r["x_UsageKind"], r["BillingPeriodStart"], r["ConsumedQuantity"], r["BilledCost"]) for r in rows] == [
        ("Held", "2026-10-31T23:00:00Z", "1", "3.50"),
        ("Attached", "2026-10-31T23:00:00Z", "1", "0.00"),
        ("Held", "2026-11-30T23:00:00Z", "2", "7.00"),
    ]
    first = rows[0]
    assert {column for column in MANDATORY if not first[column]} == {"ChargeClass"}  # null: no correction
    assert (first["SubAccountId"], first["ProviderName"], first["SkuId"]) == ("tenant-a", "Cloud Ltd", "h200-held")
    assert (first["ChargePeriodStart"], first["ChargePeriodEnd"]) == ("2026-10-31T23:00:00Z", "2026-11-30T23:00:00Z")
