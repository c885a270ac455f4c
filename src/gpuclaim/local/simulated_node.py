"""A simulated GPU node: a Node object, hardware (a sysfs of files) and a kubelet. The agent on it is the real one.

What is simulated is what this machine lacks: GPUs, and a container runtime. The kubelet takes pods or turns them away
as the real one does (`simulated_kubelet`), gives them devices, says that their containers run, which do not exist, and
serves the pod-resources API. There are no logs, no exec and no network.

Faults can be made by the methods of `SimulatedNode`, or by hand by annotations of the Node (KEY- takes one away):

    # A GPU fails, as its device plugin sees it.
    kubectl annotate node gpu-1 simulated.gpu.cozystack.io/unhealthy=0000:18:00.0
    # Kubelet and agent die.
    kubectl annotate node gpu-1 simulated.gpu.cozystack.io/silent=true
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import datetime as dt
import logging
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from gpuclaim.agent import loop as agent
from gpuclaim.agent.values import PodDevices
from gpuclaim.api import core, model
from gpuclaim.api.types import GPUNode
from gpuclaim.kube import resources
from gpuclaim.kube.client import ApiError, Client, UnreachableError
from gpuclaim.kube.informer import Informer
from gpuclaim.local import offers, simulated_kubelet
from gpuclaim.local.offers import NodePlan
from gpuclaim.local.podresources_server import PodResourcesServer
from gpuclaim.local.simulated_kubelet import DeviceLedger, Pod, Rejection
from gpuclaim.local.sysfs_tree import SysfsTree

UNHEALTHY: Final = "simulated.gpu.cozystack.io/unhealthy"
"""The annotation of a Node that names GPUs that fail, by PCI address, comma-separated."""
SILENT: Final = "simulated.gpu.cozystack.io/silent"
"""The annotation of a Node that, while `true`, stops its kubelet and agent."""

PODS_OF_A_NODE: Final = 110
"""How many pods a node takes, as kubelet has it by default."""

_log: Final = logging.getLogger(__name__)
_STRATEGIC: Final = "application/strategic-merge-patch+json"
_LEASE_SECONDS: Final = 40
_HEARTBEAT_SECONDS: Final = 10.0
_RETRY_SECONDS: Final = 0.5
_SOCKET_PATH_MAX: Final = 107

resources.TYPED.setdefault(Pod, resources.TYPED[core.Pod])


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """What all simulated nodes of a cloud share.

    Attributes:
        labels: labels of every Node beside its own.
        devices: further extended resources of every Node, and how many of each, as `{"devices.kubevirt.io/kvm": 110}`.
        kubelet_version: what the Nodes say, as `v1.37.2`.
        agent_interval: seconds from one reading of the agent to the next.
        pci_ids: the agent's PCI ID database.
    """

    labels: Mapping[str, str] = dataclasses.field(default_factory=dict)
    devices: Mapping[str, int] = dataclasses.field(default_factory=dict)
    kubelet_version: str = "v1.37.0"
    agent_interval: float = 1.0
    pci_ids: Path | None = None


class SimulatedNode:
    """One node; `run` keeps it alive.

    Attributes:
        plan: its name and GPUs.
        ledger: its devices, and which pod has which.
        reported: set once the agent's report is stored.
    """

    def __init__(self, client: Client, plan: NodePlan, directory: Path, ground: Ground, *, number: int = 1) -> None:
        """Build its hardware in `directory`; no request is made yet.

        Args:
            client: an administrator's.
            plan: its name and GPUs.
            directory: a folder of its own, new; its path must leave room for a socket's.
            ground: what it shares with other nodes.
            number: tells its addresses from other nodes', 1 to 250.

        Raises:
            ValueError: the path of `directory` is too long for a unix socket.
        """
        self.plan = plan
        self.reported = asyncio.Event()
        self._client = client
        self._ground = ground
        self._address = f"10.{64 + number // 250}.{number % 250}"
        functions, self._served = offers.hardware(plan)
        directory.mkdir(parents=True)
        self._sysfs = SysfsTree(directory / "sys", functions)
        self._socket = directory / "kubelet.sock"
        if len(str(self._socket)) > _SOCKET_PATH_MAX:
            raise ValueError(f"{self._socket} is too long for a unix socket: at most {_SOCKET_PATH_MAX} characters")
        self._boot_id = directory / "boot_id"
        self._boot_id.write_text(f"{uuid.uuid4()}\n")
        gpus = [each for ids in self._served.values() for each in ids]
        others = {
            name: tuple(f"{name.rpartition('/')[2]}{n}" for n in range(count)) for name, count in ground.devices.items()
        }
        self.ledger = DeviceLedger({plan.offer.resource: tuple(gpus), **others})
        self._labels: Mapping[str, str] = {}
        self._server = PodResourcesServer(self._socket, self.ledger.allocatable)
        self._known: dict[tuple[str, str], Pod] = {}
        self._due: asyncio.Queue[tuple[str, str]] = asyncio.Queue()
        self._addresses = 0
        self._speaks = asyncio.Event()
        self._speaks.set()
        self._life: asyncio.Task[None] | None = None

    # --- faults ---------------------------------------------------------------------------------------------------

    async def set_unhealthy(self, addresses: Iterable[str]) -> None:
        """Make the GPUs at exactly these PCI addresses unhealthy, as their device plugin would call them."""
        ids = {each for address in addresses for each in self._served.get(address, ())}
        if self.ledger.set_unhealthy(ids):
            self._server.allocatable = self.ledger.allocatable
            with contextlib.suppress(ApiError, UnreachableError):
                await self._write_node()

    @property
    def speaks(self) -> bool:
        """Whether kubelet and agent are to run."""
        return self._speaks.is_set()

    def silence(self) -> None:
        """Kill kubelet and agent: no heartbeat, no report, pods are neither started nor ended."""
        self._speaks.clear()
        if self._life is not None:
            self._life.cancel()

    def speak(self) -> None:
        """Start kubelet and agent again after `silence`."""
        self._speaks.set()

    # --- life -----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Register the node and live until cancelled; requests that fail are repeated."""
        await self._retried(self._register)
        name = self.plan.name
        node = Informer(self._client, core.Node, _NodeReceiver(self), field_selector=f"metadata.name={name}")
        pods = Informer(self._client, Pod, _PodReceiver(self), field_selector=f"spec.nodeName={name}")
        async with asyncio.TaskGroup() as group:
            group.create_task(node.run())
            group.create_task(pods.run())
            while True:
                await self._speaks.wait()
                self._life = group.create_task(self._live())
                await asyncio.wait({self._life})

    async def _live(self) -> None:
        config = agent.AgentConfig(
            node=self.plan.name,
            sysfs=self._sysfs.root,
            pod_resources=self._socket,
            boot_id=self._boot_id,
            pci_ids=self._ground.pci_ids,
            interval=self._ground.agent_interval,
            settle=0.0,
        )
        # What was under way when the last life ended.
        for key in self._known:
            self._due.put_nowait(key)
        async with self._server, asyncio.TaskGroup() as group:
            group.create_task(self._beat())
            group.create_task(self._work())
            group.create_task(agent.run(config, self._client))
            group.create_task(self._await_report())

    async def _beat(self) -> None:
        await self._retried(self._write_node)
        while True:
            now = dt.datetime.now(dt.UTC)
            spec = {
                "holderIdentity": self.plan.name,
                "leaseDurationSeconds": _LEASE_SECONDS,
                "renewTime": now.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            }
            lease = {
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "metadata": {"name": self.plan.name, "namespace": "kube-node-lease"},
                "spec": spec,
            }
            await self._retried(lambda lease=lease: self._client.apply(lease, manager="kubelet"))
            await asyncio.sleep(_HEARTBEAT_SECONDS)

    async def _await_report(self) -> None:
        while not self.reported.is_set():
            with contextlib.suppress(ApiError, UnreachableError):
                found = await self._client.get(GPUNode, self.plan.name)
                if found.status.reported_at is not None:
                    self.reported.set()
                    return
            await asyncio.sleep(0.1)

    async def _register(self) -> None:
        labels = {
            "kubernetes.io/hostname": self.plan.name,
            "kubernetes.io/os": "linux",
            "kubernetes.io/arch": "amd64",
            **self._ground.labels,
        }
        node = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": self.plan.name, "labels": labels},
            "status": self._node_status(),
        }
        try:
            await self._client.request("POST", resources.resource_of(core.Node).path(), body=node)
        except ApiError as error:
            if error.code != 409:
                raise
        self._labels = labels

    async def _write_node(self) -> None:
        path = resources.resource_of(core.Node).path(name=self.plan.name, subresource="status")
        await self._client.request("PATCH", path, body={"status": self._node_status()}, content=_STRATEGIC)

    def _node_status(self) -> dict[str, Any]:
        base = {"cpu": "128", "memory": "1Ti", "ephemeral-storage": "1Ti", "pods": str(PODS_OF_A_NODE)}
        now = simulated_kubelet.stamp(dt.datetime.now(dt.UTC))
        ready = {
            "type": "Ready",
            "status": "True",
            "reason": "KubeletReady",
            "message": "this kubelet is simulated",
            "lastHeartbeatTime": now,
            "lastTransitionTime": now,
        }
        return {
            "capacity": base | {name: str(len(ids)) for name, ids in self.ledger.devices.items()},
            "allocatable": base | {name: str(len(ids)) for name, ids in self.ledger.allocatable.items()},
            "conditions": [ready],
            "addresses": [
                {"type": "InternalIP", "address": f"{self._address}.1"},
                {"type": "Hostname", "address": self.plan.name},
            ],
            "nodeInfo": {
                "architecture": "amd64",
                "bootID": self._boot_id.read_text().strip(),
                "containerRuntimeVersion": "simulated://1.0",
                "kernelVersion": "6.8.0",
                "kubeProxyVersion": "",
                "kubeletVersion": self._ground.kubelet_version,
                "machineID": self.plan.name,
                "operatingSystem": "linux",
                "osImage": "simulated by gpuclaim up",
                "systemUUID": self.plan.name,
            },
        }

    # --- pods -----------------------------------------------------------------------------------------------------

    def pod_changed(self, pod: Pod) -> None:
        """A pod that is bound here is new or has changed."""
        key = (pod.metadata.namespace, pod.metadata.name)
        self._known[key] = pod
        self._due.put_nowait(key)

    def pod_gone(self, namespace: str, name: str) -> None:
        """A pod is no more."""
        pod = self._known.pop((namespace, name), None)
        if pod is not None:
            self._take_back(pod)

    async def node_changed(self, node: core.Node) -> None:
        """Follow the labels and the faults that the Node's annotations ask for."""
        self._labels = node.metadata.labels
        addresses = node.metadata.annotations.get(UNHEALTHY, "")
        await self.set_unhealthy(each.strip() for each in addresses.split(","))
        if node.metadata.annotations.get(SILENT) != "true":
            self.speak()
        elif self.speaks:
            self.silence()

    async def _work(self) -> None:
        while True:
            key = await self._due.get()
            pod = self._known.get(key)
            if pod is None:
                continue
            try:
                await self._sync(pod)
            except (ApiError, UnreachableError) as error:
                if isinstance(error, ApiError) and error.code in {404, 409}:
                    continue  # gone, or changed: the informer tells
                _log.warning("%s: pod %s/%s: %s", self.plan.name, *key, error)
                asyncio.get_running_loop().call_later(_RETRY_SECONDS, self._due.put_nowait, key)

    async def _sync(self, pod: Pod) -> None:
        """Bring a pod one step on: taken or turned away, ready, ended."""
        now = dt.datetime.now(dt.UTC)
        final = pod.status.phase in model.FINAL_PHASES
        if pod.metadata.deletion_timestamp is not None:
            if not final:
                await self._write_pod(pod, simulated_kubelet.ended(pod, now))
            self._take_back(pod)
            body = {"gracePeriodSeconds": 0, "preconditions": {"uid": pod.metadata.uid}}
            await self._client.request("DELETE", _path(pod), body=body)
        elif final:
            self._take_back(pod)
        elif self.ledger.given(pod.metadata.uid) is None:
            await self._admit(pod, now)
        elif pod.status.phase == "Running" and simulated_kubelet.gates_open(pod) != simulated_kubelet.says_ready(pod):
            await self._write_pod(pod, {"conditions": [simulated_kubelet.ready(pod, now)]})

    async def _admit(self, pod: Pod, now: dt.datetime) -> None:
        rejection = simulated_kubelet.admit(pod, self.plan.name, self._labels, self.ledger)
        if isinstance(rejection, Rejection):
            with contextlib.suppress(ApiError, UnreachableError):
                await self._say(pod, rejection)
            await self._write_pod(pod, simulated_kubelet.rejected(rejection, now))
            return
        meta = pod.metadata
        self._server.pods.append(PodDevices(meta.namespace, meta.name, dict(self.ledger.given(meta.uid) or {})))
        self._addresses = self._addresses % 250 + 1
        host, address = f"{self._address}.1", f"{self._address}.{self._addresses + 1}"
        try:
            await self._write_pod(pod, simulated_kubelet.running(pod, now, host, address))
        except BaseException:
            self._take_back(pod)
            raise

    def _take_back(self, pod: Pod) -> None:
        self.ledger.take_back(pod.metadata.uid)
        meta = pod.metadata
        self._server.pods = [
            each for each in self._server.pods if (each.namespace, each.name) != (meta.namespace, meta.name)
        ]

    async def _write_pod(self, pod: Pod, status: Mapping[str, Any]) -> None:
        # The UID, so that a new pod of the name is not meant.
        body = {"metadata": {"uid": pod.metadata.uid}, "status": status}
        await self._client.request("PATCH", f"{_path(pod)}/status", body=body, content=_STRATEGIC)

    async def _say(self, pod: Pod, rejection: Rejection) -> None:
        meta = pod.metadata
        now = simulated_kubelet.stamp(dt.datetime.now(dt.UTC))
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"generateName": f"{meta.name}.", "namespace": meta.namespace},
            "involvedObject": {
                "apiVersion": "v1",
                "kind": "Pod",
                "namespace": meta.namespace,
                "name": meta.name,
                "uid": meta.uid,
            },
            "type": "Warning",
            "reason": rejection.reason,
            "message": rejection.message,
            "source": {"component": "kubelet", "host": self.plan.name},
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
        await self._client.request("POST", f"/api/v1/namespaces/{meta.namespace}/events", body=event)

    async def _retried(self, request: Any) -> None:  # noqa: ANN401 - any coroutine function without arguments
        while True:
            try:
                await request()
            except (ApiError, UnreachableError) as error:
                _log.info("%s: %s; trying again", self.plan.name, error)
                await asyncio.sleep(_RETRY_SECONDS)
            else:
                return


class _PodReceiver:
    def __init__(self, node: SimulatedNode) -> None:
        self._node = node

    def changed(self, obj: Pod) -> None:
        self._node.pod_changed(obj)

    def gone(self, namespace: str, name: str) -> None:
        self._node.pod_gone(namespace, name)


class _NodeReceiver:
    def __init__(self, node: SimulatedNode) -> None:
        self._node = node
        self._tasks: set[asyncio.Task[None]] = set()

    def changed(self, obj: core.Node) -> None:
        task = asyncio.ensure_future(self._node.node_changed(obj))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def gone(self, namespace: str, name: str) -> None:
        """Nobody takes a simulated node away but its end."""


def _path(pod: Pod) -> str:
    return resources.resource_of(Pod).path(pod.metadata.namespace, pod.metadata.name)
