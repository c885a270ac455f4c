"""A whole cloud on this machine (R73): Kubernetes, KubeVirt, gpuclaim, and simulated nodes with GPUs."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import fcntl
import os
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from gpuclaim.api import core, crd
from gpuclaim.api.core import ObjectMeta
from gpuclaim.api.names import budget_key
from gpuclaim.api.types import GPUClaim, GPUClaimSpec
from gpuclaim.kube import config
from gpuclaim.kube.client import ApiError, Client, UnreachableError
from gpuclaim.local import kubevirt, offers, people
from gpuclaim.local.controlplane import CONTROLLERS, ControlPlane
from gpuclaim.local.offers import NodePlan
from gpuclaim.local.process import Process
from gpuclaim.local.simulated_node import PODS_OF_A_NODE, Ground, SimulatedNode

T = TypeVar("T")

TENANTS: Final = ("tenant-a", "tenant-b")
BUDGET: Final = 2
"""How many H200 the first tenant may hold; the second has no budget."""
NAMESPACE: Final = "gpuclaim-system"
"""Where the controller's Lease is."""

# Beside those that pods need: nodes that fall silent, and what a user tries to run pods with.
_CONTROLLERS: Final = (
    *CONTROLLERS,
    "deployment-controller",
    "job-controller",
    "node-lifecycle-controller",
    "pod-garbage-collector-controller",
    "replicaset-controller",
    "taint-eviction-controller",
)
_GUARD_SECONDS: Final = 0.5
_PROGRAMS: Final = ("gpuclaim", "kubectl-gpu", "kubectl_complete-gpu")
_SETTLE_SECONDS: Final = 30.0
_POLL_SECONDS: Final = 0.05
_SOCKET_ROOM: Final = 60  # of the 107 bytes of a socket's path, what a node's name and file take


class CloudError(Exception):
    """The cloud cannot be started, or a part of it failed; the message is a sentence for people."""


def examples_dir() -> Path:
    """Return the folder of the manifests to try: in an installed package beside its modules, in a checkout at its root.

    Raises:
        CloudError: neither is there, so the package was built without them.
    """
    package = Path(__file__).resolve().parents[1]
    for candidate in (package / "_examples", package.parents[1] / "examples"):
        if (candidate / "order.yaml").is_file():
            return candidate
    raise CloudError("the manifests of examples/ are missing from this installation of gpuclaim: reinstall it.")


def shown(path: Path) -> str:
    """The path as one would type it into a shell, in whatever folder: from the home folder where it is in there."""
    if path.is_relative_to(Path.home()):
        return f"~/{shlex.quote(str(path.relative_to(Path.home())))}"
    return shlex.quote(str(path))


@dataclasses.dataclass(frozen=True, slots=True)
class Stage:
    """A part of the start-up that is done, and how many seconds it took."""

    name: str
    seconds: float


@contextlib.contextmanager
def run_folder(directory: Path) -> Iterator[Path]:
    """Hold the run folder alone among all processes, emptied of what an earlier run left.

    Raises:
        CloudError: another process holds it, it cannot be written, or something else than a run is in it.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if not (directory / "lock").exists() and any(directory.iterdir()):
            raise CloudError(f"{directory} is not empty, and no run folder of gpuclaim up: name a new folder.")
        lock = (directory / "lock").open("a+")
    except OSError as error:
        raise CloudError(f"the run folder {directory} cannot be used: {error.strerror}.") from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            raise CloudError(
                f"gpuclaim up runs already (process {lock.read().strip() or 'unknown'}): use it with"
                f" KUBECONFIG={directory / 'kubeconfig'}, end it with Ctrl-C there, or start another one beside it"
                f" with --directory."
            ) from None
        for left in directory.iterdir():
            if left.is_dir() and not left.is_symlink():
                shutil.rmtree(left)
            elif left.name != "lock":
                left.unlink()
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        yield directory


class Cloud:
    """Everything that stands; made by `running`.

    Attributes:
        client: the administrator's client, open.
        control_plane: Kubernetes; its processes include the others' too.
        nodes: the simulated nodes.
        link: the link that lets the next browser into the page.
    """

    def __init__(
        self,
        control_plane: ControlPlane,
        plans: Sequence[NodePlan],
        sockets: Path,
        done: Callable[[Stage], None],
        linked: Callable[[str], None],
    ) -> None:
        """Prepare; nothing starts yet.

        Args:
            control_plane: not started; its folder is the run folder.
            plans: the nodes.
            sockets: a folder for the nodes, whose path is short enough for unix sockets in it.
            done: told of each stage that is done.
            linked: told of each link into the page.
        """
        self.control_plane = control_plane
        self.plans = tuple(plans)
        self.nodes: list[SimulatedNode] = []
        self.link = ""
        self._sockets = sockets
        self._done = done
        self._linked = linked
        self._client: Client | None = None
        self._version = ""
        self._pending: set[asyncio.Future[Any]] = set()
        self._guarded: list[Process] = []
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def client(self) -> Client:
        """The administrator's client."""
        assert self._client is not None, "not started"
        return self._client

    @property
    def version(self) -> str:
        """Kubernetes' version, as `v1.37.2`."""
        assert self._version, "not started"
        return self._version

    @property
    def examples(self) -> Path:
        """Where the manifests to try are: the run folder's copies."""
        return self.control_plane.directory / "examples"

    @property
    def programs(self) -> Path:
        """A folder for PATH: kubectl of the cluster's version, and the programs of gpuclaim, as links."""
        return self.control_plane.directory / "bin"

    @property
    def ledger(self) -> str:
        """The URL of the usage ledger, a file in the run folder."""
        return f"sqlite:///{self.control_plane.directory / 'ledger.db'}"

    @property
    def kubectl(self) -> Path:
        """That kubectl."""
        return self.programs / "kubectl"

    async def start(self, group: asyncio.TaskGroup, opened: contextlib.AsyncExitStack) -> None:
        """Start everything; what goes on runs in `group`, what must be closed is pushed on `opened`.

        Raises:
            ProcessError: a component did not start; the message shows its log.
            CloudError: no order is taken in the end.
        """
        async with self._stage("etcd, apiserver, controllers"):
            await self._blocking(self.control_plane.start)
        self._guarded += self.control_plane.processes.values()
        self._tasks.append(group.create_task(self._guard()))
        self._client = await opened.enter_async_context(Client(config.load(self.control_plane.kubeconfig)))
        self._version = str(self.control_plane.rest.get("/version")["gitVersion"])
        self._link_programs()
        shutil.copytree(examples_dir(), self.examples)
        async with asyncio.TaskGroup() as parts:
            served = parts.create_task(self._serve_kinds())
            parts.create_task(self._start_kubevirt(group))
            parts.create_task(self._start_scheduler())
            parts.create_task(self._publish(served))
            parts.create_task(self._start_controller(served))
            parts.create_task(self._start_nodes(served, group))
        known = await people.contexts(self.client, self.control_plane.kubeconfig, TENANTS)
        await opened.enter_async_context(people.page(known, self._link))
        async with self._stage("a first order, tried"):
            for offer in {plan.offer.name: plan.offer for plan in self.plans}.values():
                await self._settled(lambda name=offer.name: self._try_order(name))  # type: ignore[misc]

    def _link(self, link: str) -> None:
        self.link = link
        self._linked(link)

    def let_go(self) -> None:
        """End what goes on in this process; the others run on."""
        for task in self._tasks:
            task.cancel()

    async def abandon(self) -> None:
        """Stop every process, also while `start` is under way still: what it waits for fails then."""
        while self._pending:
            for process in tuple(self.control_plane.processes.values()):
                process.kill()
            await asyncio.wait(self._pending, timeout=_POLL_SECONDS)
        await asyncio.to_thread(self.control_plane.stop)

    # --- the parts --------------------------------------------------------------------------------------------------

    async def _serve_kinds(self) -> None:
        await asyncio.gather(*(self._install(each) for each in crd.definitions()))

    async def _publish(self, served: Awaitable[None]) -> None:
        async with self._stage("catalogue and tenants"):
            names = (*TENANTS, NAMESPACE)
            spaces = [core.Namespace(metadata=ObjectMeta(name=each)) for each in names]
            await asyncio.gather(*map(self.client.create, spaces))
            meta = ObjectMeta(name="gpus", namespace=TENANTS[0])
            hard: dict[str, str | int] = {budget_key(offers.H200.name): str(BUDGET)}
            await self.client.create(core.ResourceQuota(metadata=meta, spec=core.ResourceQuotaSpec(hard=hard)))
            await served
            # The apiserver holds back the first object of a new kind for two seconds.
            classes = [offer.gpu_class() for offer in offers.CATALOGUE]
            await asyncio.gather(*(self._settled(lambda each=each: self.client.create(each)) for each in classes))  # type: ignore[misc]

    async def _install(self, definition: dict[str, Any]) -> None:
        await self.client.apply(definition)
        path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{definition['metadata']['name']}"
        while True:
            status = msgspec.json.decode(await self.client.request("GET", path)).get("status") or {}
            conditions = {each["type"]: each["status"] for each in status.get("conditions") or ()}
            if conditions.get("Established") == "True":
                return
            await asyncio.sleep(_POLL_SECONDS)

    async def _start_kubevirt(self, group: asyncio.TaskGroup) -> None:
        async with self._stage(f"KubeVirt {kubevirt.VERSION}"):
            resources = [offer.resource for offer in offers.CATALOGUE]
            started = await self._lasting(kubevirt.KubeVirt(self.control_plane, resources).start())
            self._guarded.append(started.process)
            self._tasks.append(group.create_task(kubevirt.VirtHandlerStandIn().run(self.client)))

    async def _start_scheduler(self) -> None:
        async with self._stage("scheduler"):
            self._guarded.append(await self._blocking(self.control_plane.start_scheduler))

    async def _start_controller(self, served: Awaitable[None]) -> None:
        await served
        async with self._stage("controller"):
            process = self.control_plane.process(
                "controller",
                [
                    *(sys.executable, "-m", "gpuclaim", "controller"),
                    f"--kubeconfig={self.control_plane.kubeconfig}",
                    "--webhook-url=https://127.0.0.1:0",
                    f"--lease-namespace={NAMESPACE}",
                    f"--ledger={self.ledger}",
                ],
            )
            await self._blocking(process.start)
            await self._blocking(lambda: process.wait_until(lambda: _has_line(process, "ready")))
            self._guarded.append(process)

    async def _start_nodes(self, served: Awaitable[None], group: asyncio.TaskGroup) -> None:
        await served
        count = len(self.plans)
        async with self._stage(f"{count} node{'' if count == 1 else 's'} and their agents"):
            names = self.control_plane.directory / "pci.ids"
            names.write_text(offers.pci_ids())
            ground = Ground(
                labels=kubevirt.NODE_LABELS,
                # No more than a node runs pods: the agent reads the whole list each time.
                devices={name: min(many, PODS_OF_A_NODE) for name, many in kubevirt.NODE_DEVICES.items()},
                kubelet_version=self.version,
                # A change shows within a second; many nodes in one process take turns.
                agent_interval=max(1.0, count / 20),
                pci_ids=names,
            )
            for number, plan in enumerate(self.plans, 1):
                node = SimulatedNode(self.client, plan, self._sockets / plan.name, ground, number=number)
                self.nodes.append(node)
                self._tasks.append(group.create_task(node.run()))
            await asyncio.gather(*(node.reported.wait() for node in self.nodes))

    async def _try_order(self, class_name: str) -> GPUClaim:
        meta = ObjectMeta(name="first-order", namespace=TENANTS[0])
        return await self.client.create(GPUClaim(metadata=meta, spec=GPUClaimSpec(class_name=class_name)), dry_run=True)

    async def _guard(self) -> None:
        """Raises ProcessError as soon as a component ends."""
        while True:
            for process in self._guarded:
                process.check()
            await asyncio.sleep(_GUARD_SECONDS)

    # --- how ----------------------------------------------------------------------------------------------------------

    def _link_programs(self) -> None:
        self.programs.mkdir(exist_ok=True)
        # The program goes by the name that it is called by.
        self.kubectl.symlink_to(self.control_plane.kubectl()[0])
        for name in _PROGRAMS:
            installed = Path(sys.executable).with_name(name)
            if installed.exists():
                (self.programs / name).symlink_to(installed)

    @contextlib.asynccontextmanager
    async def _stage(self, name: str) -> AsyncIterator[None]:
        began = time.monotonic()
        yield
        self._done(Stage(name, time.monotonic() - began))

    async def _blocking(self, call: Callable[[], T]) -> T:
        return await self._lasting(asyncio.to_thread(call))

    async def _lasting(self, work: Coroutine[Any, Any, T]) -> T:
        """Await what uses a thread: cancelled, it would go on there and start what nobody ends."""
        future = asyncio.ensure_future(work)
        self._pending.add(future)
        future.add_done_callback(self._pending.discard)
        return await asyncio.shield(future)

    async def _settled(self, request: Callable[[], Awaitable[object]]) -> None:
        """Make a request until it succeeds: what it needs may be on its way still.

        Raises:
            CloudError: it still fails after half a minute.
        """
        deadline = time.monotonic() + _SETTLE_SECONDS
        while True:
            try:
                await request()
            except (ApiError, UnreachableError) as error:
                if time.monotonic() > deadline:
                    raise CloudError(f"the cloud does not work: {error}") from error
                await asyncio.sleep(_POLL_SECONDS)
            else:
                return


@contextlib.asynccontextmanager
async def running(
    directory: Path,
    plans: Sequence[NodePlan],
    *,
    port: int = 0,
    done: Callable[[Stage], None],
    linked: Callable[[str], None] = lambda _: None,
) -> AsyncIterator[Cloud]:
    """A cloud that takes orders; while the block runs, the death of a component cancels it.

    Args:
        directory: the run folder, held by `run_folder`.
        plans: the nodes.
        port: the apiserver's port; a free one when 0.
        done: told of each stage of the start that is done.
        linked: told of each link into the page: the first while it starts, the next when one is used.

    Raises:
        ExceptionGroup: of ProcessError, CloudError, ToolchainError or BuildError: what failed.
    """
    control_plane = ControlPlane(directory, port=port, controllers=_CONTROLLERS)
    with _short_folder(directory / "nodes") as sockets:
        cloud = Cloud(control_plane, plans, sockets, done, linked)
        try:
            async with contextlib.AsyncExitStack() as opened, asyncio.TaskGroup() as group:
                await cloud.start(group, opened)
                yield cloud
                cloud.let_go()
        finally:
            await asyncio.shield(cloud.abandon())


@contextlib.contextmanager
def _short_folder(wanted: Path) -> Iterator[Path]:
    """The wanted folder, or a temporary one where its path leaves no room for a unix socket's."""
    if len(str(wanted)) <= _SOCKET_ROOM:
        yield wanted
        return
    with tempfile.TemporaryDirectory(prefix="gpuclaim-") as short:
        yield Path(short)


def _has_line(process: Process, line: str) -> bool:
    try:
        return line in process.log.read_text(errors="replace").splitlines()
    except FileNotFoundError:
        return False
