"""What would move if a node were to be emptied (R36, R74)."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass

from gpuclaim.api import model
from gpuclaim.placement.books import Books
from gpuclaim.placement.orders import Verdict
from gpuclaim.placement.verdict import place_set

_PLANNING = dt.timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Leaving:
    """A set on the node, how many GPUs it holds there, and where it would go; refused, it would stay."""

    namespace: str
    set_name: str
    gpus: int
    verdict: Verdict


def drain(books: Books, node: str, now: dt.datetime) -> list[Leaving]:
    """Plan to take every set off the node, the largest first, each whole; the books are left as they were.

    A set that a pod uses stays, and one that no other node has room for. O(sets there * log nodes).
    """
    books.advance(now)
    gpus: dict[tuple[str, str], int] = {}
    for claim in books.claims_on(node):
        key = (claim.metadata.namespace, model.claim_set(claim))
        gpus[key] = gpus.get(key, 0) + claim.spec.count
    found: list[Leaving] = []
    tokens: list[str] = []
    try:
        for (namespace, set_name), count in sorted(gpus.items(), key=lambda entry: (-entry[1], entry[0])):
            verdict = place_set(books, namespace, set_name, now, avoid=frozenset((node,)))
            found.append(Leaving(namespace, set_name, count, verdict))
            if verdict.admitted:
                # The next set must not be promised the same room.
                tokens.append(f"drain {node} {namespace}/{set_name}")
                books.reserve_moves(tokens[-1], verdict.moves, now + _PLANNING)
    finally:
        for token in tokens:
            books.release(token)
        books.advance(now)
    return found
