"""KubeVirt's virt-controller, which starts VMs' pods, and the garbage collector, which deletes what VMs owned."""

from __future__ import annotations

import asyncio
import collections
from typing import Final

from gpuclaim.api import names
from simulator.apiserver import Json, RefusedError
from simulator.cluster import GPU, Cluster, is_live, pod_path

_LOOK_SECONDS: Final = 1.0


class VirtController:
    """Keeps a launcher pod for every VM that runs, for ever."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._again: dict[str, tuple[float, float]] = {}
        """When a VM is tried next, and after which pause, by its UID."""

    async def run(self) -> None:
        """Looks at everything once a second."""
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            for vm in self._cluster.api.all("virtualmachines"):
                await self._reconcile(vm)
            await self._end_orphans()
            await self._collect_garbage()

    def _pods(self, uid: str) -> list[Json]:
        return [pod for pod in self._cluster.api.all("pods") if pod["metadata"].get("annotations", {}).get("vm") == uid]

    async def _reconcile(self, vm: Json) -> None:
        meta, now = vm["metadata"], self._cluster.universe.clock.now
        pods = self._pods(meta["uid"])
        for pod in pods:
            if "deletionTimestamp" not in pod["metadata"] and not (vm["spec"]["running"] and is_live(pod)):
                await self._cluster.ask("DELETE", pod_path(pod))
        due, pause = self._again.get(meta["uid"], (0.0, 1.0))
        if not vm["spec"]["running"] or pods or self._cluster.quiet or now < due:
            return
        limits = {resource: str(count) for resource, count in devices_of(vm).items()}
        pod = {
            "metadata": {
                "name": f"virt-launcher-{meta['name']}-{self._cluster.number()}",
                "labels": {names.VM_NAME_LABEL: meta["name"]},
                "annotations": {"vm": meta["uid"]},
            },
            "spec": {"containers": [{"name": "compute", "resources": {"limits": limits}}]},
            "status": {"phase": "Pending"},
        }
        answer = await self._cluster.ask("POST", f"/api/v1/namespaces/{meta['namespace']}/pods", pod)
        if isinstance(answer, RefusedError):
            self._cluster.universe.tally[f"pod refused: {answer.body['reason']}"] += 1
            self._again[meta["uid"]] = (now + pause, min(pause * 2, 30.0))
        else:
            self._again.pop(meta["uid"], None)

    async def _end_orphans(self) -> None:
        known = {vm["metadata"]["uid"] for vm in self._cluster.api.all("virtualmachines")}
        for pod in self._cluster.api.all("pods"):
            owner = pod["metadata"].get("annotations", {}).get("vm")
            if owner is not None and owner not in known and "deletionTimestamp" not in pod["metadata"]:
                await self._cluster.ask("DELETE", pod_path(pod))

    async def _collect_garbage(self) -> None:
        known = {vm["metadata"]["uid"] for vm in self._cluster.api.all("virtualmachines")}
        for claim in self._cluster.api.all("gpuclaims"):
            meta = claim["metadata"]
            owners = [owner["uid"] for owner in meta.get("ownerReferences", [])]
            if owners and not known & set(owners) and "deletionTimestamp" not in meta:
                path = f"{GPU}/namespaces/{meta['namespace']}/gpuclaims/{meta['name']}"
                await self._cluster.ask("DELETE", path, {"preconditions": {"uid": meta["uid"]}})


def devices_of(vm: Json) -> collections.Counter[str]:
    """How many devices of which resource the VM's template has."""
    given = vm["spec"]["template"]["spec"]["domain"]["devices"].get("gpus", [])
    return collections.Counter(device["deviceName"] for device in given)
