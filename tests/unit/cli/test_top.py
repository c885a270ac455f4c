"""The live view: what it shows of a moment, and how it keeps up with what changes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any, cast

import msgspec
import pytest

from gpuclaim.api import types
from gpuclaim.api.core import Outcome
from gpuclaim.kube.blocking import AnswerError, Blocking, NoAnswerError
from gpuclaim.kube.follow import Follower
from gpuclaim.views import top
from gpuclaim.views.nodes import State
from gpuclaim.views.top import Scene, lines
from unit.placement.build import GPU, NOW, claim, cls, device, report


def reports(count: int, gpus: int = 8) -> list[types.GPUNode]:
    return [report(f"gpu-{number}", gpus) for number in range(count)]


def scene(**changes: Any) -> Scene:
    given: dict[str, Any] = {
        "now": NOW,
        "classes": [cls()],
        "reports": reports(3),
        "claims": [claim("a", "gpu-0", 3), claim("waits", None, 1)],
    }
    return Scene(**given | changes)


def found(page: list[str], name: str) -> list[str]:
    return next(line.split() for line in page if line.startswith(f"{name} "))


def test_classes_are_counted_and_nodes_drawn() -> None:
    page = lines(scene(), 100)
    assert page[0] == "12:00:00 UTC  3 nodes  3 GPUs held  1 claims wait"
    assert found(page, "h200") == ["h200", "24", "21", "3", "0", "hhh................."]
    assert found(page, "gpu-0") == ["gpu-0", "hhh.....", "5", "3", "0"]
    assert "FOREIGN" not in page[2], "a column that nothing fills"


def test_what_is_wrong_has_columns_of_its_own() -> None:
    broken = report(
        "gpu-0",
        [device(0, (GPU, 1, 1), users=[("t", "p")]), device(1, (GPU, 0, 0), health=types.Health.UNHEALTHY)],
    )
    page = lines(scene(reports=[broken], claims=[]), 100)
    assert page[2].split() == ["CLASS", "GPUS", "FREE", "HELD", "ATTACHED", "FOREIGN", "BROKEN"]
    assert found(page, "h200") == ["h200", "2", "0", "0", "0", "1", "1", "FU"]


@pytest.mark.parametrize("columns", [20, 40, 80, 200])
@pytest.mark.parametrize("rows", [3, 10, 24])
def test_a_page_fits_its_terminal(columns: int, rows: int) -> None:
    page = lines(scene(reports=reports(50), fault="This may be old: no answer from the apiserver."), columns, rows)
    assert len(page) <= rows
    assert max(map(len, page)) <= columns


def test_the_keys_move_the_nodes_and_not_what_is_above() -> None:
    many = scene(reports=reports(50))
    top_page, lower, end = (lines(many, 80, 20, skip) for skip in (0, 5, 1000))
    assert top_page[:5] == lower[:5] == end[:5]
    first = [next(line for line in page[5:] if line.startswith("gpu-")).split()[0] for page in (top_page, lower)]
    assert first == ["gpu-0", "gpu-13"]  # by name: 0, 1, 10, 11, 12, 13
    assert end[-2].startswith("gpu-9 ")
    assert "lines more" in top_page[-1]


def test_who_may_not_see_nodes_sees_claims() -> None:
    page = lines(scene(reports=None, place="tenant-a"), 200, 24)
    assert page[0] == "12:00:00 UTC  2 claims in namespace tenant-a"
    assert found(page, "a")[:4] == ["a", "h200", "3", "Held"]
    assert page[-1] == "q quits"


def test_nothing_yet() -> None:
    assert lines(scene(reports=[], claims=[]), 80)[-1] == "No agent has reported yet."
    assert lines(scene(reports=None, claims=[]), 80)[-1] == "Nothing is ordered."


@pytest.mark.parametrize(
    ("states", "bar"),
    [
        ("", ""),
        (".hA", "Ah."),
        ("A" * 20, "A" * 20),
        ("A" * 10 + "." * 990, "A" + "." * 19),
        ("A" * 990 + "." * 10, "A" * 19 + "."),
        ("A" * 30 + "h" * 30 + "." * 30, "AAAAAAAhhhhhhh......"),
    ],
)
def test_a_bar_leaves_nothing_out(states: str, bar: str) -> None:
    drawn = top._bar([State(letter) for letter in states])
    assert len(drawn) == min(20, len(states))
    assert {*drawn} == {*states}
    assert drawn == bar


class FakeClient:
    """Answers lists and watches from a script, then hangs as a quiet apiserver does."""

    def __init__(self, lists: list[Any], watches: list[Any]) -> None:
        self.lists, self.watches, self.since = lists, watches, list[str]()
        self.quiet = threading.Event()

    def list(self, *_: object) -> Any:
        answer = self.lists.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def watch(self, *_: object, since: str) -> Iterator[tuple[str, Any]]:
        self.since.append(since)
        if not self.watches:
            self.quiet.set()
            threading.Event().wait()
        for each in self.watches.pop(0):
            if isinstance(each, Exception):
                raise each
            yield each


def stored(name: str, version: int, count: int = 1) -> dict[str, Any]:
    made: dict[str, Any] = msgspec.to_builtins(claim(name, "gpu-0", count))
    made["metadata"]["resourceVersion"] = str(version)
    return made


def listed(version: int, *items: Any) -> dict[str, Any]:
    return {"metadata": {"resourceVersion": str(version)}, "items": list(items)}


def followed(client: FakeClient) -> Follower[types.GPUClaim]:
    changed = threading.Event()
    follower = Follower(cast("Blocking", client), types.GPUClaim, "", changed)
    follower.first()
    follower.start()
    assert client.quiet.wait(30)
    assert changed.is_set()
    return follower


def test_a_follower_keeps_up() -> None:
    client = FakeClient(
        [listed(5, stored("a", 1), stored("b", 2))],
        [
            [("MODIFIED", stored("a", 6, 4)), ("ADDED", stored("c", 7)), ("DELETED", stored("b", 8))],
            [],  # the apiserver ends a watch after some minutes
        ],
    )
    follower = followed(client)
    assert {(each.metadata.name, each.spec.count) for each in follower.objects()} == {("a", 4), ("c", 1)}
    assert client.since == ["5", "8", "8"]
    assert follower.fault is None


def test_a_follower_lists_again_after_what_it_cannot_follow() -> None:
    gone, away = AnswerError(Outcome(code=410)), NoAnswerError("away")
    client = FakeClient([listed(5, stored("a", 1)), listed(20, stored("z", 19))], [[gone]])
    assert [each.metadata.name for each in followed(client).objects()] == ["z"]
    assert client.since == ["5", "20"]
    client = FakeClient([listed(5, stored("a", 1)), away, listed(9, stored("b", 8))], [[away]])
    follower = followed(client)
    assert [each.metadata.name for each in follower.objects()] == ["b"]
    assert follower.fault is None


def test_a_follower_says_what_is_wrong_and_keeps_what_it_had() -> None:
    client = FakeClient([listed(5, stored("a", 1))], [[NoAnswerError("away")]])
    changed = threading.Event()
    follower = Follower(cast("Blocking", client), types.GPUClaim, "", changed)
    follower.first()
    changed.clear()
    denied = AnswerError(Outcome(code=401))
    told = threading.Event()

    def refuses(*_: object) -> Any:
        if told.is_set():
            threading.Event().wait()
        told.set()
        raise denied

    client.list = refuses  # type: ignore[method-assign]
    follower.start()
    assert told.wait(30)
    assert changed.wait(30)
    assert [each.metadata.name for each in follower.objects()] == ["a"]
    assert follower.fault is not None
