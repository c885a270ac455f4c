"""The binder: writes what placement decided into the claims' status, and lets deleted claims go (R10a, R38).

It runs on the leader only. Every write carries the resourceVersion that it was decided on, and is sent only while the
lease surely holds (R39): a claim that changed meanwhile is looked at again. What puts a hold on a node says as which
leader, so that the apiserver refuses it once another leads (`admission.fence`).
"""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

import msgspec

from gpuclaim.admission import fence
from gpuclaim.admission.desk import RESERVED_FOR, MoveError
from gpuclaim.api import core, model, names
from gpuclaim.api.core import Outcome
from gpuclaim.api.reasons import HealthyReason, MoveReason
from gpuclaim.api.types import GPUClaim, GPUClaimStatus
from gpuclaim.controller import claim_events, claim_status
from gpuclaim.controller.bookkeeper import Bookkeeper
from gpuclaim.controller.claim_events import Said
from gpuclaim.controller.claim_status import SetPod
from gpuclaim.controller.pod_times import PodTimes
from gpuclaim.controller.workqueue import WorkQueue
from gpuclaim.kube.client import ApiError, Client, UnreachableError
from gpuclaim.ledger import intervals
from gpuclaim.ledger.intervals import Past
from gpuclaim.placement import evacuation, refusals, repeats, unscheduled
from gpuclaim.placement.ailment import ailment
from gpuclaim.placement.books import Books
from gpuclaim.placement.orders import Move, Order, Verdict
from gpuclaim.placement.refusals import TurnedAway
from gpuclaim.placement.verdict import decide, place_set

log = logging.getLogger(__name__)

Key = tuple[str, str]

_WORKERS: Final = 32
_SETTLE_SECONDS: Final = 3.0
_SWEEP_STRIDE: Final = 32
_SWEEP_PAUSE_SECONDS: Final = 0.05
_FAILED_PAUSE_SECONDS: Final = 2.0
_EVACUATION_PAUSE_SECONDS: Final = 1.0
_RETRIED: Final = (ApiError, UnreachableError, TimeoutError)


class Binder:
    """Brings every claim's stored status in step with the books."""

    def __init__(
        self,
        books: Books,
        client: Client,
        *,
        now: Callable[[], dt.datetime],
        lease_left: Callable[[], float],
        grace: dt.timedelta = dt.timedelta(minutes=1),
        say: Callable[[GPUClaim, list[Said]], None] = lambda _claim, _said: None,
        bookkeeper: Bookkeeper | None = None,
        confirmed: Callable[[], Awaitable[bool]] | None = None,
    ) -> None:
        """Sets up.

        Args:
            books: what is known, with the reservations of admitted orders.
            client: how statuses are written.
            now: the present moment.
            lease_left: for how many seconds from now on this process may write.
            grace: how long a node may be unfit before sets that are off leave it.
            say: takes what a tenant should hear of a claim; must return at once.
            bookkeeper: brings usage into the ledger; without one there is no ledger, and no claim waits for it.
            confirmed: asks the apiserver whether this process leads; without it, what the fence refuses stays refused.
        """
        self._books = books
        self._client = client
        self._now = now
        self._lease_left = lease_left
        self._confirmed = confirmed
        self._say = say
        self._bookkeeper = bookkeeper
        if bookkeeper is not None:
            bookkeeper.tell = lambda key: self._queue.add(key) if self._active else None
        self._pod_times = PodTimes()
        self._queue: WorkQueue[Key] = WorkQueue()
        self._told = asyncio.Event()
        self._active = False
        self._split = False
        self._term: dt.datetime | None = None
        self._watch = evacuation.Watch(grace)
        self._ailments: dict[str, HealthyReason] = {}
        self._refused: dict[Key, Verdict] = {}
        self._turned_away: dict[Key, dict[str, TurnedAway]] = {}
        self._nodes_gone = False
        self._sweep_due = asyncio.Event()

    def waiting(self) -> int:
        """How many claims wait to be looked at, or are."""
        return len(self._queue)

    # --- what changed ---------------------------------------------------------------------------------------------

    def claim_changed(self, claim: GPUClaim) -> None:
        """A claim is new or has changed."""
        self._tell()
        self._share(claim)
        if not self._active:
            return
        meta = claim.metadata
        if claim.status.node_name is None and self._books.reservation(meta.uid) is None:
            self._sweep_due.set()
        self._queue.add((meta.namespace, meta.name))
        for waiting in self._books.planning(meta.namespace, meta.name):
            if waiting.order is not None:
                self._queue.add((waiting.order.namespace, waiting.order.name))

    def claim_gone(self) -> None:
        """A claim is no more."""
        self._tell()

    def _tell(self) -> None:
        # Whoever waits sees the books as they are now; the next one waits for the next change.
        self._told.set()
        self._told = asyncio.Event()

    def _share(self, claim: GPUClaim) -> None:
        """The claim is stored, so no other try of its order can be: what is reserved for another is the claim's."""
        order = Order.of(claim)
        while (other := repeats.other_try(self._books, order)) is not None:
            if claim.status.node_name is None and self._books.reservation(order.uid) is None:
                self._books.hand_over(other.uid, order, self._now() + RESERVED_FOR)
            else:
                self._books.release(other.uid)

    def pod_seen(self, pod: core.Pod) -> None:
        """A pod is new or has changed; one that kubelet turned away is remembered until it is gone (R37)."""
        self._pod_times.seen(pod)
        away = refusals.turned_away(pod)
        if away is not None:
            # A claim knows of one pod a node, the last: were each of two told, each would be news after the other.
            aways = self._turned_away.setdefault((away.namespace, away.set_name), {})
            if (known := aways.get(away.node)) is None or not away.before(known):
                aways[away.node] = away

    def pod_gone(self, namespace: str, name: str) -> None:
        """A pod is no more."""
        self._pod_times.gone(namespace, name)
        self._forget_turned_away(lambda away: (away.namespace, away.pod) == (namespace, name))

    def node_gone(self, name: str) -> None:
        """A Node is no more, and what it refused is forgotten: who comes back under the name is another (R37)."""
        self._forget_turned_away(lambda away: away.node == name)
        self._nodes_gone = True

    def _forget_turned_away(self, which: Callable[[TurnedAway], bool]) -> None:
        for key, aways in [*self._turned_away.items()]:
            for node in [node for node, away in aways.items() if which(away)]:
                del aways[node]
            if not aways:
                del self._turned_away[key]

    def _refusing(self, namespace: str, set_name: str) -> list[TurnedAway]:
        """The last pod of the set that each node turned away, of nodes that are there."""
        aways = self._turned_away.get((namespace, set_name), {})
        return [away for away in aways.values() if self._present(away.node)]

    def _present(self, node: str) -> bool:
        found = self._books.nodes.get(node)
        return found is not None and found.present

    def being_refused(self, namespace: str, set_name: str) -> bool:
        """Whether a pod of the set was turned away, and that is not in the status of all its claims yet."""
        aways = self._refusing(namespace, set_name)
        return bool(aways) and refusals.pending(self._books.claims_of_set(namespace, set_name), aways)

    def set_changed(self, namespace: str, set_name: str) -> None:
        """A pod of the set came, went, or has changed."""
        if not self._active:
            return
        for claim in self._books.claims_of_set(namespace, set_name):
            self._queue.add((namespace, claim.metadata.name))

    def sets_let_off(self, sets: Iterable[Key]) -> None:
        """No pod is on its way to these sets any more: a deleted claim may go."""
        for namespace, set_name in sets:
            self.set_changed(namespace, set_name)

    def clock_stepped(self, step: dt.timedelta) -> None:
        """The clock was set, by `step`."""
        self._watch.clock_stepped(step)

    def room_changed(self) -> None:
        """Something that waits may fit now."""
        if self._active and self._books.has_unbound:
            self._sweep_due.set()

    # --- the work ---------------------------------------------------------------------------------------------------

    def begin(self, term: dt.datetime | None) -> None:
        """A term as the leader begins; comes before anything else that a new leader does.

        Args:
            term: when the lease was acquired; the same as at the last call where nobody else led meanwhile.
        """
        if term != self._term:
            # What others bound meanwhile may stand where we had reserved: those orders are decided anew, once stored.
            for reservation in self._books.reservations():
                self._books.release(reservation.uid)
        self._term = term

    async def prepare(self) -> None:
        """What a new leader does before it admits anything: brings split sets together (R36a), binds what waits (R38).

        Raises:
            ApiError, UnreachableError: a write failed.
        """
        self._active = True
        for claim in self._books.claims():
            self._queue.add((claim.metadata.namespace, claim.metadata.name))
        await self._unite_split_sets()
        await self._sweep()

    async def run(self) -> None:
        """Works until it is cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._queue.work(self._reconcile, _WORKERS))
                group.create_task(self._sweeps())
                group.create_task(self._evacuate())
        finally:
            # A replica that only mirrors keeps no list of things to do: prepare() makes it anew.
            self._active = False
            self._queue = WorkQueue()

    async def settled(self, namespace: str, set_name: str) -> bool:
        """Waits until no order or move of the set is on its way to being stored; False when that takes too long."""
        try:
            async with asyncio.timeout(_SETTLE_SECONDS):
                while self._books.in_flight(namespace, set_name):
                    await self._told.wait()
        except TimeoutError:
            return False
        return True

    async def gone(self, namespace: str, name: str) -> bool:
        """Waits until a deleted claim that has no pod any more is no more; False where it has, or takes too long."""
        try:
            async with asyncio.timeout(_SETTLE_SECONDS):
                while (claim := self._books.claim(namespace, name)) is not None:
                    if self._books.attached(namespace, model.claim_set(claim)):
                        return False
                    await self._told.wait()
        except TimeoutError:
            return False
        return True

    async def make_moves(self, token: str, moves: tuple[Move, ...], why: MoveReason | None = None) -> None:
        """Stores moves of holds, one write a claim; each hold is good before, between and after (R35a).

        Args:
            token: the reservation that keeps the moves' targets.
            moves: whole sets.
            why: what the history says of it; by default what the reservation is for tells.

        Raises:
            MoveError: not all could be stored. Where any was, or may have been, the reservation stays until its time
                runs out: what was moved may not have come back to the books yet.
        """
        for number, move in enumerate(moves):
            try:
                await self._make_move(move, why or self._why(token, move))
            except _RETRIED as error:
                if number == 0 and isinstance(error, ApiError):
                    self._books.release(token)
                else:
                    # A set may stand on two nodes now, and nobody looks unless we do.
                    self._split = True
                    self._sweep_due.set()
                raise MoveError(str(error) or "time ran out") from error
            log.info("%s: moved %s/%s to %s", token, move.namespace, move.name, move.to_node)

    def _why(self, token: str, move: Move) -> MoveReason:
        reservation = self._books.reservation(token)
        if reservation is None or reservation.order is None:
            # A pod is being admitted, and its set's node is under a refusal.
            return MoveReason.NODE_REFUSED
        order, claim = reservation.order, self._books.claim(move.namespace, move.name)
        same = claim is not None and (order.namespace, order.set_name) == (move.namespace, model.claim_set(claim))
        return MoveReason.SET_GREW if same else MoveReason.MADE_ROOM

    async def _make_move(self, move: Move, why: MoveReason) -> None:
        claim = known = self._books.claim(move.namespace, move.name)
        for last in (False, True):
            if claim is None or known is None or not self._still(move, claim, known.metadata.uid):
                raise ApiError(Outcome(code=409, reason="Conflict", message=f"claim {move.name!r} has changed"))
            try:
                await self._write(claim, claim_status.bound(claim, move.to_node, self._now(), why, self._past(claim)))
            except ApiError as error:
                if error.code != 409 or last:
                    raise
                # Its status was written meanwhile, as when a pod ended: look once more.
                claim = await self._client.get(GPUClaim, move.name, move.namespace)
            else:
                return

    def _still(self, move: Move, claim: GPUClaim, uid: str) -> bool:
        """Whether the claim is the one that the move was planned for, stands where it stood, and has room to go to."""
        same = (claim.metadata.uid, claim.status.node_name) == (uid, move.from_node)
        return same and self._books.has_place(claim, move.to_node)

    async def _sweeps(self) -> None:
        while True:
            await self._sweep_due.wait()
            self._sweep_due.clear()
            if self._split:
                await self._unite_split_sets()
            if not await self._sweep() or self._split:
                asyncio.get_running_loop().call_later(_FAILED_PAUSE_SECONDS, self._sweep_due.set)
            # Many changes at once are one sweep, and orders are answered between two.
            await asyncio.sleep(_SWEEP_PAUSE_SECONDS)

    async def _sweep(self) -> bool:
        """Decides the claims that are stored without a place, the oldest first; whether all moves could be made."""
        well = True
        for number, claim in enumerate(self._books.unbound()):
            if number % _SWEEP_STRIDE == _SWEEP_STRIDE - 1:
                await asyncio.sleep(0)
            key = (claim.metadata.namespace, claim.metadata.name)
            if self._books.claim(*key) is not claim:
                continue
            if (reservation := self._books.reservation(claim.metadata.uid)) is not None:
                if reservation.moves:
                    self._queue.add(key)
                continue
            if claim.metadata.deletion_timestamp is not None:
                continue
            verdict = decide(self._books, Order.of(claim), self._now())
            if not verdict.admitted:
                self._refused[key] = verdict
                self._queue.add(key)
                continue
            self._refused.pop(key, None)
            self._books.reserve(Order.of(claim), verdict, self._now() + RESERVED_FOR)
            if verdict.moves:
                try:
                    await self.make_moves(claim.metadata.uid, verdict.moves)
                except MoveError as error:
                    log.warning("the moves for %s/%s were not stored: %s", *key, error)
                    well = False
                    continue
            self._queue.add(key)
        return well

    async def _evacuate(self) -> None:
        """Says on claims what is wrong with their nodes, and moves sets that are off away from there (R36)."""
        while True:
            self._tell_ailments()
            for each in self._watch.leaving(self._books, self._now()):
                token = f"evacuate {each.namespace}/{each.set_name}"
                avoid = frozenset({each.node})
                await self._place_anew(each.namespace, each.set_name, token, MoveReason.NODE_UNFIT, avoid)
            await asyncio.sleep(_EVACUATION_PAUSE_SECONDS)

    def _tell_ailments(self) -> None:
        """Has the claims looked at of nodes that have fallen ill or got well, whether by an event or by time alone."""
        self._books.advance(self._now())
        ailments = {node.name: ailment(node) for node in self._books.nodes.values() if node.claims}
        if self._nodes_gone:
            self._nodes_gone = False
            for claim in self._books.claims():
                if claim.status.refusals:
                    self._queue.add((claim.metadata.namespace, claim.metadata.name))
        for name in sorted(n for n, reason in ailments.items() if self._ailments.get(n) is not reason):
            for claim in self._books.nodes[name].claims:
                self._queue.add((claim.metadata.namespace, claim.metadata.name))
        self._ailments = ailments

    async def _unite_split_sets(self) -> None:
        self._split = False
        for namespace, set_name in self._books.split_sets():
            token = f"unite {namespace}/{set_name}"
            if self._books.in_flight(namespace, set_name) or not await self._place_anew(
                namespace, set_name, token, MoveReason.SET_UNITED
            ):
                self._split = True

    async def _reconcile(self, key: Key) -> None:
        claim = self._books.claim(*key)
        if claim is None:
            self._refused.pop(key, None)
            if self._bookkeeper is not None:
                self._bookkeeper.forget(*key)
            return
        if self._bookkeeper is not None:
            self._bookkeeper.offer(claim)
        if claim.metadata.deletion_timestamp is not None:
            if await self._let_go(claim):
                return
        elif names.HOLD_FINALIZER not in claim.metadata.finalizers:
            # Made while no admission ran. The answer brings the claim back here.
            await self._write_finalizers(claim, [*claim.metadata.finalizers, names.HOLD_FINALIZER])
            return
        if await self._refuse(claim):
            return
        status = self._wanted(key, claim)
        if status is None:
            return
        try:
            await self._write(claim, status)
        except ApiError as error:
            # The books have the newer object already, and with it this key in the queue.
            known = self._books.claim(*key)
            if error.code not in {404, 409} or (known is claim and error.code == 409):
                raise

    async def _refuse(self, claim: GPUClaim) -> bool:
        """Puts the refusal of a node that turned the set's pod away into the claim's status, before anything else.

        Once all claims of the set say so, the set is placed elsewhere if it fits anywhere; whether there was anything
        to do.
        """
        namespace, set_name = claim.metadata.namespace, model.claim_set(claim)
        aways = self._refusing(namespace, set_name)
        if not aways:
            return False
        for away in aways:
            if refusals.concerns(claim, away):
                known = refusals.with_refusal(claim, away, self._present, self._now())
                await self._write(claim, msgspec.structs.replace(claim.status, refusals=known))
                log.warning("set %s/%s: node %s turned its pod away: %s", namespace, set_name, away.node, away.reason)
                return True
        if not refusals.pending(self._books.claims_of_set(namespace, set_name), aways):
            await self._place_anew(namespace, set_name, f"refused {namespace}/{set_name}", MoveReason.NODE_REFUSED)
        return False

    async def _place_anew(
        self, namespace: str, set_name: str, token: str, why: MoveReason, avoid: frozenset[str] = frozenset()
    ) -> bool:
        """Brings a set that has no pod to a node that takes it, if there is a better one; whether all went well."""
        if self._books.in_flight(namespace, set_name):
            return True
        verdict = place_set(self._books, namespace, set_name, self._now(), avoid)
        if not verdict.admitted or not verdict.moves:
            return True
        self._books.reserve_moves(token, verdict.moves, self._now() + RESERVED_FOR)
        try:
            await self.make_moves(token, verdict.moves, why)
        except MoveError as error:
            log.warning("%s: not moved: %s", token, error)
            return False
        return True

    def _wanted(self, key: Key, claim: GPUClaim) -> GPUClaimStatus | None:
        now = self._now()
        if claim.status.node_name is not None:
            self._refused.pop(key, None)
            return self._of_bound(claim, now)
        reservation = self._books.reservation(claim.metadata.uid)
        if reservation is not None and reservation.node is not None:
            if reservation.order == Order.of(claim):
                if self._books.outstanding(reservation):
                    return None  # the room is not there yet
                placed = claim_status.bound(claim, reservation.node, now)
                return self._of_bound(msgspec.structs.replace(claim, status=placed), now)
            # Another webhook changed the claim after it was admitted.
            self._books.release(claim.metadata.uid)
            self._sweep_due.set()
        refused = self._refused.get(key)
        return claim_status.waiting(claim, refused, now) if refused is not None else None

    def _of_bound(self, claim: GPUClaim, now: dt.datetime) -> GPUClaimStatus:
        """Everything that a bound claim's status says beside where it is."""
        if self._bookkeeper is not None:
            status = intervals.without(claim, self._bookkeeper.recorded(claim))
            claim = msgspec.structs.replace(claim, status=status)
        status = claim_status.attached(claim, self._set_pod(claim), now, self._past(claim))
        if status.refusals:
            there = [refusal for refusal in status.refusals if self._present(refusal.node_name)]
            status = msgspec.structs.replace(status, refusals=there)
        node = ailment(self._books.nodes.get(claim.status.node_name or ""))
        return claim_status.healthy(msgspec.structs.replace(claim, status=status), node, now)

    def _set_pod(self, claim: GPUClaim) -> SetPod | None:
        pods = self._books.pods_of_set(claim.metadata.namespace, model.claim_set(claim))
        if not pods:
            return None
        pod = next((pod for pod in pods if pod.node == claim.status.node_name), pods[0])
        waits = None if pod.node else unscheduled.said_of(pod, self._books.resources)
        return SetPod(pod.name, pod.uid, pod.node, waits, self._pod_times.scheduled(pod.uid))

    def _past(self, claim: GPUClaim) -> Past:
        ended = self._pod_times.ended(claim.metadata.namespace, model.claim_set(claim))
        return Past(ended, keep=self._bookkeeper is not None)

    async def _let_go(self, claim: GPUClaim) -> bool:
        """Takes the finalizer off a deleted claim once its set has no pod and its usage is in the ledger (R10a).

        Whether there is nothing else to do for it: it has gone, or waits for the ledger alone.
        """
        if self._books.attached(claim.metadata.namespace, model.claim_set(claim)):
            return False
        if self._bookkeeper is not None:
            status = claim_status.released(claim, self._now(), self._past(claim))
            if claim.status.node_name is not None and status != claim.status:
                # The answer brings the claim back here, and to the bookkeeper.
                await self._write(claim, status)
                return True
            if not self._bookkeeper.settled(claim):
                return True
        kept = [finalizer for finalizer in claim.metadata.finalizers if finalizer != names.HOLD_FINALIZER]
        if kept != claim.metadata.finalizers:
            await self._write_finalizers(claim, kept)
            self._say(claim, claim_events.released(claim))
        return True

    # --- writes -----------------------------------------------------------------------------------------------------

    async def _write(self, claim: GPUClaim, status: GPUClaimStatus) -> None:
        patch = claim_status.merge_patch(claim.status, status)
        if patch:
            # What puts a hold on a node must not come after another leader has given the room away.
            placed = status.node_name != claim.status.node_name
            manager = fence.manager(self._term) if placed and self._term is not None else ""
            try:
                await self._patch(claim, {"status": patch}, "status", manager)
            except ApiError as error:
                if not (manager and fence.refused(str(error)) and self._confirmed and await self._confirmed()):
                    raise
                # Once a policy about Leases was deleted, an apiserver hears of none until it is started anew, and would
                # take every later leader for an earlier one.
                log.warning("%s knows an old Lease; the stored one is this leader's, and the write goes on", fence.NAME)
                await self._patch(claim, {"status": patch}, "status")
            self._say(claim, claim_events.between(claim, status))

    async def _write_finalizers(self, claim: GPUClaim, finalizers: list[str]) -> None:
        await self._patch(claim, {"metadata": {"finalizers": finalizers}}, "")

    async def _patch(
        self, claim: GPUClaim, body: dict[str, dict[str, object]], subresource: str, manager: str = ""
    ) -> None:
        meta = claim.metadata
        pinned = {"resourceVersion": meta.resource_version, "uid": meta.uid}
        body = body | {"metadata": body.get("metadata", {}) | pinned}
        left = self._lease_left()
        if left <= 0:
            raise TimeoutError("the lease does not hold")
        async with asyncio.timeout(left):
            await self._client.patch(
                GPUClaim, meta.name, body, meta.namespace, subresource=subresource, manager=manager
            )
