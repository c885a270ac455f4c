"""The controller put together: informers, books, webhook, binder, lease."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import datetime as dt
import logging
import os
import socket
import urllib.parse
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Final, TypeAlias

import tenacity

from gpuclaim.admission import guard, server, webhooks
from gpuclaim.admission.certificates import Serving
from gpuclaim.admission.desk import Desk
from gpuclaim.admission.webhooks import Endpoint
from gpuclaim.api import core, names
from gpuclaim.api.types import GPUClaim, GPUClass
from gpuclaim.controller import endpoint as leader_endpoint
from gpuclaim.controller.binder import Binder
from gpuclaim.controller.bookkeeper import Bookkeeper
from gpuclaim.controller.machines import Machines
from gpuclaim.controller.mirror import KINDS, OPTIONAL, Mirror
from gpuclaim.controller.recorder import Recorder
from gpuclaim.controller.reporter import Reporter
from gpuclaim.controller.wallclock import WallClock
from gpuclaim.kube.client import ApiError, Client, UnreachableError
from gpuclaim.kube.config import Config
from gpuclaim.kube.informer import Informer
from gpuclaim.kube.lease import Elector, Timing, boottime
from gpuclaim.placement.books import Books, Settings

log = logging.getLogger(__name__)

_TICK_SECONDS: Final = 1.0
_LEARNT_ANEW: Final = (GPUClaim, core.Pod, core.VirtualMachine)
"""What a leader that is no more may have had stored a moment ago."""
_IN_FORCE_SECONDS: Final = 5.0
"""An apiserver takes a policy up within a second or two; until then a class is left to the policy about new ones."""


def default_identity() -> str:
    """A name for this process that no other has: host name and process id."""
    return f"{socket.gethostname()}-{os.getpid()}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ControllerConfig:
    """What the controller is told when it starts.

    Attributes:
        webhook_url: `https://HOST:PORT` by which the apiserver reaches this process; a port of 0 takes a free one.
        webhook_service: instead of an URL, the Service in front of all replicas: (namespace, name, port).
        address: this pod's IP address, to which the leader makes the Service lead; empty where the Service selects
            the replicas itself.
        show_counts: whether the catalogue says how many GPUs there are, or only whether there are any.
        evacuate_after: how long a node may be unfit before sets whose VMs are off leave it (R36).
        ledger: the URL of the usage ledger (`ledger.store.Ledger`); empty, there is none.
        listen: where the webhook listens; of an URL's own host and port by default.
    """

    webhook_url: str = ""
    webhook_service: tuple[str, str, int] | None = None
    address: str = ""
    listen: tuple[str, int] = ("0.0.0.0", 9443)  # noqa: S104 - in a pod, every address is the pod's
    show_counts: bool = False
    evacuate_after: dt.timedelta = dt.timedelta(minutes=1)
    lease_namespace: str = "default"
    lease_name: str = "gpuclaim-controller"
    ledger: str = ""
    identity: str = dataclasses.field(default_factory=default_identity)
    timing: Timing = dataclasses.field(default_factory=Timing)
    settings: Settings = dataclasses.field(default_factory=Settings)


@dataclasses.dataclass(frozen=True, slots=True)
class Served:
    """Where the apiserver asks, the port of that here, and the authority (PEM) by which it knows the answers."""

    endpoint: Endpoint
    port: int
    authority: bytes


Front: TypeAlias = Callable[
    [Mapping[str, server.Handler], Callable[[], str | None]], contextlib.AbstractAsyncContextManager[Served]
]
"""What brings the apiserver's questions to the handlers (by path) while its context is open; the second argument is
what `/readyz` tells."""


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
    ) -> None:
        """Sets up.

        Args:
            client: how the apiserver is reached.
            config: what the controller is told.
            now: the present moment, as this machine's clock has it; it may be wrong, and be set.
            clock: seconds that pass evenly, also while the machine sleeps; the lease is counted by it.
            front: how questions come here; by default over HTTPS, as `config` says.
        """
        self._front = front or self._https
        self._client = client
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
        self._bookkeeper = _bookkeeper(config.ledger) if config.ledger else None
        self._recorder = Recorder(client, config.identity, now=now, lease_left=self._may_write)
        self._binder = Binder(
            self.books,
            client,
            now=now,
            lease_left=self._may_write,
            grace=config.evacuate_after,
            say=self._recorder.say,
            bookkeeper=self._bookkeeper,
        )
        self._reporter = Reporter(self.books, client, now=now, lease_left=self._may_write, counts=config.show_counts)
        self._machines = Machines(
            self.books, client, now=now, lease_left=self._may_write, make_moves=self._binder.make_moves
        )
        self._prepared = False
        self._classes_changed = asyncio.Event()
        self._informers: dict[type, Informer[Any]] = {
            kind: Informer(
                client,
                kind,
                Mirror(
                    kind,
                    self.books,
                    self._binder,
                    self._reporter,
                    self._classes_changed.set,
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
        """Why this replica is of no use now, as a sentence; one that follows and could take over is of use.

        Where a Service selects the replicas by their being ready, only the leader is.
        """
        selected = self._config.webhook_service is not None and not self._config.address
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

    async def run(self, ready: Callable[[], None] = lambda: None) -> None:
        """Runs until cancelled.

        Args:
            ready: called whenever this replica has begun to lead and its webhook is in place.

        Raises:
            PortInUseError: the webhook cannot listen.
        """
        desk = Desk(
            books=self.books,
            now=self._now,
            obstacle=self.obstacle,
            make_moves=self._binder.make_moves,
            being_refused=self._binder.being_refused,
            settled=self._binder.settled,
            machine_order=self._machines.order,
        )
        handlers = {
            webhooks.ORDERS_PATH: desk.order,
            webhooks.HOLDS_PATH: desk.hold,
            webhooks.PODS_PATH: desk.pod,
            webhooks.MACHINES_PATH: desk.fill_machine,
            webhooks.MACHINE_ORDERS_PATH: desk.order_of_machine,
        }
        async with self._front(handlers, self.unready) as served, asyncio.TaskGroup() as group:
            for informer in self._informers.values():
                group.create_task(informer.run())
            group.create_task(self._tick())
            for informer in self._informers.values():
                await informer.synced.wait()
            log.info("read everything; campaigning for the lease as %s", self._config.identity)
            await self._elector.run(lambda: self._lead(served, ready))

    @contextlib.asynccontextmanager
    async def _https(
        self, handlers: Mapping[str, server.Handler], unready: Callable[[], str | None]
    ) -> AsyncIterator[Served]:
        url = urllib.parse.urlsplit(self._config.webhook_url)
        host, port = (url.hostname, url.port or 0) if url.hostname else self._config.listen
        serving = Serving.self_made(_hosts(self._config))
        async with server.serve(host, port, serving.context(), handlers, unready) as actual:
            named = f"[{host}]" if ":" in host else host
            endpoint = Endpoint(
                url=f"https://{named}:{actual}" if url.hostname else "", service=self._config.webhook_service
            )
            yield Served(endpoint, actual, serving.authority)

    async def _lead(self, served: Served, ready: Callable[[], None]) -> None:
        try:
            # The last leader's latest writes may still be on their way to us.
            await asyncio.gather(*(self._informers[kind].resync() for kind in _LEARNT_ANEW))
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
                group.create_task(self._keep_webhooks(served, ready))
        finally:
            self._prepared = False

    async def _keep_webhooks(self, served: Served, ready: Callable[[], None]) -> None:
        """Writes the guard and the webhook configurations, and again whenever pods ask for classes by other names."""
        endpoint = served.endpoint
        written: list[dict[str, Any]] = []
        owner: dict[str, Any] = {}
        in_force = 0.0
        clock = asyncio.get_running_loop().time
        trying = tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception_type((ApiError, UnreachableError)),
            wait=tenacity.wait_random_exponential(multiplier=0.2, max=10),
            before_sleep=tenacity.before_sleep_log(log, logging.WARNING),
        )
        while True:
            self._classes_changed.clear()
            asked, exempt = self.books.resource_names, self._config.settings.exempt_namespaces
            # The guard first: pods of no set are its alone.
            wanted = [
                *guard.policies(asked, exempt, owner),
                *webhooks.configurations(endpoint, served.authority, asked, exempt),
            ]
            changed = [configuration for configuration in wanted if configuration not in written]
            if endpoint.service is not None and self._config.address:
                await trying(
                    leader_endpoint.lead_here, self._client, endpoint.service, self._config.address, served.port
                )
            stored: list[dict[str, Any]] = [
                await trying(self._client.apply, configuration, manager="gpuclaim-controller")
                for configuration in changed
            ]
            if not written:
                log.info("takes orders")
                ready()
            if changed:
                written, in_force = wanted, clock() + _IN_FORCE_SECONDS
            if not owner:
                # The policies go with the webhooks, and these with the chart's release: left alone they would refuse
                # every pod with GPUs for ever.
                owner = guard.owner(next(each for each in stored if each["kind"] == "MutatingWebhookConfiguration"))
                continue
            try:
                async with asyncio.timeout_at(in_force or None):
                    await self._classes_changed.wait()
            except TimeoutError:
                in_force = 0.0 if await self._say_guarded() else clock() + _IN_FORCE_SECONDS

    async def _say_guarded(self) -> bool:
        """Labels the classes that the guard names now: the policy about new classes leaves them to it.

        Whether all that needed it have the label.
        """
        well = True
        for cls in [*self.books.classes.values()]:
            if names.GUARDED_LABEL not in cls.metadata.labels:
                label = {"metadata": {"labels": {names.GUARDED_LABEL: "true"}, "uid": cls.metadata.uid}}
                try:
                    await self._client.patch(GPUClass, cls.metadata.name, label)
                except (ApiError, UnreachableError) as error:
                    log.warning("the label of class %s: %s", cls.metadata.name, error)
                    well = False
        return well

    async def _tick(self) -> None:
        """What only time changes: reservations that ran out, nodes that fell silent."""
        while True:
            await asyncio.sleep(_TICK_SECONDS)
            before = self.books.revision
            self.books.expire(self._now())
            if self.books.revision != before:
                self._binder.room_changed()


def _bookkeeper(url: str) -> Bookkeeper:
    # Here and not above: 15 MiB that a controller without a ledger does without.
    from gpuclaim.ledger.store import Ledger

    return Bookkeeper(Ledger(url))


def _hosts(config: ControllerConfig) -> list[str]:
    if config.webhook_service is not None:
        namespace, name, _ = config.webhook_service
        return [f"{name}.{namespace}.svc", f"{name}.{namespace}.svc.cluster.local", f"{name}.{namespace}", name]
    host = urllib.parse.urlsplit(config.webhook_url).hostname
    return [host] if host else ["localhost", "127.0.0.1"]


async def run(api: Config, config: ControllerConfig, ready: Callable[[], None] = lambda: None) -> None:
    """Runs a controller against an apiserver until cancelled."""
    async with Client(api) as client:
        await Controller(client, config).run(ready)
