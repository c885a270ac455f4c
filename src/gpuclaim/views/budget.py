"""Budgets as rows: the tenant's own, and those of the tenants around it (R33). Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
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


def rows(quotas: Iterable[core.ResourceQuota], own: str) -> Iterator[Row]:
    """A row a budget key, the tenant's own first; `own` empty: of all namespaces, nobody's own."""
    order = sorted(
        quotas, key=lambda each: (each.metadata.namespace != own, each.metadata.namespace, each.metadata.name)
    )
    for quota in order:
        meta = quota.metadata
        for key, value in sorted(quota.spec.hard.items()):
            if not key.startswith(_PREFIX):
                continue
            hard, said = quantity.floor(value), quota.status.used.get(key)
            used = quantity.floor(said) if said is not None else None
            left = max(0, hard - used) if used is not None else None
            yield (
                meta.namespace,
                meta.name,
                key[len(_PREFIX) :],
                str(used) if used is not None else "?",
                str(hard),
                Cell(str(left), "red" if left == 0 else "green") if left is not None else Cell("?"),
                "" if not own else "own" if meta.namespace == own else "inherited",
            )
