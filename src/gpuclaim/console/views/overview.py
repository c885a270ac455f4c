"""What a hoster has to know of the cloud: classes, refusals, claims that wait, agents that are silent."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from dataclasses import dataclass

from gpuclaim.api.types import GPUClaim, GPUClass, GPUNode
from gpuclaim.console.views.fleet import silent
from gpuclaim.console.views.tenant import Offer, Said, offers
from gpuclaim.views import claims as claim_view
from gpuclaim.views import nodes as node_view
from gpuclaim.views.nodes import State


@dataclass(frozen=True, slots=True)
class ClassRow:
    """A class, and what there is of it over all nodes: `total` device-plugin devices, and those free."""

    offer: Offer
    resource: str
    total: int
    free: int
    held: int
    waiting: int


@dataclass(frozen=True, slots=True)
class RefusedRow:
    """A node that turned a claim's pod away, and until when it is not tried for that claim."""

    claim: str
    node: str
    reason: str
    message: str
    refused_at: dt.datetime
    expires_at: dt.datetime


@dataclass(frozen=True, slots=True)
class ClaimRow:
    """A claim that is not as it should be."""

    claim: str
    asks: str
    state: Said
    why: str
    since: dt.datetime | None


@dataclass(frozen=True, slots=True)
class SilentRow:
    """A node whose agent is silent; None: it has never reported."""

    node: str
    reported_at: dt.datetime | None


def classes(catalogue: Iterable[GPUClass], claims: Iterable[GPUClaim], reports: Iterable[GPUNode]) -> list[ClassRow]:
    """A row a class, by name. A GPU that several classes' resources name counts for each of them."""
    listed = sorted(catalogue, key=lambda each: each.metadata.name)
    made_of = node_view.resources_of(listed)
    every = list(claims)
    held: dict[str, int] = {}
    waiting: dict[str, int] = {}
    for claim in every:
        name, counted = claim.spec.class_name, waiting if claim.status.node_name is None else held
        counted[name] = counted.get(name, 0) + claim.spec.count
    total: dict[str, int] = {}
    free: dict[str, int] = {}
    for node in node_view.drawn(reports, every, made_of):
        for slot in node.slots:
            for resource in slot.resources:
                total[resource] = total.get(resource, 0) + 1
                free[resource] = free.get(resource, 0) + (slot.state is State.FREE)
    by_name = {offer.name: offer for offer in offers(listed)}
    return [
        ClassRow(
            by_name[name],
            resource,
            total.get(resource, 0),
            free.get(resource, 0),
            held.get(name, 0),
            waiting.get(name, 0),
        )
        for name, resource in made_of.items()
    ]


def refusals(claims: Iterable[GPUClaim], now: dt.datetime) -> list[RefusedRow]:
    """Those that are not over, the one that ends first first."""
    found = [
        RefusedRow(
            node_view.full_name(claim), each.node_name, each.reason, each.message, each.refused_at, each.expires_at
        )
        for claim in claims
        for each in claim.status.refusals
        if each.expires_at > now
    ]
    return sorted(found, key=lambda each: (each.expires_at, each.claim, each.node))


def troubled(claims: Iterable[GPUClaim]) -> list[ClaimRow]:
    """Claims that wait, or whose node is not well, the oldest first."""
    found = []
    for claim in claims:
        cell, why = claim_view.state(claim), claim_view.why(claim)
        if why or claim.status.node_name is None:
            asks = f"{claim.spec.count} × {claim.spec.class_name}"
            since = claim.metadata.creation_timestamp
            found.append(ClaimRow(node_view.full_name(claim), asks, Said(cell.value, cell.colour), why, since))
    never = dt.datetime.max.replace(tzinfo=dt.UTC)
    return sorted(found, key=lambda each: (each.since or never, each.claim))


def silent_agents(reports: Iterable[GPUNode], now: dt.datetime) -> list[SilentRow]:
    """Nodes that nothing is heard of, by name."""
    found = [SilentRow(each.metadata.name, each.status.reported_at) for each in reports if silent(each, now)]
    return sorted(found, key=lambda each: each.node)
