"""Kubelets, agents and the scheduler, for ever."""

from __future__ import annotations

import asyncio
from typing import Final

from simulator.apiserver import Json
from simulator.cluster import FOREIGN, GPU, Cluster, Machine, gpus_of, is_live, node_object, pinned_to, pod_path

_LOOK_SECONDS: Final = 0.5
_HEARTBEAT_SECONDS: Final = 20.0


class Nodes:
    """What runs on the nodes, and what sends pods there."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._universe = cluster.universe

    async def run(self) -> None:
        """Looks at everything twice a second."""
        while True:
            for machine in self._cluster.machines.values():
                if machine.present:
                    await self._kubelet(machine)
                    await self._agent(machine)
            for pod in self._cluster.api.all("pods"):
                await self._schedule(pod)
            await asyncio.sleep(_LOOK_SECONDS)

    async def _kubelet(self, machine: Machine) -> None:
        cluster = self._cluster
        state = (machine.healthy, machine.ready, machine.boot, machine.cordoned)
        if state != machine.state:
            machine.state = state
            status = {"status": node_object(machine)["status"]}
            await cluster.ask("PATCH", f"/api/v1/nodes/{machine.name}/status", status)
            spec = {"spec": {"unschedulable": True if machine.cordoned else None}}
            await cluster.ask("PATCH", f"/api/v1/nodes/{machine.name}", spec)
        if not machine.ready:
            return
        for pod in cluster.pods_on(machine):
            if "deletionTimestamp" in pod["metadata"]:
                if is_live(pod) and pod.get("status", {}).get("phase") == "Running":
                    await self.end(pod, "Succeeded")
                await cluster.ask("DELETE", pod_path(pod))
            elif pod.get("status", {}).get("phase") == "Pending":
                await self._admit(machine, pod)

    async def _admit(self, machine: Machine, pod: Json) -> None:
        short = self._asked_on(machine, running=True) + gpus_of(pod) > machine.healthy
        away = self._universe.rng.random() < machine.rejects and pod["metadata"]["namespace"] != FOREIGN
        if short or away:
            reason = "UnexpectedAdmissionError" if away else f"OutOf{machine.resource}"
            status = {"phase": "Failed", "reason": reason, "message": "Allocate failed"}
        else:
            status = {"phase": "Running"}
        await self._cluster.ask("PATCH", f"{pod_path(pod)}/status", {"status": status})

    async def end(self, pod: Json, phase: str) -> None:
        """The pod's containers end."""
        ended = [{"state": {"terminated": {"finishedAt": self._cluster.api.now()}}}]
        status = {"phase": phase, "containerStatuses": ended}
        await self._cluster.ask("PATCH", f"{pod_path(pod)}/status", {"status": status})

    def _asked_on(self, machine: Machine, *, running: bool = False) -> int:
        phases = ("Running",) if running else ("Running", "Pending")
        on = self._cluster.pods_on(machine)
        return sum(gpus_of(pod) for pod in on if pod.get("status", {}).get("phase") in phases)

    async def _agent(self, machine: Machine) -> None:
        now = self._universe.clock.now
        if now < machine.agent_silent_until or not machine.ready:
            return
        users = [
            ({"namespace": pod["metadata"]["namespace"], "name": pod["metadata"]["name"]}, gpus_of(pod))
            for pod in self._cluster.pods_on(machine)
            if pod.get("status", {}).get("phase") == "Running"
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
                    "address": address(number),
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
            "reportedAt": self._cluster.api.now(),
        }
        await self._cluster.ask("PATCH", f"{GPU}/gpunodes/{machine.name}/status", {"status": status})

    async def _schedule(self, pod: Json) -> None:
        """The scheduler for a pod that waits; the end of one that never got to a node."""
        cluster, path = self._cluster, pod_path(pod)
        if pod["spec"].get("nodeName"):
            return
        if "deletionTimestamp" in pod["metadata"]:
            await cluster.ask("DELETE", path)
            return
        pin = pinned_to(pod)
        wanted = [name for container in pod["spec"]["containers"] for name in container["resources"]["limits"]]
        fitting = [
            machine
            for machine in cluster.machines.values()
            if (pin is None or pin == machine.name)
            and machine.present
            and machine.ready
            and not machine.cordoned
            and set(wanted) <= {machine.resource}
            and self._asked_on(machine) + gpus_of(pod) <= machine.healthy
        ]
        if fitting:
            machine = self._universe.rng.choice(fitting)
            await cluster.ask("PATCH", path, {"spec": {"nodeName": machine.name}})
            scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": cluster.api.now()}
            await cluster.ask("PATCH", f"{path}/status", {"status": {"conditions": [scheduled]}})
        else:
            said = f"0/{len(cluster.machines)} nodes are available: 1 Insufficient {', '.join(wanted)}."
            waits = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": said}
            await cluster.ask("PATCH", f"{path}/status", {"status": {"conditions": [waits]}})


def address(number: int) -> str:
    """The PCI address of a machine's GPU."""
    return f"0000:{16 + number:02x}:00.0"
