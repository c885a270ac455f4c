from __future__ import annotations

import datetime as dt

import pytest

from gpuclaim.api.core import Namespace, ObjectMeta, ResourceQuota, ResourceQuotaSpec, ResourceQuotaStatus, Status
from gpuclaim.api.types import (
    Attachment,
    Condition,
    Device,
    DeviceUser,
    Exclusion,
    GPUClaim,
    GPUClaimSpec,
    GPUClaimStatus,
    GPUNode,
    GPUNodeSpec,
    GPUNodeStatus,
    Health,
    ResourceCount,
)
from gpuclaim.views import budget, nodes, table

NOW = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
H200 = "nvidia.com/h200"
RESOURCES = {"h200": H200}


def device(
    bus: int, user: str = "", health: Health = Health.HEALTHY, allocatable: int = 1, used: int | None = None
) -> Device:
    taken = int(bool(user)) if used is None else used
    return Device(
        address=f"0000:{bus:02x}:00.0",
        health=health,
        resources=[] if health is Health.UNMANAGED else [ResourceCount(name=H200, allocatable=allocatable, used=taken)],
        users=[DeviceUser(namespace="tenant-a", name=user)] if user else [],
    )


def node(*devices: Device, conditions: tuple[tuple[str, Status, str], ...] = (), **spec: object) -> GPUNode:
    said = [Condition(type=t, status=s, reason=r, last_transition_time=NOW) for t, s, r in conditions]
    return GPUNode(
        metadata=ObjectMeta(name="gpu-1"),
        spec=GPUNodeSpec(**spec),  # type: ignore[arg-type]
        status=GPUNodeStatus(devices=list(devices), conditions=said),
    )


def claim(count: int = 1, pod: str = "", class_name: str = "h200") -> GPUClaim:
    attachment = Attachment(pod_name=pod, pod_uid="1", since=NOW) if pod else None
    return GPUClaim(
        metadata=ObjectMeta(name="train", namespace="tenant-a"),
        spec=GPUClaimSpec(class_name=class_name, count=count),
        status=GPUClaimStatus(node_name="gpu-1", attachment=attachment),
    )


@pytest.mark.parametrize(
    ("found", "claims", "shown"),
    [
        (node(device(1), device(2)), [], ".."),
        (node(device(1), device(2), device(3)), [claim(2)], "hh."),
        (node(device(1, "vm"), device(2)), [claim(1, "vm")], "A."),
        (node(device(2), device(1, "vm")), [claim(2, "vm")], "AA"),  # by address; the report is older than the pod
        (node(device(1, "other"), device(2)), [claim(1)], "Fh"),
        (node(device(1, health=Health.UNHEALTHY, allocatable=0), device(2)), [claim(1)], "Uh"),
        (node(device(1, "vm", Health.UNHEALTHY, allocatable=0), device(2)), [claim(1, "vm")], "U."),  # and used
        (node(device(1), device(2), excluded=[Exclusion(address="0000:01:00.0")]), [claim(1)], "xh"),
        (node(device(1, health=Health.UNMANAGED), device(2)), [claim(1)], "-h"),
        (node(device(1, "vm", allocatable=4)), [claim(1, "vm"), claim(1)], "Ah.."),
        (node(device(1)), [claim(1, class_name="other")], "h"),  # of an unknown class: it is one of them
        (node(device(1)), [claim(3)], "h"),  # more held than there is: the numbers say so
    ],
)
def test_the_map_of_a_node(found: GPUNode, claims: list[GPUClaim], shown: str) -> None:
    assert "".join(slot.state for slot in nodes.slots(found, claims, RESOURCES)) == shown


def test_every_letter_is_in_the_legend() -> None:
    assert [state for state in nodes.State if f"{state.value} " not in nodes.LEGEND] == []


def test_a_row_says_what_keeps_new_holds_away() -> None:
    silent = ("Reporting", Status.FALSE, "Silent")
    fine = ("Overcommitted", Status.FALSE, "WithinCapacity")
    found = node(device(1), device(2), conditions=(silent, fine), cordoned=True)
    assert table.render(nodes.HEADER, nodes.rows(nodes.drawn([found], [claim()], RESOURCES))) == (
        "NODE    GPUS   FREE   HELD   USED   NOTE\ngpu-1   h.     1      1      0      cordoned, Silent"
    )


def quota(namespace: str, hard: dict[str, str | int], used: dict[str, str | int]) -> ResourceQuota:
    return ResourceQuota(
        metadata=ObjectMeta(name="gpus", namespace=namespace),
        spec=ResourceQuotaSpec(hard=hard),
        status=ResourceQuotaStatus(used=used),
    )


OWN = quota("tenant-a", {"gpu.cozystack.io/h200": "2", "cpu": "4"}, {"gpu.cozystack.io/h200": "2"})
ROOT = quota("root", {"gpu.cozystack.io/total": "1k"}, {})


def test_own_budgets_come_first_and_what_is_not_known_is_no_number() -> None:
    assert table.render(budget.HEADER, budget.rows([ROOT, OWN], "tenant-a")) == (
        "NAMESPACE   QUOTA   CLASS   USED   HARD   LEFT   WHOSE\n"
        "tenant-a    gpus    h200    2      2      0      own\n"
        "root        gpus    total   ?      1000   ?      inherited"
    )


def test_a_quota_without_a_budget_key_binds_nothing() -> None:
    assert budget.binding([quota("x", {"cpu": "4"}, {}), ROOT]) == [ROOT]


def test_ancestors_are_those_of_the_labels_without_oneself() -> None:
    labels = {"tenant.cozystack.io/root": "", "tenant.cozystack.io/a": "", "other/b": ""}
    found = Namespace(metadata=ObjectMeta(name="a", labels=labels))
    assert budget.ancestors(found, "tenant.cozystack.io/") == ["root"]
    assert budget.ancestors(found, "") == []
