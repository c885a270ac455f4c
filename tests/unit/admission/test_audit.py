"""The audit trail: one line a decision says who, what, the verdict, why and how long."""

from __future__ import annotations

import dataclasses
import io
import json
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from gpuclaim.admission import review
from gpuclaim.admission.desk import Desk
from gpuclaim.admission.judgement import Judgement, Ruling, Subject
from gpuclaim.api import core, names
from gpuclaim.cli import logs
from gpuclaim.controller.telemetry import Telemetry
from gpuclaim.placement.orders import Move, Order
from unit.placement import build
from unit.placement.build import NOW


@dataclasses.dataclass
class Court:
    """A desk over three GPUs of two nodes, and what it judged."""

    desk: Desk
    judged: list[Judgement]
    obstacle: str | None = None
    machine: Order | None = None


@pytest.fixture
def court() -> Court:
    found = build.books(build.cls(), build.gpus("a", 2), build.gpus("b", 1), build.claim("there", "a"))
    judged: list[Judgement] = []

    async def moves(_token: str, _moves: tuple[Move, ...]) -> None:
        return None

    async def settled(_namespace: str, _set: str) -> bool:
        return True

    desk = Desk(
        books=found,
        now=lambda: NOW,
        obstacle=lambda: made.obstacle,
        make_moves=moves,
        being_refused=lambda _namespace, _set: False,
        settled=settled,
        machine_order=lambda _namespace, _name: made.machine,
        gone=settled,
        judged=judged.append,
    )
    made = Court(desk, judged)
    return made


async def ask(
    handler: Callable[[review.Request], Awaitable[review.Response]],
    obj: msgspec.Struct | dict[str, Any],
    *,
    dry_run: bool = False,
    kind: str = "GPUClaim",
) -> review.Response:
    body = obj if isinstance(obj, dict) else core.wire(obj)
    return await handler(
        review.Request(
            uid="request",
            kind=review.GroupVersionKind(kind=kind),
            namespace="tenant-a",
            name=body["metadata"].get("name", ""),
            user_info=review.UserInfo(username="alice"),
            dry_run=dry_run,
            object=msgspec.Raw(msgspec.json.encode(body)),
        )
    )


async def test_an_order_that_is_taken(court: Court) -> None:
    await ask(court.desk.order, build.claim("new"))
    (said,) = court.judged
    assert (said.about, said.user, said.namespace, said.name) == (Subject.ORDER, "alice", "tenant-a", "new")
    assert (said.class_name, said.count, said.set_name, said.ruling) == ("h200", 1, "new", Ruling.ADMITTED)
    assert (said.node, said.reason, said.message, said.dry_run) == ("a", "", "", False)
    assert 0 < said.deciding <= said.seconds


async def test_an_order_that_makes_others_move_names_them(court: Court) -> None:
    await ask(court.desk.order, build.claim("new", count=2))
    assert court.judged[0].moves == ("tenant-a/there: a -> b",)
    assert court.judged[0].node == "a"


async def test_an_order_that_is_refused_says_what_the_tenant_read(court: Court) -> None:
    answer = await ask(court.desk.order, build.claim("new", count=9), dry_run=True)
    (said,) = court.judged
    assert answer.status is not None
    assert (said.ruling, said.reason, said.message) == (
        Ruling.REFUSED,
        "InsufficientCapacity",
        answer.status.message,
    )
    assert said.dry_run
    assert said.node == ""


async def test_who_may_not_decide_says_so(court: Court) -> None:
    court.obstacle = "not ready: taking over"
    await ask(court.desk.order, build.claim("new"))
    await ask(court.desk.pod, build.pod("p", "there"), kind="Pod")
    assert [(each.ruling, each.message) for each in court.judged] == [(Ruling.UNAVAILABLE, court.obstacle)] * 2


async def test_pods(court: Court) -> None:
    await ask(court.desk.pod, build.pod("p", "there"), kind="Pod")
    await ask(court.desk.pod, build.pod("q", "nobody"), kind="Pod")
    await ask(court.desk.pod, build.pod("r", "there", requests={"example.com/other": 1}), kind="Pod")
    pinned, refused = court.judged  # of the third there is nothing to decide
    assert (pinned.ruling, pinned.node, pinned.set_name, pinned.name) == (Ruling.PINNED, "a", "there", "p")
    assert (refused.ruling, refused.reason, refused.set_name) == (Ruling.REFUSED, "NoClaim", "nobody")


def vm(name: str, **labels: str) -> dict[str, Any]:
    return {
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachine",
        "metadata": {"name": name, "namespace": "tenant-a", "uid": f"uid-vm-{name}", "labels": labels},
        "spec": {"template": {"spec": {"domain": {"devices": {}}}}},
    }


async def test_a_vm_is_decided_once(court: Court) -> None:
    ordered = vm("train", **{names.CLASS_LABEL: "h200"})
    await ask(court.desk.fill_machine, ordered, kind="VirtualMachine")
    await ask(court.desk.order_of_machine, ordered, kind="VirtualMachine")
    owner = core.OwnerReference(
        api_version="kubevirt.io/v1", kind="VirtualMachine", name="train", uid="uid-vm-train", controller=True
    )
    claim = build.claim("train")
    owned = msgspec.structs.replace(claim, metadata=msgspec.structs.replace(claim.metadata, owner_references=[owner]))
    await ask(court.desk.order, owned)
    assert [(each.kind, each.ruling, each.name) for each in court.judged] == [
        ("VirtualMachine", Ruling.ADMITTED, "train")
    ]


async def test_a_vm_that_is_turned_away_where_it_is_filled_is_told_of(court: Court) -> None:
    await ask(court.desk.fill_machine, vm("train", **{names.CLASS_LABEL: "none"}), kind="VirtualMachine")
    (said,) = court.judged
    assert (said.kind, said.ruling, said.reason, said.class_name) == (
        "VirtualMachine",
        Ruling.REFUSED,
        "UnknownClass",
        "none",
    )


async def test_the_claim_of_a_stored_vm_waits_and_is_not_said_to_be_refused(court: Court) -> None:
    owner = core.OwnerReference(
        api_version="kubevirt.io/v1", kind="VirtualMachine", name="big", uid="uid-vm-big", controller=True
    )
    claim = build.claim("big", count=9)
    owned = msgspec.structs.replace(claim, metadata=msgspec.structs.replace(claim.metadata, owner_references=[owner]))
    court.machine = dataclasses.replace(Order.of(claim), uid="uid-vm-big")
    answer = await ask(court.desk.order, owned)
    assert answer.allowed
    assert [each.ruling for each in court.judged] == [Ruling.WAITS]


def test_a_line_is_json_with_nothing_empty() -> None:
    told = Judgement(
        about=Subject.ORDER,
        kind="GPUClaim",
        user="alice\n",
        namespace="tenant-a",
        name="new",
        ruling=Ruling.REFUSED,
        reason="OverBudget",
        message="no",
        deciding=1.26e-5,
        seconds=0.0021,
    )
    line = told.line()
    assert "\n" not in line
    assert json.loads(line) == {
        "event": "order",
        "user": "alice\n",
        "kind": "GPUClaim",
        "namespace": "tenant-a",
        "name": "new",
        "verdict": "refused",
        "reason": "OverBudget",
        "why": "no",
        "decidingMicroseconds": 13,
        "microseconds": 2100,
    }


@pytest.mark.parametrize("form", ["json", "text"])
def test_the_line_in_the_log(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = io.StringIO()
    monkeypatch.setattr("sys.stderr", sink)
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    try:
        logs.start("info", form)
        told = Judgement(
            about=Subject.POD, kind="Pod", user="kubevirt", namespace="t", name="p", ruling=Ruling.PINNED, node="a"
        )
        Telemetry().judged(told)
        logging.getLogger("gpuclaim.other").info("a %s", "sentence")
    finally:
        root.handlers[:] = before
        root.setLevel(level)
    decision, other = sink.getvalue().splitlines()
    if form == "json":
        entry = json.loads(decision)
        assert entry.items() >= {"logger": "gpuclaim.audit", "level": "info", "verdict": "pinned", "node": "a"}.items()
        assert "message" not in entry
        assert json.loads(other)["message"] == "a sentence"
    else:
        assert json.loads(decision.partition("gpuclaim.audit: ")[2])["user"] == "kubevirt"
