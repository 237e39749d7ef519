"""Several processes in one virtual time, each with an event loop of its own.

A process may be paused, as by SIGSTOP: its timers and all incoming messages wait until it is woken,
while requests that it had sent go on. It may be killed, and its clock may run faster or slower than
the world's. There are no threads here: loops take turns, in an order that the random source
chooses, so that a run is repeated exactly by its seed.
"""

import asyncio
import heapq
import itertools
import random
import sys
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any

from tests.support.lean_loop import LeanLoop


class Process(LeanLoop):
    """One process. ``rate`` is how fast its clock runs; ``offset`` what it shows at the start."""

    def __init__(self, world: "Clockwork", *, rate: float = 1.0, offset: float = 1000.0) -> None:
        self._world = world
        self._rate, self._offset = rate, offset
        self._wakes: list[float] = []
        self._stirred = False
        self.paused = self.dead = False
        super().__init__()
        own: Any = self  # asyncio's stubs leave these out
        self._asyncgen_hooks = own._asyncgen_firstiter_hook, own._asyncgen_finalizer_hook
        self._clock_resolution = 1e-6  # two clocks' rounding must not make a timer miss its turn
        world.processes.append(self)

    def time(self) -> float:
        """Its own monotonic clock: goes on while it is paused."""
        return self._offset + self._world.now * self._rate

    def _wait(self, seconds: float | None) -> None:
        """Time is turned by `Clockwork.run`."""

    def call_soon(  # type: ignore[override]  # mypy can't see that the same is passed on
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        self._stirred = True
        return super().call_soon(callback, *args, context=context)

    def add_timer(
        self,
        when: float,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        context: Context | None,
    ) -> asyncio.TimerHandle:
        heapq.heappush(self._wakes, (when - self._offset) / self._rate)
        return super().add_timer(when, callback, args, context)

    def is_due(self) -> bool:
        """Whether it has something to do now."""
        if self.paused or self.dead:
            return False
        return self._stirred or (bool(self._wakes) and self._wakes[0] <= self._world.now)

    def step(self) -> None:
        """Do the work that is due now, and leave the work that it causes for later.

        That is one turn of the loop; `run_forever` with a stop costs more than most turns.
        """
        before = self.enter()
        try:
            self.turn()
        finally:
            self.leave(before)

    def enter(self) -> Any:
        """Be the running loop, whose hooks for asynchronous generators those are. Returns the hooks
        of before.
        """
        before = sys.get_asyncgen_hooks()
        sys.set_asyncgen_hooks(*self._asyncgen_hooks)
        asyncio._set_running_loop(self)
        return before

    def leave(self, before: Any) -> None:
        """Be the running loop no more."""
        asyncio._set_running_loop(None)
        sys.set_asyncgen_hooks(*before)

    def turn(self) -> None:
        """One turn, as the running loop."""
        while self._wakes and self._wakes[0] <= self._world.now:
            heapq.heappop(self._wakes)
        self._stirred = False
        self._run_once()

    def begin(self, work: Coroutine[Any, Any, Any], name: str) -> "asyncio.Task[Any]":
        """A task of this process, begun from outside of it."""
        task: asyncio.Task[Any] = self.create_task(work, name=name)
        return task

    def kill(self) -> None:
        """Kill it as by SIGKILL: no code of it runs any more, no handler and no ``finally``."""
        self.dead = True

    def bury(self) -> None:
        """Let go of its remains, quietly: after the run."""
        self.paused = self.dead = False
        for task in asyncio.all_tasks(self):
            task.cancel()
        for _ in range(50):
            self.step()
        self.close()


class Clockwork:
    """The world's time, the processes in it, and the planned events."""

    def __init__(self, rng: random.Random) -> None:
        self.now = 0.0
        self.processes: list[Process] = []
        self._rng = rng
        self._order = itertools.count()
        #: The process that is the running loop, and the hooks for asynchronous generators outside.
        self._inside: Process | None = None
        self._before: Any = None
        self._events: list[tuple[float, int, Callable[[], None]]] = []

    def at(self, when: float, call: Callable[[], None]) -> None:
        """``call`` then, outside of all processes: on the wire, or in the API server."""
        heapq.heappush(self._events, (when, next(self._order), call))

    def after(self, seconds: float, call: Callable[[], None]) -> None:
        self.at(self.now + seconds, call)

    def run(self, seconds: float) -> None:
        """Let so much time pass."""
        try:
            self._run(self.now + seconds)
        finally:
            self._leave()

    def _leave(self) -> None:
        """Go out of the process that had the last turn."""
        if self._inside is not None:
            self._inside.leave(self._before)
            self._inside = None

    def _run(self, until: float) -> None:
        """A process that has turns in a row is entered once: that takes as long as a turn."""
        while True:
            while self._events and self._events[0][0] <= self.now:
                self._leave()
                heapq.heappop(self._events)[2]()
            due, wakes = [], float("inf")
            for process in self.processes:  # as `is_due`, without a million calls
                if process.paused or process.dead:
                    continue
                first = process._wakes[0] if process._wakes else float("inf")
                if process._stirred or first <= self.now:
                    due.append(process)
                wakes = min(wakes, first)
            if due:
                if len(due) > 1:
                    self._rng.shuffle(due)
                for process in due:
                    if process.is_due():
                        if self._inside is not process:
                            self._leave()
                            self._inside, self._before = process, process.enter()
                        process.turn()
                continue
            events = self._events[0][0] if self._events else float("inf")
            if min(wakes, events) > until:
                self.now = until
                return
            self.now = max(self.now, min(wakes, events))

    def end(self) -> None:
        """Bury all processes."""
        for process in self.processes:
            process.bury()
