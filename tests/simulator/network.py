"""What lies between a replica and the apiserver: latency, loss, errors, watches that are late or break."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import random
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any, Final, TypeAlias

import msgspec

from gpuclaim.api.core import Outcome
from gpuclaim.kube.client import ApiError, Client, UnreachableError
from gpuclaim.kube.config import Config
from gpuclaim.kube.resources import Resource
from simulator.apiserver import Apiserver, Json, Path, RefusedError, selected, shown
from simulator.loop import Universe, VirtualLoop

_REQUEST_TIMEOUT: Final = 30.0
_SLOWEST: Final = 3.0
"""No request is on its way for longer: the lease's margin is there for it (kube.lease)."""
_BOOKMARK_SECONDS: Final = 60.0
_LAST_BOOKMARK_SECONDS: Final = 2.0
"""Before the end of a watch there is another."""

Event: TypeAlias = "tuple[str, Json] | Exception | None"


@dataclasses.dataclass
class Weather:
    """How bad the network and the apiserver are now, as probabilities."""

    slow: float = 0.0
    lost: float = 0.0
    answer_lost: float = 0.0
    refused: float = 0.0
    broken_watch: float = 0.0
    late_event: float = 0.0
    twice: float = 0.0
    vetoed: float = 0.0
    stalled: float = 0.0

    @classmethod
    def draw(cls, rng: random.Random) -> Weather:
        """Some weather: often fair, sometimes foul."""
        worst = rng.choice((0.0, 0.01, 0.03, 0.1, 0.1, 0.3))
        return cls(
            slow=rng.random() * min(0.3, worst * 3),
            lost=rng.random() * worst,
            answer_lost=rng.random() * worst,
            refused=rng.random() * worst,
            broken_watch=rng.random() * worst / 4,
            late_event=rng.random() * min(0.5, worst * 4),
            twice=rng.random() * worst / 2,
            vetoed=rng.random() * worst,
            stalled=rng.random() * worst / 8,
        )


class Network:
    """The way of requests, answers and events; the seed decides how long each takes and what is lost."""

    def __init__(
        self, universe: Universe, server: VirtualLoop, api: Apiserver, trace: Callable[[str, str], None]
    ) -> None:
        self.weather = Weather()
        self.down_until = 0.0
        """Until when the apiserver is down, for every replica."""
        self.universe = universe
        self.server = server
        self.api = api
        self.trace = trace

    def latency(self) -> float:
        """Seconds that one way takes."""
        rng = self.universe.rng
        if rng.random() < self.weather.slow:
            return rng.uniform(0.05, _SLOWEST)
        return rng.uniform(0.0005, 0.01)


class Wire:
    """One process's way to the apiserver; cut, nothing passes."""

    def __init__(self, network: Network, loop: VirtualLoop, who: str) -> None:
        self.cut_until = 0.0
        self._network = network
        self._loop = loop
        self._who = who
        self._watches: list[_Watch] = []

    @property
    def cut(self) -> bool:
        """Whether nothing passes now."""
        return self._network.universe.clock.now < max(self.cut_until, self._network.down_until)

    async def call(
        self,
        method: str,
        path: str,
        data: bytes | None,
        params: Mapping[str, str],
        content: str,
        *,
        metadata_only: bool = False,
    ) -> bytes:
        """One request and its answer, if it comes; a list of the objects' metadata alone where that is asked for.

        Raises:
            ApiError: the answer is no 2xx.
            UnreachableError: no answer came.
        """
        net = self._network
        answer: asyncio.Future[Json] = self._loop.create_future()
        say = f"{method} {shown(path)}"
        if method != "GET" and net.universe.rng.random() < net.weather.stalled:
            await self._stall(say)
        lost = await self._way(say)
        body = msgspec.json.decode(data) if data else None

        async def serve() -> None:
            try:
                found = await net.api.handle(method, path, body, dict(params), content, self._who)
                result: Json | RefusedError = _metadata_list(found) if metadata_only else found
            except RefusedError as refused:
                net.universe.tally[f"{refused.code} {refused.body['reason']}"] += 1
                result = refused
            if method != "GET" and "/events" not in path and "/leases" not in path:
                net.trace(self._who, f"{say}: {_result(result)}{' (answer lost)' if lost else ''}")
            if not lost:
                self._loop.call_at(net.universe.clock.now + net.latency(), deliver, result)

        def deliver(result: Json | RefusedError) -> None:
            if answer.done() or self.cut:
                return
            if isinstance(result, RefusedError):
                answer.set_exception(ApiError(msgspec.convert(result.body, Outcome)))
            else:
                answer.set_result(result)

        net.server.call_at(net.universe.clock.now + net.latency(), lambda: net.server.create_task(serve()))
        if lost:
            await self._silence()
        try:
            async with asyncio.timeout(_REQUEST_TIMEOUT):
                return msgspec.json.encode(await answer)
        except TimeoutError:
            raise UnreachableError("no answer in time") from None

    async def _stall(self, say: str) -> None:
        """The process stops between its look at the lease and the send."""
        length = self._network.universe.rng.uniform(2, 30)
        self._network.trace(self._who, f"{say}: is paused for {length:.1f} s before it is sent")
        self._network.universe.tally["fault: pause right before a write"] += 1
        self._loop.paused_until = self._network.universe.clock.now + length
        await asyncio.sleep(0)

    async def _way(self, say: str) -> bool:
        """The way there; whether the answer will be lost on the way back.

        Raises:
            ApiError: the apiserver has too much to do, or something is wrong with it.
            UnreachableError: the request is lost.
        """
        net, rng = self._network, self._network.universe.rng
        weather, roll = net.weather, rng.random()
        if self.cut or roll < weather.lost:
            net.trace(self._who, f"{say}: lost")
            net.universe.tally["request lost"] += 1
            await self._silence()
        if roll < weather.lost + weather.refused:
            raise self._disturbance(say)
        lost = roll < weather.lost + weather.refused + weather.answer_lost
        net.universe.tally["answer lost"] += lost
        return lost

    async def _silence(self) -> None:
        """A connection that is reset, or that says nothing more."""
        rng = self._network.universe.rng
        await asyncio.sleep(_REQUEST_TIMEOUT if rng.random() < 0.2 else rng.uniform(0.001, 0.5))
        raise UnreachableError("connection lost")

    def _disturbance(self, say: str) -> ApiError:
        code, reason = self._network.universe.rng.choice(
            (
                (429, "TooManyRequests"),
                (500, "InternalError"),
                (504, "Timeout"),
                (409, "Conflict"),
                (503, "ServiceUnavailable"),
            )
        )
        self._network.universe.tally[f"{code} simulated"] += 1
        body: Json = {"code": code, "reason": reason, "message": "simulated"}
        if code == 429:
            body["details"] = {"retryAfterSeconds": 1}
        self._network.trace(self._who, f"{say}: {code} (simulated)")
        return ApiError(msgspec.convert(body, Outcome))

    async def watch(
        self,
        path: str,
        since: str,
        seconds: int,
        opened: Callable[[], None],
        *,
        selector: str = "",
        metadata_only: bool = False,
    ) -> AsyncGenerator[tuple[str, msgspec.Raw]]:
        """The events of a kind, as the client gives them on."""
        net = self._network
        if self.cut or net.universe.rng.random() < net.weather.lost:
            await self._silence()
        await asyncio.sleep(net.latency())
        plural = Path.of(path).plural
        try:
            past = net.api.since(plural, int(since))
        except RefusedError as refused:
            net.universe.tally[f"{refused.code} {refused.body['reason']}"] += 1
            raise ApiError(msgspec.convert(refused.body, Outcome)) from None
        watch = _Watch(net, self._loop, seconds, selector)
        self._watches.append(watch)
        net.api.watchers[plural].append(watch.tell)
        opened()
        try:
            for _, kind, obj in past:
                if selected(obj, selector):
                    watch.put((kind, obj))
            while True:
                told = await watch.queue.get()
                if told is None:
                    return
                if isinstance(told, Exception):
                    raise told
                if self.cut:
                    raise UnreachableError("connection lost")
                obj = _metadata(told[1]) if metadata_only else told[1]
                yield told[0], msgspec.Raw(msgspec.json.encode(obj))
        finally:
            watch.end()
            net.api.watchers[plural].remove(watch.tell)
            self._watches.remove(watch)

    def break_watches(self) -> None:
        """Every open watch breaks, as when a load balancer forgets its connections."""
        for watch in self._watches:
            watch.put(UnreachableError("watch broken"))


class _Watch:
    """One open watch: events arrive in order, each in its time."""

    def __init__(self, net: Network, loop: VirtualLoop, seconds: int, selector: str) -> None:
        self._selector = selector
        self.queue: asyncio.Queue[Event] = asyncio.Queue()
        self._net = net
        self._loop = loop
        self._last = net.universe.clock.now
        self._ended = False
        self._broken = False
        loop.call_later(seconds, self.queue.put_nowait, None)
        loop.call_later(min(_BOOKMARK_SECONDS, seconds - _LAST_BOOKMARK_SECONDS), self._bookmark)

    def tell(self, version: int, kind: str, obj: Json) -> None:
        """An event is on its way."""
        if self._broken or not selected(obj, self._selector):
            return
        rng, weather, tally = self._net.universe.rng, self._net.weather, self._net.universe.tally
        if rng.random() < weather.broken_watch:
            tally["event lost with its watch"] += 1
            self.put(UnreachableError("watch broken"))
            return
        late = rng.uniform(0.1, 5) if rng.random() < weather.late_event else 0.0
        tally["event late"] += late > 0
        self.put((kind, obj), late)
        if rng.random() < weather.twice:
            tally["event twice"] += 1
            self.put((kind, obj))

    def put(self, told: Event, late: float = 0.0) -> None:
        """Hands it over after what was told before."""
        self._broken = self._broken or isinstance(told, Exception)
        # Never two at one time: timers that are due together have no order.
        self._last = max(self._last + 1e-6, self._net.universe.clock.now + self._net.latency() + late)
        self._loop.call_at(self._last, self._arrive, told)

    def _arrive(self, told: Event) -> None:
        if not self._ended:
            self.queue.put_nowait(told)

    def _bookmark(self) -> None:
        if not self._ended:
            self.put(("BOOKMARK", {"metadata": {"resourceVersion": str(self._net.api.version)}}))
            self._loop.call_later(_BOOKMARK_SECONDS, self._bookmark)

    def end(self) -> None:
        """Nobody listens any more."""
        self._ended = True


class SimulatedClient(Client):
    """The product's own client, with the wire in the place of HTTP: retries, decoding and paths are its own."""

    def __init__(self, wire: Wire) -> None:
        super().__init__(Config(server="https://simulated", tls=None))
        self._wire = wire

    async def _once(
        self, method: str, path: str, data: bytes | None, params: Mapping[str, str], headers: dict[str, str]
    ) -> bytes:
        partial = "PartialObjectMetadata" in headers["Accept"]
        return await self._wire.call(method, path, data, params, headers["Content-Type"], metadata_only=partial)

    async def watch(
        self,
        resource: Resource,
        namespace: str = "",
        *,
        since: str,
        field_selector: str = "",
        label_selector: str = "",
        metadata_only: bool = False,
        seconds: int = 300,
        opened: Callable[[], None] = lambda: None,
    ) -> AsyncGenerator[tuple[str, msgspec.Raw]]:
        assert not field_selector
        watch = self._wire.watch(
            resource.path(namespace), since, seconds, opened, selector=label_selector, metadata_only=metadata_only
        )
        async with contextlib.aclosing(watch) as events:
            async for event in events:
                yield event


def _metadata(obj: Json) -> Json:
    return {"metadata": obj["metadata"]}


def _metadata_list(found: Json) -> Json:
    return found | {"items": [_metadata(item) for item in found["items"]]}


def _result(result: Any) -> str:
    if isinstance(result, RefusedError):
        return f"{result.code} {result.body['reason']} {result.body['message'][:90]}"
    meta = result["metadata"]
    where = result.get("status", {}).get("nodeName")
    return f"rv {meta.get('resourceVersion', '-')}" + (f" on {where}" if where else "")
