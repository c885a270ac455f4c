"""What was decided on one question, and its line of the audit trail: who, what, the verdict, why, how long. Pure."""

from __future__ import annotations

import dataclasses
import enum
import json
from typing import Any


class Subject(enum.StrEnum):
    """What was asked about."""

    ORDER = "order"
    POD = "pod"


class Ruling(enum.StrEnum):
    """How it was answered."""

    ADMITTED = "admitted"
    """An order was taken."""
    PINNED = "pinned"
    """A pod goes to the node of its hold."""
    WAITS = "waits"
    """A claim was stored although nothing is free for it: its VM was admitted before."""
    REFUSED = "refused"
    UNAVAILABLE = "unavailable"
    """Nobody may decide now; the caller is told to try again."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """One answer.

    Attributes:
        about: an order, or a pod.
        kind: of the object that was to be created.
        user: who creates it.
        namespace: the object's.
        name: the object's; of a pod that gets its name later, what it begins with.
        uid: the object's; a pod has none yet.
        class_name: what was ordered; empty where the object could not be read as an order.
        count: how many.
        set_name: the set that it belongs to.
        dry_run: nothing was to be stored.
        ruling: the verdict.
        reason: of the vocabulary of refusals; empty for an admitted one.
        message: the sentence that the caller read; empty for an admitted one.
        node: where it goes.
        moves: holds that move for it, a line each.
        deciding: seconds that placement took.
        seconds: how long the whole answer took, moves and waiting included.
    """

    about: Subject
    kind: str
    user: str
    namespace: str
    name: str
    ruling: Ruling
    uid: str = ""
    class_name: str = ""
    count: int = 0
    set_name: str = ""
    dry_run: bool = False
    reason: str = ""
    message: str = ""
    node: str = ""
    moves: tuple[str, ...] = ()
    deciding: float = 0.0
    seconds: float = 0.0

    def line(self) -> str:
        """The line, as JSON; what there is nothing to say of is left out."""
        entry: dict[str, Any] = {
            "event": self.about.value,
            "user": self.user,
            "kind": self.kind,
            "namespace": self.namespace,
            "name": self.name,
            "uid": self.uid,
            "class": self.class_name,
            "count": self.count,
            "set": self.set_name,
            "dryRun": self.dry_run,
            "verdict": self.ruling.value,
            "reason": self.reason,
            "why": self.message,
            "node": self.node,
            "moves": list(self.moves),
        }
        entry = {key: value for key, value in entry.items() if value not in ("", 0, [], False)}
        if self.deciding:
            entry["decidingMicroseconds"] = round(self.deciding * 1e6)
        entry["microseconds"] = round(self.seconds * 1e6)
        return json.dumps(entry)
