"""One placement decision, by size of the books (design, section 11). Prints a table."""

from __future__ import annotations

import argparse
import datetime as dt
import random
import statistics
import time

from gpuclaim.api import core, types
from gpuclaim.placement.books import Books
from gpuclaim.placement.orders import Order
from gpuclaim.placement.verdict import decide

NOW = dt.datetime(2026, 12, 1, 12, tzinfo=dt.UTC)
RESOURCES = ("nvidia.com/GH100_H200", "nvidia.com/AD102_L40S")


def books_of(nodes: int, holds_per_node: int, seed: int = 1) -> Books:
    """Nodes of eight GPUs, some tainted, with holds of one and two; every tenant under a parent with a budget."""
    rng = random.Random(seed)
    books = Books()
    for name, resource in zip(("h200", "l40s"), RESOURCES, strict=True):
        source = types.Source(device_plugin=types.DevicePluginSource(resource_name=resource))
        toleration = types.Toleration(key="gpu", operator=types.TolerationOperator.EXISTS)
        spec = types.GPUClassSpec(mode=types.Mode.PASSTHROUGH, source=source, tolerations=[toleration])
        books.apply(types.GPUClass(metadata=core.ObjectMeta(name=name), spec=spec))
    for tenant in range(100):
        name = f"tenant-{tenant}"
        labels = {"tenant.cozystack.io/tenant-root": ""}
        books.apply(core.Namespace(metadata=core.ObjectMeta(name=name, labels=labels)))
        hard: dict[str, str | int] = {"gpu.cozystack.io/h200": "1000000", "gpu.cozystack.io/total": "1000000"}
        meta = core.ObjectMeta(name="gpu", namespace=name)
        books.apply(core.ResourceQuota(metadata=meta, spec=core.ResourceQuotaSpec(hard=hard)))
    for number in range(nodes):
        _add_node(books, number, holds_per_node, rng)
    books.advance(NOW)
    return books


def _add_node(books: Books, number: int, holds: int, rng: random.Random) -> None:
    node, resource = f"gpu-{number:05}", RESOURCES[number % 2]
    meta = core.ObjectMeta(name=node)
    taints = [core.Taint(key="gpu", effect="NoSchedule")] if number % 3 == 0 else []
    status = core.NodeStatus(
        allocatable={resource: "8", "devices.kubevirt.io/kvm": "1k"},
        conditions=[core.NodeCondition(type="Ready", status="True")],
    )
    books.apply(core.Node(metadata=meta, spec=core.NodeSpec(taints=taints), status=status))
    count = [types.ResourceCount(name=resource, allocatable=1, used=0)]
    devices = [
        types.Device(address=f"0000:{slot:02x}:00.0", health=types.Health.HEALTHY, resources=count) for slot in range(8)
    ]
    books.apply(types.GPUNode(metadata=meta, status=types.GPUNodeStatus(devices=devices, reported_at=NOW)))
    for index in range(holds):
        tenant, name = f"tenant-{rng.randrange(100)}", f"vm-{number}-{index}"
        spec = types.GPUClaimSpec(class_name=("h200", "l40s")[number % 2], count=rng.choice((1, 1, 2)))
        claim = core.ObjectMeta(namespace=tenant, name=name, uid=f"{tenant}/{name}")
        books.apply(types.GPUClaim(metadata=claim, spec=spec, status=types.GPUClaimStatus(node_name=node)))


def measure(books: Books, count: int, *, reserve: bool, rounds: int) -> float:
    """Median microseconds of one decision for `count` GPUs; with its reservation, which the next one must see."""
    times = []
    for number in range(rounds):
        order = Order(f"tenant-{number % 100}", f"new-{number}", f"uid-{number}", "h200", count, f"new-{number}")
        started = time.perf_counter_ns()
        verdict = decide(books, order, NOW)
        if reserve and verdict.admitted:
            books.reserve(order, verdict, NOW + dt.timedelta(seconds=30))
        times.append((time.perf_counter_ns() - started) / 1000)
    for number in range(rounds):
        books.release(f"uid-{number}")
    return statistics.median(times)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, nargs="+", default=[500, 5000])
    parser.add_argument("--holds", type=int, default=4, help="holds a node")
    parser.add_argument("--rounds", type=int, default=2000)
    options = parser.parse_args()
    rows = (("admitted", 1, False), ("admitted and reserved", 1, True), ("refused, with the largest", 9, False))
    print(
        f"{'one decision, µs (median)':28}"
        + "".join(f"{n:>7} nodes {n * options.holds:>6} holds" for n in options.nodes)
    )
    every = [books_of(nodes, options.holds) for nodes in options.nodes]
    for what, count, reserve in rows:
        figures = [measure(books, count, reserve=reserve, rounds=options.rounds) for books in every]
        ratio = f"   {figures[-1] / figures[0]:.2f} x" if len(figures) > 1 else ""
        print(f"{what:28}" + "".join(f"{figure:26.1f}" for figure in figures) + ratio)


if __name__ == "__main__":
    main()
