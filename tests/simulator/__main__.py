"""Plays many seeds: `make soak ARGS='--seeds 5000 --start 1'`; one again: `--seed N`."""

from __future__ import annotations

import collections
import multiprocessing
import sys
import time

import click

from simulator.run import Outcome, play

_TOLD_EVERY = 10.0


@click.command()
@click.option("--seeds", type=click.IntRange(min=1), default=500, show_default=True, help="How many seeds to play.")
@click.option("--start", type=click.IntRange(min=0), default=0, show_default=True, help="The first of them.")
@click.option("--seed", type=click.IntRange(min=0), help="Play this one alone, and print its trace.")
@click.option("--last", type=click.IntRange(min=0), default=60, show_default=True, help="Lines of a trace; 0 for all.")
@click.option("--jobs", type=click.IntRange(min=1), default=1, show_default=True, help="Processes at once.")
def main(seeds: int, start: int, seed: int | None, last: int, jobs: int) -> None:
    """Play the controller against a simulated apiserver, one history a seed, and say which invariants did not hold.

    Ends with 1 where a seed failed. A seed always plays the same history, with the same code and Python.
    """
    if seed is not None:
        outcome = play(seed)
        _tell(outcome, last)
        sys.exit(1 if outcome.faults else 0)
    failed: list[int] = []
    answers: collections.Counter[str] = collections.Counter()
    tally: collections.Counter[str] = collections.Counter()
    steps = orders = done = 0
    began = told = time.monotonic()
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        for outcome in pool.imap_unordered(play, range(start, start + seeds), chunksize=1):
            done += 1
            steps, orders = steps + outcome.steps, orders + outcome.orders
            answers.update(outcome.answers)
            tally.update(outcome.tally)
            if outcome.faults:
                failed.append(outcome.seed)
                _tell(outcome, last)
            if time.monotonic() - told >= _TOLD_EVERY:
                told = time.monotonic()
                click.echo(
                    f"{done} of {seeds} seeds, {len(failed)} failed, {done / (told - began):.1f} a second", err=True
                )
    click.echo(f"{done} seeds from {start} on, {steps} steps, {time.monotonic() - began:.0f} s")
    click.echo(f"\n{orders} orders were answered")
    _table(answers, done)
    click.echo("\nwhat happened")
    _table(tally, done)
    failing = f"{len(failed)} failed: {', '.join(map(str, sorted(failed)))}"
    click.echo(f"\n{failing if failed else 'every invariant held in every seed'}")
    sys.exit(1 if failed else 0)


def _table(counts: collections.Counter[str], seeds: int) -> None:
    for what, count in sorted(counts.items()):
        click.echo(f"  {count:9}  {count / seeds:9.2f} a seed  {what}")


def _tell(outcome: Outcome, last: int) -> None:
    for line in outcome.trace[-last:]:
        click.echo(line)
    for fault in outcome.faults:
        click.echo(f"FAULT {fault}")
    click.echo(f"seed {outcome.seed}: {len(outcome.faults)} faults, trace {outcome.digest}")
    if outcome.faults:
        click.echo(f"again: make soak ARGS='--seed {outcome.seed}'")


if __name__ == "__main__":
    main()
