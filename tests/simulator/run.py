"""One history: a cluster, some replicas, faults for a while, then calm; all of it from one number."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime as dt
import gc
import hashlib
import logging
import random
from collections.abc import Awaitable
from typing import Final
from unittest import mock

from gpuclaim.controller.app import Controller
from gpuclaim.placement import refusals
from simulator.admission import Admission
from simulator.apiserver import Apiserver, Json
from simulator.chaos import Chaos
from simulator.cluster import NAMESPACES, Cluster
from simulator.database import Database
from simulator.loop import Universe
from simulator.network import Network
from simulator.nodes import Nodes
from simulator.oracle import Oracle
from simulator.people import Hoster, Tenants
from simulator.replica import Make, Replica
from simulator.rest import at_rest
from simulator.vms import VirtController

_FIRST_REFUSAL: Final = dt.timedelta(seconds=15)
_STORM_SECONDS: Final = 180.0
_CALM_SECONDS: Final = 160.0
_PROBED_AFTER: Final = 60.0
_QUIET_SECONDS: Final = 40.0


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """How a history ended; the same seed gives the same, to the byte."""

    seed: int
    faults: tuple[str, ...]
    trace: tuple[str, ...]
    steps: int
    orders: int
    answers: dict[str, int]
    tally: dict[str, int]

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
        self._make = make
        self._number = 0
        self.replicas: list[Replica] = []
        self.server = self.universe.loop("apiserver")
        self.oracle = Oracle(self.universe)
        self.database = Database(self.universe, self.say, self.oracle.fault)
        self.api = Apiserver(
            self.universe.clock, Admission(lambda: self.network, lambda: self.replicas), self._written, self.oracle.idle
        )
        self.network = Network(self.universe, self.server, self.api, self.say)
        self.cluster = Cluster(self.universe, self.api, self.say)
        self.nodes = Nodes(self.cluster)
        self.tenants = Tenants(self.cluster, self.nodes)
        self.chaos = Chaos(self.network, self.cluster, lambda: self.replicas, self._kill, self.say)
        self.oracle.attach(self.api, self.cluster, self.database, self.chaos)

    def say(self, who: str, what: str) -> None:
        """A line of the trace."""
        self.trace.append(f"{self.universe.clock.now:9.3f} {who:12} {what}")

    def play(self) -> Outcome:
        """Runs it to its end."""
        universe = self.universe
        try:
            self.server.create_task(self._guarded(self._live()))
            universe.run(_STORM_SECONDS)
            if not self._failed():
                self._calm()
                universe.run(universe.clock.now + _CALM_SECONDS)
            if not self._failed():
                self._at_rest()
        finally:
            universe.close()
            self.database.end()
        return Outcome(
            self.seed,
            tuple(self.oracle.faults),
            tuple(self.trace),
            universe.steps,
            self.cluster.asked,
            self.cluster.answered,
            dict(universe.tally),
        )

    def _failed(self) -> bool:
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
        self.api.page = rng.choice((2, 5, 1000))
        if rng.random() < 0.3:
            self.api.unserved.add("virtualmachines")
            self.server.call_later(rng.uniform(1, 90), self.api.unserved.clear)
        await self.cluster.furnish()
        for _ in range(rng.choice((1, 2, 2, 3))):
            self._start()
        async with asyncio.TaskGroup() as group:
            group.create_task(self.nodes.run())
            group.create_task(VirtController(self.cluster).run())
            for namespace in NAMESPACES:
                group.create_task(self.tenants.run(namespace))
            group.create_task(Hoster(self.cluster, self.nodes, self.database).run())
            group.create_task(self.chaos.run())

    def _start(self) -> None:
        self._number += 1
        replica = Replica(self.network, f"replica-{self._number}", self.database, self._make)
        self.replicas.append(replica)
        self.say(replica.name, "starts")

    def _kill(self, replica: Replica) -> None:
        self.say(replica.name, "crashes")
        self.universe.kill(replica.loop)
        self.replicas.remove(replica)
        replica.wire.cut_until = float("inf")
        self.server.call_later(self.universe.rng.uniform(0.1, 30), self._start)

    def _written(self, plural: str, old: Json | None, new: Json | None, who: str) -> None:
        self.oracle.written(plural, old, new, who, self.replicas)
        self.chaos.written(plural, old, new, who)

    def _calm(self) -> None:
        """The faults end, and nobody asks for anything more, but for one order of each tenant later on."""
        self.say("all", "calm")
        self.chaos.end()
        self.cluster.quiet = True
        self.database.away_until = self.database.flaky = 0.0
        self.server.create_task(self._guarded(self.cluster.heal()))
        for namespace in NAMESPACES:
            self.server.call_later(_PROBED_AFTER, self._probe, namespace)

    def _probe(self, namespace: str) -> None:
        self.server.create_task(self._guarded(self.tenants.probe(namespace)))

    def _at_rest(self) -> None:
        self.say("all", "at rest")
        leaders = [replica.name for replica in self.replicas if replica.leads]
        if len(leaders) != 1:
            self.oracle.fault(f"{leaders} lead")
        mirrors = {r.name: r.controller.books for r in self.replicas if r.controller is not None}
        at_rest(self.oracle, mirrors, self.universe.clock.now - _QUIET_SECONDS)


def play(seed: int, make: Make = Controller) -> Outcome:
    """The history of a seed.

    Args:
        seed: any number.
        make: makes a controller; tests plant a fault here.
    """
    quiet = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    state, collects = random.getstate(), gc.isenabled()
    # What a history leaves behind is collected after it: a quarter of the time.
    gc.disable()
    try:
        # A refusal of five minutes would outlast a history, and none would ever come to its end or be repeated.
        with mock.patch.object(refusals, "_FIRST", _FIRST_REFUSAL):
            return History(seed, make).play()
    finally:
        random.setstate(state)
        if collects:
            gc.enable()
        logging.disable(quiet)
