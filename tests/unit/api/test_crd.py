"""The CRDs are what the types say, bounded everywhere, and what the chart has."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from click.testing import CliRunner

from gpuclaim.api import core, crd, types
from gpuclaim.cli.crds import crds

CHART = Path(__file__).parents[3] / "chart" / "gpuclaim" / "templates" / "crds"
ALL = {definition["spec"]["names"]["plural"]: definition for definition in crd.definitions()}


def schemas() -> Iterator[tuple[str, dict[str, Any]]]:
    for plural, definition in ALL.items():
        yield from walk(plural, definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"])


def walk(path: str, schema: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, schema
    for name, field in schema.get("properties", {}).items():
        yield from walk(f"{path}.{name}", field)
    if "items" in schema:
        yield from walk(f"{path}[]", schema["items"])
    if isinstance(schema.get("additionalProperties"), dict):
        yield from walk(f"{path}{{}}", schema["additionalProperties"])


def test_every_string_list_and_map_has_a_bound() -> None:
    unbounded = []
    for path, schema in schemas():
        if path.endswith((".apiVersion", ".kind")) and path.count(".") == 1:
            continue
        bounded = {
            "string": "maxLength" in schema or "enum" in schema or schema.get("format") == "date-time",
            "array": "maxItems" in schema,
            "object": "additionalProperties" not in schema or "maxProperties" in schema,
            "integer": "format" in schema or "minimum" in schema,
        }
        if not bounded.get(schema["type"], True):
            unbounded.append(path)
    assert unbounded == []


def test_the_schemas_are_structural() -> None:
    for path, schema in schemas():
        assert isinstance(schema["type"], str), path
        assert not schema.keys() & {"$ref", "$defs", "title", "anyOf", "oneOf", "const"}, path
        assert not ("properties" in schema and "additionalProperties" in schema), path


def test_the_apiserver_fills_in_the_count_and_nothing_else() -> None:
    assert {path: schema["default"] for path, schema in schemas() if "default" in schema} == {"gpuclaims.spec.count": 1}


def test_lists_of_objects_are_merged_by_a_key_that_each_item_has() -> None:
    for path, schema in schemas():
        if schema["type"] == "array" and schema["items"]["type"] == "object":
            kind = schema["x-kubernetes-list-type"]
            assert kind in {"map", "atomic"}, path
            for key in schema.get("x-kubernetes-list-map-keys", ()):
                assert key in schema["items"]["required"], path


def test_kubectl_explain_says_something_of_every_field() -> None:
    fields = ((path, schema) for path, schema in schemas() if path.count(".") > 1 and not path.endswith("[]"))
    assert [path for path, schema in fields if not schema.get("description")] == []


def test_kubectl_explain_says_nothing_of_the_designs_numbers() -> None:
    assert [path for path, schema in schemas() if "(R" in schema.get("description", "")] == []


@pytest.mark.parametrize("plural", ALL)
def test_the_chart_has_these_crds_and_keeps_them_on_uninstall(plural: str) -> None:
    text = (CHART / f"{plural}.yaml").read_text()
    assert yaml.safe_load(text) == ALL[plural], "the types have changed: run `make crds` and commit what it writes"
    assert "{{" not in text, "Helm would read that as a template"
    assert ALL[plural]["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"


def test_the_chart_has_no_other_crds() -> None:
    assert {file.stem for file in CHART.iterdir()} == set(ALL)


def test_the_command_prints_what_is_generated() -> None:
    printed = CliRunner().invoke(crds, [])
    assert printed.exit_code == 0
    assert list(yaml.safe_load_all(printed.output)) == list(ALL.values())
    one = CliRunner().invoke(crds, ["gpuclaims", "-o", "json"])
    assert json.loads(one.output) == [ALL["gpuclaims"]]
    wrong = CliRunner().invoke(crds, ["gpus"])
    assert wrong.exit_code == 2
    assert "gpuclasses, gpuclaims, gpunodes" in wrong.output


def test_objects_survive_the_wire() -> None:
    since = dt.datetime(2026, 12, 1, 12, tzinfo=dt.UTC)
    claim = types.GPUClaim(
        metadata=core.ObjectMeta(name="vm1", namespace="tenant-a"),
        spec=types.GPUClaimSpec(class_name="h200", count=2, set="vm1"),
        status=types.GPUClaimStatus(
            node_name="gpu-1",
            held_since=since,
            attachment=types.Attachment(pod_name="p", pod_uid="u", since=since),
            refusals=[types.NodeRefusal(node_name="gpu-2", refused_at=since, expires_at=since)],
        ),
    )
    plain = core.wire(claim)
    assert list(plain)[:2] == ["apiVersion", "kind"]
    assert plain["status"]["heldSince"] == "2026-12-01T12:00:00Z"
    assert plain["status"]["attachment"]["podUID"] == "u"
    assert msgspec.convert(plain, types.GPUClaim) == claim
