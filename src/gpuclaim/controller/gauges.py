"""What the cloud looks like in numbers (R52), from the books and the claims. Pure.

Labels have few values, however many tenants there are: classes, conditions of nodes, reasons of a fixed vocabulary.
Only the budgets of each tenant have a tenant's name, and they are left out unless the hoster asks for them.
"""

from __future__ import annotations

import collections
import dataclasses
import datetime as dt
from collections.abc import Callable, Iterable, Mapping
from typing import Final, TypeAlias

from gpuclaim.api import model, names
from gpuclaim.api.reasons import BoundReason, ClaimCondition, NodeConditionType, Refusal
from gpuclaim.api.types import GPUClaim
from gpuclaim.ledger.intervals import Record
from gpuclaim.placement.books import Books
from gpuclaim.placement.budget import Limit
from gpuclaim.placement.facts import NodeFacts
from gpuclaim.placement.refusals import REASONS
from gpuclaim.placement.supply import supply

OTHER: Final = "Other"
"""The label of what is not of the vocabulary: what others write must not become a label's value."""


@dataclasses.dataclass(frozen=True, slots=True)
class Family:
    """Numbers of one name: what they say, and what they are split by."""

    name: str
    text: str
    labels: tuple[str, ...] = ()


Values: TypeAlias = dict[Family, dict[tuple[str, ...], float]]
"""Of each gauge the label values, in the order of its labels → the number."""

_OF_CLASS: Final = ("class",)

CAPACITY: Final = Family(
    "gpuclaim_class_capacity_gpus", "GPUs of the class that agents report and kubelet grants.", _OF_CLASS
)
HELD: Final = Family(
    "gpuclaim_class_held_gpus", "GPUs that claims of the class hold, admitted orders included.", _OF_CLASS
)
ATTACHED: Final = Family("gpuclaim_class_attached_gpus", "Held GPUs whose set has a live pod.", _OF_CLASS)
FREE: Final = Family("gpuclaim_class_free_gpus", "GPUs that new holds may take, on nodes that take any.", _OF_CLASS)
FOREIGN: Final = Family(
    "gpuclaim_class_foreign_gpus", "GPUs of the class that pods use beyond what claims hold.", _OF_CLASS
)
UNHEALTHY: Final = Family(
    "gpuclaim_class_unhealthy_gpus",
    "GPUs that were offered for the class, and that no plugin lists any more.",
    _OF_CLASS,
)
LARGEST: Final = Family("gpuclaim_class_largest_order_gpus", "The largest order that would be taken now.", _OF_CLASS)
WAITING: Final = Family("gpuclaim_waiting_claims", "Stored claims that have no node, by why not.", ("class", "reason"))
RELEASING: Final = Family(
    "gpuclaim_releasing_claims",
    "Deleted claims that still hold: for their pod's end, or for the ledger.",
    ("reason",),
)
CLAIMS: Final = Family("gpuclaim_claims", "Stored claims.")
UNHEALTHY_CLAIMS: Final = Family(
    "gpuclaim_unhealthy_claims", "Bound claims whose node is not well, by the reason of their condition.", ("reason",)
)
REFUSALS: Final = Family(
    "gpuclaim_refusals", "Nodes that a set is kept from now, since kubelet turned its pod away, by why.", ("reason",)
)
NODES: Final = Family("gpuclaim_nodes", "Nodes by what is true of them; a node may count under several.", ("state",))
REPORT_AGE: Final = Family("gpuclaim_oldest_report_age_seconds", "Age of the oldest report of an agent.")
BUDGETS: Final = Family(
    "gpuclaim_budgets",
    "Budgets (keys of ResourceQuotas) of a class, or in total, by how much is used.",
    ("class", "state"),
)
BUDGET_USED: Final = Family(
    "gpuclaim_budget_used_gpus", "GPUs held under a budget; only with --metrics-tenants.", ("namespace", "quota", "key")
)
BUDGET_HARD: Final = Family(
    "gpuclaim_budget_hard_gpus",
    "GPUs that a budget allows; only with --metrics-tenants.",
    ("namespace", "quota", "key"),
)
RESERVATIONS: Final = Family("gpuclaim_reservations", "Admitted orders that are not stored as bound yet.")
LEDGER_WAITING: Final = Family(
    "gpuclaim_ledger_waiting_intervals", "Ended intervals that the ledger does not have yet."
)
LEDGER_LAG: Final = Family("gpuclaim_ledger_lag_seconds", "For how long the oldest of these has ended; 0 with none.")

GAUGES: Final = (
    *(CAPACITY, HELD, ATTACHED, FREE, FOREIGN, UNHEALTHY, LARGEST),
    *(CLAIMS, WAITING, RELEASING, UNHEALTHY_CLAIMS, REFUSALS),
    *(NODES, REPORT_AGE),
    *(BUDGETS, BUDGET_USED, BUDGET_HARD),
    *(RESERVATIONS, LEDGER_WAITING, LEDGER_LAG),
)
"""All of them: what the leader says of the cloud."""

STATES: Final[Mapping[str, Callable[[NodeFacts], bool]]] = {
    "Eligible": lambda node: node.eligible,
    "NotReady": lambda node: node.present and not node.ready,
    "Unschedulable": lambda node: node.unschedulable,
    "Cordoned": lambda node: node.cordoned,
    "Silent": lambda node: node.silent,
    "Rebooted": lambda node: node.rebooted,
    "Gone": lambda node: not node.present and bool(node.held),
    "DevicesUnhealthy": lambda node: bool(node.unhealthy),
    NodeConditionType.OVERCOMMITTED.value: lambda node: bool(node.over),
    NodeConditionType.FOREIGN_USE.value: lambda node: bool(node.foreign),
}
"""What may be true of a node with GPUs, or with holds."""
BUDGET_STATES: Final = ("Free", "Full", "Exceeded")
_WAITS: Final = (BoundReason.WAITS_FOR_POD.value, BoundReason.WAITS_FOR_LEDGER.value)
_REFUSED: Final = tuple(reason.value for reason in Refusal)


@dataclasses.dataclass(slots=True)
class Census:
    """Counts of claims, taken a few at a time, so that no order waits for a hundred thousand of them."""

    claims: int = 0
    attached: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    waiting: collections.Counter[tuple[str, str]] = dataclasses.field(default_factory=collections.Counter)
    releasing: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    unhealthy: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    refused: set[tuple[str, str, str, str]] = dataclasses.field(default_factory=set)
    """(namespace, set, node, reason): every claim of a set says the same."""

    def count(self, books: Books, claims: Iterable[GPUClaim], now: dt.datetime) -> None:
        """Adds these claims, of what the books say now: O(claims)."""
        for claim in claims:
            self.claims += 1
            meta, status = claim.metadata, claim.status
            set_name = model.claim_set(claim)
            bound = model.condition(status.conditions, ClaimCondition.BOUND)
            if status.node_name is None:
                self.waiting[claim.spec.class_name, _among(_REFUSED, bound.reason if bound else "")] += 1
            elif books.attached(meta.namespace, set_name):
                self.attached[claim.spec.class_name] += claim.spec.count
            if meta.deletion_timestamp is not None:
                self.releasing[_among(_WAITS, bound.reason if bound else "")] += 1
            healthy = model.condition(status.conditions, ClaimCondition.HEALTHY)
            if status.node_name is not None and healthy is not None and healthy.status == "False":
                self.unhealthy[healthy.reason] += 1
            for refusal in status.refusals:
                if refusal.expires_at > now:
                    self.refused.add((meta.namespace, set_name, refusal.node_name, _kubelets(refusal.reason)))


def of_class(books: Books, name: str, now: dt.datetime) -> Values:
    """One class: O(nodes)."""
    there_is, resource = supply(books, name, now), books.resource(name)
    if there_is is None or resource is None:
        return {}
    nodes = books.nodes.values()
    found = {
        CAPACITY: there_is.total,
        HELD: there_is.held,
        FREE: there_is.free,
        LARGEST: there_is.largest,
        FOREIGN: sum(node.foreign.get(resource, 0) for node in nodes if node.foreign),
        UNHEALTHY: sum(node.unhealthy_of.get(resource, 0) for node in nodes if node.unhealthy_of),
    }
    return {gauge: {(name,): number} for gauge, number in found.items()}


def of_claims(census: Census, classes: Iterable[str]) -> Values:
    """What was counted. A class that is not among `classes` was deleted, or never was: it counts as `Other`."""
    known = frozenset(classes)
    waiting: collections.Counter[tuple[str, ...]] = collections.Counter()
    for (name, reason), number in census.waiting.items():
        waiting[name if name in known else OTHER, reason] += number
    refused: collections.Counter[tuple[str, ...]] = collections.Counter((reason,) for *_, reason in census.refused)
    return {
        CLAIMS: {(): census.claims},
        ATTACHED: {(name,): census.attached[name] for name in sorted(known)},
        WAITING: dict(waiting),
        RELEASING: {(reason,): census.releasing[reason] for reason in (*_WAITS, OTHER)},
        UNHEALTHY_CLAIMS: {(reason,): number for reason, number in census.unhealthy.items()},
        REFUSALS: dict(refused),
    }


def of_nodes(books: Books, now: dt.datetime) -> Values:
    """Every node that has a report or a hold: O(nodes)."""
    nodes = [node for node in books.nodes.values() if node.reported or node.held]
    ages = [(now - node.reported_at).total_seconds() for node in nodes if node.reported_at is not None]
    return {
        NODES: {(state,): sum(map(is_true, nodes)) for state, is_true in STATES.items()},
        REPORT_AGE: {(): max(0.0, *ages) if ages else 0.0},
    }


def of_budgets(limits: Iterable[Limit], classes: Iterable[str], *, tenants: bool) -> Values:
    """Every budget: how many are how full, and with `tenants` each. Keys of no class count as `Other`."""
    known = {names.budget_key(name): name for name in (*classes, names.TOTAL)}
    values: Values = {BUDGETS: {}, BUDGET_USED: {}, BUDGET_HARD: {}}
    for limit in limits:
        state = BUDGET_STATES[(limit.used >= limit.hard) + (limit.used > limit.hard)]
        of = known.get(limit.key, OTHER)
        for each in BUDGET_STATES:
            values[BUDGETS].setdefault((of, each), 0)
        values[BUDGETS][of, state] += 1
        if tenants:
            label = (limit.namespace, limit.quota, limit.key)
            values[BUDGET_USED][label], values[BUDGET_HARD][label] = limit.used, limit.hard
    return values


def of_reservations(books: Books) -> Values:
    """Orders that are on their way."""
    return {RESERVATIONS: {(): sum(each.order is not None for each in books.reservations())}}


def of_ledger(waiting: Iterable[Record], now: dt.datetime) -> Values:
    """What the ledger is behind by."""
    ends = {record.key: record.ended_at for record in waiting}
    lag = (now - min(ends.values())).total_seconds() if ends else 0.0
    return {LEDGER_WAITING: {(): len(ends)}, LEDGER_LAG: {(): max(0.0, lag)}}


def _among(known: Iterable[str], reason: str) -> str:
    return reason if reason in known else OTHER


def _kubelets(reason: str) -> str:
    """Kubelet's word; all that lack a resource are one, since the resource's name stands in it."""
    return "OutOfResource" if reason.startswith("OutOf") else _among(REASONS, reason)
