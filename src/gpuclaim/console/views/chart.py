"""Use over the days as bars: what was held, and how much of that VMs used."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from gpuclaim.api.types import GPUClaim, Usage
from gpuclaim.ledger import report
from gpuclaim.ledger.intervals import Record

DAYS: Final = 30
WIDTH, HEIGHT = 640, 180
_LEFT, _TOP, _BOTTOM = 44, 10, 24
_STEPS: Final = (1, 2, 5, 10)


@dataclass(frozen=True, slots=True)
class Bar:
    """One day: GPU-hours, and where its two bars stand; the attached one is drawn over the held one."""

    day: dt.date
    held: float
    attached: float
    x: float
    width: float
    held_y: float
    held_height: float
    attached_y: float
    attached_height: float
    label: str


@dataclass(frozen=True, slots=True)
class Chart:
    """All days; `lines` are (y, label) of the scale. The unit is GPU-hours a day."""

    bars: tuple[Bar, ...]
    lines: tuple[tuple[float, str], ...]
    width: int = WIDTH
    height: int = HEIGHT
    left: int = _LEFT
    bottom: int = HEIGHT - _BOTTOM

    @property
    def empty(self) -> bool:
        """Nothing was held."""
        return not any(bar.held or bar.attached for bar in self.bars)


@dataclass(frozen=True, slots=True)
class Sum:
    """GPU-hours of one class in all days of the chart; `share` is the part of what was held that VMs used, 0 to 1."""

    class_name: str
    held: float
    attached: float

    @property
    def share(self) -> float:
        """What part of the held time VMs used."""
        return min(1.0, self.attached / self.held) if self.held else 0.0


def records(recorded: Iterable[Record], claims: Iterable[GPUClaim], now: dt.datetime) -> list[Record]:
    """Every interval once: those of a ledger, those of the claims, those that run."""
    return report.combined(recorded, claims, now)


def period(now: dt.datetime, days: int = DAYS) -> report.Period:
    """The last days, today included, as UTC has them."""
    today = now.astimezone(dt.UTC).date()
    return report.Period(report.midnight(today - dt.timedelta(days=days - 1), dt.UTC), now)


def chart(known: Iterable[Record], now: dt.datetime, days: int = DAYS) -> Chart:
    """A bar a day, today the last."""
    span = period(now, days)
    by_day = {line.group[0]: line for line in report.tally(known, span, (report.By.DAY,))}
    hours: list[tuple[dt.date, float, float]] = []
    for index in range(days):
        day = span.start.date() + dt.timedelta(days=index)
        line = by_day.get(day.isoformat())
        hours.append((day, line.held / 3600, line.attached / 3600) if line is not None else (day, 0.0, 0.0))
    top = _top(max((max(held, attached) for _, held, attached in hours), default=0.0))
    room, wide = HEIGHT - _TOP - _BOTTOM, (WIDTH - _LEFT) / days

    def tall(value: float) -> float:
        return round(value / top * room, 1)

    bars = tuple(
        Bar(
            day=day,
            held=held,
            attached=attached,
            x=round(_LEFT + index * wide + wide * 0.12, 1),
            width=round(wide * 0.76, 1),
            held_y=round(_TOP + room - tall(held), 1),
            held_height=tall(held),
            attached_y=round(_TOP + room - tall(attached), 1),
            attached_height=tall(attached),
            label=f"{day.day}.{day.month}." if (days - 1 - index) % 7 == 0 else "",
        )
        for index, (day, held, attached) in enumerate(hours)
    )
    return Chart(bars, tuple(_scale(top, room)))


def sums(known: Iterable[Record], now: dt.datetime, days: int = DAYS) -> list[Sum]:
    """What the chart shows, by class."""
    lines = report.tally(known, period(now, days), (report.By.CLASS,))
    return [Sum(line.group[0], line.held / 3600, line.attached / 3600) for line in lines]


@dataclass(frozen=True, slots=True)
class ClaimUse:
    """GPU-hours of one claim since it was ordered."""

    name: str
    class_name: str
    count: int
    held: float
    attached: float


def by_claim(claims: Iterable[GPUClaim], now: dt.datetime) -> list[ClaimUse]:
    """All that each claim was held and used, by the claim's own account, the most held first."""
    found = []
    for claim in claims:
        closed = claim.status.usage or Usage()
        since = claim.status.held_since
        held = closed.held_seconds + (_seconds(since, now) if since is not None else 0)
        attachment = claim.status.attachment
        attached = closed.attached_seconds + (_seconds(attachment.since, now) if attachment is not None else 0)
        hours = [seconds * claim.spec.count / 3600 for seconds in (held, attached)]
        found.append(ClaimUse(claim.metadata.name, claim.spec.class_name, claim.spec.count, *hours))
    return sorted(found, key=lambda each: (-each.held, each.name))


def _seconds(since: dt.datetime, now: dt.datetime) -> float:
    return max(0.0, (now - since).total_seconds())


def _top(most: float) -> float:
    """A round number that nothing is above: 1, 2 or 5 with zeros."""
    scale = 1.0
    while scale * 10 < most:
        scale *= 10
    return next((scale * step for step in _STEPS if scale * step >= most), scale * 10)


def _scale(top: float, room: float) -> Iterator[tuple[float, str]]:
    for part in (0.0, 0.5, 1.0):
        yield round(_TOP + room * (1 - part), 1), f"{top * part:g}"
