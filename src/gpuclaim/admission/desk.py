"""The desk: what the webhook answers to orders and to launcher pods, decided on the books by placement."""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec

from gpuclaim.admission import machines, pin, review
from gpuclaim.admission.hearing import UNAVAILABLE_CODE, Hearing
from gpuclaim.admission.judgement import Judgement, Ruling, Subject
from gpuclaim.api import core, model, names
from gpuclaim.api.types import GPUClaim
from gpuclaim.placement import messages, repeats
from gpuclaim.placement.books import Books
from gpuclaim.placement.orders import Move, Order, Verdict
from gpuclaim.placement.pods import PodRefused, decide_pod
from gpuclaim.placement.verdict import decide

RESERVED_FOR: Final = dt.timedelta(seconds=30)
"""How long an admitted order counts before it is stored; the apiserver's requests end long before."""
POD_RESERVED_FOR: Final = dt.timedelta(seconds=10)
"""The same for a pod. Shorter: where another admission plugin turned the pod away, its owner soon tries again."""

ALREADY_EXISTS: Final = "AlreadyExists"
_UNAVAILABLE: Final = "ServiceUnavailable"
_PLACED_ANEW: Final = "the node of the set turned its last pod away, and the set is being placed anew"


class _Named(core.Struct, frozen=True, kw_only=True):
    metadata: core.ObjectMeta


class MoveError(Exception):
    """The moves that an order needs could not be stored; each hold stands where it stood or where it was to go."""


@dataclasses.dataclass(kw_only=True)
class Desk:
    """Answers AdmissionReviews, on one thread: a decision and its reservation are one step, so no GPU goes twice (R41).

    Attributes:
        books: what is known; admitted orders and pods are reserved there until they are stored.
        now: the present moment.
        obstacle: why no answer may be given now, as for a replica that does not lead; None when nothing is in the way.
        make_moves: stores moves of holds that are reserved under a token, and returns once they are stored; raises
            MoveError, and then has seen to the reservation.
        settled: returns once nothing of a set (namespace, name) is admitted or moved and not stored yet; False when
            that takes too long.
        being_refused: whether a set (namespace, name) had a pod turned away, and its claims do not all say so yet.
        machine_order: what a stored VirtualMachine (namespace, name) orders, under the VM's UID.
        gone: whether a deleted claim (namespace, name) that has no pod any more is no more, in a moment at the latest.
        judged: hears of every decision once it is answered.
    """

    books: Books
    now: Callable[[], dt.datetime]
    obstacle: Callable[[], str | None]
    make_moves: Callable[[str, tuple[Move, ...]], Awaitable[None]]
    being_refused: Callable[[str, str], bool]
    settled: Callable[[str, str], Awaitable[bool]]
    machine_order: Callable[[str, str], Order | None]
    gone: Callable[[str, str], Awaitable[bool]]
    judged: Callable[[Judgement], None] = lambda _judgement: None

    async def hold(self, request: review.Request) -> review.Response:
        """Gives a new GPUClaim the finalizer: it holds until its pod has ended, whatever deletes it (R10a)."""
        present = msgspec.json.decode(request.object, type=_Named).metadata.finalizers
        value = [*present, names.HOLD_FINALIZER]
        return review.allow([{"op": "add", "path": "/metadata/finalizers", "value": value}])

    async def order(self, request: review.Request) -> review.Response:
        """The answer to the creation of a GPUClaim (R40, R42)."""
        return await self._heard(Hearing(request, Subject.ORDER), self._order)

    async def fill_machine(self, request: review.Request) -> review.Response:
        """Gives a new VirtualMachine that is an order the devices that it orders (R45)."""
        # Whether it is admitted is decided later, by `order_of_machine`.
        return await self._heard(Hearing(request, Subject.ORDER, of_interest=False), self._fill_machine)

    async def order_of_machine(self, request: review.Request) -> review.Response:
        """The answer to the creation of a VirtualMachine that is an order: reserved until its claim is made (R45)."""
        return await self._heard(Hearing(request, Subject.ORDER), self._order_of_machine)

    async def pod(self, request: review.Request) -> review.Response:
        """The answer to the creation of a pod that asks for a GPU (R43)."""
        return await self._heard(Hearing(request, Subject.POD, ruling=Ruling.PINNED), self._pod)

    async def _heard(
        self, hearing: Hearing, answer: Callable[[Hearing], Awaitable[review.Response]]
    ) -> review.Response:
        obstacle = self.obstacle()
        response = _unavailable(obstacle) if obstacle else await answer(hearing)
        if hearing.of_interest or not response.allowed:
            self.judged(hearing.judgement(response))
        return response

    async def _order(self, hearing: Hearing) -> review.Response:
        request = hearing.request
        claim = msgspec.json.decode(request.object, type=GPUClaim)
        order, machine = Order.of(claim), machines.owner_of(claim.metadata)
        if machine is None:
            return await self._decided(hearing, order)
        of_machine = dataclasses.replace(order, uid=machine)
        reserved = self.books.reservation(machine)
        if reserved is not None and reserved.order == of_machine:
            # It was decided when the VM was made.
            hearing.of_interest = False
            if not request.dry_run:
                self.books.hand_over(machine, order, self.now() + RESERVED_FOR)
            return review.allow()
        answer = await self._decided(hearing, order)
        if not answer.allowed and self.machine_order(order.namespace, order.name) == of_machine:
            # The VM is stored, admitted by a leader that is no more: its claim waits for room where all can see it.
            hearing.ruling = Ruling.WAITS
            return review.allow()
        return answer

    async def _fill_machine(self, hearing: Hearing) -> review.Response:
        request = hearing.request
        found = machines.order_of(self._named(request))
        if found is None:
            return review.allow()
        if isinstance(found, machines.Fault):
            return _faulty(found, request.name)
        hearing.order = found
        cls = self.books.classes.get(found.class_name)
        if cls is None:
            return _refused(request, found, messages.unknown_class(found))
        patch = machines.fill(msgspec.json.decode(request.object), cls, found.count)
        return _faulty(patch, found.name) if isinstance(patch, machines.Fault) else review.allow(patch)

    async def _order_of_machine(self, hearing: Hearing) -> review.Response:
        request = hearing.request
        order = machines.order_of(self._named(request))
        if order is None:
            hearing.of_interest = False
            return review.allow()
        if isinstance(order, machines.Fault):
            return _faulty(order, request.name)
        claim = self.books.claim(order.namespace, order.name)
        if claim is None:
            return await self._decided(hearing, order)
        # The claim was decided, and the VM takes it.
        hearing.order, hearing.of_interest = order, False
        fault = machines.conflict(claim, order)
        return _faulty(fault, order.name) if fault is not None else review.allow()

    @staticmethod
    def _named(request: review.Request) -> core.ObjectMeta:
        meta = msgspec.json.decode(request.object, type=_Named).metadata
        return msgspec.structs.replace(meta, namespace=request.namespace)

    async def _decided(self, hearing: Hearing, order: Order) -> review.Response:
        """Decides the order, and reserves under its UID what it is given."""
        request, hearing.order = hearing.request, order
        if await self._exists(order):
            return _name_is_taken(order)
        if obstacle := self.obstacle():
            return _unavailable(obstacle)
        earlier = repeats.other_try(self.books, order)
        if earlier is not None:
            hearing.node = earlier.node
            if not request.dry_run:
                self.books.hand_over(earlier.uid, order, self.now() + RESERVED_FOR)
            return review.allow()
        verdict = hearing.decided(lambda: decide(self.books, order, self.now()))
        while not verdict.admitted and self.books.in_flight(order.namespace, order.set_name):
            # The set's members come at once: what is on its way cannot be moved yet, and can in a moment.
            if not await self.settled(order.namespace, order.set_name):
                break
            if obstacle := self.obstacle():
                return _unavailable(obstacle)
            verdict = hearing.decided(lambda: decide(self.books, order, self.now()))
        hearing.node, hearing.moves = verdict.node, verdict.moves
        if not verdict.admitted:
            return _refused(request, order, verdict)
        if not request.dry_run:
            self.books.reserve(order, verdict, self.now() + RESERVED_FOR)
            if obstacle := await self._moved(order.uid, verdict.moves):
                return _unavailable(obstacle)
        return review.allow()

    async def _exists(self, order: Order) -> bool:
        """Whether a claim of this name is stored. One that is being deleted may be gone already, and is waited for."""
        claim = self.books.claim(order.namespace, order.name)
        if claim is None or claim.metadata.uid == order.uid:
            return False
        # Only we let a claim go, and not before it is deleted: any other is surely there.
        return claim.metadata.deletion_timestamp is None or not await self.gone(order.namespace, order.name)

    async def _pod(self, hearing: Hearing) -> review.Response:
        request = hearing.request
        typed = msgspec.json.decode(request.object, type=core.Pod)
        meta = msgspec.structs.replace(typed.metadata, namespace=request.namespace)
        pod = msgspec.structs.replace(typed, metadata=meta)
        namespace, set_name = meta.namespace, model.pod_set(meta.labels) or ""
        hearing.name, hearing.set_name = meta.name or meta.generate_name, set_name
        if self.being_refused(namespace, set_name):
            return _unavailable(_PLACED_ANEW)
        now = self.now()
        decision = hearing.decided(lambda: decide_pod(self.books, pod, now))
        if isinstance(decision, PodRefused) and self.books.in_flight(namespace, set_name):
            # A VM that is an order starts at once: its claim is about to be stored.
            await self.settled(namespace, set_name)
            if obstacle := self.obstacle():
                return _unavailable(obstacle)
            if self.being_refused(namespace, set_name):
                # It is bound now, and to a node that turned a pod away under an earlier claim of its name.
                return _unavailable(_PLACED_ANEW)
            now = self.now()
            decision = hearing.decided(lambda: decide_pod(self.books, pod, now))
        if decision is None:
            hearing.of_interest = False
            return review.allow()
        if isinstance(decision, PodRefused):
            return review.refuse(decision.reason, decision.message)
        hearing.node, hearing.moves = decision.node, decision.moves
        if not request.dry_run:
            # In the mutating phase a pod has no UID yet; the request's own serves as well.
            token, until = f"pod {request.uid}", now + POD_RESERVED_FOR
            self.books.reserve_pod(namespace, set_name, token, until)
            # A write that is given up may come later than the pod can.
            self.books.reserve_moves(token, decision.moves, now + RESERVED_FOR)
            if obstacle := await self._moved(token, decision.moves):
                self.books.release_pod(token)
                return _unavailable(obstacle)
        raw: dict[str, Any] = msgspec.json.decode(request.object)
        return review.allow(pin.pin(raw, decision.node, decision.tolerations))

    async def _moved(self, token: str, moves: tuple[Move, ...]) -> str | None:
        """Makes the moves that are reserved under `token` (R35a); what went wrong, in a sentence, or None."""
        if not moves:
            return None
        try:
            await self.make_moves(token, moves)
        except MoveError as error:
            return f"making room failed, try again: {error}"
        # The lease may have run out meanwhile, and another leader may decide now.
        return self.obstacle()


_MACHINE_FIELDS: Final = {"spec.count": machines.COUNT_FIELD, "spec.className": machines.CLASS_FIELD}


def _name_is_taken(order: Order) -> review.Response:
    """As the apiserver says it, which asks us first."""
    kind = "gpuclaims"
    message = f'{kind}.{names.GROUP} "{order.name}" already exists'
    details = core.StatusDetails(group=names.GROUP, kind=kind, name=order.name)
    return review.refuse(ALREADY_EXISTS, message, code=409, details=details)


def _refused(request: review.Request, order: Order, verdict: Verdict) -> review.Response:
    of_machine = request.kind.kind == machines.KIND
    causes = [
        core.StatusCause(
            reason=cause.reason,
            field=_MACHINE_FIELDS.get(cause.field, cause.field) if of_machine else cause.field,
            message=cause.message,
        )
        for cause in verdict.causes
    ]
    details = core.StatusDetails(
        group=request.kind.group, kind=request.resource.resource, name=order.name, causes=causes
    )
    return review.refuse(verdict.reason or "", verdict.message, details=details)


def _faulty(fault: machines.Fault, name: str) -> review.Response:
    causes = [core.StatusCause(reason=fault.reason, field=fault.field, message=fault.message)]
    details = core.StatusDetails(group="kubevirt.io", kind="virtualmachines", name=name, causes=causes)
    return review.refuse(fault.reason, fault.message, details=details)


def _unavailable(message: str) -> review.Response:
    details = core.StatusDetails(retry_after_seconds=1)
    return review.refuse(_UNAVAILABLE, message, code=UNAVAILABLE_CODE, details=details)
