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
_STRIDE: Final = 64
"""Nodes looked at in one go; orders are answered between two."""


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
        self._due: set[str] = set()
        self._quotas: dict[tuple[str, str], core.ResourceQuota] = {}

    def node_changed(self, report: GPUNode) -> None:
        """A GPUNode is new or has changed."""
        # Its devices are in the books already, and many: keep what is compared and written here.
        status = msgspec.structs.replace(report.status, devices=[], unplaced=[], resource_names=[])
        self._reports[report.metadata.name] = msgspec.structs.replace(report, status=status)
        self._due.add(report.metadata.name)

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
        """Looks at what may have changed whenever the books have, until cancelled; at all nodes first."""
        seen = -1
        self._due.update(self._reports)
        while True:
            self._books.advance(self._now())
            if self._books.revision != seen:
                seen = self._books.revision
                if not await self._write_all():
                    seen = -1
            await asyncio.sleep(_PAUSE_SECONDS)

    async def _write_all(self) -> bool:
        """Whether all that had changed could be written."""
        return all([await self._write_classes(), await self._write_nodes(), await self._write_quotas()])

    async def _write_classes(self) -> bool:
        well = True
        for name, cls in [*self._books.classes.items()]:
            await asyncio.sleep(0)
            there_is = supply(self._books, name, self._now())
            if there_is is not None:
                after = catalogue.class_status(cls, there_is, counts=self._counts)
                well &= await self._write(GPUClass, "", name, merge_patch(cls.status, after))
        return well

    async def _write_nodes(self) -> bool:
        self._due |= self._books.take_changed_nodes()
        for number, name in enumerate(sorted(self._due)):
            if number % _STRIDE == _STRIDE - 1:
                await asyncio.sleep(0)
            # Whatever changes from here on makes it due again.
            self._due.discard(name)
            report, node = self._reports.get(name), self._books.nodes.get(name)
            if report is None or node is None:
                continue
            conditions = catalogue.node_conditions(report, node, self._now())
            after = msgspec.structs.replace(report.status, conditions=conditions)
            # Of the version that was looked at: what was just written, or a report, may not have come back yet.
            version = report.metadata.resource_version
            if not await self._write(GPUNode, "", name, merge_patch(report.status, after), version):
                self._due.add(name)
        return not self._due

    async def _write_quotas(self) -> bool:
        well = True
        for (namespace, name), status in catalogue.budget_use(self._books.budgets.quotas()).items():
            quota = self._quotas.get((namespace, name))
            if quota is not None:
                patch = catalogue.without_known(status, quota.status)
                well &= await self._write(core.ResourceQuota, namespace, name, patch)
        return well

    async def _write(
        self, kind: _Kind, namespace: str, name: str, patch: dict[str, Any], version: str | None = None
    ) -> bool:
        if not patch:
            return True
        left = self._lease_left()
        if left <= 0:
            return False
        body: dict[str, Any] = {"metadata": {"resourceVersion": version}} if version else {}
        try:
            async with asyncio.timeout(left):
                await self._client.patch(kind, name, body | {"status": patch}, namespace, subresource="status")
        except (ApiError, UnreachableError, TimeoutError) as error:
            if isinstance(error, ApiError) and error.code == 404:
                return True
            known = isinstance(error, ApiError) and error.code == 409
            log.log(logging.DEBUG if known else logging.WARNING, "status of %s %s: %s", kind.__name__, name, error)
            return False
        return True
