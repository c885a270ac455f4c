"""The reporter on an apiserver that loses answers: nothing is written anew that has been written."""

from __future__ import annotations

from typing import Any

import msgspec

from gpuclaim.api.core import Outcome
from gpuclaim.api.types import GPUNode
from gpuclaim.controller.reporter import Reporter
from gpuclaim.kube.client import ApiError, UnreachableError
from gpuclaim.placement.books import Books
from gpuclaim.placement.scenario import merge_patch

from .test_catalogue import NOW, node, report


class World:
    """One GPUNode as it is stored, and books that know it as it was when they were last told."""

    def __init__(self) -> None:
        self.books = Books()
        self.reporter = Reporter(self.books, self, now=lambda: NOW, lease_left=lambda: 10.0, counts=False)  # type: ignore[arg-type]
        meta = msgspec.structs.replace(report().metadata, resource_version="1")
        self.stored = msgspec.structs.replace(report(), metadata=meta)
        self.answers = True
        self.writes = 0
        self.books.apply(node())
        self.tell()

    def tell(self) -> None:
        """The watch delivers what is stored."""
        self.books.apply(self.stored)
        self.reporter.node_changed(self.stored)

    async def patch(
        self, _: type[GPUNode], __: str, body: dict[str, Any], namespace: str, *, subresource: str
    ) -> GPUNode:
        assert (namespace, subresource) == ("", "status")
        if body["metadata"]["resourceVersion"] != self.stored.metadata.resource_version:
            raise ApiError(Outcome(code=409, reason="Conflict"))
        self.writes += 1
        patch = {"status": body["status"], "metadata": {"resourceVersion": str(self.writes + 1)}}
        self.stored = msgspec.convert(merge_patch(msgspec.to_builtins(self.stored), patch), GPUNode)
        if not self.answers:
            raise UnreachableError("cut off")
        return self.stored


async def test_conditions_whose_answer_was_lost_keep_their_transition_time() -> None:
    world = World()
    world.answers = False
    assert not await world.reporter._write_all()
    stored = world.stored
    assert world.writes == 1
    assert {condition.type for condition in stored.status.conditions} >= {"Reporting", "Overcommitted"}

    world.answers = True
    assert not await world.reporter._write_all()
    assert world.stored is stored, "the books do not know yet what was stored, and nothing was written over it"

    world.tell()
    assert await world.reporter._write_all()
    assert world.stored is stored
