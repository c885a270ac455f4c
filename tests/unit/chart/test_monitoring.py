"""Alerts and dashboard ask for metrics that are there, by labels that they have; the docs say what to do."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gpuclaim.agent.pulse import Pulse
from gpuclaim.controller.gauges import GAUGES
from gpuclaim.controller.telemetry import COUNTED, DECISION, REPLICA_GAUGES, WEBHOOK
from support import prometheus

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "how-to" / "alerts.md"
_TARGET = {"pod", "instance", "namespace", "job"}
"""Labels that Prometheus gives every series of a target."""


def exposed() -> dict[str, set[str]]:
    """Every series' name → its labels."""
    known = {family.name: set(family.labels) for family in (*GAUGES, *REPLICA_GAUGES, *COUNTED)}
    for histogram in (DECISION, WEBHOOK):
        labels = known.pop(histogram.name)
        known |= {f"{histogram.name}_bucket": labels | {"le"}}
        known |= {f"{histogram.name}_{part}": labels for part in ("sum", "count")}
    for family in text_string_to_metric_families(Pulse(beat=0).metrics()):
        known |= {sample.name: set(sample.labels) for sample in family.samples}
    return known


def asked(expression: str) -> tuple[set[str], set[str]]:
    """(series, labels) that a query names: matchers and by-clauses."""
    labels = {name for inside in re.findall(r"\{([^}]*)\}", expression) for name in re.findall(r"(\w+)\s*[=!]", inside)}
    labels |= {name for inside in re.findall(r"\bby \(([^)]*)\)", expression) for name in re.findall(r"\w+", inside)}
    return set(re.findall(r"\bgpuclaim_\w+", expression)), labels


EXPRESSIONS = [*(rule["expr"] for rule in prometheus.alerts()), *prometheus.queries()]


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_what_is_asked_for_is_there(expression: str) -> None:
    known = exposed()
    series, labels = asked(expression)
    assert series
    assert series <= known.keys()
    assert labels <= _TARGET.union(*(known[name] for name in series))


def test_each_alert_names_only_labels_that_its_expression_leaves() -> None:
    for rule in prometheus.alerts():
        named = set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]))
        assert named <= asked(rule["expr"])[1], rule["alert"]


def test_each_alert_says_what_to_do_on_the_page_of_alerts_and_no_other_is_there() -> None:
    rules = prometheus.alerts()
    names = [rule["alert"] for rule in rules]
    assert len(set(names)) == len(names) > 10
    sections = re.split(r"^### ", PAGE.read_text(), flags=re.MULTILINE)[1:]
    assert [section.partition("\n")[0] for section in sections] == names
    for rule, section in zip(rules, sections, strict=True):
        assert rule["labels"]["severity"] in {"critical", "warning", "info"}
        for word in (f"**{rule['labels']['severity']}**", f"after {rule['for']}", "Means:", "Do:"):
            assert word in section, (rule["alert"], word)


def test_the_dashboard_is_what_its_maker_makes() -> None:
    file = ROOT / "chart" / "dashboard.py"
    spec = importlib.util.spec_from_file_location("dashboard", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.text() == prometheus.DASHBOARD.read_text(), "run `make crds`"


def test_the_dashboard_s_panels_do_not_overlap() -> None:
    panels = json.loads(prometheus.DASHBOARD.read_text())["panels"]
    cells = [
        (x, y)
        for place in (panel["gridPos"] for panel in panels)
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24
    assert len({panel["id"] for panel in panels}) == len(panels)
