"""When pods of sets were scheduled and when they ended, by their own account (R50): what was seen late counts right."""

from __future__ import annotations

import datetime as dt
from collections import OrderedDict
from typing import Final

from gpuclaim.api import core, model
from gpuclaim.ledger.intervals import PodEnd

_GONE_KEPT: Final = 4096


class PodTimes:
    """Live pods' starts, and ends: of pods in a final phase, and of the last few thousand that are gone since."""

    def __init__(self) -> None:
        self._scheduled: dict[str, dt.datetime] = {}
        self._uids: dict[tuple[str, str], str] = {}
        self._ended: dict[tuple[str, str], dict[str, PodEnd]] = {}
        self._sets: dict[str, tuple[str, str]] = {}
        self._gone: OrderedDict[str, None] = OrderedDict()

    def seen(self, pod: core.Pod) -> None:
        """The pod is new or has changed."""
        meta, set_name = pod.metadata, model.pod_set(pod.metadata.labels)
        if set_name is None or not pod.spec.node_name:
            return
        old = self._uids.get((meta.namespace, meta.name))
        if old is not None and old != meta.uid:
            self.gone(meta.namespace, meta.name)
        self._uids[meta.namespace, meta.name] = meta.uid
        since = next(
            (c.last_transition_time for c in pod.status.conditions if c.type == "PodScheduled" and c.status == "True"),
            None,
        )
        if since is not None:
            self._scheduled[meta.uid] = since
        until = None if model.is_live(pod) else _finished(pod)
        if since is not None and until is not None:
            key = (meta.namespace, set_name)
            self._sets[meta.uid] = key
            self._ended.setdefault(key, {})[meta.uid] = PodEnd(meta.name, meta.uid, pod.spec.node_name, since, until)

    def gone(self, namespace: str, name: str) -> None:
        """The pod is no more; what it said of its end is kept a while, for claims that do not say it yet."""
        uid = self._uids.pop((namespace, name), None)
        if uid is None:
            return
        self._scheduled.pop(uid, None)
        if uid in self._sets:
            self._gone[uid] = None
        while len(self._gone) > _GONE_KEPT:
            oldest, _ = self._gone.popitem(last=False)
            key = self._sets.pop(oldest)
            self._ended[key].pop(oldest)
            if not self._ended[key]:
                del self._ended[key]

    def scheduled(self, uid: str) -> dt.datetime | None:
        """When the live pod was scheduled to its node, where it says so."""
        return self._scheduled.get(uid)

    def ended(self, namespace: str, set_name: str) -> tuple[PodEnd, ...]:
        """The set's pods that have ended, as far as they say when."""
        return tuple(self._ended.get((namespace, set_name), {}).values())


def _finished(pod: core.Pod) -> dt.datetime | None:
    """When the last of its containers ended; None where kubelet ended it before any ran."""
    status = pod.status
    ends = [
        each.state.terminated.finished_at
        for each in (*status.init_container_statuses, *status.container_statuses)
        if each.state.terminated is not None
    ]
    return max((end for end in ends if end is not None), default=None)
