"""Events are merged, bounded, and in nobody's way."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gpuclaim.api.core import ObjectMeta, Outcome
from gpuclaim.api.reasons import EventReason
from gpuclaim.api.types import GPUClaim, GPUClaimSpec
from gpuclaim.controller import recorder
from gpuclaim.controller.claim_events import Said
from gpuclaim.kube.client import ApiError, UnreachableError
from gpuclaim.kube.resources import Event

NOW = dt.datetime(2026, 12, 1, 12, tzinfo=dt.UTC)
BOUND = Said(EventReason.BOUND, "held on node gpu-1")
WAITS = Said(EventReason.WAITING, "no room", warning=True)


def claim(name: str = "vm1") -> GPUClaim:
    meta = ObjectMeta(name=name, namespace="tenant-a", uid=f"uid-{name}")
    return GPUClaim(metadata=meta, spec=GPUClaimSpec(class_name="h200"))


class World:
    """What a recorder sees of an apiserver."""

    def __init__(self) -> None:
        self.now = NOW
        self.left = 10.0
        self.errors: list[Exception] = []
        self.events: dict[str, Event] = {}
        self.patches: list[tuple[str, int]] = []
        self.idle = asyncio.Event()
        self.recorder = recorder.Recorder(
            self,  # type: ignore[arg-type]
            "replica-1",
            now=lambda: self.now,
            lease_left=lambda: self.left,
            pause=self.pause,
        )

    async def pause(self) -> None:
        if not any(self.recorder._waiting):
            self.idle.set()

    async def create(self, event: Event) -> Event:
        if self.errors:
            raise self.errors.pop(0)
        assert event.metadata.name not in self.events
        self.events[event.metadata.name] = event
        return event

    async def patch(self, _: type[Event], name: str, body: dict[str, Any], namespace: str) -> None:
        assert namespace == "tenant-a"
        if name not in self.events:
            raise ApiError(Outcome(code=404, reason="NotFound"))
        self.patches.append((name, body["series"].count))

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.recorder.run())
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def written(self) -> None:
        self.idle.clear()
        async with asyncio.timeout(30):
            await self.idle.wait()


async def test_an_event_says_who_what_and_of_which_claim() -> None:
    world = World()
    async with world.running():
        world.recorder.say(claim(), [BOUND])
        await world.written()
    (event,) = world.events.values()
    assert (event.reason, event.note, event.type) == ("Bound", "held on node gpu-1", "Normal")
    assert (event.regarding.kind, event.regarding.name, event.regarding.uid) == ("GPUClaim", "vm1", "uid-vm1")
    assert (event.metadata.namespace, event.reporting_instance) == ("tenant-a", "replica-1")
    assert event.event_time is not None
    assert event.event_time.microsecond != 0  # a MicroTime has its six digits


async def test_what_repeats_is_one_event_that_counts() -> None:
    world = World()
    for _ in range(3):
        world.recorder.say(claim(), [WAITS])
    async with world.running():
        await world.written()
        (event,) = world.events.values()
        assert event.series is not None
        assert event.series.count == 3
        world.now += dt.timedelta(minutes=5)
        world.recorder.say(claim(), [WAITS])
        await world.written()
        assert world.patches == [(event.metadata.name, 4)]
        world.now += dt.timedelta(minutes=7)  # the series is over
        world.recorder.say(claim(), [WAITS])
        await world.written()
        assert len(world.events) == 2


async def test_an_event_that_was_cleaned_up_is_made_anew() -> None:
    world = World()
    async with world.running():
        world.recorder.say(claim(), [WAITS])
        await world.written()
        world.events.clear()
        world.recorder.say(claim(), [WAITS])
        await world.written()
        assert len(world.events) == 1


async def test_a_flood_is_bounded_and_warnings_come_first() -> None:
    world = World()
    for number in range(5000):
        world.recorder.say(claim(f"vm{number}"), [BOUND])
    world.recorder.say(claim("last"), [WAITS])
    async with world.running():
        await world.written()
    assert len(world.events) == 1001
    assert next(iter(world.events.values())).regarding.name == "last"


@pytest.mark.parametrize(
    "error",
    [
        ApiError(Outcome(code=403, reason="Forbidden", message="namespace is being terminated")),
        UnreachableError("cut off"),
        TimeoutError(),
    ],
)
async def test_one_that_cannot_be_written_stops_nothing(error: Exception) -> None:
    world = World()
    world.errors = [error]
    async with world.running():
        world.recorder.say(claim("lost"), [BOUND])
        world.recorder.say(claim("told"), [BOUND])
        await world.written()
    assert [event.regarding.name for event in world.events.values()] == ["told"]


async def test_without_the_lease_nothing_is_written() -> None:
    world = World()
    world.left = 0
    async with world.running():
        world.recorder.say(claim(), [BOUND])
        await world.written()
    assert world.events == {}
