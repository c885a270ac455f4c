"""Budgets: ResourceQuota keys of a tenant and of every tenant around it (R33)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gpuclaim.api import core, names
from gpuclaim.placement import quantity

_PREFIX = f"{names.GROUP}/"


@dataclass(frozen=True, slots=True)
class Limit:
    """One key of one quota that binds an order, and how much of it is used."""

    namespace: str
    quota: str
    key: str
    used: int
    hard: int

    @property
    def left(self) -> int:
        """What may still be ordered under it; never negative."""
        return max(0, self.hard - self.used)


class Budgets:
    """What each tenant and the tenants inside it hold, class by class, and what their quotas allow.

    Kept incrementally: a hold costs one addition for the tenant and for each of its ancestors.
    """

    def __init__(self, ancestor_label_prefix: str) -> None:
        self._prefix = ancestor_label_prefix
        self._ancestors: dict[str, tuple[str, ...]] = {}
        self._hard: dict[str, dict[str, dict[str, int]]] = {}
        self._own: dict[str, dict[str, int]] = {}
        self._used: dict[str, dict[str, int]] = {}

    def apply_namespace(self, namespace: core.Namespace) -> None:
        """Take the namespace's ancestors from its labels, and its holds to their accounts."""
        own = namespace.metadata.name
        prefix = self._prefix
        found = (key[len(prefix) :] for key in namespace.metadata.labels if prefix and key.startswith(prefix))
        self._reparent(own, tuple(sorted({name for name in found if name and name != own})))

    def remove_namespace(self, name: str) -> None:
        """Forget whose tenant the namespace was."""
        self._reparent(name, ())

    def _reparent(self, name: str, ancestors: tuple[str, ...]) -> None:
        old = self._ancestors.get(name, ())
        if ancestors == old:
            return
        held = self._own.get(name, {})
        for class_name, count in held.items():
            if class_name == names.TOTAL:
                continue  # _add keeps it
            for ancestor in old:
                self._add(self._used, ancestor, class_name, -count)
            for ancestor in ancestors:
                self._add(self._used, ancestor, class_name, count)
        if ancestors:
            self._ancestors[name] = ancestors
        else:
            self._ancestors.pop(name, None)

    def apply_quota(self, quota: core.ResourceQuota) -> None:
        """Take the quota's budget keys; a quota without any binds nothing here."""
        meta = quota.metadata
        hard = {key: quantity.floor(value) for key, value in quota.spec.hard.items() if key.startswith(_PREFIX)}
        if hard:
            self._hard.setdefault(meta.namespace, {})[meta.name] = hard
        else:
            self.remove_quota(meta.namespace, meta.name)

    def remove_quota(self, namespace: str, name: str) -> None:
        """Forget the quota."""
        quotas = self._hard.get(namespace)
        if quotas is not None:
            quotas.pop(name, None)
            if not quotas:
                del self._hard[namespace]

    def add(self, namespace: str, class_name: str, count: int) -> None:
        """The tenant holds `count` more (or, negative, less) of the class: O(ancestors)."""
        self._add(self._own, namespace, class_name, count)
        self._add(self._used, namespace, class_name, count)
        for ancestor in self._ancestors.get(namespace, ()):
            self._add(self._used, ancestor, class_name, count)

    @staticmethod
    def _add(accounts: dict[str, dict[str, int]], namespace: str, class_name: str, count: int) -> None:
        account = accounts.setdefault(namespace, {})
        for key in (class_name, names.TOTAL):
            left = account.get(key, 0) + count
            if left:
                account[key] = left
            else:
                account.pop(key, None)
        if not account:
            del accounts[namespace]

    def ancestors(self, namespace: str) -> tuple[str, ...]:
        """The tenants that the namespace is inside of, by name."""
        return self._ancestors.get(namespace, ())

    def used(self, namespace: str, class_name: str = names.TOTAL) -> int:
        """What the tenant and all inside it hold of the class, or of all: what its quotas' `status.used` says."""
        return self._used.get(namespace, {}).get(class_name, 0)

    def limits(self, namespace: str, class_name: str, without: int = 0) -> Iterator[Limit]:
        """The quota keys that bind an order of the class: the tenant's own first, then its ancestors'.

        `without` GPUs of what the tenant holds of the class are left out (the order's own). O(quotas that bind).
        """
        hard = self._hard
        for scope in (namespace, *self._ancestors.get(namespace, ())):
            quotas = hard.get(scope)
            if not quotas:
                continue
            for quota in sorted(quotas):
                keys = quotas[quota]
                for word in (class_name, names.TOTAL):
                    key = _PREFIX + word
                    if key in keys:
                        yield Limit(scope, quota, key, self.used(scope, word) - without, keys[key])

    def quotas(self) -> Iterator[Limit]:
        """Every budget key of every quota with its use, in order; for `status.used`, reports and invariants."""
        for namespace in sorted(self._hard):
            for quota, keys in sorted(self._hard[namespace].items()):
                for key, limit in sorted(keys.items()):
                    yield Limit(namespace, quota, key, self.used(namespace, key[len(_PREFIX) :]), limit)

    def accounts(self) -> dict[str, dict[str, int]]:
        """What every namespace, with all inside it, holds by class; for tests and invariants."""
        return {namespace: dict(account) for namespace, account in self._used.items()}
