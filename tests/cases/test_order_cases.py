"""Every file of tests/cases/orders, through `gpuclaim plan`."""

import json
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from gpuclaim.cli.plan import plan

CASES = sorted((Path(__file__).parent / "orders").glob("*.yaml"))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.stem)
def test_order_case(case: Path) -> None:
    steps = yaml.safe_load(case.read_text())["steps"]
    ran = CliRunner().invoke(plan, ["--scenario", str(case), "-o", "json"])
    assert ran.exit_code == 0, ran.output
    results = json.loads(ran.stdout)
    assert len(results) == len(steps)
    for step, result in zip(steps, results, strict=True):
        if "order" in step:
            assert set(result) == {"verdict", "node", "reason", "message", "moves"}
            assert (result["verdict"], result["reason"]) == (step["verdict"], step.get("reason")), step
            if "node" in step:
                nodes = step["node"] if isinstance(step["node"], list) else [step["node"]]
                assert result["node"] in nodes, step
            if "moves" in step:
                assert sorted(result["moves"]) == sorted(step["moves"]), step
            if result["verdict"] == "refused":
                assert step["order"]["className"] in result["message"], step
        elif "holds" in step:
            assert {node: result["holds"][node] for node in step["holds"]} == step["holds"], step
        else:
            assert result == {}, step


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.stem)
def test_check_agrees(case: Path) -> None:
    ran = CliRunner().invoke(plan, ["--scenario", str(case), "--check"])
    assert (ran.exit_code, ran.stderr) == (0, "")
