"""What must hold, looked at in the apiserver's own store after every write. What must hold at rest is in `rest`.

What a leader knows is always a little old. Where a rule depends on what may have changed under it (a GPU that broke, a
quota that was lowered), the most that was allowed within `_LAG_SECONDS` counts.
"""

from __future__ import annotations

import datetime as dt
from typing import Any, Final

import msgspec

from gpuclaim.api import model, names
from gpuclaim.api.types import GPUClaim
from gpuclaim.placement import survival
from simulator.apiserver import EPOCH, Apiserver, Json
from simulator.chaos import Chaos
from simulator.cluster import CLASSES, FOREIGN, Cluster, gpus_of, is_live, pinned_to, set_of_claim, set_of_pod
from simulator.database import Database
from simulator.loop import Universe
from simulator.replica import Replica
from simulator.vms import devices_of

_LAG_SECONDS: Final = 120.0
_KNOWN_AFTER: Final = dt.timedelta(seconds=30)
_STALE_SECONDS: Final = 60.0
"""What was stored that long ago every leader knows: a watch that is not current keeps it from writing."""
_OURS: Final = ("gpuclaims", "gpuclasses", "gpunodes", "resourcequotas")
_HEARD_OF_SECONDS: Final = 12.0
"""A leader that decides has heard of what happened to a pod that long ago."""
_ROUNDING_SECONDS: Final = 2.0
_SOON_SECONDS: Final = 5.0
_UNLIMITED: Final = 10**6


class Oracle:
    """Sees every write, and keeps what it finds wrong."""

    def __init__(self, universe: Universe) -> None:
        self.faults: list[str] = []
        self.last_write = 0.0
        """When a replica last wrote anything that it means to keep."""
        self._universe = universe
        self._clock = universe.clock
        self._tally = universe.tally
        self._seen: dict[Any, list[tuple[float, int]]] = {}
        self.turned_away_at: dict[str, float] = {}
        """When kubelet turned a pod away, by the pod's UID."""
        self._removed: dict[str, float] = {}
        self._changed: dict[tuple[str, str, str], float] = {}
        self.bound_at: dict[str, float] = {}
        """When a claim was first bound, by its UID."""
        self.deleted_at: dict[str, float] = {}
        """When its deletion was asked for."""
        self.gone: dict[str, GPUClaim] = {}
        """The claims that were bound and are no more, as they were last."""

    def attach(self, api: Apiserver, cluster: Cluster, database: Database, chaos: Chaos) -> None:
        """What is looked at."""
        self.api = api
        self.cluster = cluster
        self.database = database
        self.chaos = chaos

    def fault(self, text: str) -> None:
        """Something does not hold."""
        self.faults.append(f"{self._clock.now:.3f} {text}")
        self._universe.halt()

    def now(self) -> dt.datetime:
        """The time, as it truly is."""
        return EPOCH + dt.timedelta(seconds=self._clock.now)

    # --- every write --------------------------------------------------------------------------------------------------

    def written(self, plural: str, old: Json | None, new: Json | None, who: str, replicas: list[Replica]) -> None:
        """An object was stored, or is gone; the store has it already."""
        meta = ((new or old) or {})["metadata"]
        self._changed[plural, meta.get("namespace", ""), meta["name"]] = self._clock.now
        if plural == "nodes" and new is None:
            self._removed[meta["name"]] = self._clock.now
        if plural in ("resourcequotas", "gpunodes", "nodes", "pods"):
            self._remember(plural, new or old or {}, gone=new is None)
        if who != "kubernetes":
            self._leaders(plural, old, new, who, replicas)
            if plural not in ("leases", "events"):
                self.last_write = self._clock.now
            if plural in _OURS and new is not None:
                self._conditions(plural, old, new)
        if plural == "pods" and new is not None:
            if old is None:
                self._pod(new)
            elif is_live(old) and not is_live(new) and new["status"].get("reason"):
                self.turned_away_at[meta["uid"]] = self._clock.now
        if plural == "gpuclaims":
            self._claim(old, new)
        if plural == "virtualmachines" and old is None and new is not None:
            self._machine(new)

    def idle(self, plural: str, obj: Json, who: str) -> None:
        """A write changed nothing (R16): who wrote may have not known, but not for long."""
        if who == "kubernetes" or plural not in _OURS:
            return
        self._tally["write without a change"] += 1
        meta = obj["metadata"]
        known = self._clock.now - self._changed[plural, meta.get("namespace", ""), meta["name"]]
        if known > _STALE_SECONDS:
            self.fault(f"{who} writes {plural} {meta['name']} as it has been for {known:.0f} s (R16)")

    def _leaders(self, plural: str, old: Json | None, new: Json | None, who: str, replicas: list[Replica]) -> None:
        """Never two that take themselves for the leader, and no write of one while another decides (R39)."""
        leading = [replica.name for replica in replicas if replica.holds_lease]
        if len(leading) > 1:
            self.fault(f"{leading} hold the lease at once (R39)")
        others = [replica.name for replica in replicas if replica.name != who and replica.leads]
        if plural in _OURS and others:
            # A process may stop between its look at the lease and the write. A report does no harm; a placement does.
            self._tally["write of an old leader came late"] += 1
            places = [(each or {}).get("status", {}).get("nodeName") for each in (old, new)]
            if plural == "gpuclaims" and new is not None and places[0] != places[1]:
                self.fault(f"{who} places {new['metadata']['name']} while {others[0]} leads (R39)")
        if plural == "leases" and new is not None:
            before = ((old or {}).get("spec") or {}).get("holderIdentity")
            after = new["spec"].get("holderIdentity")
            if after and after != before:
                self._tally["leader changes"] += 1
                there = next((replica for replica in replicas if replica.name == before), None)
                self._tally["leader changes while the old one lives"] += there is not None
                self._tally["two leaders: the old one has not noticed yet"] += there is not None and there.in_term

    def _conditions(self, plural: str, old: Json | None, new: Json) -> None:
        """A transition's time moves with its status, so that nothing is written while nothing changes (R16)."""
        self._tally[f"written: {plural}"] += 1
        before = {c["type"]: c for c in (old or {}).get("status", {}).get("conditions", [])}
        after = {c["type"]: c for c in new.get("status", {}).get("conditions", [])}
        changed = [type_ for type_, condition in after.items() if condition != before.get(type_)]
        self._tally[f"conditions changed: {plural}"] += len(changed)
        for type_ in changed:
            was, now = before.get(type_), after[type_]
            if was is None:
                continue
            kept = was["lastTransitionTime"] == now["lastTransitionTime"]
            # Two transitions within a second have one time.
            soon = self._clock.now - _seconds(was["lastTransitionTime"]) < _SOON_SECONDS
            excused = soon or not self.chaos.truthful_clocks
            if (was["status"] == now["status"] and not kept) or (
                was["status"] != now["status"] and kept and not excused
            ):
                self.fault(f"{new['metadata']['name']}: {type_} goes from {was} to {now} (R16)")
        if plural == "gpunodes" and not changed:
            self.fault(f"gpunode {new['metadata']['name']} is written, and no condition changes (R16)")

    # --- what was allowed ---------------------------------------------------------------------------------------------

    def _remember(self, plural: str, obj: Json, *, gone: bool) -> None:
        meta = obj["metadata"]
        if plural == "resourcequotas":
            hard = {} if gone else obj["spec"].get("hard", {})
            for word in (*CLASSES, names.TOTAL):
                key = names.budget_key(word)
                self._enter(("quota", meta["namespace"], meta["name"], key), int(hard.get(key, _UNLIMITED)))
        elif plural == "pods":
            if meta["namespace"] == FOREIGN and (node := obj["spec"].get("nodeName")):
                self._enter_gpus(node)
        else:
            self._enter_gpus(meta["name"])

    def _enter_gpus(self, name: str) -> None:
        """What the node has for holds: what works, less what foreign pods have."""
        machine = self.cluster.machines[name]
        foreign = sum(
            gpus_of(pod)
            for pod in self.cluster.pods_on(machine)
            if pod["metadata"]["namespace"] == FOREIGN and is_live(pod)
        )
        self._tally["foreign pods took GPUs"] += foreign > 0
        self._enter(("gpus", machine.name), machine.healthy - foreign)

    def _enter(self, key: Any, value: int) -> None:
        self._seen.setdefault(key, []).append((self._clock.now, value))

    def _most(self, key: Any, default: int) -> int:
        """The most that was so within the lag."""
        since = self._clock.now - _LAG_SECONDS
        entries = self._seen.get(key, [])
        recent = [value for at, value in entries if at >= since]
        before = [value for at, value in entries if at < since][-1:]
        return max(recent + (before or [default]))

    # --- claims -------------------------------------------------------------------------------------------------------

    def _claim(self, old: Json | None, new: Json | None) -> None:
        before = msgspec.convert(old, GPUClaim, strict=False) if old is not None else None
        after = msgspec.convert(new, GPUClaim, strict=False) if new is not None else None
        self._survives(old, before, after)
        if after is None or new is None:
            return
        uid = after.metadata.uid
        if after.metadata.deletion_timestamp is not None:
            self.deleted_at.setdefault(uid, self._clock.now)
        was = before.status.node_name if before is not None else None
        node = after.status.node_name
        if model.condition(after.status.conditions, "Bound") is not None and not node:
            bound = model.condition(after.status.conditions, "Bound")
            if bound is not None and bound.status == "True":
                self.fault(f"{_id(new)} is Bound without a node")
        if node and node != was:
            self._placed(new, was, node)
            if was is not None:
                self._tally[f"moved: {after.status.history[-1].reason}"] += 1
        if len(after.status.refusals) > len(before.status.refusals if before is not None else []):
            self._tally["refusals"] += 1

    def _survives(self, old: Json | None, before: GPUClaim | None, after: GPUClaim | None) -> None:
        """Nothing is lost from one state to the next (R11, R12, R37, R50)."""
        if before is None or old is None:
            return
        since = self._clock.now - _LAG_SECONDS
        there = {name for name in self.cluster.machines if self._removed.get(name, -_LAG_SECONDS) < since}
        for each in survival.lost(before, after, self.now(), recorded=self.database.recorded, nodes=there):
            self.fault(each)
        if after is None:
            if before.status.node_name:
                self.gone[before.metadata.uid] = before
                if self._live_pods(before.metadata.namespace, set_of_claim(old)):
                    self.fault(f"{_id(old)} goes while its set's pod lives (R10a)")
        elif before.metadata.deletion_timestamp is None and after.metadata.deletion_timestamp is not None:
            self._tally["claims deleted"] += 1

    def _placed(self, claim: Json, before: str | None, after: str) -> None:
        machine = self.cluster.machines[after]
        self._tally["binds" if before is None else "moves"] += 1
        own = set_of_claim(claim)
        others = {
            c["status"]["nodeName"]
            for c in self.cluster.claims(claim["metadata"]["namespace"])
            if set_of_claim(c) == own
            and c["metadata"]["uid"] != claim["metadata"]["uid"]
            and c.get("status", {}).get("nodeName")
        }
        self._tally["half a set moved"] += before is not None and bool(others - {after})
        if before is None:
            self.bound_at[claim["metadata"]["uid"]] = self._clock.now
            if others and after not in others:
                self.fault(f"{_id(claim)} is bound to {after}, its set is on {sorted(others)} (R31)")
            self._budget(claim)
        elif self._live_pods(claim["metadata"]["namespace"], own):
            self.fault(f"{_id(claim)} moves from {before} to {after} under its pod (R36b)")
        held = sum(_count(c) for c in self.api.all("gpuclaims") if c.get("status", {}).get("nodeName") == after)
        most = self._most(("gpus", after), machine.gpus)
        if held > most:
            self.fault(f"{_id(claim)} on {after}: {held} GPUs are held of {most} (R39)")
        if before is not None and self.chaos.truthful_clocks:
            for refusal in claim["status"].get("refusals", []):
                if refusal["nodeName"] == after and _seconds(refusal["expiresAt"]) > self._clock.now + 5:
                    self.fault(f"{_id(claim)} moves to {after}, which refuses it until {refusal['expiresAt']} (R37)")

    def _budget(self, claim: Json) -> None:
        own = claim["metadata"]["namespace"]
        class_name = claim["spec"]["className"]
        for scope in [own, *self._ancestors(own)]:
            inside = [
                each["metadata"]["name"]
                for each in self.api.all("namespaces")
                if scope in (each["metadata"]["name"], *self._ancestors(each["metadata"]["name"]))
            ]
            for word in (class_name, names.TOTAL):
                held = sum(
                    _count(c)
                    for c in self.api.all("gpuclaims")
                    if c["metadata"]["namespace"] in inside
                    and c.get("status", {}).get("nodeName")
                    and word in (c["spec"]["className"], names.TOTAL)
                )
                for key in self._seen:
                    if key[0] == "quota" and key[1] == scope and key[3] == names.budget_key(word):
                        hard = self._most(key, _UNLIMITED)
                        if held > hard:
                            self.fault(f"{_id(claim)}: {scope} holds {held} of {word}, its budget is {hard} (R33)")

    def _ancestors(self, namespace: str) -> list[str]:
        labels = (self.api.find("namespaces", "", namespace) or {"metadata": {}})["metadata"].get("labels", {})
        return [key.partition("/")[2] for key in labels]

    # --- pods and VMs -------------------------------------------------------------------------------------------------

    def _live_pods(self, namespace: str, set_name: str) -> list[Json]:
        return [
            pod
            for pod in self.api.all("pods")
            if pod["metadata"]["namespace"] == namespace and set_of_pod(pod) == set_name and is_live(pod)
        ]

    def _pod(self, pod: Json) -> None:
        meta, set_name = pod["metadata"], set_of_pod(pod)
        if set_name is None:
            return
        who = f"pod {meta['namespace']}/{meta['name']}"
        node = pinned_to(pod)
        self._tally["pods let in"] += 1
        members = [c for c in self.cluster.claims(meta["namespace"]) if set_of_claim(c) == set_name]
        if node is None:
            self.fault(f"{who} is let in and not pinned (R43)")
            return
        where = {c["status"]["nodeName"] for c in members if c.get("status", {}).get("nodeName")}
        if where != {node}:
            self.fault(f"{who} is pinned to {node}, its set is on {sorted(where)} (R36a)")
        if len(self._live_pods(meta["namespace"], set_name)) > 1:
            self.fault(f"{who}: set {set_name} has another live pod (R43)")
        if not self.chaos.truthful_clocks:
            return
        self._refused_pod(who, node, meta, members)
        for claim in members:
            for refusal in claim.get("status", {}).get("refusals", []):
                known = dt.datetime.fromisoformat(refusal["refusedAt"]) < self.now() - _KNOWN_AFTER
                lasts = dt.datetime.fromisoformat(refusal["expiresAt"]) > self.now()
                if refusal["nodeName"] == node and known and lasts:
                    self.fault(f"{who} is sent to {node}, which refuses it (R37)")

    def _refused_pod(self, who: str, node: str, meta: Json, members: list[Json]) -> None:
        """That a pod of the set was turned away there stands in the set's claims before another one is sent (R37)."""
        for other in self.turned_away(_HEARD_OF_SECONDS):
            own = (other["metadata"]["namespace"], set_of_pod(other))
            same = own == (meta["namespace"], meta["labels"][names.VM_NAME_LABEL])
            if same and other["spec"]["nodeName"] == node and not any(self.says_so(each, other) for each in members):
                self.fault(f"{who} is sent to {node}, and no claim says that it turned one away (R37)")

    def turned_away(self, seconds: float) -> list[Json]:
        """The pods that were turned away at least so long ago, are still to be seen, and by nodes that never left."""
        found = []
        for pod in self.api.all("pods"):
            at = self.turned_away_at.get(pod["metadata"]["uid"])
            if at is not None and at < self._clock.now - seconds and pod["spec"]["nodeName"] not in self._removed:
                found.append(pod)
        return found

    def says_so(self, claim: Json, pod: Json) -> bool:
        """Whether the claim has a refusal by the node that turned the pod away, of then or later."""
        at = EPOCH + dt.timedelta(seconds=self.turned_away_at[pod["metadata"]["uid"]] - _ROUNDING_SECONDS)
        return any(
            refusal["nodeName"] == pod["spec"]["nodeName"] and dt.datetime.fromisoformat(refusal["refusedAt"]) >= at
            for refusal in claim.get("status", {}).get("refusals", [])
        )

    def _machine(self, vm: Json) -> None:
        """A VM that is an order has the devices that it orders (R45)."""
        labels = vm["metadata"]["labels"]
        wanted = {CLASSES[labels[names.CLASS_LABEL]]: int(labels[names.COUNT_LABEL])}
        if dict(devices_of(vm)) != wanted:
            self.fault(f"VM {vm['metadata']['name']} orders {wanted} and has {dict(devices_of(vm))} (R45)")


def _seconds(moment: str) -> float:
    return (dt.datetime.fromisoformat(moment) - EPOCH).total_seconds()


def _count(claim: Json) -> int:
    return int(claim["spec"].get("count", 1))


def _id(claim: Json) -> str:
    return f"{claim['metadata']['namespace']}/{claim['metadata']['name']}"
