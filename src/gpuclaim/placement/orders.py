"""What goes into a decision and what comes out of it: plain values."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass

from gpuclaim.api import model
from gpuclaim.api.reasons import PodRefusal, Refusal
from gpuclaim.api.types import GPUClaim, Toleration


@dataclass(frozen=True, slots=True)
class Order:
    """A claim that asks for a place."""

    namespace: str
    name: str
    uid: str
    class_name: str
    count: int
    set_name: str

    @classmethod
    def of(cls, claim: GPUClaim) -> Order:
        """The order that the claim is."""
        meta, spec = claim.metadata, claim.spec
        return cls(meta.namespace, meta.name, meta.uid, spec.class_name, spec.count, model.claim_set(claim))


@dataclass(frozen=True, slots=True, order=True)
class Move:
    """One bound claim goes from one node to another."""

    namespace: str
    name: str
    from_node: str
    to_node: str


@dataclass(frozen=True, slots=True)
class Cause:
    """One entry of a refusal's status.details.causes.

    `reason` is a `Refusal`, or `LargestOrder`, whose message is the number of GPUs that would be taken now. The message
    of an OverBudget cause is `key=K used=N hard=N left=N quota=NAME`, of a parent tenant's budget `key=K parent=true`.
    """

    reason: str
    field: str
    message: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer to an order, or to the question where a set should stand.

    Admitted, `node` is where it goes once `moves` are made, of whole sets, in this order: each goes into room that is
    free by then. Refused, `reason`, a sentence and the
    causes say why.
    """

    admitted: bool
    node: str | None = None
    reason: Refusal | None = None
    message: str = ""
    causes: tuple[Cause, ...] = ()
    moves: tuple[Move, ...] = ()


@dataclass(frozen=True, slots=True)
class Reservation:
    """What an admitted order, or planned moves alone, hold under a UID until the stored objects say so themselves."""

    uid: str
    until: dt.datetime
    order: Order | None
    node: str | None
    moves: tuple[Move, ...] = ()


@dataclass(frozen=True, slots=True)
class PodReservation:
    """An admitted pod that is not stored yet: its set counts as attached."""

    uid: str
    namespace: str
    set_name: str
    until: dt.datetime


@dataclass(frozen=True, slots=True)
class Pin:
    """The node that a pod goes to, and the tolerations it needs there.

    `moves` bring the set there first: its former node is under a refusal. They must be stored before the pod is let in.
    """

    node: str
    tolerations: tuple[Toleration, ...] = ()
    moves: tuple[Move, ...] = ()


@dataclass(frozen=True, slots=True)
class PodRefused:
    """Why a pod is turned away when it is created."""

    reason: PodRefusal
    message: str
