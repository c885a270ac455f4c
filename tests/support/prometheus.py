"""Prometheus' own tool, and what the chart has for Prometheus."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from gpuclaim.local import build, toolchain
from support.chart import CHART, required

ALERTS = CHART / "files" / "alerts.yaml"
DASHBOARD = CHART / "files" / "dashboard.json"
_MODULE = "github.com/prometheus/prometheus"


def component() -> build.Component:
    """promtool in one program."""
    module = toolchain.localkube_dir() / "promtool"
    version, package = required(module, _MODULE), f"{_MODULE}/cmd/promtool"
    return build.Component("promtool", version, module, package=package, tags=("remove_all_sd",))


def alerts() -> list[dict[str, Any]]:
    """The chart's alert rules."""
    groups = yaml.safe_load(ALERTS.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def queries(dashboard: Path = DASHBOARD) -> list[str]:
    """What the dashboard's panels ask."""
    panels = json.loads(dashboard.read_text())["panels"]
    return [target["expr"] for panel in panels for target in panel.get("targets", ())]
