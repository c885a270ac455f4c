"""Objects kept as they are by a thread: what it does where it may list and not watch."""

from __future__ import annotations

import threading
from typing import Any, cast

from gpuclaim.api.core import Namespace, Outcome
from gpuclaim.kube.blocking import AnswerError, Blocking
from gpuclaim.kube.follow import Follower


class Unwatched:
    """An apiserver that shows lists, and refuses watches."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def list(self, *_: object) -> dict[str, Any]:
        self.asked.append("list")
        return {"metadata": {"resourceVersion": "5"}, "items": [{"metadata": {"name": "a"}}]}

    def watch(self, *_: object, since: str) -> Any:
        self.asked.append(f"watch {since}")
        raise AnswerError(Outcome(code=403, reason="Forbidden", message="no"))


def test_who_may_list_and_not_watch_is_not_asked_for_without_a_pause() -> None:
    server, paused = Unwatched(), threading.Event()

    def pause() -> None:
        paused.set()
        threading.Event().wait()  # the thread goes with the tests

    follower = Follower(cast("Blocking", server), Namespace, "", threading.Event(), pause=pause)
    follower.first()
    follower.start()
    assert paused.wait(60)
    assert server.asked == ["list", "watch 5"]
    assert [each.metadata.name for each in follower.objects()] == ["a"]
    assert follower.fault is not None
