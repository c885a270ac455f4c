"""What a GPU costs per hour, by class, from a YAML file. Pure; money is Decimal and was never a float."""

from __future__ import annotations

import dataclasses
import decimal
import re
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Final

import yaml

from gpuclaim.api.types import UsageKind

_PRICE: Final = re.compile(r"\d{1,12}(\.\d{1,12})?")
_KINDS: Final = {"held": UsageKind.HELD, "attached": UsageKind.ATTACHED}
_DECIMALS_MAX: Final = 6


class PriceError(Exception):
    """The prices cannot be used; the message says where and why."""


@dataclasses.dataclass(frozen=True, slots=True)
class Prices:
    """Prices of one GPU for one hour, by class and kind; costs are rounded to `decimals`."""

    currency: str
    rates: Mapping[str, Mapping[UsageKind, Decimal]]
    decimals: int = 2

    def of(self, class_name: str, kind: UsageKind) -> Decimal:
        """The price of one GPU of the class for an hour.

        Raises:
            PriceError: the class has none.
        """
        try:
            return self.rates[class_name][kind]
        except KeyError:
            raise PriceError(f"class {class_name} was used and has no price") from None

    def rounded(self, amount: Decimal) -> Decimal:
        """The amount as it is billed; half a cent goes to the even neighbour."""
        return amount.quantize(Decimal(1).scaleb(-self.decimals), rounding=decimal.ROUND_HALF_EVEN)


def read(text: str) -> Prices:
    """The prices of a file.

    `currency` is an ISO 4217 code; `classes` gives each class a price (of a GPU that is held) or `held` and `attached`;
    `decimals` is 2 where absent.

    Raises:
        PriceError: it is no such file; the message has the line.
    """
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        raise PriceError(f"it is no YAML: {error}") from None
    fields = dict(_mapping(root, "the file"))
    for key, node in fields.items():
        if key not in {"currency", "decimals", "classes"}:
            raise _wrong(node, f"there is no {key!r} here; currency, classes and decimals there are")
    for key in ("currency", "classes"):
        if key not in fields:
            raise PriceError(f"{key!r} is missing")
    currency = _text(fields["currency"])
    if not re.fullmatch(r"[A-Z]{3}", currency):
        raise _wrong(fields["currency"], f"the currency must be an ISO 4217 code such as EUR, not {currency!r}")
    decimals = _text(fields["decimals"]) if "decimals" in fields else "2"
    if not decimals.isdigit() or int(decimals) > _DECIMALS_MAX:
        raise _wrong(fields["decimals"], f"decimals must be 0 to {_DECIMALS_MAX}, not {decimals!r}")
    rates = {name: _rate(node) for name, node in _mapping(fields["classes"], "classes")}
    return Prices(currency, rates, int(decimals))


def _rate(node: yaml.Node) -> dict[UsageKind, Decimal]:
    if isinstance(node, yaml.ScalarNode):
        return {UsageKind.HELD: _price(node), UsageKind.ATTACHED: Decimal(0)}
    rate = dict.fromkeys(UsageKind, Decimal(0))
    for key, value in _mapping(node, "a price"):
        if key not in _KINDS:
            raise _wrong(value, f"a price has held and attached, no {key!r}")
        rate[_KINDS[key]] = _price(value)
    return rate


def _price(node: yaml.Node) -> Decimal:
    value = _text(node)
    if not _PRICE.fullmatch(value):
        raise _wrong(node, f"a price is a plain number such as 3.50, not {value!r}")
    return Decimal(value)


def _mapping(node: yaml.Node | None, what: str) -> Iterator[tuple[str, yaml.Node]]:
    if not isinstance(node, yaml.MappingNode):
        raise _wrong(node, f"{what} must be a mapping")
    seen: set[str] = set()
    for key_node, value in node.value:
        key = _text(key_node)
        if key in seen:
            raise _wrong(key_node, f"{key!r} stands there twice")
        seen.add(key)
        yield key, value


def _text(node: yaml.Node) -> str:
    if not isinstance(node, yaml.ScalarNode):
        raise _wrong(node, "a single value is expected")
    return str(node.value)


def _wrong(node: yaml.Node | None, message: str) -> PriceError:
    return PriceError(f"line {node.start_mark.line + 1}: {message}" if node is not None else message)
