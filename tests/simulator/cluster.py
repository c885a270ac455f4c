"""The rest of a cluster: nodes with kubelets and agents, the scheduler, tenants, the hoster."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import Callable
from typing import Any, Final

from gpuclaim.api import names
from simulator.admission import pinned_to
from simulator.apiserver import Apiserver, Json, RefusedError, shown
from simulator.loop import Universe

CLASSES: Final = {"h200": "nvidia.com/GH100_H200", "l40s": "nvidia.com/AD102GL_L40S"}
NAMESPACES: Final = {"tenant-a": (), "tenant-b": (), "tenant-a-inner": ("tenant-a",)}
_LOOK_SECONDS: Final = 0.5
_HEARTBEAT_SECONDS: Final = 60.0
_KUBE: Final = "kubernetes"


@dataclasses.dataclass
class Machine:
    """A node as it is; what others know of it comes from its kubelet and its agent."""

    name: str
    resource: str
    gpus: int
    broken: int = 0
    ready: bool = True
    boot: int = 1
    agent_silent_until: float = 0.0
    boot_reported_after: float = 0.0
    cordoned: bool = False
    rejects: float = 0.0
    reported_at: float = -1e9
    told: Any = None
    state: Any = None

    @property
    def healthy(self) -> int:
        """GPUs that work."""
        return self.gpus - self.broken


class Cluster:
    """Actors on the apiserver's side; what they ask is not disturbed."""

    def __init__(self, universe: Universe, api: Apiserver, say: Callable[[str, str], None]) -> None:
        self._say = say
        self.universe = universe
        self.api = api
        rng = universe.rng
        self.machines = {
            name: Machine(name, resource, rng.choice((1, 2, 4, 4, 8)))
            for name, resource in (
                (f"node-{n}", CLASSES["l40s"] if n % 4 == 2 else CLASSES["h200"]) for n in range(rng.randint(3, 6))
            )
        }
        self.quiet = False
        """No tenant or hoster does anything any more."""
        self.pace = rng.choice((0.2, 0.5, 1.5))
        self.asked = 0
        self.answered: dict[str, int] = {}
        self._numbers = 0

    async def ask(self, method: str, path: str, body: Any = None, content: str = "merge", **params: str) -> Json | None:
        """A request of somebody whose connection is good; None where it is refused."""
        loud = "/pods" in path or "/gpuclaims" in path or "/resourcequotas" in path
        name = body["metadata"]["name"] if method == "POST" else ""
        if loud and method == "POST":
            self._say(_KUBE, f"{method} {shown(path)}/{name} asked{' (dry run)' if params else ''}")
        try:
            stored = await self.api.handle(method, path, body, params, content, _KUBE)
        except RefusedError as refused:
            key = str(refused.body["reason"])
            self.answered[key] = self.answered.get(key, 0) + 1
            if loud:
                self._say(_KUBE, f"{method} {shown(path)}/{name}: {refused}")
            return None
        if loud:
            self._say(
                _KUBE, f"{method} {shown(path)}/{name}: rv {stored['metadata'].get('resourceVersion')} {_gist(stored)}"
            )
        return stored

    async def furnish(self) -> None:
        """What is there before anything happens."""
        rng = self.universe.rng
        for namespace, inside in NAMESPACES.items():
            labels = {f"tenant.cozystack.io/{outer}": "" for outer in inside}
            await self.ask("POST", "/api/v1/namespaces", {"metadata": {"name": namespace, "labels": labels}})
        for name, resource in CLASSES.items():
            spec: Json = {"mode": "passthrough", "source": {"devicePlugin": {"resourceName": resource}}}
            if rng.random() < 0.3:
                spec["maxCount"] = rng.randint(1, 4)
            await self.ask(
                "POST", "/apis/gpu.cozystack.io/v1alpha1/gpuclasses", {"metadata": {"name": name}, "spec": spec}
            )
        for machine in self.machines.values():
            await self.ask("POST", "/api/v1/nodes", {"metadata": {"name": machine.name}} | _node(machine))
            path = "/apis/gpu.cozystack.io/v1alpha1/gpunodes"
            await self.ask("POST", path, {"metadata": {"name": machine.name}, "spec": {}})
        for namespace in NAMESPACES:
            if rng.random() < 0.5:
                await self.set_quota(namespace)

    async def set_quota(self, namespace: str) -> None:
        """Another budget, of one class or of all."""
        rng = self.universe.rng
        key = names.budget_key(rng.choice([*CLASSES, names.TOTAL]))
        spec = {"hard": {key: str(rng.randint(1, 12))}}
        path = f"/api/v1/namespaces/{namespace}/resourcequotas"
        if self.api.find("resourcequotas", namespace, "gpu") is None:
            await self.ask("POST", path, {"metadata": {"name": "gpu"}, "spec": spec})
        elif rng.random() < 0.3:
            await self.ask("DELETE", f"{path}/gpu")
        else:
            await self.ask("PATCH", f"{path}/gpu", {"spec": {"hard": None}})
            await self.ask("PATCH", f"{path}/gpu", {"spec": spec})

    # --- nodes --------------------------------------------------------------------------------------------------------

    async def run_nodes(self) -> None:
        """Kubelets, agents and the scheduler, for ever."""
        while True:
            for machine in self.machines.values():
                await self._kubelet(machine)
                await self._agent(machine)
            for pod in self.api.all("pods"):
                await self._schedule(pod)
            await asyncio.sleep(_LOOK_SECONDS)

    async def _kubelet(self, machine: Machine) -> None:
        state = (machine.healthy, machine.ready, machine.boot, machine.cordoned)
        if state != machine.state and self.api.find("nodes", "", machine.name) is not None:
            machine.state = state
            await self.ask("PATCH", f"/api/v1/nodes/{machine.name}/status", {"status": _node(machine)["status"]})
            spec = {"spec": {"unschedulable": True if machine.cordoned else None}}
            await self.ask("PATCH", f"/api/v1/nodes/{machine.name}", spec)
        if not machine.ready:
            return
        for pod in self.api.all("pods"):
            if pod["spec"].get("nodeName") != machine.name:
                continue
            path = f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"
            if "deletionTimestamp" in pod["metadata"]:
                await self.ask("DELETE", path)
            elif pod.get("status", {}).get("phase") == "Pending":
                away = self.universe.rng.random() < machine.rejects
                short = self._asked_on(machine, running=True) + _gpus(pod) > machine.healthy
                status = (
                    {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "Allocate failed"}
                    if away or short
                    else {"phase": "Running"}
                )
                await self.ask("PATCH", f"{path}/status", {"status": status})

    def _asked_on(self, machine: Machine, *, running: bool = False) -> int:
        return sum(
            _gpus(pod)
            for pod in self.api.all("pods")
            if pod["spec"].get("nodeName") == machine.name
            and pod.get("status", {}).get("phase") in (("Running",) if running else ("Running", "Pending"))
        )

    async def _agent(self, machine: Machine) -> None:
        now = self.universe.clock.now
        if now < machine.agent_silent_until or not machine.ready:
            return
        users = [
            ({"namespace": pod["metadata"]["namespace"], "name": pod["metadata"]["name"]}, _gpus(pod))
            for pod in self.api.all("pods")
            if pod["spec"].get("nodeName") == machine.name and pod.get("status", {}).get("phase") == "Running"
        ]
        told = (machine.broken, machine.boot, str(users))
        if told == machine.told and now - machine.reported_at < _HEARTBEAT_SECONDS:
            return
        machine.told, machine.reported_at = told, now
        by_device = [user for user, count in users for _ in range(count)]
        devices = []
        for number in range(machine.gpus):
            used = by_device[number - machine.broken] if 0 <= number - machine.broken < len(by_device) else None
            healthy = number >= machine.broken
            devices.append(
                {
                    "address": f"0000:{16 + number:02x}:00.0",
                    "health": "Healthy" if healthy else "Unhealthy",
                    "resources": [
                        {"name": machine.resource, "allocatable": int(healthy), "used": int(used is not None)}
                    ],
                    "users": [used] if used else [],
                }
            )
        status = {
            "devices": devices,
            "resourceNames": [machine.resource],
            "bootID": f"boot-{machine.boot}",
            "reportedAt": self.api.now(),
        }
        path = f"/apis/gpu.cozystack.io/v1alpha1/gpunodes/{machine.name}/status"
        await self.ask("PATCH", path, {"status": status})

    async def _schedule(self, pod: Json) -> None:
        """The scheduler for a pod that waits; the end of one that never got to a node."""
        meta = pod["metadata"]
        path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"
        if pod["spec"].get("nodeName"):
            return
        if "deletionTimestamp" in meta:
            await self.ask("DELETE", path)
            return
        machine = self.machines.get(pinned_to(pod) or "")
        if machine is None or not machine.ready or machine.cordoned:
            return
        if self._asked_on(machine) + _gpus(pod) <= machine.healthy:
            await self.ask("PATCH", path, {"spec": {"nodeName": machine.name}})

    # --- people -------------------------------------------------------------------------------------------------------

    async def run_tenant(self, namespace: str) -> None:
        """Orders, releases, starts and stops, now and then many at once."""
        rng = self.universe.rng
        while True:
            await asyncio.sleep(rng.expovariate(1 / (self.pace * 4)))
            if self.quiet:
                return
            burst = rng.randint(2, 6) if rng.random() < 0.1 else 1
            async with asyncio.TaskGroup() as group:
                for _ in range(burst):
                    group.create_task(self._act(namespace))

    async def _act(self, namespace: str) -> None:
        rng = self.universe.rng
        claims = [c for c in self.api.all("gpuclaims") if c["metadata"]["namespace"] == namespace]
        sets = sorted({c["spec"].get("set") or c["metadata"]["name"] for c in claims})
        act = rng.choices(("order", "release", "start", "stop"), (40, 16, 22, 20))[0]
        if act == "order":
            await self._order(namespace, sets)
        elif act == "release" and claims:
            name = rng.choice(claims)["metadata"]["name"]
            await self.ask("DELETE", f"/apis/gpu.cozystack.io/v1alpha1/namespaces/{namespace}/gpuclaims/{name}")
        elif act == "start" and sets:
            await self._start(namespace, rng.choice(sets), claims)
        elif act == "stop":
            pods = [p for p in self.api.all("pods") if p["metadata"]["namespace"] == namespace]
            if pods:
                name = rng.choice(pods)["metadata"]["name"]
                await self.ask("DELETE", f"/api/v1/namespaces/{namespace}/pods/{name}")

    async def _order(self, namespace: str, sets: list[str]) -> None:
        rng = self.universe.rng
        self._numbers += 1
        spec: Json = {"className": rng.choice([*CLASSES, "h200"]), "count": rng.choice((1, 1, 1, 2, 2, 3, 4))}
        if rng.random() < 0.4:
            spec["set"] = rng.choice([*sets, f"vm-{rng.randint(0, 2)}"])
        path = f"/apis/gpu.cozystack.io/v1alpha1/namespaces/{namespace}/gpuclaims"
        # A name comes back now and then: another object under a known name.
        name = f"claim-{self._numbers if rng.random() < 0.8 else rng.randint(0, self._numbers)}"
        params = {"dryRun": "All"} if rng.random() < 0.1 else {}
        self.asked += 1
        if await self.ask("POST", path, {"metadata": {"name": name}, "spec": spec}, **params) is not None:
            key = "dry run" if params else "taken"
            self.answered[key] = self.answered.get(key, 0) + 1

    async def _start(self, namespace: str, set_name: str, claims: list[Json]) -> None:
        rng = self.universe.rng
        asked: dict[str, int] = {}
        for claim in claims:
            if (claim["spec"].get("set") or claim["metadata"]["name"]) == set_name:
                resource = CLASSES[claim["spec"]["className"]]
                asked[resource] = asked.get(resource, 0) + int(claim["spec"].get("count", 1))
        self._numbers += 1
        limits = {resource: str(count) for resource, count in asked.items()}
        pod = {
            "metadata": {"name": f"pod-{self._numbers}", "labels": {names.VM_NAME_LABEL: set_name}},
            "spec": {"containers": [{"name": "compute", "resources": {"limits": limits}}]},
            "status": {"phase": "Pending"},
        }
        if self.api.find("mutatingwebhookconfigurations", "", "gpuclaim") is None:
            return  # before the first leader no pod is asked about; that none starts then is the guard's work
        for _ in range(rng.randint(1, 3)):
            if await self.ask("POST", f"/api/v1/namespaces/{namespace}/pods", pod) is not None:
                return
            await asyncio.sleep(rng.uniform(0.1, 2))

    async def run_hoster(self) -> None:
        """Nodes that fail and come back, agents that fall silent, budgets and classes that change."""
        rng = self.universe.rng
        while True:
            await asyncio.sleep(rng.expovariate(1 / (self.pace * 15)))
            if self.quiet:
                return
            machine = rng.choice([*self.machines.values()])
            act = rng.choice(("ready", "gpu", "reboot", "silent", "cordon", "reject", "quota", "class", "pods"))
            self._say("hoster", f"{act} {machine.name}")
            if act == "ready":
                machine.ready = not machine.ready
            elif act == "gpu":
                machine.broken = rng.randint(0, machine.gpus)
            elif act == "reboot":
                await self._reboot(machine)
            elif act == "silent":
                machine.agent_silent_until = self.universe.clock.now + rng.uniform(5, 600)
            elif act == "cordon":
                machine.cordoned = not machine.cordoned
            elif act == "reject":
                machine.rejects = rng.choice((0.0, 0.3, 1.0))
            elif act == "quota":
                await self.set_quota(rng.choice([*NAMESPACES]))
            elif act == "class":
                name = rng.choice([*CLASSES])
                spec: Json = {
                    "closed": rng.choice((True, *[None] * 7)),
                    "maxCount": rng.choice((None, None, 2, 4)),
                }
                await self.ask("PATCH", f"/apis/gpu.cozystack.io/v1alpha1/gpuclasses/{name}", {"spec": spec})
            else:
                await self._forget_failed_pods()

    async def _reboot(self, machine: Machine) -> None:
        machine.boot += 1
        machine.agent_silent_until = self.universe.clock.now + self.universe.rng.uniform(1, 60)
        for pod in self.api.all("pods"):
            if pod["spec"].get("nodeName") == machine.name and pod.get("status", {}).get("phase") == "Running":
                path = f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}/status"
                await self.ask("PATCH", path, {"status": {"phase": "Failed", "reason": ""}})

    async def _forget_failed_pods(self) -> None:
        for pod in self.api.all("pods"):
            if pod.get("status", {}).get("phase") == "Failed":
                path = f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"
                with contextlib.suppress(RefusedError):
                    await self.ask("DELETE", path)
                    await self.ask("DELETE", path)

    def heal(self) -> None:
        """Every node well, every agent heard."""
        for machine in self.machines.values():
            machine.ready, machine.cordoned, machine.rejects, machine.agent_silent_until = True, False, 0.0, 0.0


def _gist(obj: Json) -> str:
    """What is worth reading of a stored object in a trace."""
    spec, status, meta = obj.get("spec", {}), obj.get("status", {}), obj["metadata"]
    found = {
        "set": spec.get("set") or meta.get("labels", {}).get(names.VM_NAME_LABEL),
        "class": spec.get("className"),
        "count": spec.get("count"),
        "node": status.get("nodeName") or spec.get("nodeName"),
        "pin": pinned_to(obj) if "containers" in spec else None,
        "phase": status.get("phase"),
        "hard": spec.get("hard"),
        "going": "deletionTimestamp" in meta or None,
    }
    return " ".join(f"{key}={value}" for key, value in found.items() if value is not None)


def _node(machine: Machine) -> Json:
    return {
        "spec": {},
        "status": {
            "allocatable": {machine.resource: str(machine.healthy)},
            "conditions": [{"type": "Ready", "status": "True" if machine.ready else "False"}],
            "nodeInfo": {"bootID": f"boot-{machine.boot}"},
        },
    }


def _gpus(pod: Json) -> int:
    return sum(int(count) for c in pod["spec"]["containers"] for count in c["resources"].get("limits", {}).values())
