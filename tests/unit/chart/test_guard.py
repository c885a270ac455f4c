"""The chart's guard is the code's (R44)."""

from __future__ import annotations

import yaml

from gpuclaim.admission import guard
from support.chart import CHART

FOLDER = CHART / "templates" / "guard"


def test_the_policy_is_the_codes() -> None:
    assert yaml.safe_load((FOLDER / "policy.yaml").read_text()) == guard.new_classes(), "run `make crds`"


def test_helm_reads_the_policy_as_it_is() -> None:
    assert "{{" not in (FOLDER / "policy.yaml").read_text()
