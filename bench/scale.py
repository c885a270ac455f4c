"""Memory, cold start and takeover with 100,000 claims on 5,000 nodes, beside client-go informers of the same."""

from __future__ import annotations

import asyncio
import json
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from bench import world
from bench.options import Options, say
from bench.table import Result, Row

from gpuclaim.api.types import Mode
from gpuclaim.kube import config
from gpuclaim.kube.client import ApiError, Client, UnreachableError
from gpuclaim.local import toolchain
from gpuclaim.local.controlplane import ControlPlane
from support import cloud

_PER_NODE = 20
_REST_SECONDS = 15
_LEASE_SECONDS = 15


def build_informer(into: Path) -> Path:
    """Compile the program of bench/informer."""
    binary = into / "informer"
    go = toolchain.find((1, 26))
    subprocess.run([go, "build", "-o", binary, "."], cwd=Path(__file__).parent / "informer", check=True)
    return binary


def informer_memory(binary: Path, kubeconfig: Path, *, typed: bool) -> dict[str, float]:
    """What an informer process holds once it is synced, after a collection: MiB."""
    command = [str(binary), f"--kubeconfig={kubeconfig}", f"--typed={str(typed).lower()}"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        line: dict[str, Any] = json.loads(process.stdout.readline())
        found = {
            "rss": world.memory_mib(process.pid),
            "peak": world.memory_mib(process.pid, "VmHWM"),
            "heap": line["heapBytes"] / 2**20,
            "objects": line["objects"],
            "seconds": line["seconds"],
        }
        process.stdin.close()
    return found


async def takeover(client: Client, cluster: ControlPlane, leader: world.Program) -> float:
    """Seconds from the leader's death until an order is taken again."""
    follower = world.start_controller(cluster, "second", "--lease-duration", str(_LEASE_SECONDS))
    await follower.says("campaigning")
    await asyncio.sleep(3)  # it has seen the lease renewed, as it would have in a life of days
    leader.process.kill()
    died = time.perf_counter()
    number = 0
    while True:
        number += 1
        try:
            await client.create(cloud.claim(f"after-{number}", world.tenant(0), world.CLASS))
        except (ApiError, UnreachableError):
            await asyncio.sleep(0.05)
        else:
            return time.perf_counter() - died


async def measure(cluster: ControlPlane, binary: Path, nodes: int) -> list[Row]:
    """The rows."""
    async with Client(config.load(cluster.kubeconfig)) as client:
        await world.furnish(client, mode=Mode.VGPU, max_count=8)
        await asyncio.to_thread(world.put_nodes, cluster, 0, nodes, each=4)
        await asyncio.to_thread(world.put_claims, cluster, world.bound_claims(nodes, _PER_NODE))
        say(f"{nodes * _PER_NODE} claims are stored")
        go = {
            name: await asyncio.to_thread(informer_memory, binary, cluster.kubeconfig, typed=typed)
            for name, typed in (("typed", True), ("unstructured", False))
        }
        say(json.dumps(go))
        started = time.perf_counter()
        leader = world.start_controller(cluster, "first", "--lease-duration", str(_LEASE_SECONDS))
        await leader.says("ready\n")
        cold = time.perf_counter() - started
        say(f"ready after {cold:.1f} s")
        await asyncio.sleep(_REST_SECONDS)
        pid = leader.process.pid
        rss, peak = world.memory_mib(pid), world.memory_mib(pid, "VmHWM")
        say(f"controller {rss:.0f} MiB, peak {peak:.0f} MiB, CPU {world.cpu_seconds(pid):.1f} s")
        over = await takeover(client, cluster, leader)
        say(f"takeover after {over:.1f} s")
    size = f"{nodes * _PER_NODE:,} claims and {nodes:,} GPUNodes"
    rows = [
        Row(
            what=f"controller's memory, {size}, MiB",
            ours=f"{rss:.0f}",
            theirs=f"{found['rss']:.0f}",
            against=f"client-go informers, {name}",
            target="≤ 1 x" if name == "unstructured" else "",
            met=rss <= found["rss"] if name == "unstructured" else None,
            note=f"resident; at its highest {peak:.0f} beside {found['peak']:.0f}; Go's live heap {found['heap']:.0f}",
        )
        for name, found in go.items()
    ]
    rows.append(
        Row(
            what=f"cold start to ready, {size}, s",
            ours=f"{cold:.1f}",
            theirs=f"{go['unstructured']['seconds']:.1f}",
            against="client-go's time to synced, unstructured",
            target="≤ 10 s",
            met=cold <= 10,
        )
    )
    rows.append(
        Row(
            what="from the leader's kill -9 to the next order taken, s",
            ours=f"{over:.1f}",
            target=f"≤ lease + 1 s ({_LEASE_SECONDS + 1} s)",
            met=over <= _LEASE_SECONDS + 1,
        )
    )
    return rows


def run(options: Options) -> Result:
    """All of it; a tenth with `quick`."""
    with tempfile.TemporaryDirectory() as folder:
        binary = build_informer(Path(folder))
        with ControlPlane() as cluster:
            return Result(bench="scale", rows=asyncio.run(measure(cluster, binary, 500 if options.quick else 5000)))
