"""What would move if a node were emptied (R36, R74)."""

import json
from pathlib import Path

from click.testing import CliRunner

from gpuclaim.cli.plan import plan
from gpuclaim.placement import invariants
from gpuclaim.placement.drain import drain
from unit.placement.build import NOW, books, claim, cls, gpus, pod


def test_sets_go_whole_the_largest_first_and_running_ones_stay() -> None:
    seen = books(
        cls(),
        gpus("n-1", 8),
        gpus("n-2", 3),
        gpus("n-3", 1),
        claim("a", "n-1", 1, set_name="vm"),
        claim("b", "n-1", 2, set_name="vm"),
        claim("c", "n-1", 1),
        claim("d", "n-1", 1),
        claim("e", "n-1", 1),
        pod("p", "e", "n-1"),
    )
    seen.advance(NOW)
    before = invariants.snapshot(seen)
    found = drain(seen, "n-1", NOW)
    assert [(one.set_name, one.gpus, one.verdict.node) for one in found] == [
        ("vm", 3, "n-2"),
        ("c", 1, "n-3"),
        ("d", 1, None),
        ("e", 1, None),
    ]
    assert [one.verdict.reason for one in found[2:]] == ["InsufficientCapacity", "SetAttached"]
    assert invariants.snapshot(seen) == before


def test_the_command(tmp_path: Path) -> None:
    case = Path(__file__).parents[2] / "cases" / "orders" / "07-repack.yaml"
    ran = CliRunner().invoke(plan, ["--scenario", str(case), "--drain", "gpu-1", "-o", "json"])
    assert ran.exit_code == 0, ran.output
    rows = {row["set"]: row for row in json.loads(ran.stdout)}
    assert rows["tenant-a/r1"]["reason"] == "SetAttached"
    assert rows["tenant-a/o1"]["reason"] == "InsufficientCapacity", "the others are full after the steps"
    table = CliRunner().invoke(plan, ["--scenario", str(case), "--drain", "gpu-1", "-o", "table"])
    assert table.stdout.splitlines()[0].split() == ["SET", "GPUS", "TO"]
    unknown = CliRunner().invoke(plan, ["--scenario", str(case), "--drain", "nope"])
    assert (unknown.exit_code, unknown.stderr) == (1, "Error: there is no node nope\n")
