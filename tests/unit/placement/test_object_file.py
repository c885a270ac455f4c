"""Dumps and orders as files of Kubernetes objects (R74)."""

from __future__ import annotations

import contextlib
import datetime as dt
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuclaim.placement import object_file
from gpuclaim.placement.scenario import NewOrder, ScenarioError

NOW = dt.datetime(2026, 12, 2, tzinfo=dt.UTC)
NODE = """\
apiVersion: v1
kind: Node
metadata: {name: n, uid: u, managedFields: [{manager: m}]}
spec: {podCIDR: 10.0.0.0/24}
status: {allocatable: {nvidia.com/H200: '2', cpu: 4}, addresses: [], conditions: [{type: Ready, status: 'True'}]}
"""
REPORT = """\
apiVersion: gpu.cozystack.io/v1alpha1
kind: GPUNode
metadata: {name: n}
future: {a: b}
status: {reportedAt: '2026-12-01T12:00:00Z', devices: [], later: 1}
"""
OTHER = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c, namespace: d}\n"
CLAIM = """\
apiVersion: gpu.cozystack.io/v1alpha1
kind: GPUClaim
metadata: {name: a, namespace: tenant-a}
spec: {className: h200, count: 2, set: vm}
"""


def listed(*objects: str) -> str:
    items = "".join("- " + "\n  ".join(obj.rstrip().splitlines()) + "\n" for obj in objects)
    return "apiVersion: v1\nkind: List\nitems:\n" + items


@pytest.mark.parametrize(
    "text",
    [
        listed(NODE, OTHER, REPORT),
        f"{NODE}---\n{OTHER}---\n{REPORT}",
        "---\n".join([listed(NODE), listed(OTHER, REPORT)]),
        "---\n" + NODE + "---\n---\n" + REPORT,
    ],
    ids=["list", "documents", "documents of lists", "empty documents"],
)
def test_a_dump_is_a_state_at_the_time_of_its_newest_report(text: str) -> None:
    found = object_file.dump(text, NOW)
    assert [(obj.kind, obj.metadata.name) for obj, _, _ in found.state] == [("Node", "n"), ("GPUNode", "n")]
    assert found.now == dt.datetime(2026, 12, 1, 12, tzinfo=dt.UTC)
    assert not found.steps


def test_a_dump_in_which_nobody_reported_is_of_now() -> None:
    assert object_file.dump(NODE, NOW).now == NOW


def test_a_dump_may_be_json() -> None:
    text = json.dumps({"kind": "List", "items": [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "t"}}]})
    assert object_file.dump(text, NOW).state[0][0].metadata.name == "t"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "line 1: there is no object of a kind that matters here: GPUClass, "),
        (OTHER, "there is no object of a kind that matters here"),
        ("a: [", "line 2: not valid YAML"),
        ("kind: [a]", "there is no object of a kind"),
        ("[" * 5000, "not valid YAML: exceeded maximum nesting depth"),
        ("a: &x [*x]", "line 1: a[0]: it contains itself"),
        ("a: 1\na: 2", "line 2: a: it is there twice"),
        ("a: \x00", "not valid YAML"),
        ("- 7\n", "line 1: [0]: expected Kubernetes objects, as kubectl prints them"),
        (listed(NODE.replace("uid: u", "uid: 7")), "line 6: items[0].metadata.uid: expected `str`, got `int`"),
        (listed(NODE, REPORT.replace("devices: []", "devices: 3")), "line 13: items[1].status.devices: expected"),
        (NODE + "---\n" + REPORT.replace("'2026-12-01T12:00:00Z'", "soon"), "line 11: [1].status.reportedAt: "),
        (NODE.replace("name: n,", ""), "line 3: metadata: name is missing"),
    ],
)
def test_a_fault_is_named_by_line_and_field(text: str, said: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        object_file.dump(text, NOW)
    assert said in str(caught.value)


def test_orders_are_claims_as_one_creates_them() -> None:
    generated = CLAIM.replace("{name: a, namespace: tenant-a}", "{generateName: b-}").replace(", count: 2, set: vm", "")
    nameless = generated.replace("metadata: {generateName: b-}\n", "metadata: {}\n")
    found = object_file.orders("---\n".join([CLAIM, generated, listed(nameless)]), "tenant-b")
    assert [step.action for step in found] == [
        NewOrder("tenant-a", "a", "h200", 2, "vm"),
        NewOrder("tenant-b", "b-2", "h200", 1, None),
        NewOrder("tenant-b", "order-3", "h200", 1, None),
    ]
    assert [step.line for step in found] == [1, 6, 14]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (NODE, "line 2: kind: an order is a GPUClaim, and this is Node"),
        (CLAIM.replace("h200", "''"), "line 4: spec.className: expected `str` of length >= 1"),
        (CLAIM.replace("className: h200, ", ""), "line 4: spec: "),
        (CLAIM.replace("count: 2", "count: 0"), "line 4: spec.count: expected `int` >= 1"),
        (CLAIM.replace("count: 2", "count: two"), "line 4: spec.count: expected `int`, got `str`"),
        (CLAIM + "---\n" + CLAIM.replace("spec:", "spec: 3 #"), "line 9: [1].spec: expected `object`, got `int`"),
    ],
)
def test_what_is_no_order(text: str, said: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        object_file.orders(text, "t")
    assert said in str(caught.value)


words = st.sampled_from(["kind", "items", "metadata", "name", "namespace", "spec", "status", "count", "className", "x"])
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.text(max_size=3),
    st.sampled_from(["List", "Node", "GPUClaim", "GPUNode"]),
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(words, inner, max_size=4)),
    max_leaves=20,
)


@given(st.lists(values, max_size=3))
def test_any_file_is_read_or_gets_a_sentence(documents: list[object]) -> None:
    text = "---\n".join(json.dumps(each) + "\n" for each in documents)
    for read in (lambda: object_file.dump(text, NOW), lambda: object_file.orders(text, "t")):
        with contextlib.suppress(ScenarioError):
            read()
