"""Orders a second, create to Bound, beside kube-scheduler's pods a second, create to scheduled, on one apiserver.

Both get the same client, the same number at once, and nodes of 8 GPUs with room for all. They take turns; the one
whose turn it is not does not run, and its webhooks and objects are gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import statistics
import time
from collections.abc import Iterator
from typing import Any

import msgspec
from bench import world
from bench.options import Options, say
from bench.table import Result, Row

from gpuclaim.api import core, names
from gpuclaim.api.core import Struct
from gpuclaim.api.types import GPUClaim
from gpuclaim.kube import config
from gpuclaim.kube.client import Client
from gpuclaim.kube.resources import Resource, resource_of
from gpuclaim.local.controlplane import ControlPlane
from gpuclaim.local.slate import Slate

AT_ONCE = 32


class _Place(Struct, frozen=True, kw_only=True):
    node_name: str = ""


class _Seen(Struct, frozen=True, kw_only=True):
    """Where an object says its node: a pod in its spec, a claim in its status."""

    metadata: core.ObjectMeta
    spec: _Place = _Place()
    status: _Place = _Place()


@dataclasses.dataclass(frozen=True, slots=True)
class Burst:
    """How fast a burst was created and placed, each a second, and the CPU milliseconds of each process per object."""

    created: float
    placed: float
    cpu: dict[str, float]


async def burst(
    client: Client, resource: Resource, bodies: list[tuple[str, dict[str, Any]]], pids: dict[str, int]
) -> Burst:
    """Create all, (namespace, object), so many at once; return when each has a node."""
    _, since = await client.list_raw(resource)
    raw = iter([(resource.path(namespace), msgspec.json.encode(body)) for namespace, body in bodies])
    watching = asyncio.create_task(_all_placed(client, resource, since, len(bodies)))
    before = {name: world.cpu_seconds(pid) for name, pid in pids.items()}
    started = time.perf_counter()
    await asyncio.gather(*(_create(client, raw) for _ in range(AT_ONCE)))
    created = time.perf_counter() - started
    async with asyncio.timeout(300):
        await watching
    placed = time.perf_counter() - started
    cpu = {name: 1000 * (world.cpu_seconds(pid) - before[name]) / len(bodies) for name, pid in pids.items()}
    return Burst(len(bodies) / created, len(bodies) / placed, cpu)


async def _create(client: Client, bodies: Iterator[tuple[str, bytes]]) -> None:
    for path, body in bodies:
        await client.request("POST", path, body=body)


async def _all_placed(client: Client, resource: Resource, since: str, count: int) -> None:
    decoder = msgspec.json.Decoder(_Seen)
    placed: set[tuple[str, str]] = set()
    async with contextlib.aclosing(client.watch(resource, since=since)) as events:
        async for kind, item in events:
            if kind == "BOOKMARK":
                continue
            seen = decoder.decode(item)
            if seen.spec.node_name or seen.status.node_name:
                placed.add((seen.metadata.namespace, seen.metadata.name))
                if len(placed) >= count:
                    return


def claims(count: int) -> list[tuple[str, dict[str, Any]]]:
    """Orders of one GPU, of a hundred tenants."""
    spec = {"className": world.CLASS}
    return [
        (
            world.tenant(number),
            {
                "apiVersion": names.API_VERSION,
                "kind": "GPUClaim",
                "metadata": {"name": f"o{number}", "namespace": world.tenant(number)},
                "spec": spec,
            },
        )
        for number in range(count)
    ]


def pods(count: int) -> list[tuple[str, dict[str, Any]]]:
    """Pods of one GPU and next to nothing else."""
    container = {"name": "main", "image": "any", "resources": {"limits": {world.RESOURCE: "1"}}}
    spec = {"automountServiceAccountToken": False, "containers": [container]}
    return [
        (
            world.PODS_NAMESPACE,
            {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"p{number}"}, "spec": spec},
        )
        for number in range(count)
    ]


async def measure(cluster: ControlPlane, slate: Slate, count: int, rounds: int) -> tuple[list[Burst], list[Burst]]:
    """Bursts of orders and of pods, taking turns."""
    orders: list[Burst] = []
    scheduled: list[Burst] = []
    shared = {each: cluster.processes[each].pid for each in ("kube-apiserver", "etcd")} | {"client": os.getpid()}
    for _ in range(rounds):
        controller = world.start_controller(cluster)
        await world.at_work(controller)
        async with Client(config.load(cluster.kubeconfig)) as client:
            pids = shared | {"controller": controller.process.pid}
            orders.append(await burst(client, resource_of(GPUClaim), claims(count), pids))
        controller.process.stop()
        slate.wipe()
        scheduler = await asyncio.to_thread(cluster.start_scheduler)
        async with Client(config.load(cluster.kubeconfig)) as client:
            pids = shared | {"scheduler": scheduler.pid}
            scheduled.append(await burst(client, resource_of(core.Pod), pods(count), pids))
        scheduler.stop()
        slate.wipe()
        say(
            f"orders {orders[-1].placed:.0f}/s {_cpu(orders[-1])};"
            f" pods {scheduled[-1].placed:.0f}/s {_cpu(scheduled[-1])}"
        )
    return orders, scheduled


def _cpu(found: Burst) -> str:
    return f"(created {found.created:.0f}/s; CPU " + ", ".join(f"{k} {v:.2f}" for k, v in found.cpu.items()) + " ms)"


def run(options: Options) -> Result:
    """Both sizes."""
    count, rounds = (400, 1) if options.quick else (1500, 3)
    sizes = (100, 500) if options.quick else (500, 5000)

    async def fill(cluster: ControlPlane) -> list[Row]:
        rows: list[Row] = []
        async with Client(config.load(cluster.kubeconfig)) as client:
            await world.furnish(client)
        have = 0
        for size in sizes:
            await asyncio.to_thread(world.put_nodes, cluster, have, size)
            have = size
            slate = Slate(cluster)
            ours, theirs = await measure(cluster, slate, count, rounds)
            rows.append(_row(size, ours, theirs))
        return rows

    with ControlPlane() as cluster:
        return Result(bench="orders", rows=asyncio.run(fill(cluster)))


def _row(size: int, ours: list[Burst], theirs: list[Burst]) -> Row:
    mine, other = (statistics.median(b.placed for b in bursts) for bursts in (ours, theirs))
    typical = min(ours, key=lambda b: abs(b.placed - mine))
    spread = f"{min(b.placed for b in ours):.0f} to {max(b.placed for b in ours):.0f}"
    others = f"{min(b.placed for b in theirs):.0f} to {max(b.placed for b in theirs):.0f}"
    return Row(
        what=f"orders a second, create to Bound, {size:,} nodes",
        ours=f"{mine:.0f}",
        theirs=f"{other:.0f}",
        against="kube-scheduler's pods a second",
        target="≥ 1.25 x",
        met=mine >= 1.25 * other,
        note=f"{mine / other:.2f} x; median of {len(ours)} rounds ({spread}; {others}); {_cpu(typical)}",
    )
