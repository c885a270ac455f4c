"""What must hold, looked at in the apiserver's own store: after every write, and when all has come to rest.

What a leader knows is always a little old. Where a rule depends on what may have changed under it (a GPU that broke, a
quota that was lowered), the most that was allowed within `_LAG_SECONDS` counts.
"""

from __future__ import annotations

import datetime as dt
from typing import Any, Final

import msgspec

from gpuclaim.api import core, model, names
from gpuclaim.api.types import GPUClaim, GPUClass, GPUNode
from gpuclaim.placement import invariants
from gpuclaim.placement.books import Books, Known, Settings
from gpuclaim.placement.orders import Order
from gpuclaim.placement.verdict import decide, place_set
from simulator.admission import pinned_to
from simulator.apiserver import EPOCH, Apiserver, Json
from simulator.cluster import Cluster
from simulator.loop import Clock

_LAG_SECONDS: Final = 120.0
_KNOWN_AFTER: Final = dt.timedelta(seconds=30)
_KINDS: Final[dict[str, type[Known]]] = {
    "gpuclasses": GPUClass,
    "namespaces": core.Namespace,
    "resourcequotas": core.ResourceQuota,
    "nodes": core.Node,
    "gpunodes": GPUNode,
    "pods": core.Pod,
    "gpuclaims": GPUClaim,
}


class Oracle:
    """Sees every write, and keeps what it finds wrong."""

    def __init__(self, clock: Clock) -> None:
        self.faults: list[str] = []
        self.truthful_clocks = True
        """Whether no machine's clock is wrong in this history."""
        self.last_write = 0.0
        self.writes = 0
        self.seen: dict[str, int] = {}
        """How often what is worth looking at has happened."""
        self._clock = clock
        self._seen: dict[Any, list[tuple[float, int]]] = {}

    def attach(self, api: Apiserver, cluster: Cluster) -> None:
        """What is looked at."""
        self._api = api
        self._cluster = cluster

    def fault(self, text: str) -> None:
        """Something does not hold."""
        self.faults.append(f"{self._clock.now:.3f} {text}")

    def _count(self, what: str) -> None:
        self.seen[what] = self.seen.get(what, 0) + 1

    # --- every write --------------------------------------------------------------------------------------------------

    def written(self, plural: str, old: Json | None, new: Json | None, who: str) -> None:
        """An object was stored, or is gone; the store has it already."""
        if plural in ("resourcequotas", "gpunodes", "nodes"):
            self._remember(plural, new or old or {}, gone=new is None)
        if who != "kubernetes" and plural not in ("leases", "events"):
            self.last_write = self._clock.now
            self.writes += 1
        if plural == "pods" and old is None and new is not None:
            self._pod(new)
        if plural == "gpuclaims":
            self._claim(old, new)

    def _remember(self, plural: str, obj: Json, *, gone: bool) -> None:
        meta = obj["metadata"]
        if plural == "resourcequotas":
            hard = {} if gone else obj["spec"].get("hard", {})
            for key in (names.budget_key(word) for word in ("h200", "l40s", names.TOTAL)):
                self._enter(("quota", meta["namespace"], key), int(hard[key]) if key in hard else 10**6)
        else:
            machine = self._cluster.machines.get(meta["name"])
            if machine is not None:
                self._enter(("gpus", machine.name), machine.healthy)

    def _enter(self, key: Any, value: int) -> None:
        self._seen.setdefault(key, []).append((self._clock.now, value))

    def _most(self, key: Any, default: int) -> int:
        """The most that was so within the lag."""
        entries = self._seen.get(key, [])
        recent = [value for at, value in entries if at >= self._clock.now - _LAG_SECONDS]
        before = [value for at, value in entries if at < self._clock.now - _LAG_SECONDS][-1:]
        first = [default] if not before and (not entries or entries[0][0] > self._clock.now - _LAG_SECONDS) else []
        return max(recent + before + first, default=default)

    def _claims(self, namespace: str | None = None) -> list[Json]:
        return [c for c in self._api.all("gpuclaims") if namespace is None or c["metadata"]["namespace"] == namespace]

    def _claim(self, old: Json | None, new: Json | None) -> None:
        if new is None:
            assert old is not None
            if old.get("status", {}).get("nodeName") and self._live_pods(old):
                self.fault(f"{_id(old)} goes while its set's pod lives (R10a)")
            return
        before = (old or {}).get("status", {}).get("nodeName")
        after = new.get("status", {}).get("nodeName")
        if before and not after:
            self.fault(f"{_id(new)} lost its node {before}")
        bound = [
            c for c in new.get("status", {}).get("conditions", []) if c["type"] == "Bound" and c["status"] == "True"
        ]
        if bound and not after:
            self.fault(f"{_id(new)} is Bound without a node")
        if after and after != before:
            self._placed(new, before, after)
        self._refusals(old, new)

    def _placed(self, claim: Json, before: str | None, after: str) -> None:
        machine = self._cluster.machines[after]
        self._count("binds" if before is None else "moves")
        nodes = {
            c["status"]["nodeName"]
            for c in self._claims()
            if _same_set(c, claim) and c.get("status", {}).get("nodeName")
        }
        if len(nodes) > 1:
            self._count("split sets")
        held = sum(_count(c) for c in self._claims() if c.get("status", {}).get("nodeName") == after)
        most = self._most(("gpus", after), machine.gpus)
        if held > most:
            self.fault(f"{_id(claim)} on {after}: {held} GPUs are held of {most} (R39)")
        if before and self._live_pods(claim):
            self.fault(f"{_id(claim)} moves from {before} to {after} under its pod (R36b)")
        if before is None:
            self._budget(claim)

    def _budget(self, claim: Json) -> None:
        own = claim["metadata"]["namespace"]
        class_name = claim["spec"]["className"]
        for scope in [own, *_ancestors(self._api, own)]:
            inside = [own for own in self._namespaces() if scope in (own, *_ancestors(self._api, own))]
            for word in (class_name, names.TOTAL):
                held = sum(
                    _count(c)
                    for c in self._claims()
                    if c["metadata"]["namespace"] in inside
                    and c.get("status", {}).get("nodeName")
                    and word in (c["spec"]["className"], names.TOTAL)
                )
                hard = self._most(("quota", scope, names.budget_key(word)), 10**6)
                if held > hard:
                    self.fault(f"{_id(claim)}: {scope} holds {held} of {word}, its budget is {hard} (R33)")

    def _namespaces(self) -> list[str]:
        return [namespace["metadata"]["name"] for namespace in self._api.all("namespaces")]

    def _refusals(self, old: Json | None, new: Json) -> None:
        now = EPOCH + dt.timedelta(seconds=self._clock.now)
        if len(new.get("status", {}).get("refusals", [])) > len((old or {}).get("status", {}).get("refusals", [])):
            self._count("refusals")
        kept = {r["nodeName"]: r for r in new.get("status", {}).get("refusals", [])}
        for refusal in (old or {}).get("status", {}).get("refusals", []):
            expires = dt.datetime.fromisoformat(refusal["expiresAt"])
            if expires <= now:
                continue
            after = kept.get(refusal["nodeName"])
            if after is None and self._api.find("nodes", "", refusal["nodeName"]) is not None:
                self.fault(f"{_id(new)} forgets that {refusal['nodeName']} refused it (R37)")
            elif after and self.truthful_clocks and dt.datetime.fromisoformat(after["expiresAt"]) < expires:
                self.fault(f"{_id(new)}: the refusal by {refusal['nodeName']} ends earlier (R37)")

    def _live_pods(self, claim: Json) -> list[str]:
        set_name = _set(claim)
        return [
            pod["metadata"]["name"]
            for pod in self._api.all("pods")
            if pod["metadata"]["namespace"] == claim["metadata"]["namespace"]
            and pod["metadata"]["labels"][names.VM_NAME_LABEL] == set_name
            and pod.get("status", {}).get("phase") not in model.FINAL_PHASES
        ]

    def _pod(self, pod: Json) -> None:
        meta = pod["metadata"]
        node, set_name = pinned_to(pod), meta["labels"][names.VM_NAME_LABEL]
        self._count("pods")
        members = [c for c in self._claims(meta["namespace"]) if _set(c) == set_name]
        if node is None:
            self.fault(f"pod {meta['namespace']}/{meta['name']} is let in and not pinned (R43)")
            return
        where = {c.get("status", {}).get("nodeName") for c in members if c.get("status", {}).get("nodeName")}
        if where != {node}:
            self.fault(
                f"pod {meta['namespace']}/{meta['name']} is pinned to {node}, its set is on {sorted(where)} (R36a)"
            )
        if len(self._live_pods_of(meta["namespace"], set_name)) > 1:
            self.fault(f"pod {meta['namespace']}/{meta['name']}: set {set_name} has another live pod (R43)")
        now = EPOCH + dt.timedelta(seconds=self._clock.now)
        for claim in members:
            for refusal in claim.get("status", {}).get("refusals", []):
                known = dt.datetime.fromisoformat(refusal["refusedAt"]) < now - _KNOWN_AFTER
                lasts = dt.datetime.fromisoformat(refusal["expiresAt"]) > now
                if self.truthful_clocks and refusal["nodeName"] == node and known and lasts:
                    self.fault(f"pod {meta['namespace']}/{meta['name']} is sent to {node}, which refuses it (R37)")

    def _live_pods_of(self, namespace: str, set_name: str) -> list[Json]:
        return [
            pod
            for pod in self._api.all("pods")
            if pod["metadata"]["namespace"] == namespace
            and pod["metadata"]["labels"][names.VM_NAME_LABEL] == set_name
            and pod.get("status", {}).get("phase") not in model.FINAL_PHASES
        ]

    # --- at rest ------------------------------------------------------------------------------------------------------

    def fresh_books(self) -> Books:
        """Books of what is stored now, made anew."""
        books = Books(Settings(silent_after=dt.timedelta(seconds=300)))
        for plural, kind in _KINDS.items():
            for obj in self._api.all(plural):
                books.apply(msgspec.convert(obj, kind, strict=False))
        books.advance(EPOCH + dt.timedelta(seconds=self._clock.now))
        return books

    def at_rest(self, mirrors: dict[str, Books], quiet_since: float) -> None:
        """The faults are over for long enough: everything that can be done must have been done."""
        now = EPOCH + dt.timedelta(seconds=self._clock.now)
        fresh = self.fresh_books()
        for who, books in mirrors.items():
            books.advance(now)
            _compare(self, who, invariants.snapshot(books), invariants.snapshot(fresh))
            for fault in invariants.wrong_index(books):
                self.fault(f"{who}: {fault}")
        if self.last_write > quiet_since:
            self.fault(f"the controller still writes, last at {self.last_write:.1f}")
        self._unbound(fresh, now)
        self._bound(fresh)
        for namespace, set_name in fresh.split_sets():
            verdict = place_set(fresh, namespace, set_name, now)
            if verdict.admitted and verdict.moves:
                self.fault(f"set {namespace}/{set_name} stays split (R36a)")
        for limit in fresh.budgets.quotas():
            quota = self._api.find("resourcequotas", limit.namespace, limit.quota) or {}
            said = quota.get("status", {}).get("used", {}).get(limit.key)
            if said != str(limit.used):
                self.fault(
                    f"quota {limit.namespace}/{limit.quota} says {said} of {limit.key}, it is {limit.used} (R33)"
                )

    def _unbound(self, fresh: Books, now: dt.datetime) -> None:
        for claim in fresh.unbound():
            if claim.metadata.deletion_timestamp is not None:
                self.fault(f"{claim.metadata.name} is deleted, unbound and stays")
            elif (verdict := decide(fresh, Order.of(claim), now)).admitted:
                self.fault(f"{claim.metadata.name} fits on {verdict.node} and is not bound (R38)")
            elif model.condition(claim.status.conditions, "Bound") is None:
                self.fault(f"{claim.metadata.name} waits, and its condition does not say why (R38)")

    def _bound(self, fresh: Books) -> None:
        for claim in fresh.claims():
            if claim.metadata.deletion_timestamp is not None and not fresh.attached(
                claim.metadata.namespace, model.claim_set(claim)
            ):
                self.fault(f"{claim.metadata.name} is deleted, has no pod and stays (R10a)")
            if names.HOLD_FINALIZER not in claim.metadata.finalizers:
                self.fault(f"{claim.metadata.name} has no finalizer")
            self._conditions(fresh, claim)

    def _conditions(self, fresh: Books, claim: GPUClaim) -> None:
        if claim.status.node_name is None:
            return
        pods = fresh.pods_of_set(claim.metadata.namespace, model.claim_set(claim))
        runs = any(pod.node == claim.status.node_name for pod in pods)
        attached = model.condition(claim.status.conditions, "Attached")
        if attached is None or (attached.status == core.Status.TRUE) is not runs:
            self.fault(f"{claim.metadata.name}: Attached is {attached and attached.status}, its pod runs: {runs}")
        if runs is not (claim.status.attachment is not None):
            self.fault(f"{claim.metadata.name}: its attachment does not say that its pod runs: {runs} (R12)")


def _compare(oracle: Oracle, who: str, mine: dict[str, Any], true: dict[str, Any]) -> None:
    for part, value in true.items():
        if mine[part] != value:
            oracle.fault(f"{who}: its books have {part} as {_brief(mine[part], value)}")


def _brief(mine: Any, true: Any) -> str:
    if isinstance(mine, dict) and isinstance(true, dict):
        keys = sorted(key for key in mine.keys() | true.keys() if mine.get(key) != true.get(key))
        return "; ".join(f"{key}: {mine.get(key)} for {true.get(key)}" for key in keys)[:900]
    return f"{mine} for {true}"[:900]


def _ancestors(api: Apiserver, namespace: str) -> list[str]:
    labels = (api.find("namespaces", "", namespace) or {"metadata": {}})["metadata"].get("labels", {})
    return [key.partition("/")[2] for key in labels]


def _set(claim: Json) -> str:
    return str(claim["spec"].get("set") or claim["metadata"]["name"])


def _same_set(one: Json, other: Json) -> bool:
    return bool(one["metadata"]["namespace"] == other["metadata"]["namespace"] and _set(one) == _set(other))


def _count(claim: Json) -> int:
    return int(claim["spec"].get("count", 1))


def _id(claim: Json) -> str:
    return f"{claim['metadata']['namespace']}/{claim['metadata']['name']}"
