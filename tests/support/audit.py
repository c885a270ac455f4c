"""Whether what an apiserver stores is sound: the invariants, on books made of nothing but its objects."""

from __future__ import annotations

import datetime as dt

from gpuclaim.api import model
from gpuclaim.api.types import GPUClaim
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
    books = await stored_books(client)
    return [
        *invariants.overheld(books),
        *invariants.split_sets(books),
        *invariants.over_budget(books),
        *invariants.above_max_count(books),
        *(f"{_name(claim)} says Bound and has no node" for claim in books.claims() if _homeless(claim)),
    ]


def _homeless(claim: GPUClaim) -> bool:
    bound = model.condition(claim.status.conditions, "Bound")
    return claim.status.node_name is None and bound is not None and bound.status == "True"


def _name(claim: GPUClaim) -> str:
    return f"{claim.metadata.namespace}/{claim.metadata.name}"
