"""The simulated hardware, read by the real agent's code."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pytest

from gpuclaim.agent import pciids, resolve
from gpuclaim.agent.report import report
from gpuclaim.agent.sysfs import Scanner
from gpuclaim.agent.values import Answers
from gpuclaim.api import names
from gpuclaim.api.types import Health
from gpuclaim.local import offers
from gpuclaim.local.sysfs_tree import SysfsTree


def test_three_nodes_of_two_classes_by_default() -> None:
    assert [(plan.name, plan.offer.name, plan.gpus, plan.orderable) for plan in offers.layout()] == [
        ("gpu-1", "h200", 4, 4),
        ("gpu-2", "h200", 4, 4),
        ("gpu-3", "a16", 2, 8),
    ]


def test_nodes_and_gpus_as_asked_for() -> None:
    plans = offers.layout(nodes=7, gpus=8)
    assert [plan.offer.name for plan in plans] == ["h200", "h200", "a16", "h200", "h200", "a16", "h200"]
    assert {plan.gpus for plan in plans} == {8}
    assert len(offers.layout(nodes=1)) == 1


def test_the_catalogue_can_be_published() -> None:
    for offer in offers.CATALOGUE:
        assert names.is_dns_label(offer.name)
        assert names.resource_name_fault(offer.resource) is None
        assert len(offer.display_name) <= 63


@pytest.mark.parametrize("gpus", [1, 8, 64])
@pytest.mark.parametrize("offer", offers.CATALOGUE, ids=lambda offer: offer.name)
def test_the_agent_reports_what_the_plan_says(tmp_path: Path, offer: offers.Offer, gpus: int) -> None:
    plan = offers.NodePlan("gpu-1", offer, gpus)
    functions, served = offers.hardware(plan)
    SysfsTree(tmp_path, functions)
    ids = [each for device in served.values() for each in device]
    assert len(set(ids)) == plan.orderable
    answers = Answers({offer.resource: ids})
    status = report(
        Scanner(tmp_path).scan(resolve.groups_named(answers.device_ids())),
        answers,
        {},
        None,
        boot_id="b",
        name_model=pciids.namer(pciids.parse(offers.pci_ids())),
        now=dt.datetime.now(dt.UTC),
    )
    assert [device.address for device in status.devices] == list(served)
    assert {device.health for device in status.devices} == {Health.HEALTHY}
    assert {device.model for device in status.devices} == {f"NVIDIA {offer.model}"}
    assert sum(each.allocatable for device in status.devices for each in device.resources) == plan.orderable
    assert status.unplaced == []
