"""What there is besides the controller: the catalogue, tenants' namespaces and budgets, nodes; and a way to ask."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Final

from gpuclaim.api import names
from simulator.apiserver import Apiserver, Json, RefusedError, shown
from simulator.loop import Universe

CLASSES: Final = {"h200": "nvidia.com/GH100_H200", "l40s": "nvidia.com/AD102GL_L40S"}
NAMESPACES: Final = {
    "tenant-a": (),
    "tenant-a-inner": ("tenant-a",),
    "tenant-a-deep": ("tenant-a", "tenant-a-inner"),
    "tenant-b": (),
}
"""Tenants, with the tenants that they are inside of."""
FOREIGN: Final = "gpu-system"
"""The namespace that the hoster exempts: its pods take GPUs without a claim."""
GPU: Final = "/apis/gpu.cozystack.io/v1alpha1"
_QUOTAS: Final = ("gpu", "gpu-too")
_KUBE: Final = "kubernetes"


@dataclasses.dataclass
class Machine:
    """A node as it is; what others know of it comes from its kubelet and its agent."""

    name: str
    resource: str
    gpus: int
    broken: int = 0
    present: bool = True
    ready: bool = True
    boot: int = 1
    agent_silent_until: float = 0.0
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
    """The apiserver's side of the world; what is asked here is not disturbed."""

    def __init__(self, universe: Universe, api: Apiserver, say: Callable[[str, str], None]) -> None:
        self.say = say
        self.universe = universe
        self.api = api
        rng = universe.rng
        sizes = rng.choice(((1, 2, 4, 4, 8), (2, 4, 4), (4, 8), (4,)))
        self.machines = {
            name: Machine(name, resource, rng.choice(sizes), rejects=rng.choice((0.0, 0.0, 0.3, 0.6)))
            for name, resource in (
                (f"node-{n}", CLASSES["l40s"] if n % 4 == 2 else CLASSES["h200"]) for n in range(rng.randint(3, 9))
            )
        }
        self.quiet = False
        """No tenant or hoster does anything any more."""
        self.pace = rng.choice((0.2, 0.5, 1.5))
        self.asked = 0
        """Orders, of claims and of VMs."""
        self.answered: dict[str, int] = {}
        """What became of them."""
        self.unanswered: list[str] = []
        """What a tenant who asked when all was well was not told."""
        self._numbers = 0

    def number(self) -> int:
        """One that was never given before."""
        self._numbers += 1
        return self._numbers

    async def ask(self, method: str, path: str, body: Any = None, **params: str) -> Json | RefusedError:
        """A request of somebody whose connection is good, and its answer."""
        loud = any(word in path for word in ("/pods", "/gpuclaims", "/resourcequotas", "/virtualmachines"))
        name = body["metadata"]["name"] if method == "POST" else ""
        if loud and method == "POST":
            self.say(_KUBE, f"{method} {shown(path)}/{name} asked{' (dry run)' if params else ''}")
        try:
            stored = await self.api.handle(method, path, body, params, "merge", _KUBE)
        except RefusedError as refused:
            if loud:
                self.say(_KUBE, f"{method} {shown(path)}/{name}: {refused}")
            return refused
        if loud:
            self.say(
                _KUBE, f"{method} {shown(path)}/{name}: rv {stored['metadata'].get('resourceVersion')} {_gist(stored)}"
            )
        return stored

    async def order(self, path: str, body: Json, tries: int, **params: str) -> Json | RefusedError:
        """An order, asked again under its name while the answer is that nobody answers."""
        self.asked += 1
        while True:
            answer = await self.ask("POST", path, body, **params)
            tries -= 1
            if tries == 0 or not isinstance(answer, RefusedError) or answer.code < 500:
                break
            self.universe.tally["order asked again"] += 1
            await self.universe.pause(1, 3)
        if isinstance(answer, RefusedError):
            key = str(answer.body["reason"])
        else:
            key = "dry run" if params else "taken"
        self.answered[key] = self.answered.get(key, 0) + 1
        return answer

    async def furnish(self) -> None:
        """What is there before anything happens."""
        rng = self.universe.rng
        for namespace, inside in NAMESPACES.items():
            labels = {f"tenant.cozystack.io/{outer}": "" for outer in inside}
            await self.ask("POST", "/api/v1/namespaces", {"metadata": {"name": namespace, "labels": labels}})
        await self.ask("POST", "/api/v1/namespaces", {"metadata": {"name": FOREIGN, "labels": {}}})
        for name, resource in CLASSES.items():
            spec: Json = {"mode": "passthrough", "source": {"devicePlugin": {"resourceName": resource}}}
            if rng.random() < 0.3:
                spec["maxCount"] = rng.randint(1, 4)
            await self.ask("POST", f"{GPU}/gpuclasses", {"metadata": {"name": name}, "spec": spec})
        for machine in self.machines.values():
            await self.add_node(machine)
        for namespace in NAMESPACES:
            if rng.random() < 0.5:
                await self.set_quota(namespace)

    async def add_node(self, machine: Machine) -> None:
        """The node joins the cluster."""
        machine.present, machine.told, machine.state = True, None, None
        await self.ask("POST", "/api/v1/nodes", {"metadata": {"name": machine.name}} | node_object(machine))
        await self.ask("POST", f"{GPU}/gpunodes", {"metadata": {"name": machine.name}, "spec": {}})

    async def remove_node(self, machine: Machine) -> None:
        """The node leaves it, and what ran there is gone."""
        machine.present = False
        await self.ask("DELETE", f"/api/v1/nodes/{machine.name}")
        await self.ask("DELETE", f"{GPU}/gpunodes/{machine.name}")
        for pod in self.pods_on(machine):
            await self.ask("DELETE", pod_path(pod))
            await self.ask("DELETE", pod_path(pod))

    async def set_quota(self, namespace: str) -> None:
        """Another budget, of one class or of all; a namespace may have two."""
        rng = self.universe.rng
        name = rng.choice(_QUOTAS)
        key = names.budget_key(rng.choice([*CLASSES, names.TOTAL]))
        spec = {"hard": {key: str(rng.randint(2, 16))}}
        path = f"/api/v1/namespaces/{namespace}/resourcequotas"
        if self.api.find("resourcequotas", namespace, name) is None:
            await self.ask("POST", path, {"metadata": {"name": name}, "spec": spec})
        elif rng.random() < 0.3:
            await self.ask("DELETE", f"{path}/{name}")
        else:
            await self.ask("PATCH", f"{path}/{name}", {"spec": {"hard": None}})
            await self.ask("PATCH", f"{path}/{name}", {"spec": spec})

    def pods_on(self, machine: Machine) -> list[Json]:
        """The pods that are scheduled there, the ended ones too."""
        return [pod for pod in self.api.all("pods") if pod["spec"].get("nodeName") == machine.name]

    def claims(self, namespace: str) -> list[Json]:
        """A tenant's claims."""
        return [claim for claim in self.api.all("gpuclaims") if claim["metadata"]["namespace"] == namespace]

    def set_is_split(self, claim: Json) -> bool:
        """Whether the claim's set stands on several nodes now."""
        own = set_of_claim(claim)
        members = [each for each in self.claims(claim["metadata"]["namespace"]) if set_of_claim(each) == own]
        return len({each.get("status", {}).get("nodeName") for each in members} - {None}) > 1

    async def heal(self) -> None:
        """Every node there and well, every agent heard."""
        for machine in self.machines.values():
            machine.ready, machine.cordoned, machine.rejects, machine.agent_silent_until = True, False, 0.0, 0.0
            if not machine.present:
                await self.add_node(machine)
            await self.ask("PATCH", f"{GPU}/gpunodes/{machine.name}", {"spec": {"cordoned": None, "excluded": None}})


def node_object(machine: Machine) -> Json:
    """The v1.Node as kubelet writes it."""
    return {
        "spec": {},
        "status": {
            "allocatable": {machine.resource: str(machine.healthy)},
            "conditions": [{"type": "Ready", "status": "True" if machine.ready else "False"}],
            "nodeInfo": {"bootID": f"boot-{machine.boot}"},
        },
    }


def gpus_of(pod: Json) -> int:
    """How many GPUs a pod asks for."""
    return sum(int(count) for c in pod["spec"]["containers"] for count in c["resources"].get("limits", {}).values())


def set_of_pod(pod: Json) -> str | None:
    """The set that a pod belongs to; None for a foreign one."""
    found: str | None = pod["metadata"].get("labels", {}).get(names.VM_NAME_LABEL)
    return found


def set_of_claim(claim: Json) -> str:
    """The set that a claim belongs to."""
    return str(claim["spec"].get("set") or claim["metadata"]["name"])


def pinned_to(pod: Json) -> str | None:
    """The node that a pod's affinity names."""
    affinity = pod["spec"].get("affinity", {}).get("nodeAffinity", {})
    terms = affinity.get("requiredDuringSchedulingIgnoredDuringExecution", {}).get("nodeSelectorTerms", [])
    fields = [field for term in terms for field in term.get("matchFields", [])]
    return fields[0]["values"][0] if fields else None


def pod_path(pod: Json) -> str:
    """Where a pod is."""
    return f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"


def is_live(pod: Json) -> bool:
    """Whether it has not ended."""
    return pod.get("status", {}).get("phase") not in ("Succeeded", "Failed")


def _gist(obj: Json) -> str:
    """What is worth reading of a stored object in a trace."""
    spec, status, meta = obj.get("spec", {}), obj.get("status", {}), obj["metadata"]
    found = {
        "set": spec.get("set") or meta.get("labels", {}).get(names.VM_NAME_LABEL),
        "class": spec.get("className") or meta.get("labels", {}).get(names.CLASS_LABEL),
        "count": spec.get("count") or meta.get("labels", {}).get(names.COUNT_LABEL),
        "node": status.get("nodeName") or spec.get("nodeName"),
        "pin": pinned_to(obj) if "containers" in spec else None,
        "phase": status.get("phase"),
        "hard": spec.get("hard"),
        "running": spec.get("running"),
        "going": "deletionTimestamp" in meta or None,
    }
    return " ".join(f"{key}={value}" for key, value in found.items() if value is not None)
