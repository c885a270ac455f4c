"""GPUClass.status and the conditions of a GPUNode (R16), from the books."""

from __future__ import annotations

import datetime as dt
from typing import Any

import msgspec
import pytest

from gpuclaim.api import core
from gpuclaim.api.core import ObjectMeta
from gpuclaim.api.types import Availability, GPUClaim, GPUClaimSpec, GPUClaimStatus, GPUClass, GPUNode
from gpuclaim.controller import catalogue
from gpuclaim.placement.books import Books
from gpuclaim.placement.supply import Supply, supply
from support.cloud import H200, gpu_class

NOW = dt.datetime(2026, 12, 1, 12, tzinfo=dt.UTC)


def node(gpus: int = 4, boot: str = "boot-1") -> core.Node:
    return core.Node(
        metadata=ObjectMeta(name="gpu-1"),
        status=core.NodeStatus(
            allocatable={H200: str(gpus)},
            conditions=[core.NodeCondition(type="Ready", status="True")],
            node_info=core.NodeSystemInfo(boot_id=boot),
        ),
    )


def report(gpus: int = 4, unhealthy: int = 0, **status: Any) -> GPUNode:
    devices = [
        {
            "address": f"0000:{16 + index:02x}:00.0",
            "health": "Unhealthy" if index < unhealthy else "Healthy",
            "resources": [{"name": H200, "allocatable": int(index >= unhealthy), "used": 0}],
        }
        for index in range(gpus)
    ]
    plain = {"devices": devices, "reportedAt": NOW.isoformat(), "bootID": "boot-1", "resourceNames": [H200]} | status
    return msgspec.convert({"metadata": {"name": "gpu-1"}, "spec": {}, "status": plain}, GPUNode)


def hold(count: int) -> GPUClaim:
    return GPUClaim(
        metadata=ObjectMeta(name="c", namespace="tenant-a", uid="u"),
        spec=GPUClaimSpec(class_name="h200", count=count),
        status=GPUClaimStatus(node_name="gpu-1", held_since=NOW),
    )


def books(*objects: GPUClass | GPUClaim | GPUNode | core.Node | core.Pod) -> Books:
    kept = Books()
    for obj in objects:
        kept.apply(obj)
    kept.advance(NOW)
    return kept


def conditions(kept: Books, of: GPUNode, now: dt.datetime = NOW) -> dict[str, tuple[str, str, str]]:
    kept.advance(now)
    found = catalogue.node_conditions(of, kept.nodes["gpu-1"], now)
    return {c.type: (c.status, c.reason, c.message) for c in found}


def test_the_supply_of_a_class() -> None:
    assert supply(books(gpu_class(), node(), report(), hold(3)), "h200", NOW) == Supply(4, 3, 1, 1)
    assert supply(books(gpu_class(), node(), report(unhealthy=1)), "h200", NOW) == Supply(3, 0, 3, 3)
    assert supply(books(gpu_class(), node()), "h200", NOW) == Supply(0, 0, 0, 0)
    assert supply(books(), "h200", NOW) is None


@pytest.mark.parametrize(
    ("there_is", "availability"),
    [
        (Supply(100, 0, 100, 8), Availability.AVAILABLE),
        (Supply(100, 90, 10, 8), Availability.AVAILABLE),
        (Supply(100, 91, 9, 8), Availability.LIMITED),
        (Supply(100, 100, 0, 0), Availability.SOLD_OUT),
        (Supply(0, 0, 0, 0), Availability.SOLD_OUT),
    ],
)
def test_availability(there_is: Supply, availability: Availability) -> None:
    status = catalogue.class_status(gpu_class(), there_is, counts=False)
    assert status.availability is availability
    assert (status.total, status.held, status.free, status.largest_order) == (None, None, None, None)
    status = catalogue.class_status(gpu_class(), there_is, counts=True)
    assert (status.total, status.free) == (there_is.total, there_is.free)


def test_a_node_that_is_well() -> None:
    found = conditions(books(gpu_class(), node(), report(), hold(4)), report())
    assert {type_: said[:2] for type_, said in found.items()} == {
        "Reporting": ("True", "Reports"),
        "Healthy": ("True", "AllHealthy"),
        "Overcommitted": ("False", "WithinCapacity"),
        "ForeignUse": ("False", "NoForeignUse"),
    }


def test_what_can_be_wrong_with_a_node() -> None:
    sick = report(unhealthy=1)
    found = conditions(books(gpu_class(), node(), sick, hold(4)), sick)
    assert found["Healthy"] == ("False", "DevicesUnhealthy", "1 of 4 devices unhealthy: 0000:10:00.0")
    assert found["Overcommitted"][2] == f"held beyond what the node has: 1 of {H200}"
    pod = msgspec.convert(
        {
            "metadata": {"name": "notebook", "namespace": "other", "uid": "p"},
            "spec": {"nodeName": "gpu-1", "containers": [{"name": "c", "resources": {"limits": {H200: "2"}}}]},
            "status": {"phase": "Running"},
        },
        core.Pod,
    )
    found = conditions(books(gpu_class(), node(), report(), pod), report())
    assert found["ForeignUse"] == ("True", "PodsWithoutClaim", f"pods without a claim use 2 of {H200}")


def test_a_silent_a_rebooted_and_a_new_node() -> None:
    kept = books(gpu_class(), node(), report())
    assert conditions(kept, report(), NOW + dt.timedelta(hours=1))["Reporting"] == (
        "False",
        "Silent",
        "the agent has not reported since 2026-12-01T12:00:00Z",
    )
    other = report(bootID="boot-0")
    assert conditions(books(gpu_class(), node(), other), other)["Reporting"][1] == "Rebooted"
    new = GPUNode(metadata=ObjectMeta(name="gpu-1"))
    assert conditions(books(gpu_class(), node(), new), new)["Reporting"][1] == "NeverReported"


def test_a_report_that_is_kept_without_its_devices_says_the_same() -> None:
    sick = report(unhealthy=1)
    kept = books(gpu_class(), node(), sick)
    slim = msgspec.structs.replace(sick, status=msgspec.structs.replace(sick.status, devices=[]))
    assert conditions(kept, slim)["Healthy"][2] == "1 of 4 devices unhealthy: 0000:10:00.0"


def test_nothing_is_written_while_nothing_changes() -> None:
    kept = books(gpu_class(), node(), report())
    first = catalogue.node_conditions(report(), kept.nodes["gpu-1"], NOW)
    again = report(conditions=msgspec.to_builtins(first))
    later = NOW + dt.timedelta(minutes=5)
    assert catalogue.node_conditions(again, kept.nodes["gpu-1"], later) == first
