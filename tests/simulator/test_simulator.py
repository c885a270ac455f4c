"""Seeds of the simulator, that it replays, and that it finds what is planted."""

from __future__ import annotations

import multiprocessing
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from multiprocessing.pool import AsyncResult, Pool
from pathlib import Path

import pytest

from simulator.planted import PLANTS, play_planted
from simulator.run import Outcome, play

FEW = range(6)
MANY = range(8, 258)
PLANTED = range(40)


def say(outcome: Outcome) -> str:
    return "\n".join([*outcome.trace[-60:], *outcome.faults, f"again: make soak ARGS='--seed {outcome.seed}'"])


@pytest.mark.parametrize("seed", FEW)
def test_every_invariant_holds(seed: int) -> None:
    outcome = play(seed)
    assert not outcome.faults, say(outcome)
    assert outcome.orders > 0


@pytest.fixture(scope="module")
def workers() -> Iterator[Pool]:
    """A process for each processor."""
    with multiprocessing.get_context("spawn").Pool(os.cpu_count()) as pool:
        yield pool
        pool.close()
        pool.join()


@pytest.fixture(scope="module")
def played(workers: Pool) -> dict[int, AsyncResult[Outcome]]:
    return {seed: workers.apply_async(play, (seed,)) for seed in MANY}


@pytest.mark.simulated
@pytest.mark.parametrize("seed", MANY)
def test_every_invariant_holds_in_many_seeds(seed: int, played: dict[int, AsyncResult[Outcome]]) -> None:
    outcome = played[seed].get()
    assert not outcome.faults, say(outcome)


@pytest.mark.simulated
def test_many_seeds_see_what_they_are_there_for(played: dict[int, AsyncResult[Outcome]]) -> None:
    seen = {word for result in played.values() for word, count in result.get().tally.items() if count}
    assert any(word.endswith("right after half a set's move") for word in seen)
    assert seen >= {
        "VM order taken",
        "binds",
        "conditions changed: gpunodes",
        "foreign pods took GPUs",
        "half a set moved",
        "leader changes while the old one lives",
        "ledger: interval replayed",
        "ledger: not reached",
        "member of a set deleted while its pod lives",
        "moved: MadeRoom",
        "moved: NodeRefused",
        "moved: NodeUnfit",
        "moved: SetGrew",
        "refusals",
        "two leaders: the old one has not noticed yet",
        *("409 simulated", "410 Expired", "429 simulated", "504 simulated"),
    }


def test_a_seed_replays_to_the_byte_in_another_process() -> None:
    program = "from simulator.run import play; print(play(3).digest)"
    root = Path(__file__).parents[1]

    def digest(hash_seed: str) -> str:
        environment = os.environ | {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(root)}
        done = subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    assert digest("1") == digest("2") == play(3).digest
    assert play(4).digest != play(3).digest


def _found(name: str) -> Outcome | None:
    """The first history in which the oracle says what it should."""
    outcomes = (play_planted(name, seed) for seed in PLANTED)
    return next((each for each in outcomes if any(re.search(PLANTS[name].finds, said) for said in each.faults)), None)


@pytest.fixture(scope="module")
def searched(workers: Pool) -> dict[str, AsyncResult[Outcome | None]]:
    return {name: workers.apply_async(_found, (name,)) for name in PLANTS}


@pytest.mark.simulated
@pytest.mark.parametrize("name", PLANTS)
def test_what_is_planted_is_found(name: str, searched: dict[str, AsyncResult[Outcome | None]]) -> None:
    found = searched[name].get()
    assert found is not None
    assert found.faults == play_planted(name, found.seed).faults
