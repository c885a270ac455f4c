"""What admission adds to the creation of a claim, beside a webhook that says yes, 32 at once."""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
from bench import orders, world
from bench.options import Options, say
from bench.table import Result, Row

from gpuclaim.api import names
from gpuclaim.api.types import GPUClaim
from gpuclaim.kube import config
from gpuclaim.kube.client import Client
from gpuclaim.kube.resources import resource_of
from gpuclaim.local.controlplane import ControlPlane
from gpuclaim.local.slate import Slate

NONE: Final = "no webhook"
YES: Final = "one that says yes"
YES_TWICE: Final = "two that say yes"
OURS: Final = "gpuclaim"


async def times(client: Client, count: int, tag: str) -> list[float]:
    """Milliseconds of each create."""
    resource = resource_of(GPUClaim)
    bodies: Iterator[tuple[str, dict[str, Any]]] = iter(orders.claims(count))
    taken: list[float] = []

    async def work() -> None:
        for namespace, body in bodies:
            body["metadata"]["name"] += tag
            raw = msgspec.json.encode(body)
            started = time.perf_counter()
            await client.request("POST", resource.path(namespace), body=raw)
            taken.append(1000 * (time.perf_counter() - started))

    await asyncio.gather(*(work() for _ in range(orders.AT_ONCE)))
    return taken


def yes_configuration(kind: str, where: dict[str, str]) -> dict[str, Any]:
    """One webhook for the creation of claims."""
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": kind,
        "metadata": {"name": "yes"},
        "webhooks": [
            {
                "name": "yes.example.com",
                "admissionReviewVersions": ["v1"],
                "sideEffects": "None",
                "clientConfig": where,
                "rules": [
                    {
                        "apiGroups": [names.GROUP],
                        "apiVersions": [names.VERSION],
                        "operations": ["CREATE"],
                        "resources": ["gpuclaims"],
                        "scope": "Namespaced",
                    }
                ],
            }
        ],
    }


async def measure(cluster: ControlPlane, count: int, rounds: int) -> dict[str, list[list[float]]]:
    """The times of each setting in each round."""
    found: dict[str, list[list[float]]] = {}
    async with Client(config.load(cluster.kubeconfig)) as client:
        await world.furnish(client)
    await asyncio.to_thread(world.put_nodes, cluster, 0, 500)
    slate = Slate(cluster)
    program = world.start(
        cluster, "yes", [sys.executable, "-m", "bench.yes"], {"PYTHONPATH": str(Path(__file__).parents[1])}
    )
    where = json.loads((await program.says("\n")).splitlines()[0])
    for turn in range(rounds):
        for setting in (NONE, YES, YES_TWICE, OURS):
            controller = world.start_controller(cluster) if setting == OURS else None
            if controller is not None:
                await world.at_work(controller)
            async with Client(config.load(cluster.kubeconfig)) as client:
                if setting in {YES, YES_TWICE}:
                    await client.apply(yes_configuration("ValidatingWebhookConfiguration", where))
                if setting == YES_TWICE:
                    await client.apply(yes_configuration("MutatingWebhookConfiguration", where))
                # Webhooks are in force within a moment; connections are opened.
                await times(client, 300, f"-warm{turn}")
                found.setdefault(setting, []).append(await times(client, count, f"-{turn}"))
            if controller is not None:
                controller.process.stop()
            slate.wipe()
            last = found[setting][-1]
            say(f"{setting}: p50 {_quantile(last, 50):.1f} ms, p99 {_quantile(last, 99):.1f} ms")
    return found


def _quantile(taken: list[float], percent: int) -> float:
    return statistics.quantiles(taken, n=100)[percent - 1]


def run(options: Options) -> Result:
    """The rows."""
    count, rounds = (500, 1) if options.quick else (1500, 3)
    with ControlPlane() as cluster:
        found = asyncio.run(measure(cluster, count, rounds))
    middle = {
        setting: {p: statistics.median(_quantile(each, p) for each in taken) for p in (50, 99)}
        for setting, taken in found.items()
    }
    rows = []
    for percent in (50, 99):
        base = middle[NONE][percent]
        ours = middle[OURS][percent] - base
        for other in (YES, YES_TWICE):
            added = middle[other][percent] - base
            asked = percent == 99 and other == YES
            rows.append(
                Row(
                    what=f"what admission adds to a create, p{percent}, 32 at once, ms",
                    ours=f"{ours:.1f}",
                    theirs=f"{added:.1f}",
                    against=other,
                    target="≤ 1.3 x" if asked else "",
                    met=ours <= 1.3 * added if asked else None,
                    note=f"{ours / added:.2f} x;"
                    f" {middle[OURS][percent]:.1f} beside {middle[other][percent]:.1f} ms in all,"
                    f" {base:.1f} without any; median of {rounds} rounds",
                )
            )
    return Result(bench="latency", rows=rows)
