"""A tenant's desk: the catalogue, what is held and by which VM it is used, what the budget leaves."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from gpuclaim.api import core, model, names
from gpuclaim.api.types import Availability, GPUClaim, GPUClass, HistoryEntry, NodeRefusal
from gpuclaim.views import budget as budget_view
from gpuclaim.views import claims as claim_view
from gpuclaim.views import classes as class_view

_SAID: Final = {
    Availability.AVAILABLE.value: "Available",
    Availability.LIMITED.value: "Few left",
    Availability.SOLD_OUT.value: "Sold out",
}


class MachineStatus(core.Struct, frozen=True, kw_only=True):
    """kubevirt.io/v1 VirtualMachineStatus."""

    printable_status: str = ""


class Machine(core.Struct, frozen=True, kw_only=True):
    """kubevirt.io/v1 VirtualMachine, as far as a tenant is shown of it."""

    metadata: core.ObjectMeta
    status: MachineStatus = MachineStatus()


@dataclass(frozen=True, slots=True)
class Said:
    """A state in words, and the colour that says the same to who sees it: green, cyan, yellow, red or none."""

    words: str
    colour: str = ""


@dataclass(frozen=True, slots=True)
class Offer:
    """A class as the catalogue shows it.

    Attributes:
        title: what the hoster calls it; its name where that is nothing.
        counts: what is free of it, in words, where the hoster shows counts.
        most: the most GPUs in one set; None where there is no limit.
        takes: whether it can be ordered at all now.
    """

    name: str
    title: str
    description: str
    mode: str
    available: Said
    counts: str
    most: int | None
    takes: bool


def offers(classes: Iterable[GPUClass]) -> list[Offer]:
    """The catalogue, what can be ordered first."""
    found = [_offer(cls) for cls in classes]
    return sorted(found, key=lambda each: (not each.takes, each.name))


def _offer(cls: GPUClass) -> Offer:
    cell, status = class_view.available(cls), cls.status
    counts = ""
    if status.free is not None and status.total is not None:
        counts = f"{status.free} of {status.total} free"
        if status.largest_order:
            counts += f", {status.largest_order} in one order at most"
    return Offer(
        name=cls.metadata.name,
        title=cls.spec.display_name or cls.metadata.name,
        description=cls.spec.description,
        mode="whole GPU" if cls.spec.mode.value == "passthrough" else "vGPU",
        available=Said(_SAID.get(cell.value, cell.value), cell.colour),
        counts=counts,
        most=model.max_count(cls),
        takes=not cls.spec.closed and status.availability is not Availability.SOLD_OUT,
    )


@dataclass(frozen=True, slots=True)
class Hold:
    """An order and what has become of it.

    Attributes:
        why: the sentence behind a state that is not as it should be.
        machine: the VM that is to use it, in words.
        together: other claims of the same set.
        since: when it was ordered.
        refusals: nodes that turned its pod away and are not tried before their expiry, those that are over left out.
    """

    name: str
    uid: str
    class_name: str
    count: int
    state: Said
    why: str
    machine: Said
    pod: str
    node: str
    set_name: str
    together: tuple[str, ...]
    since: dt.datetime | None
    releasing: bool
    refusals: tuple[NodeRefusal, ...] = ()
    history: tuple[HistoryEntry, ...] = ()


def holds(claims: Iterable[GPUClaim], machines: Iterable[Machine] | None, now: dt.datetime) -> list[Hold]:
    """The claims of a namespace, by name; `machines` are its VMs, None where they cannot be read."""
    listed = sorted(claims, key=lambda each: each.metadata.name)
    sets: dict[str, list[str]] = {}
    for claim in listed:
        sets.setdefault(model.claim_set(claim), []).append(claim.metadata.name)
    by_name = {each.metadata.name: each for each in machines} if machines is not None else None
    return [_hold(claim, sets[model.claim_set(claim)], by_name, now) for claim in listed]


def _hold(claim: GPUClaim, members: list[str], machines: Mapping[str, Machine] | None, now: dt.datetime) -> Hold:
    cell, meta, status = claim_view.state(claim), claim.metadata, claim.status
    set_name = model.claim_set(claim)
    return Hold(
        name=meta.name,
        uid=meta.uid,
        class_name=claim.spec.class_name,
        count=claim.spec.count,
        state=Said(cell.value, cell.colour),
        why=claim_view.why(claim),
        machine=_machine(claim, set_name, machines),
        pod=status.attachment.pod_name if status.attachment is not None else "",
        node=status.node_name or "",
        set_name=set_name,
        together=tuple(name for name in members if name != meta.name),
        since=meta.creation_timestamp,
        releasing=meta.deletion_timestamp is not None,
        refusals=tuple(refusal for refusal in status.refusals if refusal.expires_at > now),
        history=tuple(reversed(status.history)),
    )


def _machine(claim: GPUClaim, set_name: str, machines: Mapping[str, Machine] | None) -> Said:
    attached = claim.status.attachment is not None
    if machines is None:
        return Said("a pod runs", "green") if attached else Said("no pod runs")
    found = machines.get(set_name)
    if found is not None:
        status = found.status.printable_status
        return Said(f"{set_name}: {status or 'known'}", "green" if status == "Running" else "")
    return Said("a pod that is no VM's", "green") if attached else Said(f"none named {set_name} yet")


@dataclass(frozen=True, slots=True)
class Budget:
    """What one budget lets be held: of a class, or of all together (`total`)."""

    namespace: str
    quota: str
    key: str
    used: int | None
    hard: int
    left: int | None
    own: bool

    @property
    def words(self) -> str:
        """What is left, in words."""
        if self.left is None:
            return "not counted yet"
        return "nothing left" if self.left == 0 else f"{self.left} left"


def budgets(quotas: Iterable[core.ResourceQuota], own: str = "") -> list[Budget]:
    """A budget key each; those of the tenant `own` first."""
    return [
        Budget(line.namespace, line.quota, line.key, line.used, line.hard, line.left, line.namespace == own)
        for line in budget_view.lines(quotas, own)
    ]


def suggestions(name: str, groups: Iterable[str], prefix: str) -> list[str]:
    """Namespaces that somebody may be at home in, by what the apiserver calls them; each is still to be asked about.

    A ServiceAccount is at home in its namespace. A group `<namespace>-<role>` is Cozystack's, of its tenants, whose
    names begin with `prefix`.
    """
    found: list[str] = []
    parts = name.split(":")
    if parts[:2] == ["system", "serviceaccount"] and len(parts) == 4:
        found.append(parts[2])
    for group in groups:
        for role in ("-super-admin", "-admin", "-use", "-view"):
            if group.startswith(prefix) and group.endswith(role):
                found.append(group.removesuffix(role))
                break
    return list(dict.fromkeys(found))


def order_fault(class_name: str, count: str, name: str, set_name: str) -> str:
    """What of a form cannot be an order at all, as a sentence; empty where the apiserver may be asked."""
    if not names.is_dns_label(class_name):
        return "Choose one of the classes."
    if not (count.isascii() and count.isdigit() and 1 <= int(count[:10] or 0) <= 2**31 - 1):
        return "How many must be a whole number from 1 on."
    if name and not names.is_dns_label(name):
        return "The name may have small letters, digits and '-' between them, 63 at most: it is the VM's."
    if set_name and not (len(set_name) <= names.LABEL_MAX and re.fullmatch(names.NAMED_LABEL_VALUE, set_name)):
        return "The set may have letters, digits, '-', '_' and '.' between them, 63 at most."
    return ""
