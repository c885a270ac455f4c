"""Leader election on a simulated apiserver and clock: never two that act (R39)."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuclaim.api.core import Outcome
from gpuclaim.kube.client import ApiError, UnreachableError
from gpuclaim.kube.lease import Elector, Timing
from gpuclaim.kube.resources import Lease

TIMING = Timing(duration=15, retry=2, margin=5)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Store:
    """One Lease with optimistic concurrency, as the apiserver keeps it. `fate` decides what becomes of a request."""

    def __init__(self) -> None:
        self.lease: Lease | None = None
        self.version = 0
        self.fate: str = "answered"

    def _reach(self, part: str) -> None:
        if self.fate == part:
            raise UnreachableError("cut off")

    async def get(self, _: type[Lease], name: str, namespace: str) -> Lease:
        self._reach("lost before")
        if self.lease is None:
            raise ApiError(Outcome(code=404, reason="NotFound"))
        assert (name, namespace) == ("leader", "default")
        return self.lease

    async def create(self, lease: Lease) -> Lease:
        self._reach("lost before")
        if self.lease is not None:
            raise ApiError(Outcome(code=409, reason="AlreadyExists"))
        return self._store(lease)

    async def replace(self, lease: Lease) -> Lease:
        self._reach("lost before")
        if self.lease is None or lease.metadata.resource_version != self.lease.metadata.resource_version:
            raise ApiError(Outcome(code=409, reason="Conflict"))
        return self._store(lease)

    def _store(self, lease: Lease) -> Lease:
        self.version += 1
        meta = msgspec.structs.replace(lease.metadata, resource_version=str(self.version))
        self.lease = msgspec.structs.replace(lease, metadata=meta)
        self._reach("lost after")
        return self.lease


def elector(store: Any, clock: Clock, identity: str) -> Elector:
    return Elector(store, "default", "leader", identity, timing=TIMING, clock=clock)


_steps = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", "c"]),
        st.sampled_from(["answered", "answered", "lost before", "lost after"]),
        st.floats(0, 20),
    ),
    max_size=60,
)


@given(_steps)
def test_never_two_lead_whatever_is_lost_and_however_long_anyone_sleeps(steps: list[tuple[str, str, float]]) -> None:
    async def play() -> None:
        store, clock = Store(), Clock()
        electors = {name: elector(store, clock, name) for name in "abc"}
        for who, fate, pause in steps:
            store.fate = fate
            await electors[who]._try()
            assert sum(each.leads() for each in electors.values()) <= 1
            clock.now += pause
            assert sum(each.leads() for each in electors.values()) <= 1

    asyncio.run(play())


async def test_a_follower_takes_over_when_the_lease_has_not_been_renewed_for_its_length() -> None:
    store, clock = Store(), Clock()
    first, second = elector(store, clock, "first"), elector(store, clock, "second")
    assert await first._try()
    assert first.leads()
    assert not await second._try()
    clock.now += 10.1
    assert not first.leads()  # the margin before the end
    assert not await second._try()
    clock.now += 5
    assert await second._try()
    assert second.leads()
    assert not await first._try()
    assert store.lease is not None
    assert store.lease.spec.lease_transitions == 1


async def test_it_counts_from_before_the_request() -> None:
    store, clock = Store(), Clock()
    one = elector(store, clock, "one")
    get = store.get

    async def slow(*arguments: Any) -> Lease:
        clock.now += 8
        return await get(*arguments)

    store.get = slow  # type: ignore[method-assign, assignment]
    assert await one._try()
    assert one.remaining() == pytest.approx(2)


async def test_it_gives_the_lease_back_when_it_ends() -> None:
    store, clock = Store(), Clock()
    one, other = elector(store, clock, "one"), elector(store, clock, "other")
    led = asyncio.Event()

    async def lead() -> None:
        led.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(one.run(lead))
    await led.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not one.leads()
    assert await other._try()


async def test_what_leading_raises_ends_it() -> None:
    async def lead() -> None:
        raise ZeroDivisionError(random.random())

    store = Store()
    with pytest.raises(ZeroDivisionError):
        await elector(store, Clock(), "one").run(lead)
    assert store.lease is not None
    assert store.lease.spec.holder_identity is None
