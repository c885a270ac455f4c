"""How much of a production cluster can be ordered before an order is refused that would fit.

The nodes and tasks of the public trace "openb" (docs/reference/bench.md). Every whole-GPU task is an order, every node
has so many GPUs; models, CPU and memory keep nobody out. The same orders go to gpuclaim's own placement and to models
of others, until each is full.
"""

from __future__ import annotations

import csv
import datetime as dt
import itertools
import random
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import msgspec
from bench.options import Options, say
from bench.table import Result, Row

from gpuclaim.api import core, types
from gpuclaim.placement.books import Books, Settings
from gpuclaim.placement.orders import Order
from gpuclaim.placement.verdict import decide

_NOW = dt.datetime(2026, 12, 1, 12, tzinfo=dt.UTC)
_RESOURCE = "example.com/gpu"
_FOLDER = "openb"


@dataclass(frozen=True, slots=True)
class Node:
    """A node of the trace: CPU in millicores, memory in MiB."""

    name: str
    cpu: int
    memory: int
    gpus: int


@dataclass(frozen=True, slots=True)
class Task:
    """A whole-GPU task of the trace."""

    cpu: int
    memory: int
    gpus: int


def nodes_of(folder: Path) -> list[Node]:
    """The nodes that have GPUs."""
    with (folder / "openb_node_list_gpu_node.csv").open() as file:
        return [
            Node(row["sn"], int(row["cpu_milli"]), int(row["memory_mib"]), int(row["gpu"]))
            for row in csv.DictReader(file)
        ]


def tasks_of(folder: Path, name: str) -> list[Task]:
    """The tasks that take whole GPUs, in the order of the trace."""
    with (folder / f"openb_pod_list_{name}.csv").open() as file:
        return [
            Task(int(row["cpu_milli"]), int(row["memory_mib"]), int(row["num_gpu"]))
            for row in csv.DictReader(file)
            if int(row["num_gpu"]) >= 1 and int(row["gpu_milli"]) == 1000
        ]


class Policy(Protocol):
    """Something that takes orders."""

    def take(self, number: int, task: Task) -> bool:
        """Whether the order was taken."""

    def end(self, number: int) -> None:
        """An order that was taken ends."""


class Gpuclaim:
    """The product's books and decisions. Of `running` sets, a share, the VM is on: they are never moved."""

    def __init__(self, nodes: Iterable[Node], *, repack: bool, running: float = 0.0, seed: int = 0) -> None:
        self._books = Books(Settings(repack=repack))
        self._random = random.Random(seed)
        self._running = running
        self.moved = 0
        source = types.Source(device_plugin=types.DevicePluginSource(resource_name=_RESOURCE))
        spec = types.GPUClassSpec(mode=types.Mode.PASSTHROUGH, source=source)
        self._books.apply(types.GPUClass(metadata=core.ObjectMeta(name="gpu"), spec=spec))
        for node in nodes:
            meta = core.ObjectMeta(name=node.name)
            ready = [core.NodeCondition(type="Ready", status="True")]
            status = core.NodeStatus(allocatable={_RESOURCE: str(node.gpus)}, conditions=ready)
            self._books.apply(core.Node(metadata=meta, status=status))
            count = [types.ResourceCount(name=_RESOURCE, allocatable=1, used=0)]
            devices = [
                types.Device(address=f"0000:{slot:02x}:00.0", health=types.Health.HEALTHY, resources=count)
                for slot in range(node.gpus)
            ]
            self._books.apply(
                types.GPUNode(metadata=meta, status=types.GPUNodeStatus(devices=devices, reported_at=_NOW))
            )

    def take(self, number: int, task: Task) -> bool:
        name = f"o{number}"
        verdict = decide(self._books, Order("t", name, name, "gpu", task.gpus, name), _NOW)
        if not verdict.admitted:
            return False
        for move in verdict.moves:
            claim = self._books.claim("t", move.name)
            assert claim is not None
            self.moved += claim.spec.count
            there = msgspec.structs.replace(claim.status, node_name=move.to_node)
            self._books.apply(msgspec.structs.replace(claim, status=there))
        meta = core.ObjectMeta(namespace="t", name=name, uid=name)
        spec = types.GPUClaimSpec(class_name="gpu", count=task.gpus)
        self._books.apply(types.GPUClaim(metadata=meta, spec=spec, status=types.GPUClaimStatus(node_name=verdict.node)))
        if self._random.random() < self._running:
            pod = core.ObjectMeta(namespace="t", name=name, uid=f"pod-{name}", labels={"gpu.cozystack.io/set": name})
            self._books.apply(
                core.Pod(
                    metadata=pod,
                    spec=core.PodSpec(node_name=verdict.node or ""),
                    status=core.PodStatus(phase="Running"),
                )
            )
        return True

    def end(self, number: int) -> None:
        self._books.remove(core.Pod, "t", f"o{number}")
        self._books.remove(types.GPUClaim, "t", f"o{number}")


@dataclass(slots=True)
class _State:
    """A node while a model fills it."""

    node: Node
    free: int
    cpu: int = 0
    memory: int = 0


def scheduler_default(state: _State, task: Task) -> float:
    """The sum of kube-scheduler's two default scores that tell these nodes apart (1.37).

    NodeResourcesFit with LeastAllocated and NodeResourcesBalancedAllocation, both of weight 1 and of CPU and memory
    only, as pkg/scheduler/framework/plugins/noderesources has them.
    """
    cpu, memory = state.cpu + task.cpu, state.memory + task.memory
    node = state.node
    least = (max(0, (node.cpu - cpu) * 100 // node.cpu) + max(0, (node.memory - memory) * 100 // node.memory)) // 2
    after = _balance(cpu / node.cpu, memory / node.memory)
    before = _balance(state.cpu / node.cpu, state.memory / node.memory)
    return least + 50 + (50 + after - before) // 2


def _balance(cpu: float, memory: float) -> int:
    return int((1 - abs(min(cpu, 1) - min(memory, 1)) / 2) * 100)


class ByFree:
    """Best fit, the node with the fewest free GPUs that are enough, or worst fit, the one with the most; the first."""

    def __init__(self, nodes: Iterable[Node], *, best: bool) -> None:
        self._best = best
        self._by_free: dict[int, dict[str, None]] = {}
        self._held: dict[int, tuple[str, int]] = {}
        self._free: dict[str, int] = {}
        for node in nodes:
            self._set(node.name, node.gpus)

    def take(self, number: int, task: Task) -> bool:
        enough = [free for free, names in self._by_free.items() if free >= task.gpus and names]
        if not enough:
            return False
        name = next(iter(self._by_free[min(enough) if self._best else max(enough)]))
        self._held[number] = (name, task.gpus)
        self._set(name, self._free[name] - task.gpus)
        return True

    def end(self, number: int) -> None:
        name, gpus = self._held.pop(number)
        self._set(name, self._free[name] + gpus)

    def _set(self, name: str, free: int) -> None:
        self._by_free.get(self._free.get(name, -1), {}).pop(name, None)
        self._free[name] = free
        self._by_free.setdefault(free, {})[name] = None


class Scheduler:
    """kube-scheduler's default: of the nodes that it looks at, one with the best score, of equals one by lot.

    As it does from 100 nodes on, it looks in turn at as many as it takes to find a share of all that fit.
    """

    def __init__(self, nodes: Sequence[Node], *, seed: int = 0) -> None:
        self._states = [_State(node, node.gpus) for node in nodes]
        self._random = random.Random(seed)
        self._enough = len(nodes)
        if len(nodes) >= 100:
            self._enough = max(100, len(nodes) * max(5, 50 - len(nodes) // 125) // 100)
        self._next = 0
        self._held: dict[int, tuple[_State, Task]] = {}

    def take(self, number: int, task: Task) -> bool:
        found: list[_State] = []
        looked = 0
        turned = itertools.chain(self._states[self._next :], self._states[: self._next])
        for state in turned:
            looked += 1
            if state.free >= task.gpus:
                found.append(state)
                if len(found) >= self._enough:
                    break
        self._next = (self._next + looked) % len(self._states)
        if not found:
            return False
        scores = [scheduler_default(state, task) for state in found]
        top = max(scores)
        chosen = self._random.choice([state for state, score in zip(found, scores, strict=True) if score == top])
        self._book(chosen, task, 1)
        self._held[number] = (chosen, task)
        return True

    def end(self, number: int) -> None:
        self._book(*self._held.pop(number), -1)

    @staticmethod
    def _book(state: _State, task: Task, sign: int) -> None:
        state.free -= sign * task.gpus
        state.cpu += sign * task.cpu
        state.memory += sign * task.memory


@dataclass(slots=True)
class Outcome:
    """Shares of all GPUs, 0 to 1, held when it happened; of orders, at the end of the run."""

    fits_sum: float | None = None
    """The first refusal of an order for no more than were free in all."""
    needless: float | None = None
    """The first refusal of an order for which the holds could have made room, all of them moved at will."""
    final: float = 0.0
    refused: int = 0
    needless_refused: int = 0


def room_exists(nodes: Mapping[int, int], orders: Mapping[int, int]) -> bool:
    """Whether the orders fit the nodes in any arrangement at all; both as size → how many there are.

    Exact where every size divides the next larger one (1, 2, 4, 8): the largest first, into what is left in pieces of
    its size, wherever they are.
    """
    bins = dict(nodes)
    for size in sorted(orders, reverse=True):
        left = orders[size]
        for room in sorted(bins):
            taken = min(left, room // size * bins[room])
            left -= taken
            whole, rest = divmod(taken, max(1, room // size))
            for spent, count in ((room // size * size, whole), (rest * size, 1 if rest else 0)):
                if count:
                    bins[room] -= count
                    bins[room - spent] = bins.get(room - spent, 0) + count
        if left:
            return False
    return True


@dataclass(slots=True)
class Run:
    """One stream of orders against one policy."""

    nodes: Sequence[Node]
    policy: Policy
    held: dict[int, int] = field(default_factory=dict)

    def play(self, stream: Sequence[Task], ends: float, seed: int) -> Outcome:
        """Give every order; after each, with the probability `ends`, one that is held ends."""
        lot = random.Random(seed)
        total = sum(node.gpus for node in self.nodes)
        sizes = Counter(node.gpus for node in self.nodes)
        outcome = Outcome()
        used = 0
        for number, task in enumerate(stream):
            if self.policy.take(number, task):
                self.held[number] = task.gpus
                used += task.gpus
            elif used + task.gpus <= total:
                outcome.refused += 1
                if outcome.fits_sum is None:
                    outcome.fits_sum = used / total
                if room_exists(sizes, Counter(self.held.values()) + Counter((task.gpus,))):
                    outcome.needless_refused += 1
                    if outcome.needless is None:
                        outcome.needless = used / total
            # The same lots are drawn whatever was taken, so that policies differ by their choices alone.
            draw, which = lot.random(), lot.random()
            if draw < ends and self.held:
                gone = list(self.held)[int(which * len(self.held))]
                used -= self.held.pop(gone)
                self.policy.end(gone)
        outcome.final = used / total
        return outcome


def policies(nodes: Sequence[Node], seed: int) -> dict[str, Policy]:
    """Every policy, empty."""
    return {
        "gpuclaim": Gpuclaim(nodes, repack=True, seed=seed),
        "gpuclaim, half of the VMs on": Gpuclaim(nodes, repack=True, running=0.5, seed=seed),
        "gpuclaim without repacking": Gpuclaim(nodes, repack=False, seed=seed),
        "best fit": ByFree(nodes, best=True),
        "worst fit": ByFree(nodes, best=False),
        "kube-scheduler's default (model)": Scheduler(nodes, seed=seed),
    }


def stream_of(tasks: Sequence[Task], gpus: int, seed: int) -> list[Task]:
    """So many GPUs of orders: the trace as it is (seed 0), or shuffled, begun again as often as it takes."""
    rng = random.Random(seed)
    stream: list[Task] = []
    wanted = 0
    while wanted < gpus:
        once = list(tasks)
        if seed:
            rng.shuffle(once)
        for task in once:
            stream.append(task)
            wanted += task.gpus
            if wanted >= gpus:
                break
    return stream


def run(options: Options) -> Result:
    """The shares of every policy, per list of tasks, with and without holds that end."""
    folder = options.openb
    if folder is None or not folder.is_dir():
        return Result(
            bench="openb", skipped="the openb tables are not here; --openb or $GPUCLAIM_OPENB names their folder"
        )
    nodes = nodes_of(folder)
    total = sum(node.gpus for node in nodes)
    seeds = range(2 if options.quick else 5)
    rows: list[Row] = []
    for name in ("default", "multigpu50"):
        tasks = tasks_of(folder, name)
        for ends, demand, how in ((0.0, 1.05, "nothing ends"), (0.5, 2.5, "half end")):
            found: dict[str, list[Outcome]] = {}
            for seed in seeds:
                stream = stream_of(tasks, int(total * demand), seed)
                for what, policy in policies(nodes, seed).items():
                    found.setdefault(what, []).append(Run(nodes, policy).play(stream, ends, seed))
                say(f"{name}, {how}, seed {seed}")
            rows += _rows(f"openb {name}, {how}", found)
    return Result(bench="openb", rows=rows)


def _rows(where: str, found: dict[str, list[Outcome]]) -> list[Row]:
    ours = found["gpuclaim"]
    rows = []
    for what, outcomes in found.items():
        first, own = _median(o.fits_sum for o in outcomes), _median(o.fits_sum for o in ours)
        needless = _median(o.needless for o in outcomes)
        refused = statistics.median(o.needless_refused for o in outcomes)
        rows.append(
            Row(
                what=f"{where}: GPUs ordered before the first refusal that fits in the sum",
                ours=_percent(own),
                theirs="" if what == "gpuclaim" else _percent(first),
                against="" if what == "gpuclaim" else what,
                target="" if what.startswith("gpuclaim") else "ahead",
                met=None if what.startswith("gpuclaim") else own > first,
                note=f"first needless refusal at {_percent(needless)}, {refused:.0f} needless in all",
            )
        )
    return rows


def _median(shares: Iterable[float | None]) -> float:
    # Never refused: all of it was ordered first.
    return statistics.median(2.0 if share is None else share for share in shares)


def _percent(share: float) -> str:
    return "never" if share > 1 else f"{100 * share:.2f} %"
