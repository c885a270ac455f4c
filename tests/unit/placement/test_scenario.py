"""`gpuclaim plan` and the scenarios it plays (R74)."""

import json
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from gpuclaim.cli.plan import plan
from gpuclaim.placement import scenario, scenario_file

GOOD = """\
why: a small one
now: '2026-12-01T12:00:00Z'
state:
- apiVersion: gpu.cozystack.io/v1alpha1
  kind: GPUClass
  metadata: {name: h200, managedFields: []}
  spec:
    mode: passthrough
    source: {devicePlugin: {resourceName: nvidia.com/H200}}
- apiVersion: v1
  kind: Node
  metadata: {name: n}
  spec: {providerID: x}
  status:
    allocatable: {nvidia.com/H200: '2', cpu: 4}
    conditions: [{type: Ready, status: 'True'}]
- apiVersion: gpu.cozystack.io/v1alpha1
  kind: GPUNode
  metadata: {name: n}
  status:
    reportedAt: 2026-12-01T12:00:00Z
    devices:
    - {address: '0000:10:00.0', health: Healthy, resources: [{name: nvidia.com/H200, allocatable: 2, used: 0}]}
steps:
- order: {namespace: tenant-a, name: a, className: h200}
  verdict: admitted
  node: [n, m]
- order: {namespace: tenant-a, name: b, className: h200, count: 2}
  verdict: refused
  reason: InsufficientCapacity
- delete: {namespace: tenant-a, name: a}
- now: '2026-12-01T12:01:00Z'
- set: {kind: Node, name: n, merge: {metadata: {labels: {a: b}}}}
- holds: {n: 0}
"""


def run(text: str, *arguments: str, tmp_path: Path) -> Result:
    file = tmp_path / "scenario.yaml"
    file.write_text(text)
    return CliRunner().invoke(plan, ["--scenario", str(file), *arguments])


def test_one_result_a_step(tmp_path: Path) -> None:
    ran = run(GOOD, "-o", "json", "--check", tmp_path=tmp_path)
    assert ran.exit_code == 0, ran.output
    results = json.loads(ran.stdout)
    assert results[0] == {"verdict": "admitted", "node": "n", "reason": None, "message": "", "moves": []}
    assert (results[1]["verdict"], results[1]["reason"]) == ("refused", "InsufficientCapacity")
    assert results[2:] == [{}, {}, {}, {"holds": {"n": 0}}]


def test_a_table_for_people(tmp_path: Path) -> None:
    ran = run(GOOD, "-o", "table", tmp_path=tmp_path)
    lines = ran.stdout.splitlines()
    assert lines[0].split() == ["STEP", "WHAT", "VERDICT", "WHERE", "OR", "WHY"]
    assert "order tenant-a/a: 1 x h200" in lines[1]
    assert len(lines) == 7
    assert not any(line.endswith(" ") for line in lines)


def test_standard_input() -> None:
    ran = CliRunner().invoke(plan, ["--scenario", "-"], input=GOOD)
    assert (ran.exit_code, len(json.loads(ran.stdout))) == (0, 6)


def test_check_says_which_step_differs(tmp_path: Path) -> None:
    wrong = GOOD.replace("node: [n, m]", "node: m").replace("holds: {n: 0}", "holds: {n: 1}")
    ran = run(wrong, "--check", tmp_path=tmp_path)
    assert ran.exit_code == 1
    assert len(json.loads(ran.stdout)) == 6
    assert "line 25: step 1: node is n, expected m" in ran.stderr
    assert "line 34: step 6: n holds 0, expected 1" in ran.stderr
    assert run(wrong, tmp_path=tmp_path).exit_code == 0


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("name: a, className", "name: a, classname", "line 25: steps[0].order.classname: unknown key; known here are"),
        (", className: h200}", "}", "line 25: steps[0].order: className is missing"),
        ("count: 2}", "count: two}", "line 28: steps[1].order.count: expected `int`, got `str`"),
        ("count: 2}", "count: 0}", "line 28: steps[1].order.count: must be 1 or more, is 0"),
        ("count: 2}", "set: a/b}", "line 28: steps[1].order.set: must be a label value"),
        ("verdict: admitted", "verdikt: admitted", "line 26: steps[0].verdikt: unknown key"),
        ("verdict: admitted", "verdict: maybe", "line 26: steps[0].verdict: must be admitted or refused, is maybe"),
        ("mode: passthrough", "mode: through", "line 8: state[0].spec.mode: invalid enum value 'through'"),
        ("mode: passthrough", "modus: passthrough", "line 8: state[0].spec.modus: unknown key"),
        ("resourceName:", "resource:", "line 9: state[0].spec.source.devicePlugin.resource: unknown key"),
        ("kind: Node", "kind: Knot", "line 11: state[1].kind: unknown kind Knot; known are GPUClass"),
        ("apiVersion: v1\n", "apiVersion: v2\n", "line 10: state[1].apiVersion: invalid enum value 'v2'"),
        ("name: n}\n  spec", "nome: n}\n  spec", "line 12: state[1].metadata: name is missing"),
        (
            "kind: GPUNode\n  metadata: {name: n}",
            "kind: GPUNode\n  metadata: {name: n, namespace: x}",
            "has no namespace",
        ),
        ("allocatable: 2, used: 0", "allocatable: -2, used: 0", "resources[0].allocatable: expected `int` >= 0"),
        ("status:\n    alloc", "stat:\n    alloc", "line 14: state[1].stat: unknown key"),
        ("steps:", "step:", "line 24: step: unknown key; known here are now, why, state, steps"),
        ("now: '2026-12-01T12:00:00Z'", "now: noon", "line 2: now: invalid RFC3339"),
        ("now: '2026-12-01T12:00:00Z'\n", "", "line 1: now is missing"),
        ("why: a small one", "why: [a]", "line 1: why: expected `str`, got `array`"),
        (
            "- delete: {namespace: tenant-a, name: a}",
            "- {delete: {name: a}}",
            "line 31: steps[2].delete: namespace is missing",
        ),
        ("name: a}\n- now", "name: zz}\n- now", "line 31: steps[2].delete: there is no GPUClaim tenant-a/zz"),
        ("name: b,", "name: a,", "line 28: steps[1].order: GPUClaim tenant-a/a is there already"),
        ("kind: Node, name: n, merge", "kind: Node, name: m, merge", "line 33: steps[4].set: there is no Node m"),
        (
            "merge: {metadata: {labels: {a: b}}}",
            "merge: {metadata: {labels: 3}}",
            "line 33: steps[4].set.merge: Node n would",
        ),
        ("merge: {metadata: {labels: {a: b}}}", "merge: {metadata: {name: m}}", "Node n cannot get another name"),
        ("merge: {metadata", "merge: {meta", "line 33: steps[4].set.merge.meta: unknown key"),
        (
            "merge: {metadata: {labels: {a: b}}}",
            "merge: 3",
            "line 33: steps[4].set.merge: expected a mapping, got a number",
        ),
        ("holds: {n: 0}", "holds: {n: none}", "line 34: steps[5].holds.n: expected `int`, got `str`"),
        (
            "holds: {n: 0}",
            "holds: {n: 0}\n  now: x",
            "line 34: steps[5]: a step is exactly one of order, delete, now, set, holds",
        ),
        ("holds: {n: 0}", "holds: {n: 0}\n  node: x", "line 35: steps[5].node: it is expected of an order"),
        ("- holds: {n: 0}", "- ", "line 34: steps[5]: expected a mapping, got nothing"),
        ("steps:\n", "steps: {}\nsteps:\n", "line 25: steps: it is there twice"),
        ("steps:\n", "steps:\n  x: [\n", "not valid YAML"),
        (
            "state:\n",
            "state:\n" + 2 * "- {apiVersion: v1, kind: Namespace, metadata: {name: x}}\n",
            "line 5: state[1]: Namespace x is there twice",
        ),
    ],
)
def test_a_fault_is_told_in_a_sentence_with_line_and_field(old: str, new: str, said: str, tmp_path: Path) -> None:
    text = GOOD.replace(old, new, 1)
    ran = run(text, tmp_path=tmp_path)
    assert (ran.exit_code, ran.stdout) == (1, ""), ran.output
    assert said in ran.stderr
    assert ran.stderr.startswith("Error: ")
    assert ran.stderr.count("\n") == 1
    assert "Traceback" not in ran.stderr


@pytest.mark.parametrize(
    "text", ["", "- 1", "3", "a: [", "\0", "now: &a [*a]", "? [a]\n: b", "now: !!python/name:os.x 1", "[" * 2000]
)
def test_what_is_no_scenario_at_all(text: str, tmp_path: Path) -> None:
    ran = run(text, tmp_path=tmp_path)
    assert (ran.exit_code, ran.stdout) == (1, "")
    assert ran.stderr.count("\n") == 1


def test_files_that_cannot_be_read_and_wrong_usage(tmp_path: Path) -> None:
    (tmp_path / "latin").write_bytes(b"why: ok\nnow: \xe9\n")
    for name, said in (("none", "No such file"), (".", "Is a directory"), ("latin", "line 2: it is no UTF-8 text")):
        ran = CliRunner().invoke(plan, ["--scenario", str(tmp_path / name)])
        assert (ran.exit_code, said in ran.stderr) == (1, True), ran.stderr
    for arguments in ([], ["--scenario"], ["--scenario", "x", "-o", "xml"], ["--scenario", "x", "--nope"]):
        assert CliRunner().invoke(plan, arguments).exit_code == 2


def played(steps: list[dict[str, object]], *state: dict[str, object]) -> list[scenario.Result]:
    data = yaml.safe_load(GOOD)
    data["steps"] = steps
    data["state"] += state
    return scenario.Simulation(scenario_file.read(yaml.safe_dump(data))).run()


def test_a_claim_that_a_pod_uses_holds_until_the_pod_ends() -> None:
    a = {"namespace": "tenant-a", "name": "a"}
    results = played(
        [
            {"order": {**a, "className": "h200"}},
            {"set": {"kind": "Pod", "namespace": "tenant-a", "name": "p", "merge": {"status": {"phase": "Running"}}}},
            {"delete": a},
            {"holds": {}},
            {"set": {"kind": "Pod", "namespace": "tenant-a", "name": "p", "merge": {"status": {"phase": "Failed"}}}},
            {"holds": {}},
        ],
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {**a, "name": "p", "labels": {"vm.kubevirt.io/name": "a"}},
            "status": {"phase": "Succeeded"},
        },
    )
    assert [results[3], results[5]] == [{"holds": {"n": 1}}, {"holds": {"n": 0}}]


def test_claims_stored_unbound_are_bound_by_age_before_any_order() -> None:
    meta = {"namespace": "tenant-a", "creationTimestamp": "2026-12-01T11:00:00Z"}
    late = {**meta, "creationTimestamp": "2026-12-01T11:30:00Z"}
    common = {"apiVersion": "gpu.cozystack.io/v1alpha1", "kind": "GPUClaim"}
    results = played(
        [
            {"holds": {}},
            {"order": {"namespace": "tenant-a", "name": "x", "className": "h200"}},
            {"delete": {"namespace": "tenant-a", "name": "z-old"}},
            {"holds": {}},
        ],
        {**common, "metadata": {**late, "name": "a-young"}, "spec": {"className": "h200", "count": 1}},
        {**common, "metadata": {**meta, "name": "z-old"}, "spec": {"className": "h200", "count": 2}},
    )
    assert results[0] == {"holds": {"n": 2}}
    assert results[1]["verdict"] == "refused"
    assert results[3] == {"holds": {"n": 1}}


def test_objects_other_than_claims_can_be_deleted() -> None:
    results = played(
        [
            {"delete": {"kind": "GPUClass", "name": "h200"}},
            {"order": {"namespace": "tenant-a", "name": "x", "className": "h200"}},
        ]
    )
    assert results[1]["reason"] == "UnknownClass"


def test_a_merge_is_rfc_7386() -> None:
    assert scenario.merge_patch({"a": {"b": 1, "c": [1]}}, {"a": {"b": None, "c": [2]}, "d": {"e": None}}) == {
        "a": {"c": [2]},
        "d": {},
    }
