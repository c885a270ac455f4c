"""values.yaml, its schema and Chart.yaml say the same."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import yaml

from gpuclaim import __version__
from support.chart import CHART

SCHEMA: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())
VALUES: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())


def missing(values: dict[str, Any], schema: dict[str, Any], path: str = "") -> Iterator[str]:
    """What one of the two has and the other has not."""
    known = schema.get("properties", {})
    if schema.get("additionalProperties") is not False:
        return
    for name in sorted(values.keys() | known.keys()):
        here = f"{path}.{name}"
        if name not in values or name not in known:
            yield here
        elif isinstance(values[name], dict):
            yield from missing(values[name], known[name], here)


def test_the_schema_knows_each_value_and_no_other() -> None:
    assert list(missing(VALUES, SCHEMA)) == [".global"]  # Helm's own


def test_the_chart_is_of_this_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["appVersion"] == __version__.partition(".dev")[0]


def test_nothing_names_a_registry() -> None:
    # Who builds the image knows where it goes.
    assert "/" not in VALUES["image"]["repository"]
