"""Usage as rows of FOCUS 1.2, the FinOps Open Cost and Usage Specification. Pure.

The columns and their allowed values are those of https://focus.finops.org/focus-specification/v1-2/; every mandatory
one is here, and of the conditional ones those that have a value. Our own columns begin with `x_`, as it asks.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from decimal import Decimal
from typing import Final

from gpuclaim.api.types import UsageKind
from gpuclaim.ledger import report
from gpuclaim.ledger.intervals import Record
from gpuclaim.ledger.prices import Prices
from gpuclaim.ledger.report import By, Period

COLUMNS: Final = (
    "BilledCost",
    "BillingAccountId",
    "BillingAccountName",
    "BillingCurrency",
    "BillingPeriodEnd",
    "BillingPeriodStart",
    "ChargeCategory",
    "ChargeClass",
    "ChargeDescription",
    "ChargeFrequency",
    "ChargePeriodEnd",
    "ChargePeriodStart",
    "ConsumedQuantity",
    "ConsumedUnit",
    "ContractedCost",
    "ContractedUnitPrice",
    "EffectiveCost",
    "InvoiceIssuerName",
    "ListCost",
    "ListUnitPrice",
    "PricingCategory",
    "PricingQuantity",
    "PricingUnit",
    "ProviderName",
    "PublisherName",
    "ResourceId",
    "ResourceName",
    "ResourceType",
    "ServiceCategory",
    "ServiceName",
    "ServiceSubcategory",
    "SkuId",
    "SkuPriceId",
    "SubAccountId",
    "SubAccountName",
    "x_GPUClass",
    "x_UsageKind",
)
_HOURS: Final = Decimal("0.000001")
_SAYS: Final = {
    UsageKind.HELD: "GPUs of class {} held",
    UsageKind.ATTACHED: "GPUs of class {} used by running VMs",
}


def rows(
    records: Iterable[Record], period: Period, prices: Prices, *, zone: dt.tzinfo = dt.UTC, provider: str = "gpuclaim"
) -> list[dict[str, str]]:
    """One row for each tenant, class, month and kind; every value as text, empty for null.

    Args:
        records: intervals, each once.
        period: what of them counts.
        prices: what they cost.
        zone: whose months.
        provider: who sells, issues the invoice, and runs the GPUs.

    Raises:
        PriceError: a class was used that has no price.
    """
    every = list(records)
    found: list[dict[str, str]] = []
    for label, month in report.months(period, zone):
        within = Period(max(month.start, period.start), min(month.end, period.end))
        for kind in UsageKind:
            of_kind = [record for record in every if record.kind is kind]
            lines = report.tally(of_kind, within, (By.NAMESPACE, By.CLASS), prices=prices)
            found += [_row(line, kind, label, month, within, prices, provider) for line in lines]
    return sorted(found, key=lambda row: (row["SubAccountId"], row["x_GPUClass"], row["BillingPeriodStart"]))


def _row(
    line: report.Line, kind: UsageKind, label: str, month: Period, within: Period, prices: Prices, provider: str
) -> dict[str, str]:
    tenant, class_name = line.group
    price = str(prices.of(class_name, kind))
    hours = format((Decimal(line.held + line.attached) / 3600).quantize(_HOURS).normalize(), "f")
    cost = str(line.cost)
    sku = f"{class_name}-{kind.lower()}"
    values = {
        "BilledCost": cost,
        "BillingAccountId": tenant,
        "BillingAccountName": tenant,
        "BillingCurrency": prices.currency,
        "BillingPeriodStart": _time(month.start),
        "BillingPeriodEnd": _time(month.end),
        "ChargeCategory": "Usage",
        "ChargeDescription": f"{_SAYS[kind].format(class_name)}, {label}",
        "ChargeFrequency": "Usage-Based",
        "ChargePeriodStart": _time(within.start),
        "ChargePeriodEnd": _time(within.end),
        "ConsumedQuantity": hours,
        "ConsumedUnit": "GPU-Hours",
        "ContractedCost": cost,
        "ContractedUnitPrice": price,
        "EffectiveCost": cost,
        "InvoiceIssuerName": provider,
        "ListCost": cost,
        "ListUnitPrice": price,
        "PricingCategory": "Standard",
        "PricingQuantity": hours,
        "PricingUnit": "GPU-Hours",
        "ProviderName": provider,
        "PublisherName": provider,
        "ResourceId": f"{tenant}/{class_name}",
        "ResourceName": class_name,
        "ResourceType": "GPU",
        "ServiceCategory": "Compute",
        "ServiceName": "GPU",
        "ServiceSubcategory": "Other (Compute)",
        "SkuId": sku,
        "SkuPriceId": f"{sku}-{prices.currency.lower()}",
        "SubAccountId": tenant,
        "SubAccountName": tenant,
        "x_GPUClass": class_name,
        "x_UsageKind": kind.value,
    }
    return {column: values.get(column, "") for column in COLUMNS}


def _time(moment: dt.datetime) -> str:
    return f"{moment.astimezone(dt.UTC):%Y-%m-%dT%H:%M:%SZ}"
