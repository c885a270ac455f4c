"""`gpuclaim plan` beyond a scenario's steps: dumps, orders, what is supposed, and what a person sees of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import msgspec
import pytest
import yaml
from click.testing import CliRunner, Result

from gpuclaim.cli.plan import plan
from support import terminal
from unit.placement.build import claim, cls, gpus, pod, quota

REPACK = Path(__file__).parents[2] / "cases" / "orders" / "07-repack.yaml"
CLAIM = """\
apiVersion: gpu.cozystack.io/v1alpha1
kind: GPUClaim
metadata: {name: big, namespace: tenant-a}
spec: {className: h200, count: 4}
"""


@pytest.fixture
def dump(tmp_path: Path) -> str:
    """As kubectl prints it: two nodes of four, one with two held by a VM that is off, one with one that runs."""
    objects = [
        cls(),
        *gpus("n-1", 4),
        *gpus("n-2", 4),
        claim("a", "n-1", 2),
        claim("b", "n-2", 1),
        pod("virt-launcher-b", "b", "n-2"),
        quota({"h200": 5}),
    ]
    file = tmp_path / "dump.yaml"
    items = [{"apiVersion": each.api_version, "kind": each.kind} | msgspec.to_builtins(each) for each in objects]
    file.write_text(yaml.safe_dump({"kind": "List", "items": items}))
    return str(file)


def run(*arguments: str, given: str | None = None) -> Result:
    return CliRunner().invoke(plan, list(arguments), input=given)


def played(*arguments: str) -> Any:
    ran = run(*arguments, "-o", "json")
    assert ran.exit_code == 0, ran.output
    return json.loads(ran.stdout)


def test_orders_against_a_dump(dump: str, tmp_path: Path) -> None:
    (tmp_path / "orders").write_text(CLAIM)
    found = played("--dump", dump, "--order", "h200=3", "--order", "b200=1", "--orders", str(tmp_path / "orders"))
    assert [(each["order"]["name"], each["verdict"], each["node"], each["reason"]) for each in found["steps"]] == [
        ("order-1", "admitted", "n-2", None),
        ("order-2", "refused", None, "UnknownClass"),
        ("big", "refused", None, "OverBudget"),
    ]
    assert found["largest"] == {"h200": 2}
    assert found["nodes"] == [
        {"name": "n-1", "before": "hh..", "after": "hh.."},
        {"name": "n-2", "before": "h...", "after": "hhhh"},
    ]
    assert (found["added"], found["lost"], found["drained"]) == ([], [], None)


def test_what_is_supposed_comes_before_the_orders(dump: str) -> None:
    found = played(
        "--dump", dump, "--add", "n-1=2", "--lose", "n-2/0000:00:00.0", "--drain", "n-1", "--order", "h200=4"
    )
    assert found["added"] == ["n-1-new-1", "n-1-new-2"]
    assert [(each["node"], each["address"], each["sets"], each["short"]) for each in found["lost"]] == [
        ("n-2", "0000:00:00.0", [], 0)
    ]
    (moved,) = found["drained"]["sets"]
    assert (moved["set"], moved["gpus"], moved["node"]) == ("tenant-a/a", 2, "n-2")
    assert found["steps"][0]["node"] == "n-1-new-1"
    assert found["largest"] == {"h200": 4}


def test_a_scenario_s_steps_come_first_and_alone_stay_a_list() -> None:
    alone = played("--scenario", str(REPACK))
    assert isinstance(alone, list)
    found = played("--scenario", str(REPACK), "--order", "h200=1", "-n", "tenant-b")
    assert [{k: v for k, v in step.items() if k != "order"} for step in found["steps"][: len(alone)]] == alone
    assert found["steps"][-1]["order"]["namespace"] == "tenant-b"


def test_standard_input_is_a_file_too(dump: str) -> None:
    ran = run("--dump", "-", "-o", "json", given=Path(dump).read_text())
    assert json.loads(ran.stdout)["largest"] == {"h200": 4}


def test_the_picture_is_written_beside_the_table(dump: str, tmp_path: Path) -> None:
    file = tmp_path / "plan.svg"
    ran = run("--dump", dump, "--drain", "n-1", "--order", "h200=1", "--picture", str(file), "-o", "table")
    assert ran.exit_code == 0, ran.output
    said = [found.text for found in ET.parse(file).getroot().iter("{http://www.w3.org/2000/svg}text")]
    assert "Node n-1 is emptied" in said
    assert "1 x h200 for default: taken, on n-2" in said
    unwritable = run("--dump", dump, "--picture", f"{tmp_path}/none/plan.svg")
    assert (unwritable.exit_code, "No such file" in unwritable.output) == (1, True)


def test_the_picture_of_the_docs_is_what_the_command_of_the_docs_draws(tmp_path: Path) -> None:
    drawn = tmp_path / "plan.svg"
    asked = ("--add", "gpu-1", "--drain", "gpu-2", "--order", "h200=4", "--picture", str(drawn))
    assert run("--scenario", str(REPACK), *asked).exit_code == 0
    assert (REPACK.parents[3] / "docs" / "pictures" / "plan.svg").read_text() == drawn.read_text()


@pytest.mark.parametrize("columns", [20, 80, 200])
def test_what_a_person_sees(dump: str, columns: int) -> None:
    seen = terminal.run(
        ["plan", "--dump", dump, "--drain", "n-1", "--order", "h200=9"], columns=columns, program=terminal.GPUCLAIM
    )
    assert seen.code == 0, seen.text
    assert [line for line in seen.lines if len(line) > columns] == []
    together = " ".join(seen.text.split())
    assert "If n-1 is emptied:" in together
    # The sentence is there whole, however narrow the terminal.
    assert "9 GPUs of class 'h200' cannot be ordered: there are not as many free on one node." in together
    assert "hh.." in seen.text
    if columns >= 80:
        assert [line.split()[:3] for line in seen.lines if line.startswith("tenant-a/a")] == [
            ["tenant-a/a", "2", "n-2"]
        ]


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ([], 2, "one of --scenario, --dump and --cluster"),
        (["--scenario", "s", "--cluster"], 2, "one of --scenario, --dump and --cluster"),
        (["--dump", "DUMP", "--check"], 2, "--check goes with --scenario"),
        (["--dump", "DUMP", "--context", "c"], 2, "go with --cluster"),
        (["--dump", "nosuch"], 1, "nosuch: No such file or directory"),
        (["--dump", "DUMP", "--order", "h200"], 2, "'h200' is no order such as h200=2"),
        (["--dump", "DUMP", "--order", "h200=0"], 2, "is no order such as"),
        (["--dump", "DUMP", "--add", "n-1=x"], 2, "must be a node to copy"),
        (["--dump", "DUMP", "--add", "n-9"], 1, "Error: there is no node n-9"),
        (["--dump", "DUMP", "--lose", "0000:00:00.0"], 1, "nodes n-1, n-2 have a GPU 0000:00:00.0: say which"),
        (["--dump", "DUMP", "--drain", "n-9"], 1, "Error: there is no node n-9"),
        (["--dump", "DUMP", "--orders", "DUMP"], 1, "kind: an order is a GPUClaim, and this is GPUClass"),
        (["--cluster", "--kubeconfig", "nosuch"], 1, "cannot read the kubeconfig nosuch"),
    ],
)
def test_what_cannot_be_gets_a_sentence(arguments: list[str], code: int, said: str, dump: str) -> None:
    ran = run(*(dump if each == "DUMP" else each for each in arguments))
    assert ran.exit_code == code
    assert said in " ".join(ran.output.split())


def test_a_fault_in_a_file_names_file_line_and_field(dump: str, tmp_path: Path) -> None:
    orders = tmp_path / "orders.yaml"
    orders.write_text(CLAIM + "---\n" + CLAIM.replace("count: 4", "count: 0"))
    ran = run("--dump", dump, "--orders", str(orders))
    assert (ran.exit_code, ran.stderr) == (1, f"Error: {orders}: line 9: [1].spec.count: expected `int` >= 1\n")
    orders.write_text(CLAIM + "---\n" + CLAIM.replace("name: big", "name: a"))
    ran = run("--dump", dump, "--orders", str(orders))
    assert (ran.exit_code, ran.stderr) == (1, f"Error: {orders}: line 6: [1]: GPUClaim tenant-a/a is there already\n")
    Path(dump).write_text("a: [")
    ran = run("--dump", dump)
    assert ran.exit_code == 1
    assert ran.stderr.startswith(f"Error: {dump}: line 2: not valid YAML")
