"""Waiting for what other programs do, without a guess at how long they take."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

T = TypeVar("T")

_PATIENCE = 60.0  # seconds; far more than anything takes, so that only what never happens fails
_POLL = 0.05


def until(look: Callable[[], T | None], what: str, patience: float = _PATIENCE) -> T:
    """Return the first true answer of `look`; fail, naming `what`, when there is none."""
    deadline = time.monotonic() + patience
    while True:
        if answer := look():
            return answer
        assert time.monotonic() < deadline, f"not in {patience:g} s: {what}"
        time.sleep(_POLL)


async def until_async(look: Callable[[], T | None], what: str, patience: float = _PATIENCE) -> T:
    """`until`, for tests that serve something on the loop meanwhile; `look` may block."""
    deadline = time.monotonic() + patience
    while True:
        if answer := await asyncio.to_thread(look):
            return answer
        assert time.monotonic() < deadline, f"not in {patience:g} s: {what}"
        await asyncio.sleep(_POLL)


async def until_awaited(look: Callable[[], Awaitable[T | None]], what: str, patience: float = _PATIENCE) -> T:
    """`until`, for what is asked on the loop itself."""
    deadline = time.monotonic() + patience
    while True:
        if answer := await look():
            return answer
        assert time.monotonic() < deadline, f"not in {patience:g} s: {what}"
        await asyncio.sleep(_POLL)
