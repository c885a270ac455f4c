"""VirtualMachines that are orders get their claims (R45).

Such a VM is decided when it is made, and what it is given is reserved under its UID. Once it is stored its claim is
made here, under the VM's name, so that there is never a second one; admission hands the reservation over to it. A new
leader decides the stored VMs without a claim anew before it admits anything else.
"""

from __future__ import annotations

import asyncio
import dataclasses
import datetime as dt
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from gpuclaim.admission import machines
from gpuclaim.admission.desk import RESERVED_FOR, MoveError
from gpuclaim.api import core
from gpuclaim.api.types import GPUClaim
from gpuclaim.controller.workqueue import WorkQueue
from gpuclaim.kube.client import ApiError, Client
from gpuclaim.placement.books import Books
from gpuclaim.placement.orders import Move, Order
from gpuclaim.placement.verdict import decide

log = logging.getLogger(__name__)

Key = tuple[str, str]

_WORKERS: Final = 8
_KEPT_FOR: Final = dt.timedelta(minutes=1)
"""How long a reservation goes on with each try to make its claim; tries are half a minute apart at most."""
_BEGINNING: Final = dt.datetime.min.replace(tzinfo=dt.UTC)


class Machines:
    """The receiver of the VMs that are orders; makes their claims while this replica leads."""

    def __init__(
        self,
        books: Books,
        client: Client,
        *,
        now: Callable[[], dt.datetime],
        lease_left: Callable[[], float],
        make_moves: Callable[[str, tuple[Move, ...]], Awaitable[None]],
    ) -> None:
        """Sets up.

        Args:
            books: what is known, with the reservations of admitted orders.
            client: how claims are made.
            now: the present moment.
            lease_left: for how many seconds from now on this process may write.
            make_moves: stores moves that are reserved under a token; raises MoveError.
        """
        self._books = books
        self._client = client
        self._now = now
        self._lease_left = lease_left
        self._make_moves = make_moves
        self._orders: dict[Key, Order] = {}
        self._created: dict[Key, dt.datetime] = {}
        self._queue: WorkQueue[Key] = WorkQueue()
        self._active = False

    def order(self, namespace: str, name: str) -> Order | None:
        """What the stored VM orders, under its UID; None where it is no order, or is being deleted."""
        return self._orders.get((namespace, name))

    def waiting(self) -> int:
        """How many VMs wait for their claims to be made."""
        return len(self._queue)

    # --- what changed ---------------------------------------------------------------------------------------------

    def changed(self, obj: core.VirtualMachine) -> None:
        """A VM is new or has changed."""
        meta = obj.metadata
        key = (meta.namespace, meta.name)
        order = machines.order_of(meta)
        if not isinstance(order, Order) or meta.deletion_timestamp is not None:
            self.gone(*key)
            return
        self._orders[key] = order
        self._created[key] = meta.creation_timestamp or _BEGINNING
        self._look(key)

    def gone(self, namespace: str, name: str) -> None:
        """A VM is no more, or orders nothing any more; what it was given goes with its claim."""
        order = self._orders.pop((namespace, name), None)
        self._created.pop((namespace, name), None)
        if order is not None:
            self._books.release(order.uid)

    def claim_seen(self, claim: GPUClaim) -> None:
        """A claim is stored: where a VM's reservation is still there, as admission was not asked, it takes it over."""
        meta, order = claim.metadata, Order.of(claim)
        known = self._orders.get((meta.namespace, meta.name))
        uid = machines.owner_of(meta) or (known.uid if known is not None else "")
        reserved = self._books.reservation(uid)
        if reserved is None or reserved.order is None:
            return
        if reserved.order == dataclasses.replace(order, uid=uid) and not (
            claim.status.node_name or self._books.reservation(meta.uid)
        ):
            self._books.hand_over(uid, order, self._now() + RESERVED_FOR)
        elif (reserved.order.namespace, reserved.order.name) == (meta.namespace, meta.name):
            self._books.release(uid)

    def claim_gone(self, namespace: str, name: str) -> None:
        """A claim is no more; a VM that is still there orders anew."""
        self._look((namespace, name))

    def _look(self, key: Key) -> None:
        if self._active and key in self._orders and self._books.claim(*key) is None:
            self._queue.add(key)

    # --- the work -------------------------------------------------------------------------------------------------

    async def prepare(self) -> None:
        """What a new leader does before it admits anything: VMs that were admitted get their reservation back.

        In the order of their creation. One that does not fit any more has a claim all the same, which waits.
        """
        self._active = True
        waiting = [key for key in self._orders if self._books.claim(*key) is None]
        for key in sorted(waiting, key=lambda key: (self._created[key], key)):
            order = self._orders[key]
            verdict = decide(self._books, order, self._now())
            if verdict.admitted:
                self._books.reserve(order, verdict, self._now() + RESERVED_FOR)
                if verdict.moves:
                    try:
                        await self._make_moves(order.uid, verdict.moves)
                    except MoveError as error:
                        log.warning("the moves for VM %s/%s were not stored: %s", *key, error)
            self._look(key)

    async def run(self) -> None:
        """Works until it is cancelled."""
        try:
            await self._queue.work(self._make_claim, _WORKERS)
        finally:
            # A replica that only mirrors keeps no list of things to do: prepare() makes it anew.
            self._active = False
            self._queue = WorkQueue()

    async def _make_claim(self, key: Key) -> None:
        order = self._orders.get(key)
        if order is None or self._books.claim(*key) is not None:
            return
        if self._books.reservation(order.uid) is not None:
            self._books.hand_over(order.uid, order, self._now() + _KEPT_FOR)
        left = self._lease_left()
        if left <= 0:
            raise TimeoutError("the lease does not hold")
        try:
            async with asyncio.timeout(left):
                await self._client.create(machines.claim_of(order))
        except ApiError as error:
            if error.reason == "AlreadyExists":
                return  # the informer tells; where it is another's, the VM's pod is refused
            self._take_back(order)
            raise
        log.info("VM %s/%s: its claim is made", *key)

    def _take_back(self, order: Order) -> None:
        """What was handed over to a claim that was refused after all, by another's webhook or a quota, is the VM's."""
        for reserved in self._books.reserved_of_set(order.namespace, order.set_name):
            if reserved.order is not None and reserved.order.name == order.name and reserved.uid != order.uid:
                self._books.hand_over(reserved.uid, order, self._now() + _KEPT_FOR)
                return
