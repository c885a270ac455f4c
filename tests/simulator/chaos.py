"""What befalls replicas, the network, etcd and the database, and when."""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import Callable
from typing import Final

from simulator.apiserver import Json
from simulator.cluster import Cluster
from simulator.loop import Universe
from simulator.network import Network, Weather
from simulator.replica import Replica

_KINDS: Final = (
    "weather",
    "weather",
    "watches",
    "compaction",
    "crash",
    "pause",
    "cut",
    "ambush",
    "ambush",
    "apiserver restart",
)
_AMBUSHES: Final = ("crash", "crash", "pause", "cut")


class Chaos:
    """Strikes at random moments, and in ambush: right after a write, where a history of several writes is half done."""

    def __init__(
        self,
        network: Network,
        cluster: Cluster,
        replicas: Callable[[], list[Replica]],
        kill: Callable[[Replica], None],
        say: Callable[[str, str], None],
    ) -> None:
        self.over = False
        self.truthful_clocks = True
        """Whether no machine's clock was ever wrong."""
        self._universe: Universe = network.universe
        self._network = network
        self._cluster = cluster
        self._replicas = replicas
        self._kill = kill
        self._say = say
        rng = self._universe.rng
        self._pace = rng.choice((4.0, 10.0, 20.0, 60.0))
        clocks = rng.random() < 0.3
        # Of some kinds nothing in this history, so that others are seen alone.
        kinds = sorted({*_KINDS, *(["clock"] if clocks else [])})
        kept = [kind for kind in kinds if rng.random() < 0.75] or kinds
        self._kinds = [kind for kind in (*_KINDS, "clock") if kind in kept]
        self._stalks = rng.random() < 0.3
        """Whether one ambush follows the other."""
        self._ambush = "crash" if self._stalks else ""

    async def run(self) -> None:
        """Strikes until it is over."""
        rng = self._universe.rng
        while True:
            await asyncio.sleep(rng.expovariate(1 / self._pace))
            if self.over:
                return
            kind = rng.choice(self._kinds)
            replicas = self._replicas()
            replica = rng.choice(replicas) if replicas else None
            if rng.random() < 0.5:
                replica = next((each for each in replicas if each.leads), replica)
            if kind == "weather":
                self._network.weather = Weather.draw(rng)
                self._say("weather", str(self._network.weather))
            elif kind == "compaction":
                self._say("etcd", "compacted")
                self._network.api.compact()
            elif kind == "apiserver restart":
                self._restart()
            elif kind == "ambush":
                self._ambush = rng.choice(_AMBUSHES)
                continue
            elif replica is not None:
                self.strike(kind, replica)
            self._universe.tally[f"fault: {kind}"] += 1

    def written(self, plural: str, old: Json | None, new: Json | None, who: str) -> None:
        """A write has reached the apiserver; its answer has not left yet."""
        if not self._ambush or plural != "gpuclaims" or old is None or new is None or self.over:
            return
        places = [each.get("status", {}).get("nodeName") for each in (old, new)]
        moved = places[0] is not None and places[0] != places[1]
        split = moved and self._cluster.set_is_split(new)
        replica = next((each for each in self._replicas() if each.name == who), None)
        # Where half of a set has moved, above all; right after any other move or write now and then.
        if replica is None or not (split or self._universe.rng.random() < (0.1 if moved else 0.01)):
            return
        kind, self._ambush = self._ambush, self._universe.rng.choice(_AMBUSHES) if self._stalks else ""
        what = "half a set's move" if split else "a move" if moved else "a write"
        self._universe.tally[f"fault: {kind} right after {what}"] += 1
        self.strike(kind, replica)

    def strike(self, kind: str, replica: Replica) -> None:
        """One replica is struck."""
        rng, now = self._universe.rng, self._universe.clock.now
        if kind == "crash":
            # Between any two callbacks of its loop, that is at any await.
            self._kill(replica)
        elif kind == "pause":
            length = rng.choice((0.5, 4, 9, 16, 40)) * rng.uniform(0.8, 1.2)
            self._say(replica.name, f"is paused for {length:.1f} s")
            replica.loop.paused_until = now + length
        elif kind == "cut":
            length = rng.uniform(0.5, 40)
            self._say(replica.name, f"is cut off for {length:.1f} s")
            replica.wire.cut_until = now + length
            replica.wire.break_watches()
        elif kind == "watches":
            self._say(replica.name, "watches break")
            replica.wire.break_watches()
        else:
            self.truthful_clocks = False
            replica.offset = dt.timedelta(seconds=rng.choice((-3600, -100, -5, 0, 5, 100, 3600)) * rng.random())
            self._say(replica.name, f"its clock is wrong by {replica.offset}")

    def _restart(self) -> None:
        length = self._universe.rng.uniform(0.5, 12)
        self._say("apiserver", f"restarts, back in {length:.1f} s")
        self._network.down_until = self._universe.clock.now + length
        for replica in self._replicas():
            replica.wire.break_watches()

    def end(self) -> None:
        """A fair network, machines that run, clocks that are right."""
        self.over = True
        self._network.weather = Weather()
        self._network.down_until = 0.0
        for replica in self._replicas():
            replica.loop.paused_until = 0.0
            replica.wire.cut_until = 0.0
            replica.offset = dt.timedelta(0)
