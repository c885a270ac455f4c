"""Seeds of the simulator, that it replays, and that it finds what is planted."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpuclaim.controller.app import Controller
from simulator.run import Outcome, play

FEW = range(8)
MANY = range(8, 208)


def say(outcome: Outcome) -> str:
    return "\n".join([*outcome.trace[-60:], *outcome.faults, f"again: make soak ARGS='--seed {outcome.seed}'"])


@pytest.mark.parametrize("seed", FEW)
def test_every_invariant_holds(seed: int) -> None:
    outcome = play(seed)
    assert not outcome.faults, say(outcome)
    assert outcome.orders > 0


@pytest.mark.simulated
@pytest.mark.parametrize("seed", MANY)
def test_every_invariant_holds_in_many_seeds(seed: int) -> None:
    outcome = play(seed)
    assert not outcome.faults, say(outcome)


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


class IgnoresTheLease(Controller):
    """Goes on for ever once it has led."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        elector, remaining = self._elector, self._elector.remaining
        led = False

        def still() -> float:
            nonlocal led
            led = led or remaining() > 0
            return 60.0 if led else 0.0

        elector.remaining = still  # type: ignore[method-assign]


class ForgetsToReserve(Controller):
    """Admits, and keeps nothing for what it has admitted."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        reserve = self.books.reserve

        def release_at_once(order: Any, verdict: Any, until: Any) -> None:
            reserve(order, verdict, until)
            self.books.release(order.uid)

        self.books.reserve = release_at_once  # type: ignore[method-assign]


class MovesUnderPods(Controller):
    """Takes every set for one that is off."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.books.attached = lambda namespace, set_name: False  # type: ignore[method-assign]


class LeaksReservations(Controller):
    """Keeps what was reserved for ever."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.books.release = lambda uid: None  # type: ignore[method-assign]


@pytest.mark.parametrize("planted", [IgnoresTheLease, ForgetsToReserve, MovesUnderPods, LeaksReservations])
def test_what_is_planted_is_found(planted: Callable[..., Controller]) -> None:
    found = next((outcome for seed in range(40) if (outcome := play(seed, planted)).faults), None)
    assert found is not None
    assert found.faults == play(found.seed, planted).faults
