"""One history: a cluster, some replicas, faults for a while, then calm; all of it from one number."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime as dt
import hashlib
import logging
import random
from collections.abc import Awaitable
from typing import Final

from gpuclaim.controller.app import Controller
from simulator.admission import Admission
from simulator.apiserver import Apiserver
from simulator.cluster import NAMESPACES, Cluster
from simulator.loop import Universe
from simulator.network import Network, Weather
from simulator.oracle import Oracle
from simulator.replica import Make, Replica

_STORM_SECONDS: Final = 180.0
_CALM_SECONDS: Final = 160.0
_QUIET_SECONDS: Final = 60.0


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """How a history ended; the same seed gives the same, to the byte."""

    seed: int
    faults: tuple[str, ...]
    trace: tuple[str, ...]
    steps: int
    orders: int
    answers: dict[str, int]
    happened: dict[str, int]
    seen: dict[str, int]

    @property
    def digest(self) -> str:
        """The trace as one number."""
        return hashlib.sha256("\n".join(self.trace).encode()).hexdigest()[:16]


class History:
    """One run in the making."""

    def __init__(self, seed: int, make: Make = Controller) -> None:
        # tenacity's and the elector's jitter.
        random.seed(seed)
        self.seed = seed
        self.universe = Universe(seed)
        self.trace: list[str] = []
        self.happened: dict[str, int] = {}
        self._make = make
        self._number = 0
        self.replicas: list[Replica] = []
        server = self.universe.loop("apiserver")
        self.server = server
        self.oracle = Oracle(self.universe.clock)
        self.api = Apiserver(
            self.universe.clock, Admission(lambda: self.network, lambda: self.replicas), self.oracle.written
        )
        self.network = Network(self.universe, server, self.api, self.say)
        self.cluster = Cluster(self.universe, self.api, self.say)
        self.oracle.attach(self.api, self.cluster)
        self.storm = True

    def say(self, who: str, what: str) -> None:
        """A line of the trace."""
        self.trace.append(f"{self.universe.clock.now:9.3f} {who:12} {what}")

    def play(self) -> Outcome:
        """Runs it to its end."""
        universe = self.universe
        try:
            self.server.create_task(self._guarded(self._live()))
            stop = self._stopped
            universe.run(_STORM_SECONDS, stop)
            if not stop():
                self._calm()
                universe.run(universe.clock.now + _CALM_SECONDS, stop)
            if not stop():
                self._at_rest()
        finally:
            universe.close()
        return Outcome(
            self.seed,
            tuple(self.oracle.faults),
            tuple(self.trace),
            universe.steps,
            self.cluster.asked,
            self.cluster.answered,
            self.happened,
            self.oracle.seen,
        )

    def _stopped(self) -> bool:
        for replica in self.replicas:
            if replica.ended is not None:
                self.oracle.fault(f"{replica.name} ended by itself: {replica.ended}")
                replica.ended = None
        for loop in self.universe.loops:
            while loop.faults:
                fault = loop.faults.pop()
                self.oracle.fault(f"{loop.name}: {fault}")
        return bool(self.oracle.faults)

    async def _guarded(self, work: Awaitable[None]) -> None:
        try:
            await work
        except Exception as error:
            self.oracle.fault(f"the simulator failed: {error!r}")
            raise

    async def _live(self) -> None:
        rng = self.universe.rng
        await self.cluster.furnish()
        for _ in range(rng.choice((1, 2, 2, 3))):
            self._start()
        async with asyncio.TaskGroup() as group:
            group.create_task(self.cluster.run_nodes())
            for namespace in NAMESPACES:
                group.create_task(self.cluster.run_tenant(namespace))
            group.create_task(self.cluster.run_hoster())
            group.create_task(self._chaos())

    def _start(self) -> None:
        self._number += 1
        replica = Replica(self.network, f"replica-{self._number}", self._make)
        self.replicas.append(replica)
        self.say(replica.name, "starts")

    async def _chaos(self) -> None:
        rng = self.universe.rng
        pace = rng.choice((3.0, 10.0, 20.0, 60.0))
        clocks = rng.random() < 0.3
        kinds = ["weather", "watches", "compact", "crash", "pause", "cut", *(["clock"] if clocks else [])]
        while True:
            await asyncio.sleep(rng.expovariate(1 / pace))
            if not self.storm:
                return
            kind = rng.choice(kinds)
            replica = rng.choice(self.replicas) if self.replicas else None
            if rng.random() < 0.5:
                replica = next((each for each in self.replicas if each.leads), replica)
            self.happened[kind] = self.happened.get(kind, 0) + 1
            if kind == "weather":
                self.network.weather = Weather.draw(rng)
                self.say("weather", str(self.network.weather))
            elif kind == "compact":
                self.say("etcd", "compacted")
                self.api.compact()
            elif replica is not None:
                await self._strike(kind, replica)

    async def _strike(self, kind: str, replica: Replica) -> None:
        rng, now = self.universe.rng, self.universe.clock.now
        if kind == "crash":
            # Between any two callbacks of its loop, that is at any await.
            self.say(replica.name, "crashes")
            self.universe.kill(replica.loop)
            self.replicas.remove(replica)
            replica.wire.cut_until = float("inf")
            self.server.call_later(rng.uniform(0.1, 30), self._start)
        elif kind == "pause":
            length = rng.choice((0.5, 4, 9, 16, 40)) * rng.uniform(0.8, 1.2)
            self.say(replica.name, f"is paused for {length:.1f} s")
            replica.loop.paused_until = now + length
        elif kind == "cut":
            length = rng.uniform(0.5, 40)
            self.say(replica.name, f"is cut off for {length:.1f} s")
            replica.wire.cut_until = now + length
            replica.wire.break_watches()
        elif kind == "watches":
            self.say(replica.name, "watches break")
            replica.wire.break_watches()
        else:
            self.oracle.truthful_clocks = False
            replica.offset = dt.timedelta(seconds=rng.choice((-3600, -100, -5, 0, 5, 100, 3600)) * rng.random())
            self.say(replica.name, f"its clock is wrong by {replica.offset}")

    def _calm(self) -> None:
        """The faults end: a fair network, machines that run, clocks that are right, nobody who asks."""
        self.say("all", "calm")
        self.storm = False
        self.cluster.quiet = True
        self.cluster.heal()
        self.network.weather = Weather()
        for replica in self.replicas:
            replica.loop.paused_until = 0.0
            replica.wire.cut_until = 0.0
            replica.offset = dt.timedelta(0)

    def _at_rest(self) -> None:
        self.say("all", "at rest")
        leaders = [replica.name for replica in self.replicas if replica.leads]
        if len(leaders) != 1:
            self.oracle.fault(f"{leaders} lead")
        mirrors = {r.name: r.controller.books for r in self.replicas if r.controller is not None}
        self.oracle.at_rest(mirrors, self.universe.clock.now - _QUIET_SECONDS)


def play(seed: int, make: Make = Controller) -> Outcome:
    """The history of a seed.

    Args:
        seed: any number.
        make: makes a controller; tests plant a fault here.
    """
    quiet = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    state = random.getstate()
    try:
        return History(seed, make).play()
    finally:
        random.setstate(state)
        logging.disable(quiet)
