"""Event loops on one virtual clock: what runs next, and when, is decided by the seed alone.

Every replica has a loop of its own, as it has a process of its own. One that is paused is not run; one that has crashed
is never run again, wherever it stood: no `finally` of it has any effect on the world.
"""

from __future__ import annotations

import asyncio
import collections
import heapq
import random
from collections.abc import Callable, Coroutine
from typing import Any, Final

_NEVER: Final = float("inf")


class Clock:
    """Seconds since the beginning, the same for all."""

    def __init__(self) -> None:
        self.now = 0.0


class _NoSelector:
    """Nothing comes from outside."""

    def close(self) -> None: ...


class VirtualLoop(asyncio.BaseEventLoop):
    """An asyncio loop that runs one callback when told to, and takes the time from the clock."""

    def __init__(
        self, clock: Clock, name: str, thread: Callable[[Callable[[], None]], None], failed: Callable[[], None]
    ) -> None:
        super().__init__()
        self.clock = clock
        self.name = name
        self.paused_until = 0.0
        self.dead = False
        self._any: Any = self  # the attributes of BaseEventLoop that the type stubs leave out
        self._selector = _NoSelector()
        self.set_exception_handler(self._keep_fault)
        self.faults: list[str] = []
        self._thread = thread
        self._failed = failed

    def run_in_executor(  # type: ignore[override]  # of an executor we know nothing
        self, _executor: object, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """A thread's work: it takes its time, and is done whatever becomes of who waits for it."""
        done = self.create_future()

        def finish(error: BaseException | None, result: Any) -> None:
            if done.done():
                return
            if error is not None:
                done.set_exception(error)
            else:
                done.set_result(result)

        def work() -> None:
            error = result = None
            try:
                result = func(*args)
            except Exception as raised:  # noqa: BLE001 - it is the waiter's
                error = raised
            if not self.dead:
                self.call_soon(finish, error, result)

        self._thread(work)
        return done

    def time(self) -> float:
        return self.clock.now

    def _write_to_self(self) -> None: ...

    def _keep_fault(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if not self.dead:
            self.faults.append(f"{context.get('message')}: {context.get('exception')!r}")
            self._failed()

    def wakes(self) -> float:
        """When it has something to do: the clock's time, a later one, or never."""
        if self.dead:
            return _NEVER
        if self._any._ready:
            due = self.clock.now
        else:
            scheduled = self._any._scheduled
            while scheduled and scheduled[0]._cancelled:
                heapq.heappop(scheduled)._scheduled = False
            due = scheduled[0]._when if scheduled else _NEVER
        return max(due, self.paused_until)

    def step(self) -> None:
        """Runs the callback that is next."""
        ready, scheduled = self._any._ready, self._any._scheduled
        while scheduled and scheduled[0]._when <= self.clock.now:
            handle = heapq.heappop(scheduled)
            handle._scheduled = False
            ready.append(handle)
        if ready:
            handle = ready.popleft()
            if not handle._cancelled:
                asyncio._set_running_loop(self)
                try:
                    handle._run()
                finally:
                    asyncio._set_running_loop(None)


class Universe:
    """The loops, the clock and the seed's random numbers."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.clock = Clock()
        self.tally: collections.Counter[str] = collections.Counter()
        """How often what is worth counting has happened."""
        self.loops: list[VirtualLoop] = []
        self._graveyard: list[VirtualLoop] = []
        self.steps = 0
        self.halted = False

    def halt(self) -> None:
        """Something has failed: what comes after it is of no interest."""
        self.halted = True

    def loop(self, name: str) -> VirtualLoop:
        """A new loop."""
        made = VirtualLoop(self.clock, name, self._in_thread, self.halt)
        self.loops.append(made)
        return made

    async def pause(self, least: float, most: float) -> None:
        """Some seconds go by."""
        await asyncio.sleep(self.rng.uniform(least, most))

    def _in_thread(self, work: Callable[[], None]) -> None:
        self.loops[0].call_at(self.clock.now + self.rng.uniform(0.001, 0.05), work)

    def kill(self, loop: VirtualLoop) -> None:
        """The loop never runs again."""
        loop.dead = True
        self.loops.remove(loop)
        self._graveyard.append(loop)

    def run(self, until: float) -> None:
        """Runs all loops up to a time, or until something fails."""
        clock = self.clock
        while not self.halted:
            first, ready = _NEVER, []
            for loop in self.loops:
                at = max(loop.wakes(), clock.now)
                if at < first:
                    first, ready = at, [loop]
                elif at == first:
                    ready.append(loop)
            if first > until:
                clock.now = until
                return
            clock.now = first
            # Two machines that could go on at the same time: the seed says which is first.
            (ready[0] if len(ready) == 1 else self.rng.choice(ready)).step()
            self.steps += 1

    def close(self) -> None:
        """Ends every task of every loop, so that nothing is left to the garbage collector."""
        for loop in [*self.loops, *self._graveyard]:
            loop.dead = True
            for _ in range(10):
                tasks = [task for task in _all_tasks(loop) if not task.done()]
                if not tasks:
                    break
                for task in tasks:
                    task.cancel()
                for _ in range(10_000):
                    if not loop._any._ready:
                        break
                    loop.step()
            loop.close()
        self.loops.clear()
        self._graveyard.clear()


def _all_tasks(loop: VirtualLoop) -> list[asyncio.Task[Any]]:
    return sorted(asyncio.all_tasks(loop), key=lambda task: task.get_name())


def spawn(loop: VirtualLoop, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    """Starts a task on a loop that is not running now."""
    return loop.create_task(work)
