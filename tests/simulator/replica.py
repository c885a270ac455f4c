"""A process of the controller: its own loop, wall clock, client and memory; it can be killed, paused and cut off."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import traceback
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Final, TypeAlias

from gpuclaim.admission import review
from gpuclaim.admission.server import Handler
from gpuclaim.admission.webhooks import Endpoint
from gpuclaim.controller.app import Controller, ControllerConfig
from gpuclaim.controller.front import HttpsConfig, Published, Served, Unready
from gpuclaim.controller.registration import Here
from gpuclaim.kube.lease import Timing
from gpuclaim.placement.books import Settings
from simulator.apiserver import EPOCH
from simulator.cluster import FOREIGN
from simulator.database import Database
from simulator.loop import VirtualLoop
from simulator.network import Network, SimulatedClient, Wire

Make: TypeAlias = Callable[..., Controller]
TIMING: Final = Timing(duration=15, retry=2, margin=5)
SETTINGS: Final = Settings(silent_after=dt.timedelta(seconds=45), exempt_namespaces=frozenset({FOREIGN}))
EVACUATE_AFTER: Final = dt.timedelta(seconds=15)
"""Sooner than by default: a history is short."""


class Replica:
    """One process, from its start to its death."""

    def __init__(self, network: Network, name: str, database: Database, make: Make = Controller) -> None:
        universe = network.universe
        self.name = name
        self.loop: VirtualLoop = universe.loop(name)
        self.offset = dt.timedelta(0)
        """By how much this machine's clock is wrong."""
        self.ended: str | None = None
        """How the process ended by itself, which it must not."""
        self._network = network
        self.wire = Wire(network, self.loop, name)
        started = universe.rng.uniform(0, 1e6)  # every machine counts from its own start
        config = ControllerConfig(
            https=HttpsConfig(service=("gpuclaim", "controller", 443)),
            identity=name,
            timing=TIMING,
            show_counts=True,
            settings=SETTINGS,
            evacuate_after=EVACUATE_AFTER,
        )
        self.handlers: Mapping[str, Handler] = {}
        # asyncio's primitives bind to a loop when first waited on: the controller is made inside it.
        self.controller: Controller | None = None

        async def live() -> None:
            self.controller = make(
                SimulatedClient(self.wire),
                config,
                now=self.now,
                clock=lambda: started + universe.clock.now,
                front=self._front,
                ledger=database,
            )
            await self.controller.run()

        self.task = self.loop.create_task(live())
        self.task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            error = task.exception()
            self._network.universe.halt()
            self.ended = "returned" if error is None else "".join(traceback.format_exception(error))

    def now(self) -> dt.datetime:
        """What this machine's clock says."""
        return EPOCH + dt.timedelta(seconds=self._network.universe.clock.now) + self.offset

    @contextlib.asynccontextmanager
    async def _front(
        self, handlers: Mapping[str, Handler], _unready: Unready, _published: Published
    ) -> AsyncIterator[Served]:
        self.handlers = handlers
        yield Served(Here(Endpoint(service=("gpuclaim", "controller", 443)), "", 443), lambda: b"authority")

    @property
    def leads(self) -> bool:
        """Whether it says that it may decide now."""
        return self.controller is not None and self.controller.obstacle() is None

    @property
    def holds_lease(self) -> bool:
        """Whether it takes itself for the leader."""
        return self.controller is not None and self.controller._elector.leads()

    @property
    def in_term(self) -> bool:
        """Whether what only a leader does still goes on in it, though it may have lost the lease."""
        return self.controller is not None and self.controller._prepared

    def ask(self, path: str, request: review.Request, answer: Callable[[review.Response | Exception], None]) -> None:
        """A question arrives; `answer` is called with what the handler says, if it ever says anything."""

        async def handle() -> None:
            try:
                response: review.Response | Exception = await self.handlers[path](request)
            except Exception as error:  # noqa: BLE001 - an HTTP server answers 500
                response = error
            answer(response)

        if path in self.handlers:
            self.loop.create_task(handle())
        else:
            answer(ConnectionRefusedError("nobody listens"))
