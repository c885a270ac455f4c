"""What must hold once the faults have been over for long enough: everything that can be done has been done."""

from __future__ import annotations

import datetime as dt
import itertools
from typing import Any, Final

import msgspec

from gpuclaim.admission import machines
from gpuclaim.api import core, model, names
from gpuclaim.api.types import GPUClaim, GPUClass, GPUNode, UsageKind
from gpuclaim.ledger.intervals import Record
from gpuclaim.placement import invariants
from gpuclaim.placement.books import Books, Known
from gpuclaim.placement.orders import Order
from gpuclaim.placement.verdict import decide, place_set
from simulator.apiserver import EPOCH
from simulator.cluster import set_of_claim, set_of_pod
from simulator.oracle import Oracle
from simulator.replica import SETTINGS

_KINDS: Final[dict[str, type[Known]]] = {
    "gpuclasses": GPUClass,
    "namespaces": core.Namespace,
    "resourcequotas": core.ResourceQuota,
    "nodes": core.Node,
    "gpunodes": GPUNode,
    "pods": core.Pod,
    "gpuclaims": GPUClaim,
}
_BOUND_WITHIN: Final = 40.0
"""Seconds: a process may stop for half a minute between the decision and the send, and the write takes some more."""


def at_rest(oracle: Oracle, mirrors: dict[str, Books], quiet_since: float) -> None:
    """Looks at everything."""
    now = oracle.now()
    fresh = _fresh_books(oracle, now)
    for who, books in mirrors.items():
        books.advance(now)
        _compare(oracle, who, invariants.snapshot(books), invariants.snapshot(fresh))
        for fault in invariants.wrong_index(books):
            oracle.fault(f"{who}: {fault}")
    if oracle.last_write > quiet_since:
        oracle.fault(f"the controller still writes, last at {oracle.last_write:.1f}")
    cluster = oracle.cluster
    for each in cluster.unanswered:
        oracle.fault(each)
    if sum(cluster.answered.values()) != cluster.asked:
        oracle.fault(f"{cluster.asked} orders were made, {sum(cluster.answered.values())} were answered (R40)")
    _unbound(oracle, fresh, now)
    _bound(oracle, fresh)
    for namespace, set_name in fresh.split_sets():
        verdict = place_set(fresh, namespace, set_name, now)
        if verdict.admitted and verdict.moves:
            oracle.fault(f"set {namespace}/{set_name} stays split (R36a)")
    _reports(oracle, fresh)
    _machines(oracle, fresh)
    _refusals(oracle)
    _ledger(oracle)


def _fresh_books(oracle: Oracle, now: dt.datetime) -> Books:
    """Books of what is stored now, made anew."""
    books = Books(SETTINGS)
    for plural, kind in _KINDS.items():
        for obj in oracle.api.all(plural):
            books.apply(msgspec.convert(obj, kind, strict=False))
    books.advance(now)
    return books


def _unbound(oracle: Oracle, fresh: Books, now: dt.datetime) -> None:
    for claim in fresh.unbound():
        if claim.metadata.deletion_timestamp is not None:
            oracle.fault(f"{claim.metadata.name} is deleted, unbound and stays")
        elif (verdict := decide(fresh, Order.of(claim), now)).admitted:
            oracle.fault(f"{claim.metadata.name} fits on {verdict.node} and is not bound (R38)")
        elif model.condition(claim.status.conditions, "Bound") is None:
            oracle.fault(f"{claim.metadata.name} waits, and its condition does not say why (R38)")


def _bound(oracle: Oracle, fresh: Books) -> None:
    for claim in fresh.claims():
        if claim.metadata.deletion_timestamp is not None and not fresh.attached(
            claim.metadata.namespace, model.claim_set(claim)
        ):
            oracle.fault(f"{claim.metadata.name} is deleted, has no pod and stays (R10a)")
        if names.HOLD_FINALIZER not in claim.metadata.finalizers:
            oracle.fault(f"{claim.metadata.name} has no finalizer")
        _attached(oracle, fresh, claim)


def _attached(oracle: Oracle, fresh: Books, claim: GPUClaim) -> None:
    if claim.status.node_name is None:
        return
    pods = fresh.pods_of_set(claim.metadata.namespace, model.claim_set(claim))
    runs = any(pod.node == claim.status.node_name for pod in pods)
    attached = model.condition(claim.status.conditions, "Attached")
    if attached is None or (attached.status == core.Status.TRUE) is not runs:
        oracle.fault(f"{claim.metadata.name}: Attached is {attached and attached.status}, its pod runs: {runs}")
    if runs is not (claim.status.attachment is not None):
        oracle.fault(f"{claim.metadata.name}: its attachment does not say that its pod runs: {runs} (R12)")
    if claim.status.usage is not None and claim.status.usage.unrecorded:
        oracle.fault(f"{claim.metadata.name} still keeps what has ended for the ledger (R50)")


def _reports(oracle: Oracle, fresh: Books) -> None:
    for limit in fresh.budgets.quotas():
        quota = oracle.api.find("resourcequotas", limit.namespace, limit.quota) or {}
        said = quota.get("status", {}).get("used", {}).get(limit.key)
        if said != str(limit.used):
            oracle.fault(f"quota {limit.namespace}/{limit.quota} says {said} of {limit.key}, it is {limit.used} (R33)")
    for obj in oracle.api.all("gpunodes"):
        node = fresh.nodes[obj["metadata"]["name"]]
        said = {c["type"]: c["status"] for c in obj.get("status", {}).get("conditions", [])}
        true = {
            "Reporting": node.reported_at is not None and not node.silent and not node.rebooted,
            "Healthy": not node.unhealthy,
            "Overcommitted": bool(node.over),
            "ForeignUse": bool(node.foreign),
        }
        if said != {type_: str(value) for type_, value in true.items()}:
            oracle.fault(f"gpunode {node.name} says {said}, it is {true} (R16)")


def _machines(oracle: Oracle, fresh: Books) -> None:
    """Every VM that is an order has its claim, and no claim is of a VM that is gone (R45)."""
    vms = {}
    for vm in oracle.api.all("virtualmachines"):
        meta = vm["metadata"]
        vms[meta["uid"]] = vm
        claim = fresh.claim(meta["namespace"], meta["name"])
        order = machines.order_of(msgspec.convert(meta, core.ObjectMeta, strict=False))
        assert isinstance(order, Order)
        if claim is None:
            oracle.fault(f"VM {meta['namespace']}/{meta['name']} has no claim (R45)")
        elif claim.metadata.deletion_timestamp is None and machines.conflict(claim, order) is not None:
            # A claim of that name may have come between the order's decision and its claim; the VM's pod is refused.
            oracle.cluster.universe.tally["VM whose name a claim took"] += 1
    for claim in fresh.claims():
        owner = machines.owner_of(claim.metadata)
        if owner is not None and owner not in vms and claim.metadata.deletion_timestamp is None:
            oracle.fault(f"{claim.metadata.name} outlives its VM (R45)")


def _refusals(oracle: Oracle) -> None:
    """What turned a pod away stands in every claim that was bound there then (R37)."""
    if not oracle.chaos.truthful_clocks:
        return
    for pod in oracle.turned_away(seconds=60):
        at = oracle.turned_away_at[pod["metadata"]["uid"]]
        for claim in oracle.cluster.claims(pod["metadata"]["namespace"]):
            bound = oracle.bound_at.get(claim["metadata"]["uid"], at)
            if set_of_claim(claim) == set_of_pod(pod) and bound < at and not oracle.says_so(claim, pod):
                oracle.fault(
                    f"{claim['metadata']['name']} does not say that {pod['spec']['nodeName']} turned"
                    f" {pod['metadata']['name']} away (R37)"
                )


# --- the ledger -------------------------------------------------------------------------------------------------------


def _ledger(oracle: Oracle) -> None:
    """Every interval is there once; those of a claim follow each other, and make up what it says that it used (R50)."""
    rows = oracle.database.rows()
    if sorted(map(repr, rows)) != sorted(map(repr, oracle.database.recorded.values())):
        oracle.fault("the ledger is not what was recorded in it (R51)")
    by_claim: dict[str, list[Record]] = {}
    for row in rows:
        by_claim.setdefault(row.claim_uid, []).append(row)
    for uid, found in by_claim.items():
        for kind in UsageKind:
            alike = sorted((row for row in found if row.kind is kind), key=lambda row: row.started_at)
            for one, other in itertools.pairwise(alike):
                if other.started_at < one.ended_at:
                    oracle.fault(f"{uid}: two intervals overlap: {one} and {other} (R50)")
    for uid, claim in oracle.gone.items():
        _sums(oracle, claim, by_claim.get(uid, []))


def _sums(oracle: Oracle, claim: GPUClaim, rows: list[Record]) -> None:
    usage = claim.status.usage
    for kind, total in {
        UsageKind.HELD: usage.held_seconds if usage is not None else 0,
        UsageKind.ATTACHED: usage.attached_seconds if usage is not None else 0,
    }.items():
        there = sum(row.seconds for row in rows if row.kind is kind)
        if there != total:
            oracle.fault(f"{claim.metadata.name}: {kind} {total} s by its status, {there} s by the ledger (R50)")
    held = [row for row in rows if row.kind is UsageKind.HELD]
    if not oracle.chaos.truthful_clocks or not held:
        return
    began, ended = (
        (min(row.started_at for row in held) - EPOCH).total_seconds(),
        (max(row.ended_at for row in held) - EPOCH).total_seconds(),
    )
    uid = claim.metadata.uid
    if abs(began - oracle.bound_at[uid]) > _BOUND_WITHIN:
        oracle.fault(
            f"{claim.metadata.name} was bound at {oracle.bound_at[uid]:.0f}, is paid for from {began:.0f} on (R50)"
        )
    if ended < int(oracle.deleted_at[uid]) - 1:
        oracle.fault(f"{claim.metadata.name} is paid for until {ended:.0f}, and held until it was deleted (R50)")


def _compare(oracle: Oracle, who: str, mine: dict[str, Any], true: dict[str, Any]) -> None:
    for part, value in true.items():
        if mine[part] != value:
            oracle.fault(f"{who}: its books have {part} as {_brief(mine[part], value)}")


def _brief(mine: Any, true: Any) -> str:
    if isinstance(mine, dict) and isinstance(true, dict):
        keys = sorted(key for key in mine.keys() | true.keys() if mine.get(key) != true.get(key))
        return "; ".join(f"{key}: {mine.get(key)} for {true.get(key)}" for key in keys)[:900]
    return f"{mine} for {true}"[:900]
