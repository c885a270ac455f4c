"""Keeps what others read of the books true: class status, node conditions, the use of budgets; writes only changes."""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
from collections.abc import Callable
from typing import Any, Final

import msgspec

from gpuclaim.api import core
from gpuclaim.api.types import GPUClass, GPUNode
from gpuclaim.controller import catalogue
from gpuclaim.controller.claim_status import merge_patch
from gpuclaim.kube.client import ApiError, Client, UnreachableError
from gpuclaim.placement.books import Books
from gpuclaim.placement.supply import supply

log = logging.getLogger(__name__)

_Kind = type[GPUClass] | type[GPUNode] | type[core.ResourceQuota]

_PAUSE_SECONDS: Final = 0.5
"""Between two looks: a burst of orders becomes one write a class."""


class Reporter:
    """Writes GPUClass.status, GPUNode.status.conditions and our keys of ResourceQuota.status, on the leader only."""

    def __init__(
        self,
        books: Books,
        client: Client,
        *,
        now: Callable[[], dt.datetime],
        lease_left: Callable[[], float],
        counts: bool,
    ) -> None:
        """Sets up; `counts` says whether tenants see how many GPUs of a class there are."""
        self._books = books
        self._client = client
        self._now = now
        self._lease_left = lease_left
        self._counts = counts
        self._reports: dict[str, GPUNode] = {}
        self._quotas: dict[tuple[str, str], core.ResourceQuota] = {}

    def node_changed(self, report: GPUNode) -> None:
        """A GPUNode is new or has changed."""
        # Its devices are in the books already, and many: keep what is compared and written here.
        status = msgspec.structs.replace(report.status, devices=[], unplaced=[], resource_names=[])
        self._reports[report.metadata.name] = msgspec.structs.replace(report, status=status)

    def node_gone(self, name: str) -> None:
        """A GPUNode is no more."""
        self._reports.pop(name, None)

    def quota_changed(self, quota: core.ResourceQuota) -> None:
        """A ResourceQuota is new or has changed."""
        self._quotas[quota.metadata.namespace, quota.metadata.name] = quota

    def quota_gone(self, namespace: str, name: str) -> None:
        """A ResourceQuota is no more."""
        self._quotas.pop((namespace, name), None)

    async def run(self) -> None:
        """Looks at all that is known whenever the books have changed, until cancelled."""
        seen = -1
        while True:
            self._books.advance(self._now())
            if self._books.revision != seen:
                seen = self._books.revision
                if not await self._write_all():
                    seen = -1
            await asyncio.sleep(_PAUSE_SECONDS)

    async def _write_all(self) -> bool:
        """Whether all that had changed could be written."""
        wanted: list[tuple[_Kind, str, str, dict[str, Any]]] = []
        for name, cls in self._books.classes.items():
            there_is = supply(self._books, name, self._now())
            if there_is is not None:
                wanted.append(
                    (
                        GPUClass,
                        "",
                        name,
                        merge_patch(cls.status, catalogue.class_status(cls, there_is, counts=self._counts)),
                    )
                )
        for name, report in self._reports.items():
            node = self._books.nodes.get(name)
            if node is not None:
                conditions = catalogue.node_conditions(report, node, self._now())
                after = msgspec.structs.replace(report.status, conditions=conditions)
                wanted.append((GPUNode, "", name, merge_patch(report.status, after)))
        for (namespace, name), status in catalogue.budget_use(self._books.budgets.quotas()).items():
            quota = self._quotas.get((namespace, name))
            if quota is not None:
                patch = catalogue.without_known(status, quota.status)
                wanted.append((core.ResourceQuota, namespace, name, patch))
        written = [await self._write(*each) for each in wanted if each[-1]]
        return all(written)

    async def _write(self, kind: _Kind, namespace: str, name: str, patch: dict[str, Any]) -> bool:
        left = self._lease_left()
        if left <= 0:
            return False
        try:
            async with asyncio.timeout(left):
                await self._client.patch(kind, name, {"status": patch}, namespace, subresource="status")
        except (ApiError, UnreachableError, TimeoutError) as error:
            if isinstance(error, ApiError) and error.code == 404:
                return True
            log.warning("status of %s %s: %s", kind.__name__, name, error)
            return False
        return True
