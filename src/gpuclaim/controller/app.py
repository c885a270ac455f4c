"""The controller put together: informers, books, webhook, binder, lease."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import datetime as dt
import functools
import gc
import logging
import os
import socket
from collections.abc import Callable
from typing import Any, Final

from gpuclaim.admission import webhooks
from gpuclaim.admission.desk import Desk
from gpuclaim.api import core, names
from gpuclaim.api.types import GPUClaim
from gpuclaim.controller import pages
from gpuclaim.controller.binder import Binder
from gpuclaim.controller.bookkeeper import Bookkeeper, Store
from gpuclaim.controller.claim_events import Said
from gpuclaim.controller.front import Front, HttpsConfig, Served, https
from gpuclaim.controller.machines import Machines
from gpuclaim.controller.mirror import KINDS, OPTIONAL, Mirror
from gpuclaim.controller.observer import Observer
from gpuclaim.controller.recorder import Recorder
from gpuclaim.controller.registration import Registration
from gpuclaim.controller.reporter import Reporter
from gpuclaim.controller.telemetry import Telemetry
from gpuclaim.controller.wallclock import WallClock
from gpuclaim.kube.client import Client
from gpuclaim.kube.config import Config
from gpuclaim.kube.informer import Informer
from gpuclaim.kube.lease import Elector, Timing, boottime
from gpuclaim.placement.books import Books, Settings

log = logging.getLogger(__name__)

_TICK_SECONDS: Final = 1.0
_LEARNT_ANEW: Final = (GPUClaim, core.Pod, core.VirtualMachine)
"""What a leader that is no more may have had stored a moment ago."""


def default_identity() -> str:
    """A name for this process that no other has: host name and process id."""
    return f"{socket.gethostname()}-{os.getpid()}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ControllerConfig:
    """What the controller is told when it starts.

    Attributes:
        https: where the webhook listens, and how it is known.
        show_counts: whether the catalogue says how many GPUs there are, or only whether there are any.
        evacuate_after: how long a node may be unfit before sets whose VMs are off leave it (R36).
        ledger: the URL of the usage ledger (`ledger.store.Ledger`); empty, there is none.
        metrics: where the page of metrics is served; nowhere when None.
        metrics_tenants: whether it tells of each tenant's budget.
    """

    https: HttpsConfig = dataclasses.field(default_factory=HttpsConfig)
    show_counts: bool = False
    evacuate_after: dt.timedelta = dt.timedelta(minutes=1)
    lease_namespace: str = "default"
    lease_name: str = "gpuclaim-controller"
    ledger: str = ""
    metrics: tuple[str, int] | None = None
    metrics_tenants: bool = False
    identity: str = dataclasses.field(default_factory=default_identity)
    timing: Timing = dataclasses.field(default_factory=Timing)
    settings: Settings = dataclasses.field(default_factory=Settings)


def _utc_now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)


class Controller:
    """One replica: it mirrors always, and decides and writes while it leads."""

    def __init__(
        self,
        client: Client,
        config: ControllerConfig,
        *,
        now: Callable[[], dt.datetime] = _utc_now,
        clock: Callable[[], float] = boottime,
        front: Front | None = None,
        ledger: Store | None = None,
    ) -> None:
        """Sets up.

        Args:
            client: how the apiserver is reached.
            config: what the controller is told.
            now: the present moment, as this machine's clock has it; it may be wrong, and be set.
            clock: seconds that pass evenly, also while the machine sleeps; the lease is counted by it.
            front: how questions come here; by default over HTTPS, as `config` says.
            ledger: where intervals of use are recorded; by default as `config` says.
        """
        self._front: Front = front or functools.partial(https, config.https)
        self._config = config
        self._now = now = WallClock(now, clock, self._clock_stepped)
        self.books = Books(config.settings)
        self._elector = Elector(
            client,
            config.lease_namespace,
            config.lease_name,
            config.identity,
            timing=config.timing,
            clock=clock,
            now=now,
        )
        self._telemetry = Telemetry()
        store = ledger or (_store(config.ledger) if config.ledger else None)
        self._bookkeeper = Bookkeeper(store) if store is not None else None
        self._recorder = Recorder(client, config.identity, now=now, lease_left=self._may_write)
        self._binder = Binder(
            self.books,
            client,
            now=now,
            lease_left=self._may_write,
            grace=config.evacuate_after,
            say=self._happened,
            bookkeeper=self._bookkeeper,
            confirmed=self._elector.confirmed,
        )
        self._reporter = Reporter(self.books, client, now=now, lease_left=self._may_write, counts=config.show_counts)
        self._machines = Machines(
            self.books, client, now=now, lease_left=self._may_write, make_moves=self._binder.make_moves
        )
        self._prepared = False
        self._registration = Registration(
            client, self.books, lease_left=self._may_write, lease=(config.lease_namespace, config.lease_name)
        )
        self._informers: dict[type, Informer[Any]] = {
            kind: Informer(
                client,
                kind,
                Mirror(
                    kind,
                    self.books,
                    self._binder,
                    self._reporter,
                    self._registration.changed,
                    self._machines,
                ),
                optional=kind in OPTIONAL,
            )
            for kind in KINDS
        }
        # KubeVirt may come later, and VMs that order nothing are none of our business.
        self._informers[core.VirtualMachine] = Informer(
            client,
            core.VirtualMachine,
            self._machines,
            label_selector=names.CLASS_LABEL,
            metadata_only=True,
            optional=True,
        )

        self._observer = Observer(
            telemetry=self._telemetry,
            books=self.books,
            now=now,
            clock=clock,
            leads=lambda: self._prepared and self._elector.leads(),
            ready=lambda: self.obstacle() is None,
            queues={"claims": self._binder.waiting, "vms": self._machines.waiting},
            current={kind.__name__: functools.partial(_current, each) for kind, each in self._informers.items()},
            waiting=self._bookkeeper.waiting if self._bookkeeper is not None else tuple,
            tenants=config.metrics_tenants,
        )

    def obstacle(self) -> str | None:
        """Why this replica may not decide now, as a sentence; None when it may."""
        if waiting := self._unread():
            return f"not ready: has not read every {', '.join(waiting)} yet"
        if lost := self._lost():
            return f"not ready: changes of {lost} do not come in"
        if not self._elector.leads():
            return "not ready: another replica leads"
        if not self._prepared:
            return "not ready: taking over"
        return None

    def unready(self) -> str | None:
        """Why this replica is of no use now, as `/readyz` says it; one that follows and could take over is of use.

        Where a Service selects the replicas by their being ready, only the leader is.
        """
        selected = self._config.https.service is not None and not self._config.https.address
        follows = not self._elector.leads() and not selected and not self._unread()
        return None if follows else self.obstacle()

    def _unread(self) -> list[str]:
        return [kind.__name__ for kind, informer in self._informers.items() if not informer.synced.is_set()]

    def _clock_stepped(self, step: dt.timedelta) -> None:
        log.warning("the clock was set by %s", step)
        self.books.clock_stepped(step)
        self._binder.clock_stepped(step)

    def _lost(self) -> str:
        """The kinds, as text, of which the books may have missed a change: no pod may be unknown to what decides."""
        return ", ".join(
            kind.__name__ for kind, informer in self._informers.items() if not informer.current and kind not in OPTIONAL
        )

    def _may_write(self) -> float:
        """For how many seconds from now on this replica may write what it has decided; 0 where it may not."""
        return 0.0 if self._lost() else self._elector.remaining()

    async def run(self, ready: Callable[[], None] = lambda: None, read: Callable[[], None] = lambda: None) -> None:
        """Runs until cancelled.

        Args:
            ready: called whenever this replica has begun to lead and its webhook is in place.
            read: called once, when everything that there is has been read.

        Raises:
            PortInUseError: the webhook, or the page of metrics, cannot listen.
            CertificateError: its certificate cannot be used.
        """
        desk = Desk(
            books=self.books,
            now=self._now,
            obstacle=self.obstacle,
            make_moves=self._binder.make_moves,
            being_refused=self._binder.being_refused,
            settled=self._binder.settled,
            machine_order=self._machines.order,
            gone=self._binder.gone,
            judged=self._telemetry.judged,
        )
        handlers = {
            webhooks.ORDERS_PATH: desk.order,
            webhooks.HOLDS_PATH: desk.hold,
            webhooks.PODS_PATH: desk.pod,
            webhooks.MACHINES_PATH: desk.fill_machine,
            webhooks.MACHINE_ORDERS_PATH: desk.order_of_machine,
        }
        timed = {path: self._telemetry.timed(path.strip("/"), handler) for path, handler in handlers.items()}
        front = self._front(timed, self.unready, self._registration.published)
        async with self._pages(), front as served, asyncio.TaskGroup() as group:
            self._observer.certificate_ends = served.certificate_ends
            for informer in self._informers.values():
                group.create_task(informer.run())
            group.create_task(self._tick())
            for informer in self._informers.values():
                await informer.synced.wait()
            read()
            log.info("read everything; campaigning for the lease as %s", self._config.identity)
            await self._elector.run(lambda: self._lead(served, ready))

    def _pages(self) -> contextlib.AbstractAsyncContextManager[object]:
        address = self._config.metrics
        return pages.serving(address, self._observer.page) if address is not None else contextlib.nullcontext()

    def _happened(self, claim: GPUClaim, said: list[Said]) -> None:
        self._telemetry.said(each.reason for each in said)
        self._recorder.say(claim, said)

    async def _lead(self, served: Served, ready: Callable[[], None]) -> None:
        try:
            # The last leader's latest writes may still be on their way to us.
            await asyncio.gather(*(self._informers[kind].catch_up() for kind in _LEARNT_ANEW))
            self._binder.begin(self._elector.term)
            # What was promised before what only waits.
            await self._machines.prepare()
            await self._binder.prepare()
            self._prepared = True
            async with asyncio.TaskGroup() as group:
                group.create_task(self._binder.run())
                group.create_task(self._machines.run())
                group.create_task(self._reporter.run())
                group.create_task(self._recorder.run())
                if self._bookkeeper is not None:
                    group.create_task(self._bookkeeper.run())
                group.create_task(self._registration.keep(served.here, served.bundle, ready))
        finally:
            self._prepared = False

    async def _tick(self) -> None:
        """What only time changes: reservations that ran out, nodes that fell silent."""
        time, seen = asyncio.get_running_loop().time, self.books.revision
        while True:
            due = time() + _TICK_SECONDS
            await asyncio.sleep(_TICK_SECONDS)
            self._observer.looked(time() - due)
            leads = self._elector.leads()
            self.books.expire(self._now(), binds=leads)
            if leads:
                self.books.advance(self._now())
                self._binder.sets_let_off(self.books.let_off())
            # Whoever asked the books meanwhile has found part of it.
            if self.books.revision != seen:
                seen = self.books.revision
                self._binder.room_changed()


def _current(informer: Informer[Any]) -> bool:
    return informer.current


def _store(url: str) -> Store:
    # Here and not above: 15 MiB that a controller without a ledger does without.
    from gpuclaim.ledger.store import Ledger

    return Ledger(url)


async def run(api: Config, config: ControllerConfig, ready: Callable[[], None] = lambda: None) -> None:
    """Runs a controller against an apiserver until cancelled; it has the process to itself."""
    # What is read at first stays, and nothing of it is a cycle: looking through it again and again while it grows, and
    # for ever after, would be most of what the collector does.
    gc.disable()

    def read() -> None:
        gc.freeze()
        gc.enable()

    async with Client(api) as client:
        await Controller(client, config).run(ready, read)
