"""The chart's alerts, checked and played by Prometheus' own promtool."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuclaim.local import build
from support import prometheus

CASES: dict[str, Any] = yaml.safe_load((Path(__file__).parents[1] / "cases" / "alerts.yaml").read_text())


@pytest.fixture(scope="module")
def promtool(progress: Callable[[str], None]) -> Path:
    return build.ensure(prometheus.component(), progress)


def run(promtool: Path, *arguments: str | Path) -> str:
    done = subprocess.run((promtool, *arguments), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_every_alert_has_a_case() -> None:
    assert CASES.keys() == {rule["alert"] for rule in prometheus.alerts()}


def test_the_rules_are_rules(promtool: Path) -> None:
    said = run(promtool, "check", "rules", "--lint=all", "--lint-fatal", prometheus.ALERTS)
    assert f"{len(CASES)} rules found" in said


def series(found: dict[str, str]) -> list[dict[str, str]]:
    return [{"series": name, "values": values} for name, values in found.items()]


def played(interval: int, alert: str, found: dict[str, str], expected: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "interval": "1m",
        "input_series": series(found),
        "alert_rule_test": [{"alertname": alert, "eval_time": f"{interval}m", "exp_alerts": expected}],
    }


@pytest.mark.parametrize("alert", CASES)
def test_it_fires_when_it_should_and_then_alone(promtool: Path, alert: str, tmp_path: Path) -> None:
    case = CASES[alert]
    said = {"exp_labels": case["labels"], "exp_annotations": {"summary": case["summary"]}}
    tests = [played(case["after"], alert, case["fires"], [said])]
    tests += [played(minute, alert, case["quiet"], []) for minute in range(case["after"] + 3)]
    # Not at once either.
    tests.append(played(0, alert, case["fires"], []))
    file = tmp_path / "test.yaml"
    file.write_text(
        yaml.safe_dump({"rule_files": [str(prometheus.ALERTS)], "evaluation_interval": "1m", "tests": tests})
    )
    assert "SUCCESS" in run(promtool, "test", "rules", file)


def test_every_query_of_the_dashboard_is_one(promtool: Path, tmp_path: Path) -> None:
    rules = [
        {"record": f"panel:{number}", "expr": query.replace("$__rate_interval", "5m")}
        for number, query in enumerate(prometheus.queries())
    ]
    file = tmp_path / "rules.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    assert f"{len(rules)} rules found" in run(promtool, "check", "rules", file)
