"""`gpuclaim usage`: GPU-hours held and attached, and what they cost (R51, R77)."""

from __future__ import annotations

import asyncio
import csv
import dataclasses
import datetime as dt
import io
import json
import re
import sys
import zoneinfo
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Final

import click

from gpuclaim.api.types import GPUClaim
from gpuclaim.cli import desk, options
from gpuclaim.kube import config
from gpuclaim.kube.client import ApiError, Client, UnreachableError
from gpuclaim.ledger import focus, prices, report
from gpuclaim.ledger.errors import LedgerError
from gpuclaim.ledger.intervals import Record
from gpuclaim.ledger.prices import PriceError, Prices
from gpuclaim.ledger.report import By, Line, Period

_CLUSTER_SECONDS: Final = 60.0
_HOURS: Final = Decimal("0.01")
_EVER: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


class _Month(click.ParamType[tuple[int, int]]):
    name = "YYYY-MM"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, int]:
        if isinstance(value, tuple):
            return value
        found = re.fullmatch(r"(\d{4})-(0[1-9]|1[0-2])", str(value))
        if found is None or not 1970 <= int(found[1]) <= 9998:
            self.fail(f"{value!r} is no month such as 2026-12", param, ctx)
        return int(found[1]), int(found[2])


class _Day(click.ParamType[dt.date]):
    name = "YYYY-MM-DD"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> dt.date:
        try:
            return value if isinstance(value, dt.date) else dt.date.fromisoformat(str(value))
        except ValueError:
            self.fail(f"{value!r} is no day such as 2026-12-01", param, ctx)


class _Zone(click.ParamType[zoneinfo.ZoneInfo]):
    name = "ZONE"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> zoneinfo.ZoneInfo:
        try:
            return value if isinstance(value, zoneinfo.ZoneInfo) else zoneinfo.ZoneInfo(str(value))
        except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
            self.fail(f"{value!r} is no time zone such as Europe/Berlin", param, ctx)


class _Dimensions(click.ParamType[tuple[By, ...]]):
    name = "LIST"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[By, ...]:
        if isinstance(value, tuple):
            return value
        words = [word.strip() for word in str(value).split(",")]
        try:
            found = tuple(By(word) for word in words)
        except ValueError:
            self.fail(f"{value!r} must be one or more of {', '.join(By)}, with commas", param, ctx)
        if len(set(found)) < len(found):
            self.fail(f"{value!r} has one of them twice", param, ctx)
        return found


@dataclasses.dataclass(frozen=True, slots=True)
class _Source:
    """What was read, and what the reader should know of it."""

    records: list[Record]
    notes: list[str]


@click.command()
@click.option("--month", type=_Month(), help="One month. Default: the present one, unless --from or --to is given.")
@click.option("--from", "first", type=_Day(), help="The first day that counts.")
@click.option("--to", "last", type=_Day(), help="The last day that counts. Default: up to now.")
@click.option(
    "--timezone",
    "zone",
    type=_Zone(),
    default="UTC",
    show_default=True,
    help="Whose months: Europe/Berlin, say.",
)
@click.option("--namespace", "-n", "namespaces", multiple=True, help="Only this tenant. May be repeated.")
@click.option(
    "--by",
    type=_Dimensions(),
    default="namespace,class,month",
    show_default=True,
    help="What lines are told apart by: namespace, class, month, day, claim, node.",
)
@click.option(
    "--prices", "price_file", type=click.Path(path_type=Path), help="A YAML file of prices per class and GPU-hour."
)
@click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "csv", "json", "focus"]),
    help="focus: CSV with the columns of FOCUS 1.2; needs --prices. Default: table on a terminal, else json.",
)
@click.option("--provider", default="gpuclaim", show_default=True, help="Who sells the GPUs, for FOCUS.")
@click.option(
    "--ledger",
    "ledger_url",
    envvar="GPUCLAIM_LEDGER",
    metavar="URL",
    help="The controller's ledger: what has ended. Also read from $GPUCLAIM_LEDGER.",
)
@options.kubeconfig
def usage(
    month: tuple[int, int] | None,
    first: dt.date | None,
    last: dt.date | None,
    zone: zoneinfo.ZoneInfo,
    namespaces: tuple[str, ...],
    by: tuple[By, ...],
    price_file: Path | None,
    output: str | None,
    provider: str,
    ledger_url: str | None,
    kubeconfig: Path | None,
    context: str | None,
) -> None:
    """Report GPU-hours held and attached, and what they cost.

    What has ended comes from the ledger, what runs from the cluster's claims, up to now. Where one of the two is
    missing the report says so on standard error.
    """
    now = dt.datetime.now(dt.UTC).replace(microsecond=0)
    period = _period(month, first, last, zone, now)
    if output == "focus" and price_file is None:
        raise click.UsageError("--output focus needs --prices: its rows are costs")
    priced = _prices(price_file) if price_file is not None else None
    source = _read(ledger_url, lambda: config.load(kubeconfig, context), period, namespaces, now)
    for note in source.notes:
        desk.note(note)
    try:
        if output == "focus" and priced is not None:
            rows = focus.rows(source.records, period, priced, zone=zone, provider=provider)
            click.echo(_csv(focus.COLUMNS, [tuple(row.values()) for row in rows]), nl=False)
            return
        lines = report.tally(source.records, period, by, zone=zone, prices=priced)
    except PriceError as error:
        raise click.ClickException(f"{price_file}: {error}") from None
    match output or ("table" if sys.stdout.isatty() else "json"):
        case "table":
            desk.show_table(*_table(lines, by, priced))
        case "csv":
            head = [*by, "held_gpu_seconds", "attached_gpu_seconds", *(["cost", "currency"] if priced else [])]
            click.echo(_csv(head, [_cells(line, priced) for line in lines]), nl=False)
        case _:
            click.echo(json.dumps(_document(lines, by, period, priced, source.notes), indent=2))


def _period(
    month: tuple[int, int] | None, first: dt.date | None, last: dt.date | None, zone: dt.tzinfo, now: dt.datetime
) -> Period:
    if month is not None and (first or last):
        raise click.UsageError("give --month, or --from and --to")
    if first is None and last is None:
        here = now.astimezone(zone)
        return report.month_of(*(month or (here.year, here.month)), zone)
    start = report.midnight(first, zone) if first is not None else _EVER
    end = report.midnight(last + dt.timedelta(days=1), zone) if last is not None else now
    if start >= end:
        raise click.UsageError("--from is after --to, or in the future")
    return Period(start, end)


def _prices(file: Path) -> Prices:
    try:
        return prices.read(file.read_text())
    except OSError as error:
        raise click.ClickException(f"{file}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise click.ClickException(f"{file}: it is no UTF-8 text") from None
    except PriceError as error:
        raise click.ClickException(f"{file}: {error}") from None


def _read(
    ledger_url: str | None,
    load: Callable[[], config.Config],
    period: Period,
    namespaces: Sequence[str],
    now: dt.datetime,
) -> _Source:
    """Claims first and the ledger after them, so that what ends in between is in one of the two."""
    notes: list[str] = []
    claims: list[GPUClaim] = []
    try:
        api = load()
        claims = asyncio.run(_claims(api, namespaces))
        notes.append(f"What runs is counted up to {now:%Y-%m-%d %H:%M:%S} UTC.")
    except (config.ConfigError, ApiError, UnreachableError, TimeoutError) as error:
        if not ledger_url:
            raise click.ClickException(f"there is neither a --ledger nor a cluster to read: {error}") from None
        notes.append(f"The cluster cannot be read, so what runs or has not been recorded is missing: {error}")
    if not ledger_url:
        notes.append("There is no --ledger, so what has ended is missing.")
    return _Source(report.combined(_recorded(ledger_url, period, namespaces), claims, now), notes)


def _recorded(ledger_url: str | None, period: Period, namespaces: Sequence[str]) -> list[Record]:
    if not ledger_url:
        return []
    from gpuclaim.ledger.store import Ledger

    try:
        ledger = Ledger(ledger_url)
        try:
            return ledger.records(period.start, period.end, namespaces)
        finally:
            ledger.close()
    except LedgerError as error:
        # Half a bill is worse than none.
        raise click.ClickException(str(error)) from None


async def _claims(api: config.Config, namespaces: Sequence[str]) -> list[GPUClaim]:
    async with asyncio.timeout(_CLUSTER_SECONDS), Client(api) as client:
        return [claim for name in namespaces or ("",) for claim in (await client.list(GPUClaim, name))[0]]


def _cells(line: Line, priced: Prices | None) -> tuple[str, ...]:
    money = (str(line.cost), priced.currency) if priced is not None else ()
    return (*line.group, str(line.held), str(line.attached), *money)


def _csv(head: Iterable[str], rows: Iterable[Sequence[str]]) -> str:
    written = io.StringIO()
    writer = csv.writer(written, lineterminator="\n")
    writer.writerow(head)
    writer.writerows(rows)
    return written.getvalue()


def _document(
    lines: Sequence[Line], by: Sequence[By], period: Period, priced: Prices | None, notes: Sequence[str]
) -> dict[str, object]:
    """Money as text: a reader that makes a float of it does so knowingly."""
    return {
        "from": period.start.isoformat(),
        "to": period.end.isoformat(),
        "currency": priced.currency if priced is not None else None,
        "notes": list(notes),
        "lines": [
            dict(zip(by, line.group, strict=True))
            | {"heldGPUSeconds": line.held, "attachedGPUSeconds": line.attached}
            | ({"cost": str(line.cost)} if priced is not None else {})
            for line in lines
        ],
    }


def _table(lines: Sequence[Line], by: Sequence[By], priced: Prices | None) -> tuple[list[str], list[list[str]]]:
    """The header, and a row a line, with their sum below them."""
    money = [f"COST {priced.currency}"] if priced is not None else []
    header = [*(dimension.upper() for dimension in by), "HELD GPU-H", "ATTACHED GPU-H", *money]
    rows = [[*line.group, *_amounts(line.held, line.attached, line.cost)] for line in lines]
    cost = sum((line.cost for line in lines if line.cost is not None), Decimal(0)) if priced is not None else None
    total = _amounts(sum(line.held for line in lines), sum(line.attached for line in lines), cost)
    rows.append([*("TOTAL" if index == 0 else "" for index in range(len(by))), *total])
    return header, rows


def _amounts(held: int, attached: int, cost: Decimal | None) -> list[str]:
    hours = [str((Decimal(seconds) / 3600).quantize(_HOURS)) for seconds in (held, attached)]
    return hours if cost is None else [*hours, str(cost)]
