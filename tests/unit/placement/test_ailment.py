"""R36: what is wrong with a node, the worst first."""

from __future__ import annotations

import datetime as dt

import pytest

from gpuclaim.placement.ailment import SAID, ailment
from gpuclaim.placement.books import Known

from . import build
from .build import NOW

REPORT = build.gpus("n", 2)[1]
HOLD = build.claim("a", on="n", count=2)


@pytest.mark.parametrize(
    ("objects", "says"),
    [
        ([build.node("n"), REPORT], "NodeWell"),
        ([REPORT], "NodeGone"),
        ([build.node("n", ready=False, unschedulable=True), REPORT], "NodeNotReady"),
        ([build.node("n", unschedulable=True), REPORT], "NodeDrained"),
        ([build.node("n"), build.gpus("n", 1)[1]], "GPUsMissing"),
        ([build.node("n", {build.GPU: 1}), REPORT], "GPUsMissing"),
        ([build.node("n")], "GPUsMissing"),
    ],
)
def test_a_node(objects: list[Known], says: str) -> None:
    books = build.books([build.cls(), HOLD, *objects])
    assert ailment(books.nodes["n"]) == says


def test_time_alone_makes_a_node_silent() -> None:
    books = build.books([build.cls(), HOLD, build.node("n"), REPORT])
    books.advance(NOW + dt.timedelta(hours=1))
    assert ailment(books.nodes["n"]) == "NodeSilent"


def test_no_node_is_a_node_that_is_gone_and_everything_has_a_sentence() -> None:
    assert ailment(None) == "NodeGone"
    assert set(SAID) == set(type(ailment(None)))
