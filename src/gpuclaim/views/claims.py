"""Claims as rows, and the words of an order. Pure."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator
from typing import Final

from gpuclaim.api import model
from gpuclaim.api.reasons import ClaimCondition
from gpuclaim.api.types import GPUClaim
from gpuclaim.views import text
from gpuclaim.views.table import Cell, Row

HEADER: Final = ("NAMESPACE", "NAME", "CLASS", "COUNT", "STATE", "POD", "AGE", "SET", "NODE", "WHY")
"""The first is for all namespaces; POD, SET, NODE and WHY are for -o wide."""


def state(claim: GPUClaim) -> Cell:
    """What has become of an order, in a word or two."""
    bound = model.condition(claim.status.conditions, ClaimCondition.BOUND)
    healthy = model.condition(claim.status.conditions, ClaimCondition.HEALTHY)
    if claim.metadata.deletion_timestamp is not None:
        return Cell("Releasing", "yellow")
    if claim.status.node_name is None:
        return Cell(f"Waiting: {bound.reason}" if bound is not None else "Waiting", "yellow")
    if healthy is not None and healthy.status == "False":
        return Cell(f"Held, {healthy.reason}", "red")
    return Cell("Attached", "green") if claim.status.attachment is not None else Cell("Held", "cyan")


def why(claim: GPUClaim) -> str:
    """The sentence behind a state that is not as it should be; empty where all is well."""
    for type_ in (ClaimCondition.BOUND, ClaimCondition.HEALTHY):
        found = model.condition(claim.status.conditions, type_)
        if found is not None and found.status == "False":
            return found.message
    return ""


def rows(claims: Iterable[GPUClaim], now: dt.datetime, *, namespaces: bool, wide: bool) -> Iterator[Row]:
    """A row a claim, in the order of HEADER; what is not asked for is empty."""
    for claim in sorted(claims, key=lambda each: (each.metadata.namespace, each.metadata.name)):
        attachment = claim.status.attachment
        yield (
            claim.metadata.namespace if namespaces else "",
            claim.metadata.name,
            claim.spec.class_name,
            str(claim.spec.count),
            state(claim),
            attachment.pod_name if attachment is not None and wide else "",
            text.age(claim.metadata.creation_timestamp, now),
            *((model.claim_set(claim), claim.status.node_name or "", why(claim)) if wide else ("", "", "")),
        )


def what(claim: GPUClaim) -> str:
    """What a claim holds, as a sentence that one can say yes or no to."""
    held = "holds" if claim.status.node_name else "waits for"
    used = f"; pod {claim.status.attachment.pod_name} uses it now" if claim.status.attachment is not None else ""
    return text.safe(
        f"{claim.metadata.name} {held} {text.gpus(claim.spec.count)} of class {claim.spec.class_name}{used}"
    )
