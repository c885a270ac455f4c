"""Where a pod of a set goes (R43), and which pods are turned away (R44)."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence

from gpuclaim.api import core
from gpuclaim.api.reasons import PodRefusal
from gpuclaim.api.types import GPUClaim, Toleration
from gpuclaim.placement.books import Books, pod_facts
from gpuclaim.placement.orders import Pin, PodRefused
from gpuclaim.placement.verdict import place_set

__all__ = ["Pin", "PodRefused", "decide_pod"]


def decide_pod(books: Books, pod: core.Pod, now: dt.datetime) -> Pin | PodRefused | None:
    """Pin the pod to the node of its set, or turn it away; None for one that asks for no class's resource.

    Nothing is reserved: an admitted pod is entered with `Books.reserve_pod`. O(claims and pods of the set).
    """
    books.advance(now)
    facts = pod_facts(pod)
    asked: dict[str, int] = {}
    for name, count in facts.requests:
        resource = books.asked(name)
        if resource is not None:
            asked[resource] = asked.get(resource, 0) + count
    if not asked or facts.namespace in books.settings.exempt_namespaces:
        return None
    set_name = facts.set_name
    if set_name is None:
        return PodRefused(
            PodRefusal.NO_CLAIM,
            f"The pod asks for {_list(asked)} and belongs to no set: order a GPUClaim, and name its set in the label"
            " gpu.cozystack.io/set (a VM's pod belongs to the set of the VM's name).",
        )
    claims = books.claims_of_set(facts.namespace, set_name)
    staying = tuple(claim for claim in claims if claim.metadata.deletion_timestamp is None)
    refused = (
        _unbound(claims, staying, set_name)
        or _moving(books, facts.namespace, set_name)
        or _in_use(books, facts.namespace, set_name, own=(facts.uid, facts.name))
        or _above_hold(books, staying, asked, set_name)
    )
    if refused is not None:
        return refused
    node = claims[0].status.node_name or ""
    pin = Pin(node, _tolerations(books, claims))
    if any(r.node_name == node and r.expires_at > now for claim in claims for r in claim.status.refusals):
        verdict = place_set(books, facts.namespace, set_name, now)
        if not verdict.admitted or verdict.node is None:
            return PodRefused(
                PodRefusal.NODE_REFUSED,
                f"The node that holds the GPUs of set {set_name!r} turned its pod away a short while ago, and no other"
                " has room for it now. It is tried again after a pause.",
            )
        pin = Pin(verdict.node, pin.tolerations, verdict.moves)
    if pod.spec.node_name not in ("", pin.node):
        return PodRefused(
            PodRefusal.WRONG_NODE, f"The pod names a node that is not the one that holds the GPUs of set {set_name!r}."
        )
    return pin


def _unbound(claims: Sequence[GPUClaim], staying: Sequence[GPUClaim], set_name: str) -> PodRefused | None:
    if not claims:
        return PodRefused(PodRefusal.NO_CLAIM, f"There is no GPUClaim of set {set_name!r} in the pod's namespace.")
    if not staying:
        return PodRefused(PodRefusal.NOT_BOUND, f"The GPUClaims of set {set_name!r} are being deleted.")
    waiting = [claim.metadata.name for claim in claims if not claim.status.node_name]
    if waiting:
        return PodRefused(PodRefusal.NOT_BOUND, f"GPUClaim {waiting[0]!r} of set {set_name!r} is not bound yet.")
    if len({claim.status.node_name for claim in claims}) > 1:
        return PodRefused(PodRefusal.NOT_BOUND, f"The GPUClaims of set {set_name!r} are being brought together.")
    return None


def _moving(books: Books, namespace: str, set_name: str) -> PodRefused | None:
    if books.moving(namespace, set_name):
        return PodRefused(PodRefusal.NOT_BOUND, f"The GPUClaims of set {set_name!r} are being moved: try again.")
    return None


def _in_use(books: Books, namespace: str, set_name: str, own: tuple[str, str]) -> PodRefused | None:
    uid, own_name = own
    for other in books.pods_of_set(namespace, set_name):
        same = other.uid == uid if uid and other.uid else other.name == own_name
        if not same and any(books.asked(name) for name, _ in other.requests):
            return PodRefused(PodRefusal.SET_IN_USE, f"Pod {other.name!r} has the GPUs of set {set_name!r}.")
    if any(reserved.uid != uid for reserved in books.pod_reservations(namespace, set_name)):
        return PodRefused(PodRefusal.SET_IN_USE, f"Another pod is about to have the GPUs of set {set_name!r}.")
    return None


def _above_hold(books: Books, claims: Sequence[GPUClaim], asked: dict[str, int], set_name: str) -> PodRefused | None:
    for resource, count in sorted(asked.items()):
        held = sum(c.spec.count for c in claims if books.resource(c.spec.class_name) == resource)
        if count > held:
            return PodRefused(
                PodRefusal.ABOVE_HOLD, f"The pod asks for {count} of {resource}, and set {set_name!r} holds {held}."
            )
    return None


def _tolerations(books: Books, claims: Sequence[GPUClaim]) -> tuple[Toleration, ...]:
    classes = sorted({claim.spec.class_name for claim in claims})
    found = (t for name in classes if name in books.classes for t in books.classes[name].spec.tolerations)
    return tuple(dict.fromkeys(found))


def _list(asked: dict[str, int]) -> str:
    return ", ".join(f"{count} of {resource}" for resource, count in sorted(asked.items()))
