"""A way to the apiserver on which chosen writes get stuck."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from gpuclaim.kube.client import Client
from gpuclaim.kube.config import Config


def moves(method: str, data: bytes | None) -> bool:
    """Whether it is a move of a hold: one that writes the history."""
    return method == "PATCH" and data is not None and b'"fromNode"' in data


class SlowRoad(Client):
    """A client whose writes get stuck; who sent one may give it up, and it arrives when it is let go all the same.

    Attributes:
        stuck: is set once a write is.
        let_go: lets it go.
        arrived: then, what became of it.
    """

    def __init__(self, api: Config, holds: Callable[[str, bytes | None], bool], *, for_ever: bool = False) -> None:
        """Sets up.

        Args:
            api: the apiserver.
            holds: whether a request (method, body) gets stuck.
            for_ever: nothing passes any more after the first that got stuck: to others, its sender is dead.
        """
        super().__init__(api)
        self.stuck = asyncio.Event()
        self.let_go = asyncio.Event()
        self.arrived: asyncio.Task[bytes] | None = None
        self._holds = holds
        self._for_ever = for_ever

    async def _once(self, method: str, path: str, data: bytes | None, *rest: Any) -> bytes:
        if self._for_ever and self.stuck.is_set():
            await asyncio.Event().wait()
        if not self._holds(method, data):
            return await super()._once(method, path, data, *rest)

        async def arrive() -> bytes:
            await self.let_go.wait()
            return await super(SlowRoad, self)._once(method, path, data, *rest)

        self.stuck.set()
        if self._for_ever:
            await asyncio.Event().wait()
        self.arrived = asyncio.create_task(arrive())
        return await asyncio.shield(self.arrived)
