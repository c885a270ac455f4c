"""Whether what an apiserver stores is sound: the invariants, on books made of nothing but its objects."""

from __future__ import annotations

import datetime as dt

from gpuclaim.controller.mirror import KINDS
from gpuclaim.kube.client import Client
from gpuclaim.placement import invariants
from gpuclaim.placement.books import Books


async def stored_books(client: Client) -> Books:
    """Books of all that is stored, and of nothing that any controller knows beside it."""
    books = Books()
    for kind in KINDS:
        found, _ = await client.list(kind)
        for obj in found:
            books.apply(obj)
    books.advance(dt.datetime.now(dt.UTC))
    return books


async def faults(client: Client) -> list[str]:
    """What is wrong with what is stored, in sentences; empty where nothing is."""
    return invariants.unsound(await stored_books(client))
