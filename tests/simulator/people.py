"""Tenants, who order, start, stop and release; the hoster, whose machines fail and whose mind changes."""

from __future__ import annotations

import asyncio
import collections
from typing import Final

from gpuclaim.api import names
from simulator.apiserver import Json, RefusedError
from simulator.cluster import (
    CLASSES,
    FOREIGN,
    GPU,
    NAMESPACES,
    Cluster,
    Machine,
    is_live,
    pod_path,
    set_of_claim,
    set_of_pod,
)
from simulator.database import Database
from simulator.nodes import Nodes, address

_ACTS: Final = {
    "order": 30,
    "large order": 6,
    "vm": 8,
    "release": 22,
    "start": 14,
    "stop": 14,
    "finish": 5,
    "switch vm": 8,
    "delete vm": 6,
}
_COUNTS: Final = ((1, 1, 1, 2, 2, 3, 4), (1,), (1, 2), (1, 1, 1, 1, 4), (1, 2, 4))
_FATES: Final = (
    "down",
    "down",
    "gpu",
    "reboot",
    "silent",
    "drain",
    "drain",
    "reject",
    "reject",
    "quota",
    "class",
    "clean up",
    "foreign",
    "foreign",
    "cordon",
    "exclude",
    "remove",
    "ledger",
)


class Tenants:
    """Each seed has tenants of another temper: some never start a VM, some order only large, some only sets."""

    def __init__(self, cluster: Cluster, nodes: Nodes) -> None:
        self._cluster = cluster
        self._nodes = nodes
        self._rng = rng = cluster.universe.rng
        self._weights = {act: weight * rng.choice((0.2, 1, 1, 3)) for act, weight in _ACTS.items()}
        self._counts = rng.choice(_COUNTS)
        self._in_set = rng.choice((0.1, 0.5, 0.9))
        self._names = rng.choice((2, 3, 5))

    async def run(self, namespace: str) -> None:
        """Orders, releases, starts and stops, now and then many at once."""
        rng = self._rng
        while True:
            await asyncio.sleep(rng.expovariate(1 / (self._cluster.pace * 5)))
            if self._cluster.quiet:
                return
            burst = rng.randint(2, 6) if rng.random() < 0.1 else 1
            async with asyncio.TaskGroup() as group:
                for _ in range(burst):
                    group.create_task(self._act(namespace))

    async def _act(self, namespace: str) -> None:
        cluster, rng = self._cluster, self._rng
        claims = cluster.claims(namespace)
        pods = [pod for pod in cluster.api.all("pods") if pod["metadata"]["namespace"] == namespace]
        vms = [vm for vm in cluster.api.all("virtualmachines") if vm["metadata"]["namespace"] == namespace]
        act = rng.choices([*self._weights], [*self._weights.values()])[0]
        if act == "order":
            spec: Json = {"className": rng.choice([*CLASSES, "h200", "h200"]), "count": rng.choice(self._counts)}
            if rng.random() < self._in_set:
                sets = sorted({set_of_claim(claim) for claim in claims})
                spec["set"] = rng.choice([*sets, *(f"vm-{n}" for n in range(self._names))])
            await self._order(namespace, spec)
        elif act == "large order":
            await self._order(namespace, {"className": "h200", "count": self._more_than_fits("h200")})
        elif act == "vm":
            await self._order_vm(namespace)
        elif act == "release" and claims:
            await self._release(rng.choice(claims), claims, pods)
        elif act == "start" and claims:
            await self._start(namespace, set_of_claim(rng.choice(claims)), claims)
        elif act == "stop" and pods:
            await cluster.ask("DELETE", pod_path(rng.choice(pods)))
        elif act == "finish" and (running := [p for p in pods if p.get("status", {}).get("phase") == "Running"]):
            await self._nodes.end(rng.choice(running), "Succeeded")
        elif act == "switch vm" and vms:
            vm = rng.choice(vms)
            await cluster.ask("PATCH", _vm_path(vm), {"spec": {"running": not vm["spec"]["running"]}})
        elif act == "delete vm" and vms:
            await cluster.ask("DELETE", _vm_path(rng.choice(vms)))

    def _more_than_fits(self, class_name: str) -> int:
        """One more than any node has free: only by moving others does it fit."""
        machines, held = self._cluster.machines.values(), collections.Counter[str]()
        for claim in self._cluster.api.all("gpuclaims"):
            held[claim.get("status", {}).get("nodeName", "")] += int(claim["spec"].get("count", 1))
        offering = [machine for machine in machines if machine.resource == CLASSES[class_name]]
        return max(1, 1 + max(machine.healthy - held[machine.name] for machine in offering))

    async def _order(self, namespace: str, spec: Json) -> None:
        rng, cluster = self._rng, self._cluster
        # A name comes back now and then: another object under a known name.
        number = cluster.number()
        name = f"claim-{number if rng.random() < 0.8 else rng.randint(0, number)}"
        params = {"dryRun": "All"} if rng.random() < 0.1 else {}
        path = f"{GPU}/namespaces/{namespace}/gpuclaims"
        await cluster.order(path, {"metadata": {"name": name}, "spec": spec}, rng.choice((1, 1, 3)), **params)

    async def _order_vm(self, namespace: str) -> None:
        rng, cluster = self._rng, self._cluster
        if "virtualmachines" in cluster.api.unserved:
            return
        name = f"vm-{rng.randint(0, self._names - 1) if rng.random() < 0.4 else cluster.number()}"
        labels = {names.CLASS_LABEL: rng.choice([*CLASSES, "h200"]), names.COUNT_LABEL: str(rng.choice(self._counts))}
        spec = {"running": rng.random() < 0.5, "template": {"metadata": {}, "spec": {"domain": {"devices": {}}}}}
        params = {"dryRun": "All"} if rng.random() < 0.1 else {}
        path = f"/apis/kubevirt.io/v1/namespaces/{namespace}/virtualmachines"
        cluster.universe.tally["VM ordered"] += 1
        if cluster.api.find("mutatingwebhookconfigurations", "", "gpuclaim") is None:
            return  # before the first leader nobody fills VMs in
        body = {"metadata": {"name": name, "labels": labels}, "spec": spec}
        stored = await cluster.order(path, body, rng.choice((1, 3)), **params)
        cluster.universe.tally["VM order taken"] += not params and not isinstance(stored, RefusedError)

    async def _release(self, claim: Json, claims: list[Json], pods: list[Json]) -> None:
        name, own = claim["metadata"]["name"], set_of_claim(claim)
        if sum(set_of_claim(other) == own for other in claims) > 1:
            runs = any(set_of_pod(pod) == own and is_live(pod) for pod in pods)
            self._cluster.universe.tally[f"member of a set deleted{' while its pod lives' if runs else ''}"] += 1
        path = f"{GPU}/namespaces/{claim['metadata']['namespace']}/gpuclaims/{name}"
        await self._cluster.ask("DELETE", path)

    async def _start(self, namespace: str, set_name: str, claims: list[Json]) -> None:
        rng, cluster = self._rng, self._cluster
        asked: collections.Counter[str] = collections.Counter()
        for claim in claims:
            if set_of_claim(claim) == set_name:
                asked[CLASSES[claim["spec"]["className"]]] += int(claim["spec"].get("count", 1))
        limits = {resource: str(count) for resource, count in asked.items()}
        pod = {
            "metadata": {"name": f"pod-{cluster.number()}", "labels": {names.VM_NAME_LABEL: set_name}},
            "spec": {"containers": [{"name": "compute", "resources": {"limits": limits}}]},
            "status": {"phase": "Pending"},
        }
        if cluster.api.find("mutatingwebhookconfigurations", "", "gpuclaim") is None:
            return  # before the first leader no pod is asked about; that none starts then is the guard's work
        for _ in range(rng.randint(1, 3)):
            answer = await cluster.ask("POST", f"/api/v1/namespaces/{namespace}/pods", pod)
            if not isinstance(answer, RefusedError):
                return
            cluster.universe.tally[f"pod refused: {answer.body['reason']}"] += 1
            await asyncio.sleep(rng.uniform(0.1, 2))

    async def probe(self, namespace: str) -> None:
        """What a tenant may expect when all is well: an order is answered, yes or no, before half a minute is over."""
        cluster, rng = self._cluster, self._rng
        spec = {"className": rng.choice([*CLASSES]), "count": 1}
        body = {"metadata": {"name": f"probe-{cluster.number()}"}, "spec": spec}
        answer = await cluster.order(f"{GPU}/namespaces/{namespace}/gpuclaims", body, 15)
        cluster.universe.tally["probe answered"] += 1
        if isinstance(answer, RefusedError) and answer.code >= 500:
            cluster.unanswered.append(f"an order of {namespace} gets no answer: {answer}")


class Hoster:
    """Nodes that fail and come back, agents that fall silent, budgets and classes that change."""

    def __init__(self, cluster: Cluster, nodes: Nodes, database: Database) -> None:
        self._cluster = cluster
        self._nodes = nodes
        self._database = database
        self._rng = cluster.universe.rng
        self._lasts = self._rng.choice((5.0, 40.0, 120.0))
        """Seconds that a machine is ill, at most."""

    async def run(self) -> None:
        """One thing after the other."""
        rng, cluster = self._rng, self._cluster
        while True:
            await asyncio.sleep(rng.expovariate(1 / (cluster.pace * 12)))
            if cluster.quiet:
                return
            machine = rng.choice([*cluster.machines.values()])
            act = rng.choice(_FATES)
            cluster.say("hoster", f"{act} {machine.name}")
            cluster.universe.tally[f"hoster: {act}"] += 1
            await self._do(act, machine)

    async def _do(self, act: str, machine: Machine) -> None:
        if act in ("down", "drain", "remove"):
            await self._for_a_while(act, machine)
        elif act in ("quota", "class", "cordon", "exclude"):
            await self._decide(act, machine)
        elif act == "reboot":
            await self._reboot(machine)
        elif act == "foreign":
            await self._foreign(machine)
        elif act == "clean up":
            await self._clean_up()
        else:
            self._break(act, machine)

    def _break(self, act: str, machine: Machine) -> None:
        rng, now = self._rng, self._cluster.universe.clock.now
        if act == "gpu":
            machine.broken = rng.choice((0, rng.randint(0, machine.gpus)))
        elif act == "silent":
            machine.agent_silent_until = now + rng.uniform(5, 150)
        elif act == "reject":
            machine.rejects = rng.choice((0.0, 0.3, 1.0))
        else:
            self._database.away_until = now + rng.uniform(1, 90)
            self._database.flaky = rng.choice((0.0, 0.1, 0.5))

    async def _decide(self, act: str, machine: Machine) -> None:
        """What the hoster himself wants otherwise from now on."""
        rng, cluster = self._rng, self._cluster
        if act == "quota":
            await cluster.set_quota(rng.choice([*NAMESPACES]))
        elif act == "class":
            spec: Json = {"closed": rng.choice((True, *[None] * 7)), "maxCount": rng.choice((None, None, 2, 4))}
            await cluster.ask("PATCH", f"{GPU}/gpuclasses/{rng.choice([*CLASSES])}", {"spec": spec})
        elif act == "cordon":
            spec = {"cordoned": rng.choice((True, None))}
            await cluster.ask("PATCH", f"{GPU}/gpunodes/{machine.name}", {"spec": spec})
        else:
            gone = [{"address": address(rng.randrange(machine.gpus)), "reason": "is looked at"}]
            await cluster.ask("PATCH", f"{GPU}/gpunodes/{machine.name}", {"spec": {"excluded": rng.choice((gone, []))}})

    async def _clean_up(self) -> None:
        for pod in self._cluster.api.all("pods"):
            if not is_live(pod):
                await self._cluster.ask("DELETE", pod_path(pod))
                await self._cluster.ask("DELETE", pod_path(pod))

    async def _for_a_while(self, act: str, machine: Machine) -> None:
        """Down, drained or gone, and back after a time; as often as not too short for anybody to act on."""
        rng, cluster = self._rng, self._cluster
        loop = asyncio.get_running_loop()
        length = rng.uniform(0.5, self._lasts)
        if act == "remove":
            if machine.present:
                await cluster.remove_node(machine)
                loop.call_later(length, lambda: loop.create_task(self._back(machine)))
            return
        field = "ready" if act == "down" else "cordoned"
        setattr(machine, field, act == "drain")
        loop.call_later(length, setattr, machine, field, act == "down")

    async def _back(self, machine: Machine) -> None:
        if not machine.present:
            await self._cluster.add_node(machine)

    async def _reboot(self, machine: Machine) -> None:
        machine.boot += 1
        machine.agent_silent_until = self._cluster.universe.clock.now + self._rng.uniform(1, 60)
        for pod in self._cluster.pods_on(machine):
            if pod.get("status", {}).get("phase") == "Running":
                await self._nodes.end(pod, "Failed")

    async def _foreign(self, machine: Machine) -> None:
        """A pod takes GPUs without a claim, by the scheduler or past it; or one of those goes."""
        rng, cluster = self._rng, self._cluster
        there = [pod for pod in cluster.api.all("pods") if pod["metadata"]["namespace"] == FOREIGN]
        if there and rng.random() < 0.4:
            await cluster.ask("DELETE", pod_path(rng.choice(there)))
            return
        count = str(rng.randint(1, max(1, machine.gpus // 2)))
        spec: Json = {"containers": [{"name": "burn-in", "resources": {"limits": {machine.resource: count}}}]}
        if machine.present and rng.random() < 0.5:
            spec["nodeName"] = machine.name
        meta = {"name": f"foreign-{cluster.number()}", "labels": {}}
        body = {"metadata": meta, "spec": spec, "status": {"phase": "Pending"}}
        await cluster.ask("POST", f"/api/v1/namespaces/{FOREIGN}/pods", body)


def _vm_path(vm: Json) -> str:
    meta = vm["metadata"]
    return f"/apis/kubevirt.io/v1/namespaces/{meta['namespace']}/virtualmachines/{meta['name']}"
