"""Informers on a scripted apiserver: what the receiver hears, in which order."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
import pytest

from gpuclaim.api import core
from gpuclaim.api.core import Outcome
from gpuclaim.kube.client import ApiError, UnreachableError
from gpuclaim.kube.informer import Informer
from gpuclaim.kube.resources import Resource


def namespace(name: str, version: int, uid: str = "", **meta: Any) -> msgspec.Raw:
    fields = {"name": name, "uid": uid or f"uid-{name}", "resourceVersion": str(version)} | meta
    return msgspec.Raw(msgspec.json.encode({"metadata": fields}))


class Script:
    """Answers lists and watches from a script; a watch that has nothing more to say waits."""

    def __init__(self) -> None:
        self.lists: list[tuple[list[msgspec.Raw], str] | Exception] = []
        self.stored = ""
        self.seconds: list[int] = []
        self.watches: list[list[tuple[str, msgspec.Raw] | Exception]] = []
        self.since: list[str] = []
        self.idle = asyncio.Event()
        self.opens = True

    async def pages(
        self, _: Resource, __: str, *, field_selector: str, most: int
    ) -> AsyncIterator[tuple[list[msgspec.Raw], str]]:
        """Each object on a page of its own."""
        assert (field_selector, most) == ("", 0)
        answer = self.lists.pop(0)
        if isinstance(answer, Exception):
            raise answer
        items, version = answer
        for item in items:
            yield [item], version
        yield [], version

    async def list_raw(self, _: Resource, namespace: str, *, field_selector: str) -> tuple[list[msgspec.Raw], str]:
        assert (namespace, field_selector) == ("", "metadata.name=none")
        return [], self.stored

    async def watch(
        self, _: Resource, __: str, *, since: str, seconds: int, opened: Callable[[], None], field_selector: str
    ) -> AsyncIterator[tuple[str, msgspec.Raw]]:
        assert field_selector == ""
        self.since.append(since)
        self.seconds.append(seconds)
        if self.opens:
            opened()
        for event in self.watches.pop(0) if self.watches else []:
            if isinstance(event, Exception):
                raise event
            yield event
        if not self.watches:
            self.idle.set()
            await asyncio.Event().wait()


class Heard:
    def __init__(self) -> None:
        self.words: list[str] = []

    def changed(self, obj: core.Namespace) -> None:
        self.words.append(f"{obj.metadata.name}={obj.metadata.resource_version}")

    def gone(self, namespace: str, name: str) -> None:
        assert namespace == ""
        self.words.append(f"-{name}")


@contextlib.asynccontextmanager
async def running(script: Any, heard: Heard) -> AsyncIterator[Informer[core.Namespace]]:
    informer = Informer(script, core.Namespace, heard)
    task = asyncio.create_task(informer.run())
    try:
        async with asyncio.timeout(30):
            await script.idle.wait()
            yield informer
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def test_it_lists_then_watches_from_there() -> None:
    script, heard = Script(), Heard()
    script.lists = [([namespace("a", 1), namespace("b", 2)], "5")]
    script.watches = [[("ADDED", namespace("c", 6)), ("DELETED", namespace("a", 7)), ("BOOKMARK", namespace("", 9))]]
    async with running(script, heard) as informer:
        assert heard.words == ["a=1", "b=2", "c=6", "-a"]
        assert informer.synced.is_set()
        assert informer.version == "9"
    assert script.since == ["5"]


async def test_a_watch_that_broke_goes_on_where_it_was() -> None:
    script, heard = Script(), Heard()
    script.lists = [([], "5")]
    script.watches = [[("ADDED", namespace("a", 6)), UnreachableError("cut")], [("MODIFIED", namespace("a", 7))]]
    async with running(script, heard):
        assert heard.words == ["a=6", "a=7"]
    assert script.since == ["5", "6"]


async def test_it_is_current_while_a_watch_is_open_and_not_after_one_broke() -> None:
    class Seen(Heard):
        current: list[bool] = []

        def changed(self, obj: core.Namespace) -> None:
            self.current.append(informer.current)

    class Reopened(Script):
        """Its second watch is told of before the apiserver has answered."""

        async def watch(
            self, _: Resource, __: str, *, since: str, seconds: int, opened: Callable[[], None], field_selector: str
        ) -> AsyncIterator[tuple[str, msgspec.Raw]]:
            self.reopening.append(informer.current)
            events = super().watch(_, __, since=since, seconds=seconds, opened=opened, field_selector=field_selector)
            async for event in events:
                yield event

        reopening: list[bool] = []

    script, heard = Reopened(), Seen()
    script.lists = [([], "5")]
    script.watches = [[("ADDED", namespace("a", 6)), UnreachableError("cut")], [("MODIFIED", namespace("a", 7))]]
    informer = Informer(script, core.Namespace, heard)  # type: ignore[arg-type]
    assert not informer.current
    task = asyncio.create_task(informer.run())
    async with asyncio.timeout(30):
        await script.idle.wait()
    assert script.reopening == [True, False]
    assert heard.current == [True, True]
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("code", [410, 504])
async def test_a_version_too_old_means_a_new_list_which_says_what_is_gone(code: int) -> None:
    script, heard = Script(), Heard()
    script.lists = [([namespace("a", 1), namespace("b", 2)], "5"), ([namespace("b", 8)], "9")]
    script.watches = [[ApiError(Outcome(code=code))], []]
    async with running(script, heard):
        assert heard.words == ["a=1", "b=2", "-a", "b=8"]
    assert script.since == ["5", "9"]


async def test_another_object_of_the_same_name_is_another_object() -> None:
    script, heard = Script(), Heard()
    script.lists = [([namespace("a", 1, uid="one")], "5")]
    script.watches = [[("MODIFIED", namespace("a", 6, uid="two"))]]
    async with running(script, heard):
        assert heard.words == ["a=1", "-a", "a=6"]


async def test_an_object_that_cannot_be_read_hides_no_other() -> None:
    script, heard = Script(), Heard()
    bad = namespace("b", 7, labels={"k": 1})
    script.lists = [([namespace("a", 1), namespace("b", 2)], "5")]
    script.watches = [[("MODIFIED", bad), ("MODIFIED", namespace("a", 8))]]
    async with running(script, heard):
        assert heard.words == ["a=1", "b=2", "-b", "a=8"]


async def test_a_list_that_fails_is_tried_again_and_an_outage_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    script, heard = Script(), Heard()
    script.lists = [UnreachableError("down"), ApiError(Outcome(code=500)), ([namespace("a", 1)], "5")]
    async with running(script, heard):
        assert heard.words == ["a=1"]
    assert caplog.messages == ["namespaces: down; trying again", "namespaces: answered again"]


async def test_a_new_list_hands_over_only_what_differs_once_what_is_gone_was_told() -> None:
    script, heard = Script(), Heard()
    before = [namespace(name, number) for number, name in enumerate("abcd", 1)]
    after = [namespace("a", 1), namespace("b", 8), namespace("d", 7, uid="another"), namespace("e", 9)]
    script.lists = [(before, "5"), (after, "9")]
    script.watches = [[ApiError(Outcome(code=410))], []]
    async with running(script, heard):
        assert heard.words == ["a=1", "b=2", "c=3", "d=4", "-c", "-d", "b=8", "d=7", "e=9"]


async def test_a_list_that_broke_off_is_made_good_by_the_next() -> None:
    class Broken(Script):
        """Its first list ends after two pages."""

        async def pages(
            self, _: Resource, __: str, *, field_selector: str, most: int
        ) -> AsyncIterator[tuple[list[msgspec.Raw], str]]:
            first = len(self.lists) == 2
            async for page in super().pages(_, __, field_selector=field_selector, most=most):
                yield page
                if first and page[0] == [b]:
                    raise ApiError(Outcome(code=410))

    script, heard = Broken(), Heard()
    b = namespace("b", 2)
    script.lists = [([namespace("a", 1), b, namespace("c", 3)], "5"), ([namespace("b", 2), namespace("c", 3)], "9")]
    async with running(script, heard) as informer:
        assert heard.words == ["a=1", "b=2", "-a", "c=3"]
        assert informer.version == "9"


async def test_a_new_list_is_handed_over_in_one_go() -> None:
    class Interrupted(Heard):
        """Whatever else runs gets its turn as soon as it can."""

        def gone(self, namespace: str, name: str) -> None:
            super().gone(namespace, name)
            asyncio.get_running_loop().call_soon(self.words.append, "others")

    script, heard = Script(), Interrupted()
    script.lists = [([namespace("a", 1)], "5"), ([namespace(f"b{number}", 6) for number in range(200)], "9")]
    script.watches = [[ApiError(Outcome(code=410))], []]
    async with running(script, heard) as informer:
        assert informer.current
        assert heard.words[:3] == ["a=1", "-a", "b0=6"]
        assert heard.words[-2:] == ["b199=6", "others"]


class Quiet(Script):
    """A watch for long says nothing; a brief one says what the script has, and ends."""

    async def watch(
        self, _: Resource, __: str, *, since: str, seconds: int, opened: Callable[[], None], field_selector: str
    ) -> AsyncIterator[tuple[str, msgspec.Raw]]:
        assert field_selector == ""
        self.since.append(since)
        opened()
        if seconds > 10:
            self.idle.set()
            await asyncio.Event().wait()
        for event in self.watches.pop(0) if self.watches else []:
            assert not isinstance(event, Exception)
            yield event


async def test_catching_up_asks_for_a_bookmark_and_not_for_a_list() -> None:
    script, heard = Quiet(), Heard()
    script.lists = [([namespace("a", 1)], "5")]
    script.stored = "8"
    script.watches = [[("MODIFIED", namespace("a", 7)), ("BOOKMARK", namespace("", 12))]]
    async with running(script, heard) as informer:
        await informer.catch_up()
        assert heard.words == ["a=1", "a=7"]
        assert informer.version == "12"
        script.idle.clear()
        await script.idle.wait()  # and it watches for long again
    assert script.since == ["5", "5", "12"]


async def test_catching_up_lists_where_the_apiserver_that_is_watched_is_behind() -> None:
    script, heard = Quiet(), Heard()
    script.lists = [([namespace("a", 1)], "5"), ([namespace("a", 8)], "9")]
    script.stored = "8"
    script.watches = [[("BOOKMARK", namespace("", 6))]]
    async with running(script, heard) as informer:
        await informer.catch_up()
        assert heard.words == ["a=1", "a=8"]
    assert script.since[:2] == ["5", "5"]


async def test_who_has_everything_has_caught_up() -> None:
    script, heard = Script(), Heard()
    script.lists = [([namespace("a", 1)], "9")]
    script.stored = "9"
    async with running(script, heard) as informer:
        await informer.catch_up()
    assert script.since == ["9"]


async def test_catching_up_during_a_list_waits_for_what_comes_after_it() -> None:
    class Slow(Quiet):
        """Its first list is answered when it is let."""

        asked, may_answer = asyncio.Event(), asyncio.Event()

        async def pages(
            self, _: Resource, __: str, *, field_selector: str, most: int
        ) -> AsyncIterator[tuple[list[msgspec.Raw], str]]:
            self.asked.set()
            await self.may_answer.wait()
            async for page in super().pages(_, __, field_selector=field_selector, most=most):
                yield page

    script, heard = Slow(), Heard()
    script.lists = [([namespace("a", 1)], "5")]
    script.stored = "6"
    script.watches = [[("MODIFIED", namespace("a", 6))]]
    informer = Informer(script, core.Namespace, heard)  # type: ignore[arg-type]
    task = asyncio.create_task(informer.run())
    await script.asked.wait()
    catching_up = asyncio.create_task(informer.catch_up())
    await asyncio.sleep(0)
    script.may_answer.set()
    async with asyncio.timeout(5):
        await catching_up
    assert heard.words == ["a=1", "a=6"]
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def test_who_wants_to_know_is_told_of_failures_instead_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    script, heard = Script(), Heard()
    script.lists = [UnreachableError("away"), ([namespace("a", 1)], "5")]
    told: list[Exception] = []
    informer = Informer(script, core.Namespace, heard, failed=told.append)  # type: ignore[arg-type]
    task = asyncio.create_task(informer.run())
    async with asyncio.timeout(30):
        await script.idle.wait()
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    assert [str(each) for each in told] == ["away"]
    assert heard.words == ["a=1"]
    assert caplog.records == []


async def test_who_gives_up_catching_up_leaves_the_watch_as_it_was() -> None:
    script, heard = Quiet(), Heard()
    script.lists = [([], "5")]
    script.stored = "8"
    async with running(script, heard) as informer:
        catching_up = asyncio.create_task(informer.catch_up())
        await asyncio.sleep(0)
        script.idle.clear()
        catching_up.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await catching_up
        await script.idle.wait()
        assert informer.version == "5"
        assert informer.current
