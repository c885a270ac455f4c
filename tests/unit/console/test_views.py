"""What the pages show, from objects alone."""

from __future__ import annotations

import datetime as dt
from typing import Any

import msgspec
import pytest

from gpuclaim.api import core, names
from gpuclaim.api.core import Status
from gpuclaim.api.types import (
    Attachment,
    Availability,
    Condition,
    GPUClaim,
    GPUClass,
    GPUNode,
    Health,
    Usage,
)
from gpuclaim.console.views import chart, drain, fleet, overview, tenant
from gpuclaim.console.views.tenant import Machine, MachineStatus, Said
from unit.placement.build import GPU, NOW, claim, cls, device, gpus, node, pod, quota, report

HOUR = dt.timedelta(hours=1)
A16 = "nvidia.com/A16-4Q"


def with_status(obj: Any, **fields: Any) -> Any:
    return msgspec.structs.replace(obj, status=msgspec.structs.replace(obj.status, **fields))


def attached(found: GPUClaim, pod_name: str = "virt-launcher-train-x", since: dt.datetime = NOW) -> GPUClaim:
    made: GPUClaim = with_status(found, attachment=Attachment(pod_name=pod_name, pod_uid="p", since=since))
    return made


def condition(type_: str, status: Status, reason: str, message: str = "") -> Condition:
    return Condition(type=type_, status=status, reason=reason, message=message, last_transition_time=NOW)


# --- the catalogue ----------------------------------------------------------------------------------------------------


def sold(name: str, availability: Availability | None, **counts: int) -> GPUClass:
    made: GPUClass = with_status(cls(name), availability=availability, **counts)
    return made


def test_what_can_be_ordered_comes_first() -> None:
    offers = tenant.offers([sold("a", Availability.SOLD_OUT), cls("b", closed=True), sold("c", Availability.LIMITED)])
    assert [(each.name, each.takes, each.available.words) for each in offers] == [
        ("c", True, "Few left"),
        ("a", False, "Sold out"),
        ("b", False, "Closed"),
    ]


def test_counts_are_shown_where_the_hoster_shows_them() -> None:
    shown, hidden = tenant.offers(
        [sold("a", Availability.AVAILABLE, total=8, free=5, largest_order=4), sold("b", Availability.AVAILABLE)]
    )
    assert shown.counts == "5 of 8 free, 4 in one order at most"
    assert hidden.counts == ""


def test_the_most_of_a_class_in_one_set() -> None:
    offers = {each.name: each.most for each in tenant.offers([cls("a"), cls("b", mode="vgpu"), cls("c", most=2)])}
    assert offers == {"a": None, "b": 1, "c": 2}


# --- holds ------------------------------------------------------------------------------------------------------------


def machine(name: str, status: str) -> Machine:
    return Machine(metadata=core.ObjectMeta(name=name), status=MachineStatus(printable_status=status))


def test_a_hold_names_its_vm() -> None:
    on, off, alone = attached(claim("on", "gpu-1")), claim("off", "gpu-1"), claim("alone", "gpu-1")
    found = tenant.holds([off, on, alone], [machine("on", "Running"), machine("off", "Stopped")], NOW)
    assert [(each.name, each.machine) for each in found] == [
        ("alone", Said("none named alone yet")),
        ("off", Said("off: Stopped")),
        ("on", Said("on: Running", "green")),
    ]


def test_who_may_not_read_vms_sees_whether_a_pod_runs() -> None:
    on, off = tenant.holds([attached(claim("b", "gpu-1")), claim("c", "gpu-1")], None, NOW)
    assert (on.machine, off.machine) == (Said("a pod runs", "green"), Said("no pod runs"))


def test_a_set_of_another_name_is_told_by_its_vm_and_its_members() -> None:
    found = tenant.holds([claim("a", "gpu-1", set_name="vm"), claim("b", "gpu-1", set_name="vm")], [], NOW)
    assert [(each.name, each.set_name, each.together) for each in found] == [("a", "vm", ("b",)), ("b", "vm", ("a",))]


def test_refusals_that_are_over_are_not_shown() -> None:
    (found,) = tenant.holds([claim("a", "gpu-1", refused={"gpu-2": NOW, "gpu-3": NOW + HOUR})], None, NOW)
    assert [each.node_name for each in found.refusals] == ["gpu-3"]


def test_a_claim_that_waits_says_why() -> None:
    waits = with_status(
        claim("a"), conditions=[condition("Bound", Status.FALSE, "InsufficientCapacity", "Not as many are free.")]
    )
    (found,) = tenant.holds([waits], None, NOW)
    assert (found.state, found.why) == (Said("Waiting: InsufficientCapacity", "yellow"), "Not as many are free.")


def test_what_is_being_released_is_said_to_be() -> None:
    (found,) = tenant.holds([claim("a", "gpu-1", deleted=True)], None, NOW)
    assert (found.releasing, found.state.words) == (True, "Releasing")


# --- budgets ----------------------------------------------------------------------------------------------------------


def counted(found: core.ResourceQuota, **used: str) -> core.ResourceQuota:
    made: core.ResourceQuota = with_status(found, used={f"{names.GROUP}/{key}": value for key, value in used.items()})
    return made


def test_budgets_are_the_tenants_own_first() -> None:
    mine, around = counted(quota({"h200": 4, "total": 6}), h200="4", total="5"), quota({"h200": 9}, namespace="around")
    foreign = core.ResourceQuota(
        metadata=core.ObjectMeta(name="cpu", namespace="tenant-a"), spec=core.ResourceQuotaSpec(hard={"cpu": "4"})
    )
    found = tenant.budgets([around, foreign, mine], "tenant-a")
    assert [(each.namespace, each.key, each.used, each.hard, each.words, each.own) for each in found] == [
        ("tenant-a", "h200", 4, 4, "nothing left", True),
        ("tenant-a", "total", 5, 6, "1 left", True),
        ("around", "h200", None, 9, "not counted yet", False),
    ]


@pytest.mark.parametrize(
    ("name", "groups", "found"),
    [
        ("system:serviceaccount:tenant-a:anna", [], ["tenant-a"]),
        ("anna", ["tenant-a-admin", "tenant-a-b-use", "wheel"], ["tenant-a", "tenant-a-b"]),
        ("anna", ["tenant-x-super-admin", "tenant-x-view"], ["tenant-x"]),
        ("system:serviceaccount", ["other-admin"], []),
    ],
)
def test_where_somebody_may_be_at_home(name: str, groups: list[str], found: list[str]) -> None:
    assert tenant.suggestions(name, groups, "tenant-") == found


# --- what is no order -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", [("h200", "1", "", ""), ("h200", "2147483647", "a-1", "VM_1.x")])
def test_what_the_apiserver_may_be_asked(given: tuple[str, str, str, str]) -> None:
    assert tenant.order_fault(*given) == ""


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("", "1", "", ""), "Choose one of the classes."),
        (("H200", "1", "", ""), "Choose one"),
        (("../x", "1", "", ""), "Choose one"),
        *((("h200", n, "", ""), "whole number") for n in ("", "0", "-1", "1.5", "²", "1e3", "2147483648", "9" * 40)),
        *((("h200", "1", name, ""), "The name may have") for name in ("A", "a b", "-a", "a" * 64, "a/b", "a.b")),
        *((("h200", "1", "", set_), "The set may have") for set_ in ("-a", "a b", "a" * 64, "a/b")),
    ],
)  # fmt: skip
def test_what_cannot_be_an_order(given: tuple[str, str, str, str], said: str) -> None:
    assert said in tenant.order_fault(*given)


# --- the map ----------------------------------------------------------------------------------------------------------


def drawn(row: fleet.NodeRow) -> str:
    return "".join(cell.letter for cell in row.cells)


def test_the_map_says_of_every_gpu_what_it_is_and_who_has_it() -> None:
    busy = report(
        "gpu-1",
        [
            device(1, (GPU, 1, 1), users=[("tenant-a", "virt-launcher-train-x")]),
            device(2, (GPU, 1, 1), users=[("other", "job")]),
            device(3, (GPU, 0, 0), health=Health.UNHEALTHY),
            device(4, (GPU, 1, 0)),
            device(5, (GPU, 1, 0)),
            device(6, (GPU, 1, 0)),
        ],
        excluded=[6],
    )
    claims = [attached(claim("train", "gpu-1")), claim("off", "gpu-1", namespace="tenant-b")]
    found = fleet.fleet([busy], claims, [cls()], None, NOW)
    (row,) = found.rows
    assert drawn(row) == "AFUh.x"
    assert [cell.words for cell in row.cells] == [
        "attached: tenant-a/train",
        "used without a claim: other/job",
        "unhealthy",
        "held, no VM: tenant-b/off",
        "free",
        "excluded",
    ]
    assert (row.free, row.held, row.used) == (1, 2, 2)
    assert {cell.words: number for cell, number in found.counts}["free"] == 1


def test_the_map_finds_nodes_and_who_holds_on_them() -> None:
    reports = [report("gpu-1"), report("gpu-2"), report("cpu-1", 0)]
    claims = [claim("train", "gpu-2")]

    def shown(wanted: str) -> list[str]:
        return [row.name for row in fleet.fleet(reports, claims, [cls()], None, NOW, wanted=wanted).rows]

    assert shown("") == ["cpu-1", "gpu-1", "gpu-2"]
    assert shown("gpu") == ["gpu-1", "gpu-2"]
    assert shown("tenant-a/tr") == ["gpu-2"]
    assert shown("nothing") == []


@pytest.mark.parametrize(
    ("page", "first", "rows"), [(1, "n-000", 50), (3, "n-100", 20), (9, "n-100", 20), (0, "n-000", 50)]
)
def test_the_map_has_pages(page: int, first: str, rows: int) -> None:
    found = fleet.fleet([report(f"n-{n:03}") for n in range(120)], [], [], None, NOW, page=page)
    assert (found.rows[0].name, len(found.rows), found.pages, found.matching) == (first, rows, 3, 120)


def quiet(**fields: Any) -> GPUNode:
    return report("gpu-1", **fields)


@pytest.mark.parametrize(
    ("found", "of_node", "notes"),
    [
        (quiet(), None, ()),
        (quiet(at=NOW - dt.timedelta(minutes=14)), None, ()),
        (quiet(at=NOW - dt.timedelta(minutes=16)), None, ("Silent",)),
        (quiet(at=None), None, ("Silent",)),
        (
            with_status(quiet(), conditions=[condition("Reporting", Status.FALSE, "Rebooted")]),
            None,
            ("Rebooted",),
        ),
        (quiet(), node("gpu-1", ready=False), ("NodeNotReady",)),
        (quiet(), node("gpu-1", unschedulable=True), ("Unschedulable",)),
    ],
)
def test_what_is_wrong_with_a_node(found: GPUNode, of_node: core.Node | None, notes: tuple[str, ...]) -> None:
    nodes = {"gpu-1": of_node} if of_node is not None else None
    made = fleet.fleet([found], [], [], nodes, NOW)
    assert made.rows[0].notes == notes
    assert made.rows[0].wrong == bool(notes)
    assert made.silent == ("Silent" in notes or "Rebooted" in notes)
    of_trouble = fleet.fleet([found], [], [], nodes, NOW, trouble=True)
    assert len(of_trouble.rows) == bool(notes)


def test_a_cordoned_node_is_no_trouble() -> None:
    (row,) = fleet.fleet([quiet(cordoned=True)], [], [], None, NOW).rows
    assert (row.notes, row.wrong) == (("cordoned",), False)


def test_a_node_in_detail() -> None:
    a16 = report("gpu-1", [device(2, (A16, 4, 1), users=[("tenant-a", "vm")]), device(1, (GPU, 1, 0))], excluded=[1])
    found = fleet.detail(
        a16, [attached(claim("small", "gpu-1", of="a16"), "vm"), claim("else", "gpu-2")], [cls("a16", A16)], None, NOW
    )
    assert [
        (each.device.address, "".join(cell.letter for cell in each.cells), each.holders, each.excluded)
        for each in found.devices
    ] == [
        ("0000:01:00.0", "x", (), "-"),
        ("0000:02:00.0", "A...", ("tenant-a/small",), ""),
    ]
    assert [(each.namespace, each.name, each.count, each.pod) for each in found.held] == [
        ("tenant-a", "small", 1, "vm")
    ]


# --- the cloud --------------------------------------------------------------------------------------------------------


def test_classes_count_what_there_is_of_them_everywhere() -> None:
    reports = [report("gpu-1", 4), report("gpu-2", [device(1, (A16, 4, 0))])]
    claims = [claim("a", "gpu-1", 3), claim("b", None, 2), claim("c", "gpu-2", of="a16")]
    rows = overview.classes([cls(), cls("a16", A16)], claims, reports)
    assert [(each.offer.name, each.resource, each.total, each.free, each.held, each.waiting) for each in rows] == [
        ("a16", A16, 4, 3, 1, 0),
        ("h200", GPU, 4, 1, 3, 2),
    ]


def test_refusals_by_the_end_of_their_time() -> None:
    claims = [
        claim("late", "gpu-1", refused={"gpu-2": NOW + 2 * HOUR}),
        claim("soon", "gpu-1", refused={"gpu-3": NOW + HOUR, "gpu-4": NOW}),
    ]
    assert [(each.claim, each.node) for each in overview.refusals(claims, NOW)] == [
        ("tenant-a/soon", "gpu-3"),
        ("tenant-a/late", "gpu-2"),
    ]


def test_claims_with_trouble_the_oldest_first() -> None:
    ill = with_status(
        claim("ill", "gpu-1", created=NOW - HOUR),
        conditions=[condition("Healthy", Status.FALSE, "NodeNotReady", "The node is away.")],
    )
    rows = overview.troubled([claim("waits"), claim("well", "gpu-1"), ill])
    assert [(each.claim, each.why) for each in rows] == [
        ("tenant-a/ill", "The node is away."),
        ("tenant-a/waits", ""),
    ]


# --- a drain ----------------------------------------------------------------------------------------------------------


def test_a_drain_moves_what_no_vm_uses_and_leaves_what_one_does() -> None:
    state = [cls(), *gpus("gpu-1", 8), *gpus("gpu-2", 2)]
    on = attached(claim("on", "gpu-1", 2), "virt-launcher-on")
    rows = drain.plan([*state, on, claim("off", "gpu-1", 2), claim("big", "gpu-1", 3)], "gpu-1", NOW)
    assert rows is not None
    assert [(each.set_name, each.gpus, each.goes.words) for each in rows] == [
        ("tenant-a/big", 3, "stays"),
        ("tenant-a/off", 2, "to gpu-2"),
        ("tenant-a/on", 2, "stays"),
    ]
    assert all(each.message for each in rows if each.goes.words == "stays")
    assert drain.plan(state, "no-such-node", NOW) is None
    assert drain.plan(state, "gpu-2", NOW) == []


def test_pods_that_the_hoster_may_not_read_are_made_up_from_what_agents_say() -> None:
    taken = report("gpu-2", [device(1, (GPU, 1, 1), users=[("x", "job")]), device(2, (GPU, 1, 0))])
    known = pod("known", on="gpu-2", namespace="x")
    found = drain.unseen([taken, known, attached(claim("on", "gpu-2"), "launcher")])
    assert [(each.metadata.namespace, each.metadata.name, each.spec.node_name) for each in found] == [
        ("tenant-a", "launcher", "gpu-2"),
        ("x", "job", "gpu-2"),
    ]
    assert found[0].metadata.labels == {names.SET_LABEL: "on"}
    assert found[1].spec.containers[0].resources.limits == {GPU: 1}
    state = [cls(), *gpus("gpu-1", 8), node("gpu-2", {GPU: 2}), taken, claim("off", "gpu-1", 2)]
    rows = drain.plan(state, "gpu-1", NOW)
    assert rows is not None
    assert rows[0].goes.words == "stays", "of the two GPUs there a pod without a claim has one"


# --- usage ------------------------------------------------------------------------------------------------------------


def held(name: str, since: dt.datetime, count: int = 1, **status: Any) -> GPUClaim:
    made: GPUClaim = with_status(claim(name, "gpu-1", count), held_since=since, **status)
    return made


def test_the_chart_has_a_bar_a_day() -> None:
    since = NOW - 36 * HOUR  # NOW is noon
    on = attached(held("on", since, 2), since=NOW - 6 * HOUR)
    records = chart.records([], [on], NOW)
    found = chart.chart(records, NOW)
    assert len(found.bars) == chart.DAYS
    assert [(bar.day.day, bar.held, bar.attached) for bar in found.bars[-3:]] == [
        (29, 0.0, 0.0),
        (30, 48.0, 0.0),
        (1, 24.0, 12.0),
    ]
    assert [label for _, label in found.lines] == ["0", "25", "50"]
    tallest = found.bars[-2]
    assert tallest.held_y + tallest.held_height == pytest.approx(found.bottom)
    assert min(bar.held_y for bar in found.bars) >= found.lines[-1][0], "nothing stands out above the scale"
    (total,) = chart.sums(records, NOW)
    assert (total.class_name, total.held, total.attached) == ("h200", 72.0, 12.0)
    assert total.share == pytest.approx(1 / 6)


def test_a_chart_of_nothing() -> None:
    found = chart.chart([], NOW)
    assert found.empty
    assert [label for _, label in found.lines] == ["0", "0.5", "1"]


@pytest.mark.parametrize(
    ("most", "top"),
    [(0, 1), (1, 1), (1.1, 2), (2.5, 5), (7, 10), (10, 10), (11, 20), (480, 500), (5001, 1e4)],
)
def test_the_scale_ends_at_a_round_number(most: float, top: float) -> None:
    assert chart._top(most) == top


def test_what_each_claim_was_used() -> None:
    ended = Usage(held_seconds=3600, attached_seconds=1800)
    a = held("a", NOW - HOUR, 2, usage=ended)
    b = attached(held("b", NOW - 8 * HOUR), since=NOW - 2 * HOUR)
    assert [(each.name, each.held, each.attached) for each in chart.by_claim([a, b, claim("c")], NOW)] == [
        ("b", 8.0, 2.0),
        ("a", 4.0, 1.0),
        ("c", 0.0, 0.0),
    ]
