"""The files of tests/cases/agent as the values that the agent takes; tests/cases/README.md says what they mean."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import msgspec
import yaml

from gpuclaim.agent.values import Answers, PodDevices
from gpuclaim.api.types import GPUNodeStatus
from gpuclaim.local.sysfs_tree import Mdev, SimulatedFunction

FOLDER = Path(__file__).parent.parent / "cases" / "agent"


@dataclasses.dataclass(frozen=True)
class Case:
    functions: list[SimulatedFunction]
    answers: Answers
    phases: dict[tuple[str, str], str]
    previous: GPUNodeStatus | None
    expect: dict[str, Any]

    def pod_list(self) -> dict[str, Any]:
        items = [
            {"metadata": {"namespace": namespace, "name": name}, "status": {"phase": phase}}
            for (namespace, name), phase in self.phases.items()
        ]
        return {"apiVersion": "v1", "kind": "PodList", "items": items}


def files() -> list[Path]:
    return sorted(FOLDER.glob("*.yaml"))


def load(path: Path) -> Case:
    loaded = yaml.safe_load(path.read_text())
    pods = loaded.get("pods") or []
    previous = loaded.get("previous")
    return Case(
        functions=[_function(each) for each in loaded["functions"]],
        answers=Answers(
            loaded["allocatable"], tuple(PodDevices(pod["namespace"], pod["name"], pod["resources"]) for pod in pods)
        ),
        phases={(pod["namespace"], pod["name"]): pod["phase"] for pod in pods},
        previous=msgspec.convert(previous, GPUNodeStatus) if previous else None,
        expect=loaded["expect"],
    )


def _function(entry: dict[str, Any]) -> SimulatedFunction:
    return SimulatedFunction(
        address=entry["address"],
        class_code=entry.get("class"),
        vendor=entry.get("vendor"),
        device=entry.get("device"),
        driver=entry.get("driver"),
        group=entry.get("group"),
        numa=entry.get("numa"),
        physical_function=entry.get("physfn"),
        mdevs=tuple(Mdev(uuid=mdev["uuid"], type=mdev["type"]) for mdev in entry.get("mdevs") or []),
        files=entry.get("files") or {},
    )


def check(status: dict[str, Any], expect: dict[str, Any]) -> None:
    """Compares a GPUNode's status, as JSON has it, with what a case expects."""
    counts = {device["address"]: _counts(device["resources"]) for device in status["devices"]}
    assert counts == expect["devices"]
    for address, health in expect.get("health", {}).items():
        assert {device["address"]: device["health"] for device in status["devices"]}[address] == health
    if "resourceNames" in expect:
        assert status["resourceNames"] == expect["resourceNames"]
    if "unplaced" in expect:
        assert _counts(status["unplaced"]) == expect["unplaced"]


def _counts(resources: list[dict[str, Any]]) -> dict[str, list[int]]:
    return {each["name"]: [each["allocatable"], each["used"]] for each in resources}
