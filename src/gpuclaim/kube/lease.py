"""Leader election by a coordination.k8s.io Lease, the protocol of k8s.io/client-go/tools/leaderelection.

A holder counts its lease from before it asked for the renewal, and stops acting a margin before it ends; the others
count it from when they saw it renewed. So there are never two that act, as long as clocks run at the same speed,
however wrong they are.
"""

from __future__ import annotations

import asyncio
import dataclasses
import datetime as dt
import logging
import random
import time
from collections.abc import Awaitable, Callable

import msgspec

from gpuclaim.api.core import ObjectMeta
from gpuclaim.kube.client import ApiError, Client, UnreachableError
from gpuclaim.kube.resources import Lease, LeaseSpec

log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True)
class Timing:
    """Seconds. `margin` is what a leader leaves unused of its lease, for clocks and for a write on its way."""

    duration: float = 15.0
    retry: float = 2.0
    margin: float = 5.0


def boottime() -> float:
    """Seconds since the machine started; they go on while it is suspended, unlike CLOCK_MONOTONIC's."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Elector:
    """Campaigns for a lease, leads while it holds it, and gives it back when cancelled."""

    def __init__(
        self,
        client: Client,
        namespace: str,
        name: str,
        identity: str,
        *,
        timing: Timing | None = None,
        clock: Callable[[], float] = boottime,
        now: Callable[[], dt.datetime] = lambda: dt.datetime.now(dt.UTC),
    ) -> None:
        self.identity = identity
        self._client = client
        self._namespace = namespace
        self._name = name
        self._timing = timing or Timing()
        self._clock = clock
        self._now = now
        self._held_until = float("-inf")
        self.term: dt.datetime | None = None
        """When the lease that is held was acquired; the same as before where nobody else had it meanwhile."""
        self._observed: LeaseSpec | None = None
        self._observed_until = float("-inf")

    def remaining(self) -> float:
        """For how many seconds from now on the leader may still act; 0 when it may not."""
        return max(0.0, self._held_until - self._timing.margin - self._clock())

    def leads(self) -> bool:
        """Whether the lease surely holds now."""
        return self.remaining() > 0

    async def confirmed(self) -> bool:
        """Whether the stored lease is this process's, of this term, and surely holds still; asks the apiserver."""
        try:
            lease = await self._read()
        except (ApiError, UnreachableError):
            return False
        spec = lease.spec if lease is not None else LeaseSpec()
        return (spec.holder_identity, spec.acquire_time) == (self.identity, self.term) and self.leads()

    async def run(self, lead: Callable[[], Awaitable[None]]) -> None:
        """Runs `lead` while the lease is held, cancels it when the lease is lost, and campaigns again; for ever.

        Raises:
            Exception: whatever `lead` raises; the lease is given back.
        """
        while True:
            await self._acquire()
            log.info("%s leads", self.identity)
            leading = asyncio.ensure_future(lead())
            renewing = asyncio.create_task(self._renew_while_held())
            try:
                await asyncio.wait({leading, renewing}, return_when=asyncio.FIRST_COMPLETED)
                if leading.done():
                    leading.result()
                    return
                log.error("%s lost the lease", self.identity)
            finally:
                renewing.cancel()
                leading.cancel()
                await asyncio.gather(leading, renewing, return_exceptions=True)
                if self.leads():
                    await self._release()
                self._held_until = float("-inf")

    async def _acquire(self) -> None:
        while not await self._try():  # noqa: ASYNC110 - nobody tells us of the lease
            await asyncio.sleep(self._pause())

    def _pause(self) -> float:
        """Seconds until the next try: twice as often as a holder renews, and when the lease that was seen ends.

        It is counted from when it was seen renewed: who looks rarely takes it late.
        """
        pause = self._timing.retry * random.uniform(0.4, 0.6)  # noqa: S311 - jitter
        left = self._observed_until - self._clock()
        return min(pause, left) if left > 0 else pause

    async def _renew_while_held(self) -> None:
        while self.leads():
            await asyncio.sleep(min(self._timing.retry, self.remaining()))
            try:
                async with asyncio.timeout(max(self.remaining(), 0.001)):
                    await self._try()
            except TimeoutError:
                log.warning("the lease could not be renewed in time")

    async def _try(self) -> bool:
        """One attempt to take or renew the lease; whether it is ours now."""
        before = self._clock()
        try:
            lease = await self._read()
            if lease is None:
                spec = self._spec(None)
                await self._client.create(Lease(metadata=self._meta(), spec=spec))
            elif self._may_take(lease.spec):
                spec = self._spec(lease.spec)
                await self._client.replace(msgspec.structs.replace(lease, spec=spec))
            else:
                return False
        except ApiError as error:
            # 409: another was faster. Anything else is worth a word.
            if error.code != 409:
                log.warning("lease %s/%s: %s", self._namespace, self._name, error)
            return False
        except UnreachableError as error:
            log.warning("lease %s/%s: %s", self._namespace, self._name, error)
            return False
        self._held_until = before + self._timing.duration
        self.term = spec.acquire_time
        return True

    async def _read(self) -> Lease | None:
        try:
            return await self._client.get(Lease, self._name, self._namespace)
        except ApiError as error:
            if error.code == 404:
                return None
            raise

    def _may_take(self, spec: LeaseSpec) -> bool:
        if not spec.holder_identity or spec.holder_identity == self.identity:
            return True
        if spec != self._observed:
            self._observed = spec
            self._observed_until = self._clock() + float(spec.lease_duration_seconds or self._timing.duration)
        return self._clock() >= self._observed_until

    def _meta(self) -> ObjectMeta:
        return ObjectMeta(namespace=self._namespace, name=self._name)

    def _spec(self, old: LeaseSpec | None) -> LeaseSpec:
        now = self._now()
        # A MicroTime must have its six digits; msgspec leaves them away where they are zeros.
        now = now.replace(microsecond=now.microsecond or 1)
        ours = old is not None and old.holder_identity == self.identity
        return LeaseSpec(
            holder_identity=self.identity,
            lease_duration_seconds=max(1, round(self._timing.duration)),
            acquire_time=old.acquire_time if old is not None and ours else now,
            renew_time=now,
            lease_transitions=(old.lease_transitions + (0 if ours else 1)) if old is not None else 0,
        )

    async def _release(self) -> None:
        try:
            async with asyncio.timeout(2):
                lease = await self._read()
                if lease is not None and lease.spec.holder_identity == self.identity:
                    spec = msgspec.structs.replace(lease.spec, holder_identity=None, lease_duration_seconds=1)
                    await self._client.replace(msgspec.structs.replace(lease, spec=spec))
        except (ApiError, UnreachableError, TimeoutError) as error:
            log.warning("the lease was not given back, the next leader waits for its end: %s", error)
