"""The real cluster that the benches fill: its nodes, claims put straight into etcd, and processes that are watched."""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import datetime as dt
import itertools
import os
import sys
import uuid
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from gpuclaim.api import core, names
from gpuclaim.api.core import wire
from gpuclaim.api.reasons import HealthyReason
from gpuclaim.api.types import Device, GPUClaim, GPUClaimSpec, GPUNode, GPUNodeStatus, Health, ResourceCount
from gpuclaim.controller import catalogue, claim_status
from gpuclaim.kube.client import Client
from gpuclaim.local.controlplane import ControlPlane
from gpuclaim.local.process import Process
from gpuclaim.placement.books import Books
from support import cloud

TENANTS: Final = 100
PODS_NAMESPACE: Final = "pods"
CLASS: Final = "h200"
RESOURCE: Final = cloud.H200
_GPUS: Final = 8
_PUTS_AT_ONCE: Final = 100  # etcd takes 128 operations in a transaction
_TICKS: Final = os.sysconf("SC_CLK_TCK")


def tenant(number: int) -> str:
    """One of the tenants' namespaces."""
    return f"tenant-{number % TENANTS}"


async def furnish(client: Client, **class_fields: object) -> None:
    """The CRDs, one class, the tenants, and a namespace for pods."""
    await cloud.install_crds(client)
    await client.create(cloud.gpu_class(CLASS, RESOURCE, **class_fields))
    for number in range(TENANTS):
        await cloud.add_namespace(client, tenant(number))
    await cloud.add_namespace(client, PODS_NAMESPACE)
    await cloud.add_service_account(client, PODS_NAMESPACE)


def put_nodes(cluster: ControlPlane, first: int, end: int, *, each: int = 1) -> None:
    """Store Ready nodes of eight GPUs that serve `each` devices, with their agents' reports and what the binder says.

    In etcd, below the apiserver, as `put_claims`.
    """
    put(cluster, _nodes(first, end, each))


def _nodes(first: int, end: int, each: int) -> Iterable[tuple[str, Any]]:
    now = dt.datetime.now(dt.UTC).replace(microsecond=0)
    count = [ResourceCount(name=RESOURCE, allocatable=each, used=0)]
    devices = [
        Device(
            address=f"0000:{16 + slot:02x}:00.0",
            vendor_id="10de",
            device_id="2335",
            model="GH100 [H200 SXM 141GB]",
            driver="vfio-pci",
            iommu_group=str(40 + slot),
            numa_node=slot // 4,
            health=Health.HEALTHY,
            resources=count,
        )
        for slot in range(_GPUS)
    ]
    room = {"cpu": "64", "memory": "1Ti", "pods": "110", RESOURCE: str(_GPUS * each)}
    for number in range(first, end):
        name, uid = f"gpu-{number:05}", str(uuid.UUID(int=number + 1))
        node = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {
                "name": name,
                "uid": uid,
                "creationTimestamp": now.isoformat().replace("+00:00", "Z"),
                "labels": {"kubernetes.io/hostname": name},
            },
            "status": {
                "allocatable": room,
                "capacity": room,
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        }
        meta = core.ObjectMeta(name=name, uid=uid, generation=1, creation_timestamp=now)
        status = GPUNodeStatus(devices=devices, resource_names=[RESOURCE], reported_at=now)
        report = GPUNode(metadata=meta, status=status)
        books = Books()
        books.apply(msgspec.convert(node, core.Node))
        books.apply(report)
        books.advance(now)
        conditions = catalogue.node_conditions(report, books.nodes[name], now)
        yield f"/registry/minions/{name}", node
        yield (
            f"/registry/{names.GROUP}/gpunodes/{name}",
            msgspec.structs.replace(report, status=msgspec.structs.replace(status, conditions=conditions)),
        )


def bound_claims(nodes: int, per_node: int) -> Iterable[GPUClaim]:
    """Claims as the binder leaves them: bound, not attached, well."""
    now = dt.datetime.now(dt.UTC).replace(microsecond=0)
    for number in range(nodes * per_node):
        meta = core.ObjectMeta(
            name=f"claim-{number:06}",
            namespace=tenant(number),
            uid=str(uuid.UUID(int=number + 1)),
            generation=1,
            creation_timestamp=now,
            finalizers=[names.HOLD_FINALIZER],
        )
        claim = GPUClaim(metadata=meta, spec=GPUClaimSpec(class_name=CLASS, count=1))
        status = claim_status.bound(claim, f"gpu-{number // per_node:05}", now)
        status = claim_status.attached(msgspec.structs.replace(claim, status=status), None, now)
        claim = msgspec.structs.replace(claim, status=status)
        status = claim_status.healthy(claim, HealthyReason.NODE_WELL, now)
        claim = msgspec.structs.replace(claim, status=status)
        yield claim


def put_claims(cluster: ControlPlane, claims: Iterable[GPUClaim]) -> None:
    """Store claims in etcd, below the apiserver: 100,000 in seconds, each as if it had been created and bound."""
    metas = ((claim.metadata, claim) for claim in claims)
    put(cluster, ((f"/registry/{names.GROUP}/gpuclaims/{m.namespace}/{m.name}", claim) for m, claim in metas))


def put(cluster: ControlPlane, objects: Iterable[tuple[str, Any]]) -> None:
    """Store objects in etcd under their keys, many in a transaction; the apiserver takes JSON of every kind."""
    numbered = iter(objects)
    while batch := list(itertools.islice(numbered, _PUTS_AT_ONCE)):
        puts = [
            {
                "requestPut": {
                    "key": _encoded(key.encode()),
                    "value": _encoded(msgspec.json.encode(wire(obj) if isinstance(obj, msgspec.Struct) else obj)),
                }
            }
            for key, obj in batch
        ]
        cluster.etcd.post("/v3/kv/txn", {"success": puts})


def _encoded(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


@dataclasses.dataclass(slots=True)
class Program:
    """A process that says on its log that it is ready."""

    process: Process
    offset: int = 0

    async def says(self, text: str, seconds: float = 180) -> str:
        """The rest of its log once it has said `text` since it was started."""

        def said() -> bool:
            return text in self.log()

        await asyncio.to_thread(self.process.wait_until, said, seconds)
        return self.log()

    def log(self) -> str:
        """What it has said since it was started."""
        with self.process.log.open("rb") as file:
            file.seek(self.offset)
            return file.read().decode(errors="replace")


def start(cluster: ControlPlane, name: str, command: Sequence[str], environment: Mapping[str, str] = {}) -> Program:
    """Start a program that the control plane ends with itself."""
    process = cluster.process(name, command, environment={"PYTHONUNBUFFERED": "1", **environment})
    offset = process.log.stat().st_size if process.log.exists() else 0
    return Program(process.start(), offset)


def start_controller(cluster: ControlPlane, name: str = "controller", *arguments: str) -> Program:
    """A controller in a process of its own, as `gpuclaim controller` starts it."""
    command = [
        *(sys.executable, "-m", "gpuclaim", "controller", "--kubeconfig", str(cluster.kubeconfig)),
        *("--webhook-url", "https://127.0.0.1:0", "--identity", name),
        # The reports were made once, before all of this.
        *("--silent-after", "86400", "--exempt-namespace", PODS_NAMESPACE, *arguments),
    ]
    return start(cluster, name, command)


async def at_work(controller: Program) -> None:
    """Returns once the controller has written all that it writes, and the apiserver goes by it."""
    await controller.says("ready\n")
    # Some policies come five seconds later, and an apiserver takes them up within two; nobody tells.
    await asyncio.sleep(10)


def cpu_seconds(pid: int) -> float:
    """The CPU time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def memory_mib(pid: int, field: str = "VmRSS") -> float:
    """A field of /proc/PID/status in MiB: `VmRSS` now, `VmHWM` at its highest."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) / 1024
    raise ValueError(f"no {field}")
