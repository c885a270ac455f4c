"""Controllers as processes of their own, that a test may kill and stop; and a burst of orders against them."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path

from gpuclaim.api.types import GPUClaim
from gpuclaim.kube.client import ApiError, Client, UnreachableError
from gpuclaim.kube.resources import Lease

from . import cloud

LEASE_SECONDS = 3
_AT_ONCE = 48


@dataclasses.dataclass
class Replica:
    """One `gpuclaim controller`; `ready` is set once it leads and takes orders."""

    identity: str
    process: asyncio.subprocess.Process
    log: Path
    ready: asyncio.Event

    def signal(self, number: signal.Signals) -> None:
        """Sends it a signal."""
        os.kill(self.process.pid, number)


@contextlib.asynccontextmanager
async def running(kubeconfig: Path, folder: Path, count: int = 3) -> AsyncIterator[dict[str, Replica]]:
    """That many controllers by identity, one of which takes orders."""
    replicas: dict[str, Replica] = {}
    readers: list[asyncio.Task[None]] = []
    try:
        for number in range(count):
            replica = await _start(kubeconfig, folder, f"replica-{number}")
            replicas[replica.identity] = replica
            readers.append(asyncio.create_task(_read(replica)))
        await first_ready(replicas.values())
        yield replicas
    finally:
        for replica in replicas.values():
            if replica.process.returncode is None:
                replica.process.kill()
                await replica.process.wait()
        await asyncio.gather(*readers)


@contextlib.asynccontextmanager
async def one(kubeconfig: Path, folder: Path, identity: str, source: Path | None = None) -> AsyncIterator[Replica]:
    """One controller, of the sources in that folder or else of these; it is ended at the end, if it runs still."""
    replica = await _start(kubeconfig, folder, identity, source)
    reader = asyncio.create_task(_read(replica))
    try:
        yield replica
    finally:
        with contextlib.suppress(ProcessLookupError):
            replica.process.kill()
        await replica.process.wait()
        await reader


async def _start(kubeconfig: Path, folder: Path, identity: str, source: Path | None = None) -> Replica:
    command = [sys.executable, "-m", "gpuclaim", "controller", "--kubeconfig", str(kubeconfig)]
    command += ["--webhook-url", "https://127.0.0.1:0", "--lease-duration", str(LEASE_SECONDS), "--identity", identity]
    file = folder / f"{identity}.log"
    with file.open("wb") as log:
        environment = os.environ | ({"PYTHONPATH": str(source)} if source is not None else {})
        process = await asyncio.create_subprocess_exec(
            *command, stdout=asyncio.subprocess.PIPE, stderr=log, env=environment
        )
    return Replica(identity, process, file, asyncio.Event())


async def _read(replica: Replica) -> None:
    assert replica.process.stdout is not None
    async for line in replica.process.stdout:
        if line == b"ready\n":
            replica.ready.set()


async def first_ready(replicas: Iterable[Replica]) -> None:
    """Returns once one of them has begun to take orders."""
    waiting = [asyncio.ensure_future(replica.ready.wait()) for replica in replicas]
    done, rest = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED, timeout=60)
    for each in rest:
        each.cancel()
    assert done, "no controller took orders within a minute"


async def leader(client: Client, *, other_than: str = "") -> str:
    """The identity of the one that holds the lease, once that is another than the one named."""
    found = await cloud.until(
        client,
        Lease,
        "gpuclaim-controller",
        "default",
        lambda lease: lease.spec.holder_identity not in (None, "", other_than),
    )
    return str(found.spec.holder_identity)


@dataclasses.dataclass
class Burst:
    """Orders placed many at once, each again until it is answered: taken, or refused for a reason of ours.

    Attributes:
        taken: the names of orders that were taken.
        refused: name → reason.
        troubles: what was said of attempts that got no answer; whoever ordered had to try again.
    """

    client: Client
    again: Callable[[ApiError], bool]
    taken: set[str] = dataclasses.field(default_factory=set)
    refused: dict[str, str] = dataclasses.field(default_factory=dict)
    troubles: list[str] = dataclasses.field(default_factory=list)
    _progress: asyncio.Condition = dataclasses.field(default_factory=asyncio.Condition)
    _free: asyncio.Semaphore = dataclasses.field(default_factory=lambda: asyncio.Semaphore(_AT_ONCE))

    async def place(self, orders: Iterable[GPUClaim]) -> None:
        """Returns once every order is answered."""
        async with asyncio.timeout(180), asyncio.TaskGroup() as group:
            for order in orders:
                group.create_task(self._place(order))

    async def until_answered(self, count: int) -> None:
        """Returns once so many orders are answered."""
        async with self._progress:
            await self._progress.wait_for(lambda: len(self.taken) + len(self.refused) >= count)

    async def _stored(self, order: GPUClaim) -> bool:
        """Whether an attempt without an answer was taken: then another of the same name may well be refused."""
        try:
            await self.client.get(GPUClaim, order.metadata.name, order.metadata.namespace)
        except ApiError as error:
            if error.code == 404:
                return False
            raise
        return True

    async def _place(self, order: GPUClaim) -> None:
        name = order.metadata.name
        doubtful = False
        async with self._free:
            while True:
                try:
                    await self.client.create(order)
                    self.taken.add(name)
                except UnreachableError as error:
                    doubtful = True
                    self.troubles.append(str(error))
                except ApiError as error:
                    if error.reason == "AlreadyExists":
                        # An attempt whose answer was lost had been taken.
                        self.taken.add(name)
                    elif self.again(error):
                        self.troubles.append(str(error))
                    elif doubtful and await self._stored(order):
                        self.taken.add(name)
                    else:
                        self.refused[name] = error.reason
                if name in self.taken or name in self.refused:
                    break
                await asyncio.sleep(0.1)  # as whoever orders would: not at once again
        async with self._progress:
            self._progress.notify_all()
