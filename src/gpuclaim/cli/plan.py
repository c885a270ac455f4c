"""`gpuclaim plan`: what would become of orders, by the code that admission runs (R74)."""

from __future__ import annotations

import datetime as dt
import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import click

from gpuclaim.cli import desk, options
from gpuclaim.placement import object_file, scenario, scenario_file, whatif
from gpuclaim.placement.drain import Leaving
from gpuclaim.placement.scenario import (
    KINDS,
    Clock,
    Delete,
    Holds,
    Merge,
    NewOrder,
    Result,
    Scenario,
    ScenarioError,
    Simulation,
    Step,
)
from gpuclaim.views import nodes as map_view
from gpuclaim.views import picture as drawing
from gpuclaim.views import plan as view
from gpuclaim.views import text
from gpuclaim.views.table import Cell

_NODES_MAX: Final = 1000
_GPUS_MAX: Final = 1_000_000
_LINES_MAX: Final = 12


class _Counted(click.ParamType[tuple[str, int]]):
    """A name and a number, such as h200=2."""

    def __init__(self, name: str, most: int, expected: str, default: str = "") -> None:
        self.name = name
        self._most = most
        self._expected = expected
        self._default = default

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, int]:
        if isinstance(value, tuple):
            return value
        name, equals, count = str(value).partition("=")
        count = count if equals else self._default
        if not name or not count.isascii() or not count.isdigit() or not 1 <= int(count) <= self._most:
            self.fail(f"{text.safe(str(value))!r} {self._expected}", param, ctx)
        return name, int(count)


_CLASS_COUNT: Final = _Counted("CLASS=COUNT", _GPUS_MAX, "is no order such as h200=2")
_NODE_COUNT: Final = _Counted(
    "NODE[=COUNT]", _NODES_MAX, "must be a node to copy and how often, such as gpu-1=2", default="1"
)


@dataclass
class _Outcome:
    """What was supposed, and what came of it, in this order."""

    steps: list[tuple[Step, Result]] = field(default_factory=list)
    added: list[str] = field(default_factory=list)
    losses: list[tuple[str, str, whatif.Loss]] = field(default_factory=list)
    drained: tuple[str, list[Leaving]] | None = None
    nodes: list[view.Change] = field(default_factory=list)
    largest: dict[str, int] = field(default_factory=dict)


@click.command()
@click.option(
    "--scenario",
    "scenario_path",
    metavar="FILE",
    help="A state of Kubernetes objects and steps, as in tests/cases/orders; - reads standard input.",
)
@click.option("--dump", metavar="FILE", help="The state as kubectl printed it with -o yaml or json; - as above.")
@click.option("--cluster", is_flag=True, help="The state of the cluster as it is now.")
@options.kubeconfig
@click.option("--add", type=_NODE_COUNT, multiple=True, help="Suppose so many more nodes like this one. Repeatable.")
@click.option(
    "--lose", metavar="DEVICE", multiple=True, help="Suppose that this GPU fails: NODE/ADDRESS, or ADDRESS. Repeatable."
)
@click.option("--drain", metavar="NODE", help="Suppose that this node is emptied: what would move, and what not.")
@click.option("--order", "wanted", type=_CLASS_COUNT, multiple=True, help="An order of that many GPUs. Repeatable.")
@click.option("--orders", metavar="FILE", help="Orders from a file: GPUClaims, as for kubectl create -f.")
@click.option("-n", "--namespace", default="default", show_default=True, help="Whose orders they are.")
@click.option(
    "--picture", type=click.Path(path_type=Path, dir_okay=False), help="Write the nodes, before and after, as SVG."
)
@click.option(
    "-o",
    "--output",
    type=click.Choice(["json", "table"]),
    help="Default: table on a terminal, else json.",
)
@click.option("--check", is_flag=True, help="Compare with what the scenario expects; exit 1 where a step differs.")
def plan(
    scenario_path: str | None,
    dump: str | None,
    kubeconfig: Path | None,
    context: str | None,
    add: tuple[tuple[str, int], ...],
    lose: tuple[str, ...],
    drain: str | None,
    wanted: tuple[tuple[str, int], ...],
    orders: str | None,
    namespace: str,
    picture: Path | None,
    output: str | None,
    *,
    cluster: bool,
    check: bool,
) -> None:
    """Say what would become of orders, of nodes that come or are emptied, and of GPUs that fail. Nothing is changed.

    The state is a scenario's, a dump's or the cluster's. What is supposed is played in this order: the scenario's
    steps, --add, --lose, --drain, then the orders.

    \b
    What would still fit if gpu-1 were emptied:
      gpuclaim plan --cluster --drain gpu-1 --order h200=4

    With nothing but a scenario, JSON is a list, one entry a step; with --drain, one entry a set on the node, after the
    steps. Else it is one object.
    """  # noqa: D301 - \b keeps click from filling the lines
    if sum((scenario_path is not None, dump is not None, cluster)) != 1:
        raise click.UsageError("give the state: one of --scenario, --dump and --cluster")
    if check and scenario_path is None:
        raise click.UsageError("--check goes with --scenario, which says what is expected")
    if not cluster and (kubeconfig is not None or context is not None):
        raise click.UsageError("--kubeconfig and --context go with --cluster")
    source = scenario_path or dump or ""
    try:
        played = _state(scenario_path, dump, kubeconfig, context)
        simulation = Simulation(played)
        before = list(simulation.objects.values())
        outcome = _Outcome()
        outcome.steps = [(step, simulation.step(step)) for step in played.steps]
    except ScenarioError as error:
        raise click.ClickException(f"{source or 'the cluster'}: {error}") from None
    as_json = (output or ("table" if sys.stdout.isatty() else "json")) == "json"
    _suppose(simulation, outcome, add, lose, drain)
    supposes = bool(dump is not None or cluster or add or lose or wanted or orders or picture)
    if not supposes:
        if outcome.drained is None:
            _show_steps(outcome.steps, as_json=as_json)
        else:
            _show_drain(*outcome.drained, as_json=as_json)
    else:
        _order(simulation, outcome, _orders(wanted, orders, namespace), orders or "")
        outcome.largest = whatif.largest(simulation)
        outcome.nodes = view.changes(before, simulation.objects.values())
        if picture is not None:
            _draw(picture, outcome)
        if as_json:
            click.echo(json.dumps(_document(outcome, simulation.now), indent=2))
        else:
            _show(outcome)
    if check and not _agree(source, outcome.steps):
        raise SystemExit(1)


def _state(scenario_path: str | None, dump: str | None, kubeconfig: Path | None, context: str | None) -> Scenario:
    if scenario_path is not None:
        return scenario_file.read(_text(scenario_path))
    now = dt.datetime.now(dt.UTC)
    if dump is not None:
        return object_file.dump(_text(dump), now)
    from gpuclaim.kube.blocking import Blocking
    from gpuclaim.kube.config import load

    with desk.failures():
        client = Blocking(load(kubeconfig, context))
        found = [obj for kind in KINDS.values() for obj in client.objects(kind)]
    return Scenario(now=now, state=[(obj, 0, "") for obj in found])


def _orders(wanted: Iterable[tuple[str, int]], file: str | None, namespace: str) -> list[Step]:
    steps = [
        Step(NewOrder(namespace, f"order-{number}", class_name, count))
        for number, (class_name, count) in enumerate(wanted, 1)
    ]
    if file is None:
        return steps
    try:
        return steps + object_file.orders(_text(file), namespace)
    except ScenarioError as error:
        raise click.ClickException(f"{file}: {error}") from None


def _suppose(
    simulation: Simulation,
    outcome: _Outcome,
    add: Iterable[tuple[str, int]],
    lose: Iterable[str],
    drain: str | None,
) -> None:
    try:
        for like, count in add:
            outcome.added += whatif.add(simulation, like, count)
        for device in lose:
            node, slash, address = device.rpartition("/")
            name, loss = whatif.lose(simulation, address.lower(), node if slash else None)
            outcome.losses.append((name, address.lower(), loss))
        if drain is not None:
            outcome.drained = drain, whatif.drain(simulation, drain)
    except whatif.WhatIfError as error:
        raise click.ClickException(text.safe(str(error))) from None


def _order(simulation: Simulation, outcome: _Outcome, steps: Iterable[Step], file: str) -> None:
    try:
        outcome.steps += [(step, simulation.step(step)) for step in steps]
    except ScenarioError as error:
        raise click.ClickException(f"{file + ': ' if file else ''}{error}") from None


def _text(file: str) -> str:
    try:
        data = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
        return data.decode()
    except OSError as error:
        raise click.ClickException(f"{file}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise click.ClickException(f"{file}: line {line}: it is no UTF-8 text") from None


def _agree(file: str, steps: Iterable[tuple[Step, Result]]) -> bool:
    found = False
    for number, (step, result) in enumerate(steps, 1):
        for difference in scenario.differences(step.expect, result):
            found = True
            click.echo(f"{file}: line {step.line}: step {number}: {difference}", err=True)
    return not found


def _document(outcome: _Outcome, now: dt.datetime) -> dict[str, Any]:
    return {
        "now": now.isoformat(),
        "added": outcome.added,
        "lost": [
            {"node": node, "address": address, "sets": _leaving(loss.leaving), "short": loss.short}
            for node, address, loss in outcome.losses
        ],
        "drained": {"node": outcome.drained[0], "sets": _leaving(outcome.drained[1])} if outcome.drained else None,
        "steps": [_named(step) | result for step, result in outcome.steps],
        "largest": outcome.largest,
        "nodes": [
            {"name": node.name, "before": "".join(node.before), "after": "".join(node.after)} for node in outcome.nodes
        ],
    }


def _named(step: Step) -> dict[str, Any]:
    if not isinstance(step.action, NewOrder):
        return {}
    new = step.action
    return {
        "order": {
            "namespace": new.namespace,
            "name": new.name,
            "className": new.class_name,
            "count": new.count,
            "set": new.set_name,
        }
    }


def _leaving(sets: Iterable[Leaving]) -> list[dict[str, Any]]:
    return [
        {
            "set": f"{leaving.namespace}/{leaving.set_name}",
            "gpus": leaving.gpus,
            "node": leaving.verdict.node,
            "reason": leaving.verdict.reason.value if leaving.verdict.reason else None,
            "message": leaving.verdict.message,
            "moves": [f"{move.namespace}/{move.name}" for move in leaving.verdict.moves],
        }
        for leaving in sets
    ]


def _show(outcome: _Outcome) -> None:
    if outcome.added:
        click.echo(f"More nodes: {', '.join(map(text.safe, outcome.added))}\n")
    for node, address, loss in outcome.losses:
        click.echo(f"If {text.safe(node)} loses GPU {address}:")
        _show_leaving(loss.leaving, "No hold has to move.")
        if loss.short:
            click.echo(f"{text.gpus(loss.short)} would be held there that are not there any more.")
        click.echo("")
    if outcome.drained is not None:
        click.echo(f"If {text.safe(outcome.drained[0])} is emptied:")
        _show_leaving(outcome.drained[1], "Nothing is held there.")
        click.echo("")
    if outcome.steps:
        _show_steps(outcome.steps, as_json=False)
        click.echo("")
    if outcome.largest:
        desk.show_table(("CLASS", "LARGEST ORDER THAT STILL FITS"), [(n, str(c)) for n, c in outcome.largest.items()])
        click.echo("")
    changed = [node for node in outcome.nodes if node.changed]
    if changed:
        rows = [(node.name, "".join(node.before), "".join(node.after)) for node in changed]
        desk.show_table(("NODE", "BEFORE", "AFTER"), rows)
    if rest := len(outcome.nodes) - len(changed):
        click.echo(f"{rest} nodes stay as they are." if rest > 1 else "1 node stays as it is.")
    if changed:
        desk.note(map_view.LEGEND)


def _show_leaving(sets: Sequence[Leaving], none: str) -> None:
    if not sets:
        click.echo(none)
        return
    rows = [
        (
            f"{each.namespace}/{each.set_name}",
            str(each.gpus),
            each.verdict.node or Cell("stays", "yellow"),
            each.verdict.message or _moved(each),
        )
        for each in sets
    ]
    desk.show_table(("SET", "GPUS", "TO", ""), rows)


def _moved(leaving: Leaving) -> str:
    others = [move.name for move in leaving.verdict.moves if move.namespace != leaving.namespace]
    return f"moves {', '.join(others)} as well" if others else ""


def _show_steps(steps: Sequence[tuple[Step, Result]], *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps([result for _, result in steps], indent=2))
        return
    desk.show_table(
        ("STEP", "WHAT", "VERDICT", "WHERE OR WHY", ""),
        [(str(number), *_row(step, result)) for number, (step, result) in enumerate(steps, 1)],
    )
    # In a table that is cut to the terminal nobody could read a sentence to its end.
    for number, (_, result) in enumerate(steps, 1):
        if result.get("message") and desk.columns() is not None:
            click.echo("\n" + desk.folded(f"{number}. {text.safe(result['message'])}"))


def _row(step: Step, result: Result) -> tuple[str, str | Cell, str, str]:
    match step.action:
        case NewOrder() as new:
            member = f" set {new.set_name}" if new.set_name else ""
            what = f"order {new.namespace}/{new.name}: {new.count} x {new.class_name}{member}"
            moves = f"moves {', '.join(result['moves'])}" if result["moves"] else ""
            verdict = Cell(result["verdict"], "green" if result["verdict"] == "admitted" else "red")
            return what, verdict, result["node"] or result["reason"] or "", result["message"] or moves
        case Delete((kind, namespace, name)):
            return f"delete {kind} {namespace}/{name}", "", "", ""
        case Clock(now):
            return f"now {now.isoformat()}", "", "", ""
        case Merge((kind, namespace, name)):
            return f"set {kind} {f'{namespace}/' if namespace else ''}{name}", "", "", ""
        case Holds():
            held = ", ".join(f"{node} {count}" for node, count in result["holds"].items() if count)
            return "holds", "", "", held or "none"


def _show_drain(node: str, found: Sequence[Leaving], *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(_leaving(found), indent=2))
    else:
        _show_leaving(found, f"Nothing is held on {text.safe(node)}.")


def _draw(file: Path, outcome: _Outcome) -> None:
    lines = [f"More nodes: {len(outcome.added)}"] if outcome.added else []
    lines += [f"GPU {address} of {node} fails" for node, address, _ in outcome.losses]
    lines += [f"Node {outcome.drained[0]} is emptied"] if outcome.drained else []
    orders = [(step.action, result) for step, result in outcome.steps if isinstance(step.action, NewOrder)]
    lines += [
        f"{new.count} x {new.class_name} for {new.namespace}: "
        + (f"taken, on {result['node']}" if result["node"] else f"refused, {result['reason']}")
        for new, result in orders[:_LINES_MAX]
    ]
    lines += [f"and {len(orders) - _LINES_MAX} orders more"] if len(orders) > _LINES_MAX else []
    lines += [f"The largest order that still fits: {', '.join(f'{c} {n}' for n, c in outcome.largest.items())}"]
    try:
        file.write_text(drawing.svg("The nodes, before and after", lines, outcome.nodes))
    except OSError as error:
        raise click.ClickException(f"{file}: {error.strerror}") from None
