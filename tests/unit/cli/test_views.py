from __future__ import annotations

import datetime as dt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuclaim.api.core import ObjectMeta, Outcome, Status, StatusDetails
from gpuclaim.api.types import (
    Attachment,
    Availability,
    Condition,
    DevicePluginSource,
    GPUClaim,
    GPUClaimSpec,
    GPUClaimStatus,
    GPUClass,
    GPUClassSpec,
    GPUClassStatus,
    Mode,
    Source,
)
from gpuclaim.views import claims, classes, faults, table, text
from gpuclaim.views.table import Cell

NOW = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)
HEADER = ("NAME", "STATE", "WHAT IT IS")


@given(st.text())
def test_nothing_that_a_terminal_obeys_is_left(hostile: str) -> None:
    shown = text.safe(hostile)
    assert "\x1b" not in shown
    assert "\n" not in shown
    assert shown.isprintable()


def test_changes_of_direction_and_c1_controls_are_shown_as_such() -> None:
    assert text.safe("a\u202eb\x9b31mc") == "a\ufffdb\ufffd31mc"


@given(
    st.lists(st.tuples(st.text(max_size=60), st.text(max_size=60), st.text(max_size=60)), max_size=5),
    st.integers(1, 200),
)
def test_no_line_is_wider_than_the_terminal(rows: list[tuple[str, str, str]], columns: int) -> None:
    assert all(text.width(line) <= columns for line in table.render(HEADER, rows, columns).splitlines())


def test_a_table_is_laid_out_as_kubectl_does() -> None:
    rows: list[table.Row] = [("h200", Cell("Held", "cyan"), "NVIDIA"), ("a", "", "")]
    assert table.render(HEADER, rows) == "NAME   STATE   WHAT IT IS\nh200   Held    NVIDIA\na"


def test_a_column_that_nothing_fills_is_left_out() -> None:
    assert table.render(HEADER, [("a", "", "x")]) == "NAME   WHAT IT IS\na      x"


def test_the_widest_column_is_cut_first() -> None:
    row = ("h200", "Available", "NVIDIA H200 141 GB with a long story")
    assert table.render(HEADER, [row], 40).splitlines()[1] == "h200   Available   NVIDIA H200 141 GB w…"


def test_where_no_table_fits_each_row_is_a_list() -> None:
    assert table.render(HEADER, [("training-run", "Available", "NVIDIA H200")], 20) == (
        "NAME: training-run\nSTATE: Available\nWHAT IT IS: NVIDIA …"
    )


def test_wide_characters_take_two_columns() -> None:
    assert table.render(("A", "B"), [("図書", "x"), ("abcd", "y")]) == "A      B\n図書   x\nabcd   y"


@pytest.mark.parametrize(
    ("seconds", "shown"), [(-5, "0s"), (119, "119s"), (120, "2m"), (3 * 3600, "3h"), (47 * 3600, "47h"), (172800, "2d")]
)
def test_ages(seconds: int, shown: str) -> None:
    assert text.age(NOW - dt.timedelta(seconds=seconds), NOW) == shown


def claim(status: GPUClaimStatus | None = None, **meta: object) -> GPUClaim:
    return GPUClaim(
        metadata=ObjectMeta(name="train", namespace="tenant-a", **meta),  # type: ignore[arg-type]
        spec=GPUClaimSpec(class_name="h200"),
        status=status or GPUClaimStatus(),
    )


def said(type_: str, status: Status, reason: str, message: str = "") -> Condition:
    return Condition(type=type_, status=status, reason=reason, message=message, last_transition_time=NOW)


ATTACHED = Attachment(pod_name="virt-launcher-train-x", pod_uid="1", since=NOW)
REFUSED = said("Bound", Status.FALSE, "InsufficientCapacity", "there are not as many free")
GONE = said("Healthy", Status.FALSE, "NodeGone", "its node is gone")


@pytest.mark.parametrize(
    ("found", "state", "why"),
    [
        (claim(), "Waiting", ""),
        (claim(GPUClaimStatus(conditions=[REFUSED])), "Waiting: InsufficientCapacity", "there are not as many free"),
        (claim(GPUClaimStatus(node_name="gpu-1")), "Held", ""),
        (claim(GPUClaimStatus(node_name="gpu-1", attachment=ATTACHED)), "Attached", ""),
        (claim(GPUClaimStatus(node_name="gpu-1", conditions=[GONE])), "Held, NodeGone", "its node is gone"),
        (claim(GPUClaimStatus(node_name="gpu-1"), deletion_timestamp=NOW), "Releasing", ""),
    ],
)
def test_the_state_of_a_claim(found: GPUClaim, state: str, why: str) -> None:
    assert (claims.state(found).value, claims.why(found)) == (state, why)


def test_what_is_asked_about_before_a_release() -> None:
    found = claim(GPUClaimStatus(node_name="gpu-1", attachment=ATTACHED))
    assert claims.what(found) == "train holds 1 GPU of class h200; pod virt-launcher-train-x uses it now"


def gpu_class(
    name: str, status: GPUClassStatus | None = None, mode: Mode = Mode.PASSTHROUGH, **spec: object
) -> GPUClass:
    source = Source(device_plugin=DevicePluginSource(resource_name=f"nvidia.com/{name}"))
    fields = GPUClassSpec(mode=mode, source=source, **spec)  # type: ignore[arg-type]
    return GPUClass(metadata=ObjectMeta(name=name), spec=fields, status=status or GPUClassStatus())


def test_the_catalogue_shows_what_the_hoster_shows() -> None:
    counted = GPUClassStatus(availability=Availability.LIMITED, total=8, held=6, free=2, largest_order=1)
    catalogue = [
        gpu_class("h200", counted, display_name="NVIDIA H200"),
        gpu_class("a16", GPUClassStatus(availability=Availability.SOLD_OUT), Mode.VGPU),
        gpu_class("old", closed=True),
    ]
    assert table.render(classes.HEADER, classes.rows(catalogue, wide=False)) == (
        "NAME   AVAILABLE   FREE     LARGEST   MODE          MAX   WHAT IT IS\n"
        "a16    SoldOut                        vgpu          1\n"
        "h200   Limited     2 of 8   1         passthrough         NVIDIA H200\n"
        "old    Closed                         passthrough"
    )


def outcome(code: int, reason: str = "", message: str = "", name: str = "", kind: str = "") -> Outcome:
    return Outcome(code=code, reason=reason, message=message, details=StatusDetails(kind=kind, name=name))


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (outcome(401, "Unauthorized", "Unauthorized"), ["credentials", "log in again"]),
        (
            outcome(
                403, "Forbidden", 'gpuclaims.gpu.cozystack.io is forbidden: User "a" cannot list', kind="gpuclaims"
            ),
            ["may not", 'User "a" cannot list', "Ask"],
        ),
        (outcome(404, "NotFound", "the server could not find the requested resource"), ["not installed", "crds"]),
        (outcome(404, "NotFound", 'gpuclaims "x" not found', "x", "gpuclaims"), ["there is no", "'x'", "-n"]),
        (outcome(500, "InternalError", 'failed calling webhook "orders": refused'), ["no gpuclaim controller answers"]),
        (outcome(503), ["503"]),
    ],
)
def test_a_failure_says_what_to_do(status: Outcome, words: list[str]) -> None:
    sentence = faults.sentence(status)
    assert [word for word in words if word not in sentence] == []


def test_a_refused_order_says_only_why() -> None:
    status = outcome(
        403,
        "InsufficientCapacity",
        "admission webhook \"orders.gpu.cozystack.io\" denied the request: 9 GPUs of 'h\x1b[31m' cannot be ordered.",
    )
    assert faults.sentence(status) == "9 GPUs of 'h\ufffd[31m' cannot be ordered."
