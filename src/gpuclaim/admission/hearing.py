"""A question while it is answered: what will be said of it afterwards."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import Final, TypeVar

from gpuclaim.admission import review
from gpuclaim.admission.judgement import Judgement, Ruling, Subject
from gpuclaim.placement.orders import Move, Order

T = TypeVar("T")

UNAVAILABLE_CODE: Final = 503
"""The HTTP status of "nobody may decide now"."""


@dataclasses.dataclass
class Hearing:
    """One question while it is answered.

    Attributes:
        request: the question.
        about: what it is about.
        ruling: how it is answered, if it is not turned away.
        of_interest: whether an answer that lets it in was a decision; one that turns it away is told of in any case.
        order: what was read of it, and of a pod `name` and `set_name`.
        node: where it goes, once `moves` are made.
        deciding: seconds that decisions took so far.
    """

    request: review.Request
    about: Subject
    ruling: Ruling = Ruling.ADMITTED
    of_interest: bool = True
    order: Order | None = None
    name: str = ""
    set_name: str = ""
    node: str | None = None
    moves: tuple[Move, ...] = ()
    deciding: float = 0.0
    started: float = dataclasses.field(default_factory=time.perf_counter)

    def decided(self, find: Callable[[], T]) -> T:
        """What `find` gives; the time it takes is that of the decision."""
        started = time.perf_counter()
        found = find()
        self.deciding += time.perf_counter() - started
        return found

    def judgement(self, answer: review.Response) -> Judgement:
        """What was said, and how long it took until now."""
        request, order, status = self.request, self.order, answer.status
        refused = Ruling.UNAVAILABLE if status is not None and status.code == UNAVAILABLE_CODE else Ruling.REFUSED
        return Judgement(
            about=self.about,
            kind=request.kind.kind,
            user=request.user_info.username,
            namespace=request.namespace,
            name=self.name or (order.name if order is not None else request.name),
            uid=order.uid if order is not None else "",
            class_name=order.class_name if order is not None else "",
            count=order.count if order is not None else 0,
            set_name=order.set_name if order is not None else self.set_name,
            dry_run=request.dry_run,
            ruling=self.ruling if answer.allowed else refused,
            reason=status.reason if status is not None else "",
            message=status.message if status is not None else "",
            node=(self.node or "") if answer.allowed else "",
            moves=tuple(f"{m.namespace}/{m.name}: {m.from_node} -> {m.to_node}" for m in self.moves),
            deciding=self.deciding,
            seconds=time.perf_counter() - self.started,
        )
