"""What was used: GPU-seconds and money by tenant, class, month and more, from records. Pure.

A month, or a day, is that of a time zone: it begins at its first local midnight, so that a day may have 23 or 25 hours.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal
from typing import TypeAlias

from gpuclaim.api.types import GPUClaim, UsageKind
from gpuclaim.ledger import intervals
from gpuclaim.ledger.intervals import Key, Record
from gpuclaim.ledger.prices import Prices


class By(enum.StrEnum):
    """What lines are told apart by."""

    NAMESPACE = "namespace"
    CLASS = "class"
    MONTH = "month"
    DAY = "day"
    CLAIM = "claim"
    NODE = "node"


@dataclasses.dataclass(frozen=True, slots=True)
class Period:
    """From its start on, up to and without its end."""

    start: dt.datetime
    end: dt.datetime


@dataclasses.dataclass(frozen=True, slots=True)
class Line:
    """What was used under one group: `group` has a value for each dimension that was asked for, in that order.

    Seconds are GPU-seconds: two GPUs for a second are two. `cost` is rounded to the prices' decimals; None without
    prices.
    """

    group: tuple[str, ...]
    held: int
    attached: int
    cost: Decimal | None


Slice: TypeAlias = tuple[str, Period]
"""A calendar month or day: its label and when it was."""


def combined(recorded: Iterable[Record], claims: Iterable[GPUClaim], now: dt.datetime) -> list[Record]:
    """Every interval once: those of the ledger, those that claims keep for it, and those that run, up to now.

    Claims that were read before the ledger was are safe: what has ended and was recorded in between is in the ledger,
    and counts as it is there.
    """
    known = {record.key: record for record in recorded}
    open_: dict[Key, Record] = {}
    for claim in claims:
        for record in intervals.unrecorded(claim):
            old = known.get(record.key)
            if old is None or old.ended_at < record.ended_at:
                known[record.key] = record
        open_.update((record.key, record) for record in intervals.running(claim, now))
    return list((open_ | known).values())


def month_of(year: int, month: int, zone: dt.tzinfo) -> Period:
    """The month in this time zone."""
    after = (year + month // 12, month % 12 + 1)
    return Period(midnight(dt.date(year, month, 1), zone), midnight(dt.date(*after, 1), zone))


def midnight(day: dt.date, zone: dt.tzinfo) -> dt.datetime:
    """When the day begins in this time zone, in UTC."""
    return dt.datetime(day.year, day.month, day.day, tzinfo=zone).astimezone(dt.UTC)


def months(period: Period, zone: dt.tzinfo) -> Iterator[Slice]:
    """The calendar months that the period has a part of, whole."""
    day = period.start.astimezone(zone).date().replace(day=1)
    while (month := month_of(day.year, day.month, zone)).start < period.end:
        yield f"{day:%Y-%m}", month
        day = (day + dt.timedelta(days=31)).replace(day=1)


def _days(period: Period, zone: dt.tzinfo) -> Iterator[Slice]:
    day = period.start.astimezone(zone).date()
    while (start := midnight(day, zone)) < period.end:
        yield day.isoformat(), Period(start, midnight(day + dt.timedelta(days=1), zone))
        day += dt.timedelta(days=1)


def tally(
    records: Iterable[Record],
    period: Period,
    by: Sequence[By] = (By.NAMESPACE, By.CLASS, By.MONTH),
    *,
    zone: dt.tzinfo = dt.UTC,
    prices: Prices | None = None,
) -> list[Line]:
    """What was used in the period, in groups, in the order of their names.

    Args:
        records: intervals, each once.
        period: what of them counts.
        by: what the groups are told apart by.
        zone: whose months and days.
        prices: what a GPU of each class costs.

    Raises:
        PriceError: a class was used that has no price.
    """
    cut = _days if By.DAY in by else months if By.MONTH in by else None
    sums: dict[tuple[str, ...], dict[UsageKind, int]] = {}
    money: dict[tuple[str, ...], Decimal] = {}
    for record in records:
        within = _overlap(Period(record.started_at, record.ended_at), period)
        if within is None:
            continue
        slices = list(cut(within, zone)) if cut is not None else [("", within)]
        for label, whole in slices:
            part = _overlap(within, whole)
            seconds = gpu_seconds(record, part) if part is not None else 0
            if not seconds:
                continue
            group = tuple(_value(record, dimension, label) for dimension in by)
            found = sums.setdefault(group, dict.fromkeys(UsageKind, 0))
            found[record.kind] += seconds
            if prices is not None:
                money[group] = money.get(group, Decimal(0)) + seconds * prices.of(record.class_name, record.kind)
    return [
        Line(
            group,
            sums[group][UsageKind.HELD],
            sums[group][UsageKind.ATTACHED],
            prices.rounded(money[group] / 3600) if prices is not None else None,
        )
        for group in sorted(sums)
    ]


def gpu_seconds(record: Record, part: Period) -> int:
    """The record's GPU-seconds within a part of it; the parts of a whole sum up to the whole, joined or not."""
    length = (record.ended_at - record.started_at) // dt.timedelta(seconds=1)
    if length <= 0:
        return 0
    before, after = (
        record.seconds * ((moment - record.started_at) // dt.timedelta(seconds=1)) // length
        for moment in (part.start, part.end)
    )
    return record.count * (after - before)


def _overlap(one: Period, other: Period) -> Period | None:
    start, end = max(one.start, other.start), min(one.end, other.end)
    return Period(start, end) if start < end else None


def _value(record: Record, dimension: By, label: str) -> str:
    match dimension:
        case By.NAMESPACE:
            return record.namespace
        case By.CLASS:
            return record.class_name
        case By.CLAIM:
            return record.name
        case By.NODE:
            return record.node_name
        case By.DAY:
            return label
        case By.MONTH:
            return label[:7]
