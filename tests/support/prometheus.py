"""Prometheus' own tool, and what the chart has for Prometheus."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import yaml

from gpuclaim.local import build, toolchain
from support.chart import CHART

ALERTS = CHART / "files" / "alerts.yaml"
DASHBOARD = CHART / "files" / "dashboard.json"
_MODULE = "github.com/prometheus/prometheus"


def component() -> build.Component:
    """promtool in one program."""
    module = toolchain.localkube_dir() / "promtool"
    found = re.search(rf"^\s*{re.escape(_MODULE)} (v\S+)", (module / "go.mod").read_text(), re.MULTILINE)
    assert found, "go.mod requires no Prometheus"
    return build.Component("promtool", found[1], module, package=f"{_MODULE}/cmd/promtool", tags=("remove_all_sd",))


def alerts() -> list[dict[str, Any]]:
    """The chart's alert rules."""
    groups = yaml.safe_load(ALERTS.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def queries(dashboard: Path = DASHBOARD) -> list[str]:
    """What the dashboard's panels ask."""
    panels = json.loads(dashboard.read_text())["panels"]
    return [target["expr"] for panel in panels for target in panel.get("targets", ())]
