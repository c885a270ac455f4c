"""The running agent: reads, and writes when the report changed or its time has come (R14, R28).

What it reads and where it writes are given to it, and so are clock and chance: tests drive it without waiting.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import datetime as dt
import logging
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol

from gpuclaim.agent import http, pciids
from gpuclaim.agent.machine import READ_ERRORS, KubeletRun, Machine, Reading
from gpuclaim.agent.podresources import DEFAULT_SOCKET, DEVICE_PLUGINS
from gpuclaim.agent.pulse import Problem, Pulse, Result
from gpuclaim.agent.registry import Registry, RegistryError
from gpuclaim.agent.report import Phases, loses, needs_phases, report, same_boot, says_the_same, without_gone
from gpuclaim.agent.sysfs import BOOT_ID
from gpuclaim.api.model import FINAL_PHASES
from gpuclaim.api.types import GPUNodeStatus
from gpuclaim.kube.client import Client

_log: Final = logging.getLogger(__name__)

_WATCH_SECONDS: Final = 1.0
"""How often to look whether kubelet's socket is a new one."""
_SETTLING_SECONDS: Final = 2.0
"""How often to read while plugins register."""
_STIR_SECONDS: Final = 10.0
"""For so long after a plugin came or went there may be more to read: it registers after it has made its socket."""
_BACKOFF_FIRST: Final = 1.0
_BACKOFF_MAX: Final = 60.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class AgentConfig:
    """How one node's agent runs; times are in seconds.

    Attributes:
        node: the Node's name.
        sysfs: the root of its sysfs.
        pod_resources: kubelet's socket.
        device_plugins: the folder of the plugins' sockets; where it is in sight, a change in it is read at once.
        boot_id: the file with the ID of the boot.
        pci_ids: a PCI ID database for model names; None takes a well-known one, if any.
        interval: from one reading to the next.
        heartbeat: from one write to the next where nothing changes, at most; spread over its last fifth.
        phases_every: how old the phases of pods may grow while kubelet's answer stays the same.
        settle: how long after a start of kubelet a loss of devices is not believed: until its plugins have registered
            again, kubelet calls every device unhealthy, and holds would be moved for nothing.
        timeout: for one answer of kubelet.
        pod_phases: whether to ask the apiserver for the phases of pods (R26); no kubelet of 1.34 or later needs it.
        listen: where to serve /healthz, /readyz and /metrics, as (host, port); None: nowhere.
    """

    node: str
    sysfs: Path = Path("/sys")
    pod_resources: Path = DEFAULT_SOCKET
    device_plugins: Path = DEVICE_PLUGINS
    boot_id: Path = BOOT_ID
    pci_ids: Path | None = None
    interval: float = 10.0
    heartbeat: float = 300.0
    phases_every: float = 30.0
    settle: float = 20.0
    timeout: float = 10.0
    pod_phases: bool = True
    listen: tuple[str, int] | None = None


class Source(Protocol):
    """What is read: `Machine`, or a stand-in of it."""

    async def read(self, *, afresh: bool = False) -> Reading:
        """Raises one of READ_ERRORS where a source cannot be read."""
        ...

    def kubelet(self) -> KubeletRun | None:
        """The run of kubelet that there is; None while there is none."""
        ...

    def plugins(self) -> int | None:
        """What changes when a device plugin comes or goes; None where that cannot be seen."""
        ...


class Store(Protocol):
    """Where the report goes: `Registry`, or a stand-in of it. All of it raises RegistryError."""

    async def stored(self) -> GPUNodeStatus | None:
        """The report of before."""
        ...

    async def phases(self) -> Phases:
        """The phases of the node's pods."""
        ...

    async def write(self, status: GPUNodeStatus) -> bool:
        """Stores a report; whether there was no GPUNode, and one was made."""
        ...


class Clock:
    """The real clock."""

    def monotonic(self) -> float:
        """Seconds since some moment."""
        return time.monotonic()

    def now(self) -> dt.datetime:
        """The time of day, in UTC."""
        return dt.datetime.now(dt.UTC)

    async def sleep(self, seconds: float) -> None:
        """Waits."""
        await asyncio.sleep(seconds)


class Agent:
    """One node's agent.

    Attributes:
        pulse: what it says of itself; it is kept up to date.
    """

    def __init__(
        self,
        config: AgentConfig,
        source: Source,
        store: Store,
        name_model: pciids.Model,
        *,
        clock: Clock | None = None,
        chance: Callable[[], float] = random.random,
    ) -> None:
        """Prepare; `chance` gives numbers from 0 to below 1, by which the agents of many nodes spread their writes."""
        self._config = config
        self._source = source
        self._store = store
        self._name_model = name_model
        self._clock = clock or Clock()
        self._chance = chance
        self._asked_before = False
        self._previous: GPUNodeStatus | None = None
        self._written: GPUNodeStatus | None = None
        self._write_due = 0.0
        self._kubelet: KubeletRun | None = None
        self._settled_at = 0.0
        self._plugins: int | None = None
        self._stirred_until = 0.0
        self._phases: Phases = {}
        self._phases_of: object = None
        self._phases_due = 0.0
        self._failures = 0
        self._said: dict[str, object] = {}
        self.pulse = Pulse(beat=self._clock.monotonic())

    async def run(self) -> None:
        """Runs until it is cancelled, whatever fails."""
        while True:
            await self._wait(await self.step())

    async def step(self) -> float:
        """One pass; how many seconds to wait before the next."""
        self.pulse.beat = self._clock.monotonic()
        try:
            if not self._asked_before:
                self._previous, self._asked_before = await self._store.stored(), True
            wait = await self._pass()
        except READ_ERRORS as error:
            # No word to the apiserver: the report of before stays, and grows old in sight (R28).
            self._say("reading", logging.WARNING, str(error))
            self.pulse.stands(Problem.READING, [str(error)])
            self.pulse.passes[Result.READING_FAILED] += 1
            return self._config.interval
        except RegistryError as error:
            self._say("writing", logging.WARNING, str(error))
            self.pulse.stands(Problem.WRITING, [str(error)])
            self.pulse.passes[Result.WRITING_FAILED] += 1
            self.pulse.write_errors += 1
            self._failures += 1
            longest = min(_BACKOFF_MAX, _BACKOFF_FIRST * 2.0 ** min(self._failures - 1, 16))
            return longest * (0.5 + self._chance() / 2)
        self._failures = 0
        self._said_no_more("reading")
        self._said_no_more("writing")
        self.pulse.stands(Problem.WRITING)
        return wait

    async def _pass(self) -> float:
        now = self._clock.monotonic()
        heartbeat = self._written is None or now >= self._write_due
        kubelet = self._source.kubelet()
        if kubelet is not None and kubelet != self._kubelet:
            self._settled_at = self._settles(kubelet, now)
            self._kubelet = kubelet
        plugins = self._source.plugins()
        if plugins != self._plugins and self._plugins is not None:
            self._stirred_until = now + _STIR_SECONDS
        self._plugins = plugins
        interval = min(_SETTLING_SECONDS, self._config.interval) if now < self._stirred_until else self._config.interval
        reading = await self._source.read(afresh=heartbeat)
        self.pulse.stands(Problem.READING)
        self.pulse.stands(Problem.FUNCTIONS, reading.functions.faults)
        self._say("functions", logging.WARNING, "; ".join(reading.functions.faults))
        phases = await self._phases_for(reading, now)
        status = report(
            reading.functions,
            reading.answers,
            phases,
            self._previous,
            boot_id=reading.boot_id,
            name_model=self._name_model,
            now=self._clock.now(),
        )
        self.pulse.read(status)
        if self._is_settling(status, now):
            self.pulse.passes[Result.SETTLING] += 1
            return min(_SETTLING_SECONDS, self._config.interval)
        self._previous = status
        result = Result.UNCHANGED
        if heartbeat or not says_the_same(self._written, status):
            # A write that fails may have been made all the same: then what is stored is not known.
            self._written = None
            made_anew = await self._store.write(status)
            self._written = status
            if made_anew:
                # Somebody deleted the GPUNode: the way to have the agent forget what is gone for good.
                self._previous = without_gone(status, reading.functions)
            self.pulse.ready, self.pulse.reported_at = True, self._clock.now().timestamp()
            result = Result.REPORTED
            self._write_due = now + self._config.heartbeat * (1 - self._chance() / 5)
        self.pulse.passes[result] += 1
        return interval

    def _settles(self, kubelet: KubeletRun, now: float) -> float:
        """When the plugins have had their time to register with a kubelet that is new, at least to this agent."""
        if self._kubelet is not None:
            return now + self._config.settle
        # Which may have started together with it, or before: only the socket can tell. A clock that was set back makes
        # it one of the future, which is young.
        age = max(0.0, self._clock.now().timestamp() - kubelet.made_ns / 1e9)
        return now + self._config.settle - age if age < self._config.settle else self._settled_at

    def _is_settling(self, status: GPUNodeStatus, now: float) -> bool:
        """Whether the report may say less than is there, since kubelet has just started."""
        before = self._previous
        if before is not None and not same_boot(before, status.boot_id) and not self._settled_at:
            self._settled_at = now + self._config.settle
        return now < self._settled_at and loses(before, status)

    async def _phases_for(self, reading: Reading, now: float) -> Phases:
        if not self._config.pod_phases or not needs_phases(reading.functions, reading.answers):
            self._phases, self._phases_of = {}, None
            self.pulse.stands(Problem.PHASES)
        elif self._phases_of != reading.answers or now >= self._phases_due:
            try:
                phases = await self._store.phases()
            except RegistryError as error:
                # What was known stays; a pod that was not known counts as live.
                self._say("phases of pods", logging.WARNING, str(error))
                self.pulse.stands(Problem.PHASES, [str(error)])
            else:
                # One that had ended and is deleted has not come to life by that: kubelet is about to forget it.
                listed = {(pod.namespace, pod.name) for pod in reading.answers.pods}
                ended = {pod: phase for pod, phase in self._phases.items() if pod in listed and phase in FINAL_PHASES}
                self._phases = ended | dict(phases)
                self._phases_of, self._phases_due = reading.answers, now + self._config.phases_every
                self._said_no_more("phases of pods")
                self.pulse.stands(Problem.PHASES)
        return self._phases

    async def _wait(self, seconds: float) -> None:
        """Waits, but no longer than until kubelet has made its socket anew, or a device plugin has come or gone."""
        end = self._clock.monotonic() + seconds
        while (left := end - self._clock.monotonic()) > 0:
            await self._clock.sleep(min(left, _WATCH_SECONDS))
            self.pulse.beat = self._clock.monotonic()
            kubelet = self._source.kubelet()
            if self._failures:
                continue
            if kubelet is not None and (kubelet != self._kubelet or self._source.plugins() != self._plugins):
                return

    def _say(self, topic: str, level: int, message: str) -> None:
        """Says something once, and again only after something else."""
        if message and self._said.get(topic) != message:
            _log.log(level, "%s: %s", self._config.node, message)
        self._said[topic] = message

    def _said_no_more(self, topic: str) -> None:
        if self._said.pop(topic, None):
            _log.info("%s: %s works again", self._config.node, topic)


async def run(config: AgentConfig, client: Client) -> None:
    """Runs one node's agent until it is cancelled; several may run in one process.

    Raises:
        OSError: the PCI ID database that the config names cannot be read.
        ListenError: `listen` cannot be listened on.
    """
    name_model = pciids.load(config.pci_ids)
    with Machine(
        config.sysfs,
        config.pod_resources,
        boot_id=config.boot_id,
        device_plugins=config.device_plugins,
        timeout=config.timeout,
    ) as machine:
        clock = Clock()
        agent = Agent(config, machine, Registry(client, config.node), name_model, clock=clock)
        async with contextlib.AsyncExitStack() as stack:
            if config.listen is not None:
                port = await stack.enter_async_context(http.serving(config.listen, agent.pulse, clock.monotonic))
                _log.info("%s: serving /healthz, /readyz and /metrics on port %d", config.node, port)
            await agent.run()
