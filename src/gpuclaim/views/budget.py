"""Budgets as rows: the tenant's own, and those of the tenants around it (R33). Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from gpuclaim.api import core, names
from gpuclaim.placement import quantity
from gpuclaim.views.table import Cell, Row

HEADER: Final = ("NAMESPACE", "QUOTA", "CLASS", "USED", "HARD", "LEFT", "WHOSE")
_PREFIX: Final = f"{names.GROUP}/"


def ancestors(namespace: core.Namespace, prefix: str) -> list[str]:
    """The tenants that the namespace is inside of, from its labels."""
    own = namespace.metadata.name
    found = {label[len(prefix) :] for label in namespace.metadata.labels if prefix and label.startswith(prefix)}
    return sorted(name for name in found if name and name != own)


def binding(quotas: Iterable[core.ResourceQuota]) -> list[core.ResourceQuota]:
    """Those that have a budget key."""
    return [quota for quota in quotas if any(key.startswith(_PREFIX) for key in quota.spec.hard)]


@dataclass(frozen=True, slots=True)
class Line:
    """One budget: how much of a class, or in total, a quota lets its namespace hold; `used` None: nobody has said."""

    namespace: str
    quota: str
    key: str
    used: int | None
    hard: int

    @property
    def left(self) -> int | None:
        """What may still be ordered, as far as this budget goes."""
        return max(0, self.hard - self.used) if self.used is not None else None


def lines(quotas: Iterable[core.ResourceQuota], own: str) -> Iterator[Line]:
    """A line a budget key, those of the tenant `own` first."""
    order = sorted(
        quotas, key=lambda each: (each.metadata.namespace != own, each.metadata.namespace, each.metadata.name)
    )
    for quota in order:
        for key, value in sorted(quota.spec.hard.items()):
            if key.startswith(_PREFIX):
                said = quota.status.used.get(key)
                used = quantity.floor(said) if said is not None else None
                meta = quota.metadata
                yield Line(meta.namespace, meta.name, key[len(_PREFIX) :], used, quantity.floor(value))


def rows(quotas: Iterable[core.ResourceQuota], own: str) -> Iterator[Row]:
    """A row a budget key, the tenant's own first; `own` empty: of all namespaces, nobody's own."""
    for line in lines(quotas, own):
        left = line.left
        yield (
            line.namespace,
            line.quota,
            line.key,
            str(line.used) if line.used is not None else "?",
            str(line.hard),
            Cell(str(left), "red" if left == 0 else "green") if left is not None else Cell("?"),
            "" if not own else "own" if line.namespace == own else "inherited",
        )
