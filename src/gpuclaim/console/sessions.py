"""Who is in: sessions in memory, by a random key that only the visitor's cookie has.

Not in the cookie itself, encrypted: there a token of many groups has no room (4 KiB), and one that was ended
would go on for whoever has a copy (docs/why/decisions.md).
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

V = TypeVar("V")
_KEY_BYTES: Final = 32


class FullError(Exception):
    """As many visitors are in as there may be."""


@dataclass(kw_only=True)
class Session(Generic[V]):
    """One visitor's stay. Times are seconds of the store's clock.

    Attributes:
        visitor: who it is, and what acts for them.
        owner: whose it is, by a name; one has so many at most.
        csrf: what every form of the session must bring.
        notices: sentences for the next page.
    """

    visitor: V
    owner: str
    csrf: str
    began: float
    used: float
    notices: list[str] = field(default_factory=list)
    ended: bool = False


class Sessions(Generic[V]):
    """All of them. Nothing here waits or does I/O; `ended` is told of each session that is over, whyever."""

    def __init__(
        self,
        *,
        idle: float,
        longest: float,
        most: int,
        each: int,
        clock: Callable[[], float],
        ended: Callable[[Session[V]], None] = lambda _: None,
    ) -> None:
        """Sets up.

        Args:
            idle: seconds without a request after which a session is over.
            longest: seconds after which it is over in any case.
            most: how many there may be at once.
            each: how many one owner may have; with one more, the one that was used longest ago is over.
            clock: seconds that pass evenly.
            ended: told once of each that is over.
        """
        self._idle, self._longest, self._most, self._each = idle, longest, most, each
        self._clock = clock
        self._told = ended
        self._open: dict[str, Session[V]] = {}

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[Session[V]]:
        return iter(list(self._open.values()))

    def open(self, visitor: V, owner: str) -> tuple[str, Session[V]]:
        """A new session, and the key for its visitor's cookie. O(sessions).

        Raises:
            FullError: there are as many as there may be.
        """
        self.sweep()
        # Who keeps no cookie, behind a proxy, has a session more with each request: it must not take others' room.
        mine = sorted((found.used, hashed) for hashed, found in self._open.items() if found.owner == owner)
        for _, hashed in mine[: max(0, len(mine) + 1 - self._each)]:
            self._end(self._open.pop(hashed))
        if len(self._open) >= self._most:
            raise FullError(f"{self._most} visitors are in, and there is room for no more: try again later")
        key, now = secrets.token_urlsafe(_KEY_BYTES), self._clock()
        session = Session(visitor=visitor, owner=owner, csrf=secrets.token_urlsafe(_KEY_BYTES), began=now, used=now)
        self._open[_hashed(key)] = session
        return key, session

    def find(self, key: str, *, touch: bool = True) -> Session[V] | None:
        """The session of a cookie, None where there is none (any more); `touch`: it is in use."""
        session = self._open.get(_hashed(key))
        if session is None or self._over(session):
            self.close(key)
            return None
        if touch:
            session.used = self._clock()
        return session

    def close(self, key: str) -> None:
        """Ends a session; that there is none is no error."""
        session = self._open.pop(_hashed(key), None)
        if session is not None:
            self._end(session)

    def sweep(self) -> None:
        """Ends those whose time is up."""
        for hashed, session in list(self._open.items()):
            if self._over(session):
                del self._open[hashed]
                self._end(session)

    def clear(self) -> None:
        """Ends all of them."""
        while self._open:
            self._end(self._open.popitem()[1])

    def over(self, session: Session[V]) -> bool:
        """Whether it has ended, or its time is up."""
        return session.ended or self._over(session)

    def _over(self, session: Session[V]) -> bool:
        now = self._clock()
        return now - session.used >= self._idle or now - session.began >= self._longest

    def _end(self, session: Session[V]) -> None:
        session.ended = True
        self._told(session)


def _hashed(key: str) -> str:
    """What a session is found by: a look-up by the key itself would tell by its time how much of a guess is right."""
    return hashlib.sha256(key.encode(errors="replace")).hexdigest()
