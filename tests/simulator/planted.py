"""Faults planted in the controller, each with the words by which the oracle says that it has found it."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import functools
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeAlias
from unittest import mock

import msgspec

from gpuclaim.admission import desk, machines, pin
from gpuclaim.api.core import Status
from gpuclaim.controller import binder, catalogue, claim_status, reporter
from gpuclaim.controller import machines as controller_machines
from gpuclaim.controller.app import Controller
from gpuclaim.controller.mirror import Mirror
from gpuclaim.ledger import intervals, store
from gpuclaim.placement import budget, fit, pods, refusals
from simulator.run import Outcome, play

Patch: TypeAlias = "mock._patch[Any]"


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


def _after(where: Any, name: str, change: Callable[[Any], Any]) -> Patch:
    """What a function returns goes through `change`."""
    true = getattr(where, name)

    @functools.wraps(true)
    def changed(*arguments: Any, **more: Any) -> Any:
        return change(true(*arguments, **more))

    return mock.patch.object(where, name, changed)


def _instead(where: Any, name: str, value: Any) -> Patch:
    return mock.patch.object(where, name, return_value=value)


def _later(status: Any) -> Any:
    return [
        msgspec.structs.replace(each, last_transition_time=each.last_transition_time + dt.timedelta(seconds=1))
        for each in status
    ]


def _without_usage(status: Any) -> Any:
    usage = status.usage
    return msgspec.structs.replace(status, usage=usage and msgspec.structs.replace(usage, unrecorded=[]))


def _homeless_if_ill(status: Any) -> Any:
    ill = any(each.type == "Healthy" and each.status == Status.FALSE for each in status.conditions)
    return msgspec.structs.replace(status, node_name=None) if ill else status


async def _lets_go(self: Any, claim: Any) -> bool:
    await self._write_finalizers(claim, [])
    return True


async def _answers_nothing(*_: Any) -> None:
    raise RuntimeError("planted")


async def _nothing(*_: Any) -> None:
    return None


@dataclasses.dataclass(frozen=True)
class Plant:
    """A planted fault.

    Attributes:
        finds: a regular expression; one of what the oracle says must match it.
        make: a controller with the fault.
        patches: makes what is patched while a history is played.
    """

    finds: str
    make: Callable[..., Controller] = Controller
    patches: Callable[[], list[Patch]] = list


PLANTS: Final[dict[str, Plant]] = {
    "a leader does not give up its lease": Plant(r"R39", IgnoresTheLease),
    "nothing is reserved for an admitted order": Plant(r"R39|R33|R38", ForgetsToReserve),
    "every set is taken for one that is off": Plant(r"R36b|R10a", MovesUnderPods),
    "reservations are kept for ever": Plant(r"its books|R38", LeaksReservations),
    "orders get no answer": Plant(
        r"gets no answer", patches=lambda: [mock.patch.object(desk.Desk, "order", _answers_nothing)]
    ),
    "budgets bind nobody": Plant(r"its budget is .*R33", patches=lambda: [_instead(budget.Budgets, "limits", ())]),
    "a member is placed without its set": Plant(
        r"R31",
        patches=lambda: [
            _after(fit, "party", lambda who: dataclasses.replace(who, members=(), homes=(), pinned=frozenset()))
        ],
    ),
    "a claim is said to be bound and not where": Plant(
        r"Bound without a node",
        patches=lambda: [_after(claim_status, "bound", lambda s: msgspec.structs.replace(s, node_name=None))],
    ),
    "a hold is forgotten when its node is ill": Plant(
        r"the hold on .* is lost", patches=lambda: [_after(claim_status, "healthy", _homeless_if_ill)]
    ),
    "a set that moves forgets who refused it": Plant(
        r"the refusal by .* is lost.*R37",
        patches=lambda: [_after(claim_status, "bound", lambda s: msgspec.structs.replace(s, refusals=[]))],
    ),
    "refusals are not written": Plant(
        r"turned .* away \(R37\)",
        patches=lambda: [_instead(refusals, "concerns", False)],
    ),
    "intervals leave the status before the ledger has them": Plant(
        r"in no status and in no ledger", patches=lambda: [_after(intervals, "without", _without_usage)]
    ),
    "claims go without their usage": Plant(
        r"is in no ledger|its use goes on|R10a", patches=lambda: [mock.patch.object(binder.Binder, "_let_go", _lets_go)]
    ),
    "the ledger cuts intervals": Plant(
        r"s by the ledger|is not what was recorded",
        patches=lambda: [_after(store, "_row", lambda row: row | {"seconds": row["seconds"] // 2})],
    ),
    "conditions are written though nothing changed": Plant(
        r"R16", patches=lambda: [_after(catalogue, "node_conditions", _later)]
    ),
    "nodes' conditions are not kept": Plant(
        r"gpunode .*R16", patches=lambda: [mock.patch.object(reporter.Reporter, "_write_nodes", _nothing)]
    ),
    "quotas' use is not kept": Plant(r"quota .*R33", patches=lambda: [_instead(catalogue, "budget_use", {})]),
    "VMs' claims are not made": Plant(
        r"has no claim \(R45\)",
        patches=lambda: [mock.patch.object(controller_machines.Machines, "_make_claim", _nothing)],
    ),
    "VMs get no devices": Plant(r"and has \{\} \(R45\)", patches=lambda: [_instead(machines, "fill", [])]),
    "two pods have a set": Plant(r"has another live pod", patches=lambda: [_instead(pods, "_in_use", None)]),
    "pods are not pinned": Plant(r"not pinned", patches=lambda: [_instead(pin, "pin", [])]),
    "nobody looks at what waits": Plant(r"R38", patches=lambda: [mock.patch.object(binder.Binder, "_sweep", _nothing)]),
    "pods do not wait for their set": Plant(
        r"its set is on .*R36a", patches=lambda: [_instead(pods, "_unbound", None)]
    ),
    "pods that are gone stay in the books": Plant(
        r"its books have|R10a", patches=lambda: [mock.patch.object(Mirror, "gone", _instead_of_pods(Mirror.gone))]
    ),
}


def _instead_of_pods(true: Callable[..., None]) -> Callable[..., None]:
    def gone(self: Any, namespace: str, name: str) -> None:
        if self.kind.__name__ != "Pod":
            true(self, namespace, name)

    return gone


@contextlib.contextmanager
def _planted(plant: Plant) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for patch in plant.patches():
            stack.enter_context(patch)
        yield


def play_planted(name: str, seed: int) -> Outcome:
    """The history of a seed with the fault of that name."""
    plant = PLANTS[name]
    with _planted(plant):
        return play(seed, plant.make)
