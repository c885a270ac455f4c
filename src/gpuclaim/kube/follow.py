"""Objects of one kind kept as they are, by a thread that lists and watches: for a view that lasts."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final, Generic, TypeVar

import msgspec

from gpuclaim.kube.blocking import AnswerError, Blocking, NoAnswerError, decoded
from gpuclaim.kube.resources import resource_of

T = TypeVar("T", bound=msgspec.Struct)

_AGAIN_SECONDS: Final = 1.0
_GONE: Final = 410


def _wait() -> None:
    # Nobody ends this: the thread goes with the program.
    threading.Event().wait(_AGAIN_SECONDS)


class Follower(Generic[T]):
    """The objects of a kind, in one namespace or everywhere.

    `first` asks once and raises; `start` goes on from there in a thread of its own, which ends with the program. What
    goes wrong then is in `fault`, and is tried again every second.
    """

    def __init__(
        self,
        client: Blocking,
        type_: type[T],
        namespace: str,
        changed: threading.Event,
        *,
        pause: Callable[[], object] = _wait,
    ) -> None:
        """Prepare; `changed` is set whenever there is something new, `pause` keeps attempts apart."""
        self._client = client
        self._type = type_
        self._namespace = namespace
        self._changed = changed
        self._pause = pause
        self._lock = threading.Lock()
        self._objects: dict[tuple[str, str], T] = {}
        self._version = ""
        self._fault: AnswerError | NoAnswerError | None = None

    @property
    def fault(self) -> AnswerError | NoAnswerError | None:
        """Why what is here may be old; None while it is not."""
        return self._fault

    def objects(self) -> list[T]:
        """What is there now."""
        with self._lock:
            return list(self._objects.values())

    def first(self) -> None:
        """Lists.

        Raises:
            AnswerError: the apiserver refuses.
            NoAnswerError: no answer came.
        """
        listed = self._client.list(resource_of(self._type), self._namespace)
        found = {(_key(item)): each for item in listed["items"] for each in decoded(self._type, [item])}
        with self._lock:
            self._objects, self._version = found, listed["metadata"].get("resourceVersion", "")
        self._changed.set()

    def start(self) -> None:
        """Follows, after `first`."""
        threading.Thread(target=self._run, name=f"follow {self._type.__name__}", daemon=True).start()

    def _run(self) -> None:
        while True:
            try:
                self._watch()
            except AnswerError as error:
                if error.status.code != _GONE:
                    # Who may list and not watch sees what a list says, every second.
                    self._say(error)
                    self._pause()
                self._again()
            except NoAnswerError as error:
                self._say(error)
                self._again()

    def _again(self) -> None:
        while True:
            try:
                self.first()
            except (AnswerError, NoAnswerError) as error:
                self._say(error)
                self._pause()
            else:
                self._say(None)
                return

    def _watch(self) -> None:
        changes = self._client.watch(resource_of(self._type), self._namespace, since=self._version)
        for kind, item in changes:
            with self._lock:
                self._version = item["metadata"].get("resourceVersion", self._version)
                self._objects.pop(_key(item), None)
                if kind in {"ADDED", "MODIFIED"}:
                    self._objects |= {_key(item): each for each in decoded(self._type, [item])}
            self._changed.set()

    def _say(self, fault: AnswerError | NoAnswerError | None) -> None:
        self._fault = fault
        self._changed.set()


def _key(item: dict[str, dict[str, str]]) -> tuple[str, str]:
    return item["metadata"].get("namespace", ""), item["metadata"]["name"]
