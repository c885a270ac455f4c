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
        self.watches: list[list[tuple[str, msgspec.Raw] | Exception]] = []
        self.since: list[str] = []
        self.idle = asyncio.Event()
        self.opens = True

    async def list_raw(self, _: Resource, __: str, *, field_selector: str, most: int) -> tuple[list[msgspec.Raw], str]:
        assert (field_selector, most) == ("", 0)
        answer = self.lists.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def watch(
        self, _: Resource, __: str, *, since: str, opened: Callable[[], None], field_selector: str
    ) -> AsyncIterator[tuple[str, msgspec.Raw]]:
        assert field_selector == ""
        self.since.append(since)
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
            self, _: Resource, __: str, *, since: str, opened: Callable[[], None], field_selector: str
        ) -> AsyncIterator[tuple[str, msgspec.Raw]]:
            self.reopening.append(informer.current)
            async for event in super().watch(_, __, since=since, opened=opened, field_selector=field_selector):
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


async def test_resync_waits_for_a_list_that_began_after_it() -> None:
    script, heard = Script(), Heard()
    script.lists = [([namespace("a", 1)], "5"), ([namespace("a", 6)], "9")]
    async with running(script, heard) as informer:
        await informer.resync()
        assert heard.words == ["a=1", "a=6"]


async def test_resync_during_a_list_waits_for_the_next_one() -> None:
    class Slow(Script):
        """Its first list is answered when it is let."""

        asked, may_answer = asyncio.Event(), asyncio.Event()

        async def list_raw(
            self, _: Resource, __: str, *, field_selector: str, most: int
        ) -> tuple[list[msgspec.Raw], str]:
            answer = await super().list_raw(_, __, field_selector=field_selector, most=most)
            self.asked.set()
            await self.may_answer.wait()
            return answer

    script, heard = Slow(), Heard()
    script.lists = [([namespace("a", 1)], "5"), ([namespace("a", 6)], "9")]
    informer = Informer(script, core.Namespace, heard)  # type: ignore[arg-type]
    task = asyncio.create_task(informer.run())
    await script.asked.wait()
    resync = asyncio.create_task(informer.resync())
    await asyncio.sleep(0)
    script.may_answer.set()
    async with asyncio.timeout(5):
        await resync
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
