"""An event loop whose clock jumps: it never waits, it turns to the next timer at once."""

import asyncio
import functools
import heapq
import inspect
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

from tests.support.lean_loop import MANY_TIMERS, OWN_FILES, LeanLoop
from tests.support.present import of_type

T = TypeVar("T")
B = TypeVar("B")
P = ParamSpec("P")
#: Of the loop, in which the tasks that a test leaves have to end.
_TURNS = 50


class VirtualTimeLoop(LeanLoop):
    """``time`` is virtual; it is also a ``Clock`` (boottime seconds) for what is under test."""

    def __init__(self) -> None:
        self._now = 1000.0
        super().__init__()

    def time(self) -> float:
        return self._now

    def boottime(self) -> float:
        return self._now

    def _run_once(self) -> None:
        """All turns until it is to stop, each in the order of `LeanLoop`'s, without its calls.

        Instead of a wait for the next timer, it moves the clock to it.
        """
        ready, pop, files = self._ready, heapq.heappop, self._files
        while True:
            scheduled = self._scheduled
            if scheduled and (scheduled[0].timer._cancelled or len(scheduled) > MANY_TIMERS):
                scheduled = self._remove_cancelled()
            if files.count > OWN_FILES or self._signal_handlers or self._default_executor:
                self._process_events(files.select())  # type: ignore[attr-defined]
            if scheduled:
                if not ready and not self._stopping and scheduled[0] > self._now:
                    self._now += scheduled[0] - self._now
                end = self._now + self._clock_resolution
                while scheduled and scheduled[0] < end:
                    timer = pop(scheduled).timer
                    timer._scheduled = False
                    ready.append(timer)
            elif not ready and not self._stopping:
                raise AssertionError("everything waits for something that will never happen")
            self._run_ready()
            if self._stopping:
                return

    def pass_time(self, seconds: float) -> None:
        """Time passes while a callback is busy."""
        self._now += seconds


def loop_time() -> float:
    """The time of the loop that runs."""
    return asyncio.get_running_loop().time()


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run ``main`` to its end in virtual time, and then end what it has started.

    A task that refuses to end is a failure of its own where ``main`` had none.
    """
    loop = VirtualTimeLoop()
    try:
        try:
            result = loop.run_until_complete(main)
        finally:
            left = _end_tasks(loop)
        assert not left, left
        return result
    finally:
        loop.close()


def _end_tasks(loop: VirtualTimeLoop) -> set[asyncio.Task[Any]]:
    """The tasks that do not end, though they are cancelled."""
    for turn in range(_TURNS):
        left = asyncio.all_tasks(loop)
        if not left:
            break
        if turn % 10 == 0:  # what a task does at its end may wait, too
            for task in left:
                task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
    return asyncio.all_tasks(loop)


def in_virtual_time(
    test: Callable[P, Coroutine[Any, Any, T]],
) -> Callable[P, T]:
    """The test, to its end in virtual time: a wait of a quarter of an hour costs no time.

    A test that asserts that an event does not happen needs this: every timer, retry and round has
    had its turn by then.
    """

    @functools.wraps(test)
    def to_its_end(*args: P.args, **kwargs: P.kwargs) -> T:
        return run(test(*args, **kwargs))

    return to_its_end


def play(test: Callable[[VirtualTimeLoop], Awaitable[None]]) -> None:
    """Run ``test`` to its end in virtual time; it is given the loop, whose clock it may read."""

    async def main() -> None:
        loop = of_type(asyncio.get_running_loop(), VirtualTimeLoop)
        await test(loop)

    run(main())


def on(
    made: Callable[[VirtualTimeLoop], B],
) -> Callable[[Callable[..., Awaitable[None]]], Callable[..., None]]:
    """A decorator: the test, to its end in virtual time, is given what is made of its loop first.

    The others are fixtures.
    """
    return played_by(lambda test: play(lambda loop: test(made(loop))))


def played_by(
    play: Callable[..., None], *options: Any, **named: Any
) -> Callable[[Callable[..., Awaitable[None]]], Callable[..., None]]:
    """A decorator: ``play`` makes what the test is on, its first argument, and runs it to its end.

    The others are fixtures.
    """

    def decorate(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
        def to_its_end(**fixtures: Any) -> None:
            play(lambda made: test(made, **fixtures), *options, **named)

        found = inspect.signature(test)
        functools.update_wrapper(to_its_end, test)
        others = list(found.parameters.values())[1:]
        to_its_end.__signature__ = found.replace(parameters=others)  # type: ignore[attr-defined]
        return to_its_end

    return decorate
