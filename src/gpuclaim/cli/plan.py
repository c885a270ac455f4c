"""`gpuclaim plan`: what would become of orders, with no cluster, by the code that admission runs (R74)."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from gpuclaim.placement import scenario, scenario_file
from gpuclaim.placement.drain import drain as planned
from gpuclaim.placement.scenario import Clock, Delete, Holds, Merge, NewOrder, Result, Step


@click.command()
@click.option(
    "--scenario",
    "file",
    required=True,
    metavar="FILE",
    help="A state of Kubernetes objects and steps, as in tests/cases/orders; - reads standard input.",
)
@click.option(
    "-o",
    "--output",
    type=click.Choice(["json", "table"]),
    help="Default: table on a terminal, else json.",
)
@click.option("--drain", metavar="NODE", help="After the steps: what would move if this node were emptied.")
@click.option("--check", is_flag=True, help="Compare with what the file expects; exit 1 where a step differs.")
def plan(file: str, output: str | None, drain: str | None, *, check: bool) -> None:
    """Decide the orders of a scenario and print what comes of each step.

    With --drain it prints the sets on the node instead, and where each would go.
    """
    try:
        played = scenario_file.read(_text(file))
        simulation = scenario.Simulation(played)
        results = simulation.run()
    except scenario.ScenarioError as error:
        raise click.ClickException(f"{file}: {error}") from None
    as_json = (output or ("table" if sys.stdout.isatty() else "json")) == "json"
    if drain is not None:
        _drain(simulation, drain, as_json=as_json)
    elif as_json:
        click.echo(json.dumps(results, indent=2))
    else:
        rows = [(str(n), *_row(s, r)) for n, (s, r) in enumerate(zip(played.steps, results, strict=True), 1)]
        click.echo(_table([("STEP", "WHAT", "VERDICT", "WHERE OR WHY", ""), *rows]))
    if check and not _agree(file, played.steps, results):
        raise SystemExit(1)


def _text(file: str) -> str:
    try:
        data = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
        return data.decode()
    except OSError as error:
        raise click.ClickException(f"{file}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise click.ClickException(f"{file}: line {line}: it is no UTF-8 text") from None


def _agree(file: str, steps: Sequence[Step], results: list[Result]) -> bool:
    found = False
    for number, (step, result) in enumerate(zip(steps, results, strict=True), 1):
        for difference in scenario.differences(step.expect, result):
            found = True
            click.echo(f"{file}: line {step.line}: step {number}: {difference}", err=True)
    return not found


def _row(step: Step, result: Result) -> tuple[str, str, str, str]:
    match step.action:
        case NewOrder() as new:
            member = f" set {new.set_name}" if new.set_name else ""
            what = f"order {new.namespace}/{new.name}: {new.count} x {new.class_name}{member}"
            moves = f"moves {', '.join(result['moves'])}" if result["moves"] else ""
            return what, result["verdict"], result["node"] or result["reason"] or "", result["message"] or moves
        case Delete((kind, namespace, name)):
            return f"delete {kind} {namespace}/{name}", "", "", ""
        case Clock(now):
            return f"now {now.isoformat()}", "", "", ""
        case Merge((kind, namespace, name)):
            return f"set {kind} {f'{namespace}/' if namespace else ''}{name}", "", "", ""
        case Holds():
            held = ", ".join(f"{node} {count}" for node, count in result["holds"].items() if count)
            return "holds", "", "", held or "none"


def _drain(simulation: scenario.Simulation, node: str, *, as_json: bool) -> None:
    if node not in simulation.books.nodes:
        raise click.ClickException(f"there is no node {node}")
    rows = [
        {
            "set": f"{leaving.namespace}/{leaving.set_name}",
            "gpus": leaving.gpus,
            "node": leaving.verdict.node,
            "reason": leaving.verdict.reason.value if leaving.verdict.reason else None,
            "message": leaving.verdict.message,
            "moves": [f"{move.namespace}/{move.name}" for move in leaving.verdict.moves],
        }
        for leaving in planned(simulation.books, node, simulation.now)
    ]
    if as_json:
        click.echo(json.dumps(rows, indent=2))
        return
    lines = [(str(r["set"]), str(r["gpus"]), str(r["node"] or "stays"), str(r["message"])) for r in rows]
    click.echo(_table([("SET", "GPUS", "TO", ""), *lines]))


def _table(lines: Sequence[tuple[str, ...]]) -> str:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )
