"""The controller's metrics against known worlds (R52)."""

from __future__ import annotations

import dataclasses
import datetime as dt

import aiohttp
import msgspec
import pytest
from prometheus_client import parser
from prometheus_client.openmetrics import parser as openmetrics

from gpuclaim.admission import review
from gpuclaim.admission.judgement import Judgement, Ruling, Subject
from gpuclaim.admission.server import PortInUseError
from gpuclaim.api import model
from gpuclaim.api.core import Status
from gpuclaim.api.reasons import EventReason
from gpuclaim.api.types import Condition, GPUClaim, Health, UsageKind
from gpuclaim.controller import pages
from gpuclaim.controller.gauges import GAUGES
from gpuclaim.controller.observer import Observer
from gpuclaim.controller.telemetry import COUNTED, REPLICA_GAUGES, Telemetry
from gpuclaim.ledger.intervals import Record
from gpuclaim.placement.books import Books
from gpuclaim.placement.verdict import decide
from support.metrics import samples
from unit.placement import build
from unit.placement.build import GPU, NOW

LATER = NOW + dt.timedelta(minutes=20)
L40S = "nvidia.com/AD102_L40S"


def says(claim: GPUClaim, type_: str, reason: str, status: Status = Status.FALSE) -> GPUClaim:
    """The claim with one more condition."""
    new = Condition(type=type_, status=status, reason=reason, message="m", last_transition_time=NOW)
    conditions = model.with_condition(list(claim.status.conditions), new)
    return msgspec.structs.replace(claim, status=msgspec.structs.replace(claim.status, conditions=conditions))


def refused(claim: GPUClaim, reason: str) -> GPUClaim:
    """The claim, its refusals for that reason."""
    refusals = [msgspec.structs.replace(each, reason=reason) for each in claim.status.refusals]
    return msgspec.structs.replace(claim, status=msgspec.structs.replace(claim.status, refusals=refusals))


def world() -> Books:
    """Two nodes and a silent one, two classes, a hold of each kind that is told apart."""
    lost = build.device(7, (GPU, 0, 1), health=Health.UNHEALTHY)
    healthy = [build.device(n, (GPU, 1, 0)) for n in range(7)]
    return build.books(
        [build.cls(), build.cls("l40s", L40S)],
        [build.node("a", {GPU: 7}), build.report("a", [*healthy, lost], at=LATER)],
        [build.node("b", {L40S: 4}), build.report("b", [build.device(n, (L40S, 1, 0)) for n in range(4)], at=LATER)],
        [build.node("c"), build.report("c", 8, at=NOW, cordoned=True)],
        [build.namespace("tenant-a"), build.namespace("inner", "tenant-a")],
        [build.quota({"h200": 3, "total": 2, "gone": 5}), build.quota({"h200": 9}, namespace="inner")],
        build.claim("on", "a", 2),
        build.pod("virt-launcher-on", "on", "a", {GPU: 2}),
        says(build.claim("off", "a"), "Healthy", "NodeDrained"),
        says(build.claim("waits"), "Bound", "InsufficientCapacity"),
        says(build.claim("odd", of="was-deleted"), "Bound", "SomethingElse"),
        says(build.claim("going", "b", of="l40s", deleted=True), "Bound", "WaitsForLedger", Status.TRUE),
        refused(
            build.claim("moved", "b", of="l40s", set_name="s", refused={"a": LATER + dt.timedelta(1)}),
            "OutOfnvidia.com/X",
        ),
        refused(
            build.claim("moved-too", "b", of="l40s", set_name="s", refused={"a": LATER + dt.timedelta(1)}), "OutOfcpu"
        ),
        refused(build.claim("past", "b", of="l40s", refused={"a": NOW}), "TopologyAffinityError"),
        build.pod("stray", None, "b", {L40S: 1}),
    )


def record(minutes: int, start: int = 0) -> Record:
    """An interval that ended so many minutes before LATER."""
    return Record(
        claim_uid="u",
        kind=UsageKind.HELD,
        started_at=NOW - dt.timedelta(hours=start + 1),
        ended_at=LATER - dt.timedelta(minutes=minutes),
        seconds=60,
        namespace="t",
        name="n",
        class_name="h200",
        count=1,
        set_name="n",
        node_name="a",
    )


@pytest.fixture
def observer() -> Observer:
    watches = {"Pod": True, "Node": False}
    return Observer(
        telemetry=Telemetry(),
        books=world(),
        now=lambda: LATER,
        clock=lambda: 100.0,
        leads=lambda: True,
        ready=lambda: True,
        queues={"claims": lambda: 3},
        current={kind: (lambda kind=kind: watches[kind]) for kind in watches},  # type: ignore[misc]
        waiting=lambda: [record(3), record(5, 1), record(3)],
        certificate_ends=lambda: LATER,
    )


async def seen(observer: Observer) -> dict[str, float]:
    return samples((await observer.page())[0].decode())


async def test_the_cloud_in_numbers(observer: Observer) -> None:
    found = await seen(observer)
    wanted = {
        'gpuclaim_class_capacity_gpus{class="h200"}': 15,
        'gpuclaim_class_capacity_gpus{class="l40s"}': 4,
        'gpuclaim_class_held_gpus{class="h200"}': 3,
        'gpuclaim_class_held_gpus{class="l40s"}': 4,
        'gpuclaim_class_attached_gpus{class="h200"}': 2,
        'gpuclaim_class_attached_gpus{class="l40s"}': 0,
        'gpuclaim_class_free_gpus{class="h200"}': 4,  # not on the silent node
        'gpuclaim_class_free_gpus{class="l40s"}': 0,
        'gpuclaim_class_foreign_gpus{class="h200"}': 0,
        'gpuclaim_class_foreign_gpus{class="l40s"}': 1,
        'gpuclaim_class_unhealthy_gpus{class="h200"}': 1,
        'gpuclaim_class_largest_order_gpus{class="h200"}': 4,
        "gpuclaim_claims": 8,
        'gpuclaim_waiting_claims{class="h200",reason="InsufficientCapacity"}': 1,
        'gpuclaim_waiting_claims{class="Other",reason="Other"}': 1,
        'gpuclaim_releasing_claims{reason="WaitsForLedger"}': 1,
        'gpuclaim_releasing_claims{reason="WaitsForPod"}': 0,
        'gpuclaim_unhealthy_claims{reason="NodeDrained"}': 1,
        'gpuclaim_refusals{reason="OutOfResource"}': 1,  # one set, one node; what is past does not count
        'gpuclaim_nodes{state="Eligible"}': 2,
        'gpuclaim_nodes{state="Silent"}': 1,
        'gpuclaim_nodes{state="Cordoned"}': 1,
        'gpuclaim_nodes{state="DevicesUnhealthy"}': 1,
        'gpuclaim_nodes{state="ForeignUse"}': 1,
        'gpuclaim_nodes{state="Overcommitted"}': 1,
        'gpuclaim_nodes{state="NotReady"}': 0,
        "gpuclaim_oldest_report_age_seconds": 1200,
        'gpuclaim_budgets{class="h200",state="Full"}': 1,
        'gpuclaim_budgets{class="h200",state="Free"}': 1,
        'gpuclaim_budgets{class="total",state="Exceeded"}': 1,
        'gpuclaim_budgets{class="Other",state="Free"}': 1,
        "gpuclaim_reservations": 0,
        "gpuclaim_ledger_waiting_intervals": 2,
        "gpuclaim_ledger_lag_seconds": 300,
        "gpuclaim_leader": 1,
        "gpuclaim_ready": 1,
        'gpuclaim_queue_depth{queue="claims"}': 3,
        "gpuclaim_webhook_certificate_expiry_timestamp_seconds": LATER.timestamp(),
    }
    assert {name: found.get(name) for name in wanted} == wanted
    assert 'gpuclaim_refusals{reason="TopologyAffinityError"}' not in found


async def test_tenants_are_named_only_where_the_hoster_asks(observer: Observer) -> None:
    assert not [name for name in await seen(observer) if "tenant-a" in name or "inner" in name]
    found = await seen(dataclasses.replace(observer, tenants=True))
    own = 'key="gpu.cozystack.io/h200",namespace="tenant-a",quota="gpu"'
    assert (found[f"gpuclaim_budget_used_gpus{{{own}}}"], found[f"gpuclaim_budget_hard_gpus{{{own}}}"]) == (3, 3)
    assert len([name for name in found if name.startswith("gpuclaim_budget_used")]) == 4


async def test_an_order_on_its_way_counts_as_held(observer: Observer) -> None:
    order = build.order(2, namespace="elsewhere")
    observer.books.reserve(order, decide(observer.books, order, LATER), LATER + dt.timedelta(seconds=30))
    found = await seen(observer)
    assert found["gpuclaim_reservations"] == 1
    assert found['gpuclaim_class_held_gpus{class="h200"}'] == 5


async def test_who_does_not_lead_says_nothing_of_the_cloud(observer: Observer) -> None:
    found = await seen(dataclasses.replace(observer, leads=lambda: False))
    assert found["gpuclaim_leader"] == 0
    clouds = {gauge.name for gauge in GAUGES}
    assert not [name for name in found if name.partition("{")[0] in clouds]


async def test_a_broken_watch_grows_and_heals(observer: Observer) -> None:
    moment, broken = 100.0, True
    observer.clock = lambda: moment
    observer.current = {"Pod": lambda: not broken}
    series = 'gpuclaim_watch_broken_seconds{kind="Pod"}'
    observer.looked(0.25)
    moment = 107.0
    observer.looked(-0.1)
    assert (await seen(observer))[series] == 7
    broken = False
    observer.looked(0.5)
    found = await seen(observer)
    assert (found[series], found["gpuclaim_loop_lag_seconds"]) == (0, 0.5)
    broken, moment = True, 110.0
    observer.looked(0)
    assert (await seen(observer))[series] == 0


def judgement(ruling: Ruling, reason: str = "", about: Subject = Subject.ORDER, **more: object) -> Judgement:
    base = Judgement(about=about, kind="GPUClaim", user="u", namespace="n", name="x", ruling=ruling, reason=reason)
    return dataclasses.replace(base, **more)  # type: ignore[arg-type]


async def test_answers_are_counted_and_their_time_measured(observer: Observer) -> None:
    telemetry = observer.telemetry
    telemetry.judged(judgement(Ruling.ADMITTED, deciding=2e-5))
    telemetry.judged(judgement(Ruling.REFUSED, "OverBudget", deciding=3e-3))
    telemetry.judged(judgement(Ruling.REFUSED, "OverBudget", dry_run=True))
    telemetry.judged(judgement(Ruling.REFUSED, "what a stranger wrote"))
    telemetry.judged(judgement(Ruling.PINNED, about=Subject.POD, deciding=1e-5))
    telemetry.said([EventReason.MOVED, EventReason.MOVED])

    async def answer(_request: review.Request) -> review.Response:
        return review.allow()

    async def fails(_request: review.Request) -> review.Response:
        raise ValueError("no")

    request = review.Request(uid="u")
    await telemetry.timed("orders", answer)(request)
    with pytest.raises(ValueError, match="no"):
        await telemetry.timed("orders", fails)(request)
    found = await seen(observer)
    assert found['gpuclaim_orders_total{dry_run="false",reason="",verdict="admitted"}'] == 1
    assert found['gpuclaim_orders_total{dry_run="false",reason="OverBudget",verdict="refused"}'] == 1
    assert found['gpuclaim_orders_total{dry_run="true",reason="OverBudget",verdict="refused"}'] == 1
    assert found['gpuclaim_orders_total{dry_run="false",reason="Other",verdict="refused"}'] == 1
    assert found['gpuclaim_pods_total{reason="",verdict="pinned"}'] == 1
    assert found['gpuclaim_claim_events_total{reason="Moved"}'] == 2
    assert found['gpuclaim_decision_seconds_count{about="order"}'] == 2
    assert found['gpuclaim_decision_seconds_bucket{about="order",le="2.5e-05"}'] == 1
    assert found['gpuclaim_decision_seconds_sum{about="order"}'] == pytest.approx(3.02e-3)
    assert found['gpuclaim_webhook_seconds_count{webhook="orders"}'] == 2


async def test_the_page_is_what_the_reader_accepts_and_both_forms_are_strict(observer: Observer) -> None:
    plain, media = await observer.page()
    assert media.startswith("text/plain; version=")
    old = {each.name for each in parser.text_string_to_metric_families(plain.decode())}
    body, media = await observer.page("application/openmetrics-text; version=1.0.0")
    assert media.startswith("application/openmetrics-text")
    new = {each.name for each in openmetrics.text_string_to_metric_families(body.decode())}  # type: ignore[no-untyped-call]
    assert {gauge.name for gauge in (*GAUGES, *REPLICA_GAUGES)} <= old & new


async def test_the_page_is_served_over_http(observer: Observer) -> None:
    async with (
        pages.serving(("127.0.0.1", 0), observer.page) as port,
        aiohttp.ClientSession() as session,
    ):
        async with session.get(f"http://127.0.0.1:{port}/metrics") as answer:
            assert answer.status == 200
            assert samples(await answer.text())["gpuclaim_leader"] == 1
        async with session.get(f"http://127.0.0.1:{port}/") as answer:
            assert answer.status == 404
        with pytest.raises(PortInUseError, match=f"cannot listen on 127.0.0.1:{port}: "):
            async with pages.serving(("127.0.0.1", port), observer.page):
                pass


def test_no_gauge_has_a_label_that_grows_with_tenants_unless_it_says_so() -> None:
    bounded = {"class", "reason", "state", "kind", "queue"}
    bounded |= {"verdict", "dry_run", "about", "webhook", "version"}
    for gauge in (*GAUGES, *REPLICA_GAUGES, *COUNTED):
        assert set(gauge.labels) <= bounded or "--metrics-tenants" in gauge.text
