"""One placement decision, by size of the books."""

from __future__ import annotations

import datetime as dt
import random
import statistics
import time

from bench.options import Options
from bench.table import Result, Row

from gpuclaim.api import core, types
from gpuclaim.placement.books import Books
from gpuclaim.placement.orders import Order
from gpuclaim.placement.verdict import decide

NOW = dt.datetime(2026, 12, 1, 12, tzinfo=dt.UTC)
_HOLDS = 4  # a node
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


def run(options: Options) -> Result:
    """The figures at 500 and 5,000 nodes."""
    rounds = 500 if options.quick else 4000
    small, large = books_of(500, _HOLDS), books_of(5000, _HOLDS)
    rows = []
    kinds = (("admitted", 1, False), ("admitted and reserved", 1, True), ("refused, with the largest", 9, False))
    for what, count, reserve in kinds:
        # Interleaved, so that both see the same machine.
        pairs = [
            tuple(measure(books, count, reserve=reserve, rounds=rounds // 4) for books in (small, large))
            for _ in range(4)
        ]
        few, many = (statistics.median(each) for each in zip(*pairs, strict=True))
        rows.append(
            Row(
                what=f"one decision at 5,000 nodes and 20,000 holds, {what}, µs",
                ours=f"{many:.1f}",
                theirs=f"{few:.1f}",
                against="500 nodes",
                target="≤ 50 µs, ≤ 1.5 x",
                met=many <= 50 and many <= 1.5 * few,
                note=f"{many / few:.2f} x; median",
            )
        )
    return Result(bench="decision", rows=rows)
