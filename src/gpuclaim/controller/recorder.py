"""Events (events.k8s.io/v1) on claims: never in the way of the binder, never a flood.

What is said waits in memory, is merged where it repeats, and is written a few a second. Where more is said than can be
written, the newest are left out and counted. An Event tells; what must survive a crash is in the claim's status.
"""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import datetime as dt
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from gpuclaim.api.core import ObjectMeta
from gpuclaim.api.types import GPUClaim
from gpuclaim.controller.claim_events import Said
from gpuclaim.kube.client import ApiError, Client, UnreachableError
from gpuclaim.kube.resources import Event, EventSeries, ObjectReference

log = logging.getLogger(__name__)

REPORTER: Final = "gpu.cozystack.io/controller"
_PAUSE_SECONDS: Final = 0.05
_MOST_WAITING: Final = 1000
_MOST_KNOWN: Final = 4096
_SERIES_ENDS: Final = dt.timedelta(minutes=6)
"""The same again within this time is one more of a series, as in k8s.io/client-go/tools/events."""
_NOTE_MAX: Final = 1024
_ANSWER_SECONDS: Final = 5.0

_Key = tuple[str, str, str]


@dataclasses.dataclass(slots=True)
class _Waiting:
    claim: ObjectReference
    said: Said
    at: dt.datetime
    times: int = 1


@dataclasses.dataclass(slots=True)
class _Known:
    name: str
    at: dt.datetime
    times: int


class Recorder:
    """Takes what is said at once and writes it by and by, on the leader only."""

    def __init__(
        self,
        client: Client,
        identity: str,
        *,
        now: Callable[[], dt.datetime],
        lease_left: Callable[[], float],
        pause: Callable[[], Awaitable[None]] = lambda: asyncio.sleep(_PAUSE_SECONDS),
    ) -> None:
        """Sets up.

        Args:
            client: how Events are written.
            identity: this replica's name.
            now: the present moment.
            lease_left: for how many seconds from now on this process may write.
            pause: what keeps the writes apart: 20 a second by default.
        """
        self._client = client
        self._identity = identity[:128]
        self._now = now
        self._lease_left = lease_left
        self._pause = pause
        # Of what somebody should look into first, then the rest.
        self._waiting: tuple[dict[_Key, _Waiting], dict[_Key, _Waiting]] = ({}, {})
        self._known: collections.OrderedDict[_Key, _Known] = collections.OrderedDict()
        self._due = asyncio.Event()
        self._number = 0
        self._left_out = 0
        self._failing = False

    def say(self, claim: GPUClaim, said: Iterable[Said]) -> None:
        """Has Events written; returns at once, and never raises."""
        meta = claim.metadata
        about = ObjectReference(
            api_version=claim.api_version, kind=claim.kind, namespace=meta.namespace, name=meta.name, uid=meta.uid
        )
        for each in said:
            queue = self._waiting[0 if each.warning else 1]
            key = (meta.uid, each.reason.value, each.note)
            if waiting := queue.get(key):
                waiting.times += 1
                waiting.at = self._now()
            elif len(queue) >= _MOST_WAITING:
                self._left_out += 1
            else:
                queue[key] = _Waiting(about, each, self._now())
                self._due.set()

    async def run(self) -> None:
        """Writes until it is cancelled; what still waits then is left to nobody."""
        try:
            while True:
                await self._due.wait()
                queue = self._waiting[0] or self._waiting[1]
                if not queue:
                    self._due.clear()
                    self._tell_left_out()
                    continue
                key = next(iter(queue))
                await self._write(key, queue.pop(key))
                await self._pause()
        finally:
            for queue in self._waiting:
                queue.clear()

    def _tell_left_out(self) -> None:
        if self._left_out:
            log.warning("%d Events were left out: more was said than is written", self._left_out)
            self._left_out = 0

    async def _write(self, key: _Key, waiting: _Waiting) -> None:
        left = min(self._lease_left(), _ANSWER_SECONDS)
        if left <= 0:
            return
        try:
            async with asyncio.timeout(left):
                await self._store(key, waiting)
        except (ApiError, UnreachableError, TimeoutError) as error:
            # A namespace that is going takes none; an Event that cannot be written is no reason to stop.
            log.log(logging.DEBUG if self._failing else logging.WARNING, "an Event was not written: %s", error)
            self._failing = True
        else:
            self._failing = False

    async def _store(self, key: _Key, waiting: _Waiting) -> None:
        known = self._known.get(key)
        if known is not None and waiting.at - known.at < _SERIES_ENDS:
            series = EventSeries(count=known.times + waiting.times, last_observed_time=_micro(waiting.at))
            try:
                await self._client.patch(Event, known.name, {"series": series}, waiting.claim.namespace)
            except ApiError as error:
                if error.code != 404:
                    raise
            else:
                known.at, known.times = waiting.at, series.count
                return
        event = self._event(waiting)
        await self._client.create(event)
        self._known[key] = _Known(event.metadata.name, waiting.at, waiting.times)
        self._known.move_to_end(key)
        if len(self._known) > _MOST_KNOWN:
            self._known.popitem(last=False)

    def _event(self, waiting: _Waiting) -> Event:
        claim, said = waiting.claim, waiting.said
        self._number += 1
        # As client-go names them: the object, and a number that no other Event of it has.
        suffix = f".{int(waiting.at.timestamp() * 1e6):x}{self._number % 0x1000:03x}"
        return Event(
            metadata=ObjectMeta(name=claim.name[: 253 - len(suffix)] + suffix, namespace=claim.namespace),
            event_time=_micro(waiting.at),
            reporting_controller=REPORTER,
            reporting_instance=self._identity,
            action=said.reason.value,
            reason=said.reason.value,
            regarding=claim,
            note=said.note[:_NOTE_MAX],
            type="Warning" if said.warning else "Normal",
            series=EventSeries(count=waiting.times, last_observed_time=_micro(waiting.at))
            if waiting.times > 1
            else None,
        )


def _micro(moment: dt.datetime) -> dt.datetime:
    # A MicroTime must have its six digits; msgspec leaves them away where they are zeros.
    return moment.replace(microsecond=moment.microsecond or 1)
