"""An event loop for tests in virtual time: it does what asyncio's own does, in less time.

Tests in virtual time run millions of timers and callbacks that do next to nothing, so asyncio's own
loop took a quarter of their time. This one keeps asyncio's order of callbacks exactly; it leaves
out the debug mode, and looks at files only while the test has one open.
"""

import asyncio
import heapq
import selectors
from asyncio import format_helpers
from collections import deque
from collections.abc import Callable
from contextvars import Context, copy_context
from typing import Any

#: As in asyncio.base_events: cancelled timers are removed once they are many, and half of all.
MANY_TIMERS = 100
_DAY = 24 * 3600.0
#: The loop's own: the pipe through which signals and other threads wake it.
OWN_FILES = 1


class _Timer(asyncio.TimerHandle):
    """A timer without a trace of its source; `LeanLoop` makes it."""

    # asyncio's own, which its stubs leave out.
    _when: float
    _scheduled: bool
    _cancelled: bool
    _loop: "LeanLoop"
    _context: Context
    _callback: Any
    _args: Any
    _repr: Any
    _source_traceback: Any

    __slots__ = ()

    def cancel(self) -> None:
        if not self._cancelled:
            self._cancelled = True
            if self._scheduled:
                self._loop._timer_cancelled_count += 1
            self._callback = self._args = None


#: A call of a class with an __init__ in Python would take twice as long.
_new = object.__new__


class _When(float):
    """A place in the heap of timers. Floats are compared in C, timers in Python."""

    timer: _Timer


class Files(selectors.DefaultSelector):
    """Never waits; knows how many files it has."""

    count = 0

    def register(self, *args: Any, **how: Any) -> selectors.SelectorKey:
        key = super().register(*args, **how)
        self.count += 1
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        key = super().unregister(fileobj)
        self.count -= 1
        return key

    def select(self, timeout: float | None = None) -> list[Any]:
        del timeout
        return super().select(0)


#: The callback of a task or a future, its arguments and its context.
_Step = tuple[Callable[..., object], tuple[Any, ...], Context]


class LeanLoop(asyncio.SelectorEventLoop):
    """``time`` and ``_wait`` are a subclass's, or ``_run_once``."""

    #: It remembers no asynchronous generators, so it can't close those that are left at its end.
    _asyncgen_firstiter_hook = None

    # asyncio's own, which its stubs leave out.
    _ready: "deque[asyncio.Handle | _Step]"
    _scheduled: list[_When]
    _timer_cancelled_count: int
    _clock_resolution: float
    _stopping: bool
    _closed: bool
    _signal_handlers: dict[int, Any]
    _default_executor: Any

    def __init__(self) -> None:
        self._files = Files()
        super().__init__(self._files)

    def _wait(self, seconds: float | None) -> None:
        """Nothing is to be done for so long; for None, without an event from elsewhere never."""
        raise NotImplementedError

    def call_soon(  # type: ignore[override]  # mypy can't see that the same is passed on
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        """As asyncio's. Tasks and futures, which alone give a context, take no handle."""
        if self._closed:
            self._check_closed()  # type: ignore[attr-defined]
        if context is not None:
            self._ready.append((callback, args, context))
            return None  # type: ignore[return-value]
        handle = asyncio.Handle(callback, args, self)
        self._ready.append(handle)
        return handle

    def call_at(  # type: ignore[override]  # as above
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.add_timer(when, callback, args, context)

    def call_later(  # type: ignore[override]  # as above
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.add_timer(self.time() + delay, callback, args, context)

    def add_timer(
        self,
        when: float,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        context: Context | None,
    ) -> asyncio.TimerHandle:
        """The one way to a timer: a subclass may note it."""
        if self._closed:
            self._check_closed()  # type: ignore[attr-defined]
        timer: _Timer = _new(_Timer)
        timer._context = copy_context() if context is None else context
        timer._loop = self
        timer._callback = callback
        timer._args = args
        timer._cancelled = False
        timer._repr = timer._source_traceback = None
        timer._when, timer._scheduled = when, True
        place = _When(when)
        place.timer = timer
        heapq.heappush(self._scheduled, place)
        return timer

    def _run_once(self) -> None:
        """One turn, in asyncio's order: timers that are due, then all that was ready by then."""
        ready, scheduled = self._ready, self._remove_cancelled()
        if self._files.count > OWN_FILES or self._signal_handlers or self._default_executor:
            self._process_events(self._files.select())  # type: ignore[attr-defined]
        if not ready and not self._stopping:
            if scheduled:
                seconds = min(max(0, scheduled[0] - self.time()), _DAY)
                self._wait(seconds)
            else:
                self._wait(None)
        if scheduled:
            end = self.time() + self._clock_resolution
            while scheduled and scheduled[0] < end:
                timer = heapq.heappop(scheduled).timer
                timer._scheduled = False
                ready.append(timer)
        self._run_ready()

    def _run_ready(self) -> None:
        """Run all that was ready at the call, and leave what comes meanwhile."""
        ready = self._ready
        for _ in range(len(ready)):
            handle: Any = ready.popleft()  # asyncio's stubs leave its fields out
            if handle.__class__ is tuple:
                callback, args, context = handle
            elif handle._cancelled:
                continue
            else:
                callback, args, context = handle._callback, handle._args, handle._context
            try:
                context.run(callback, *args)
            except (SystemExit, KeyboardInterrupt):
                raise
            except BaseException as error:
                self._report(callback, args, error)

    def _report(
        self, callback: Callable[..., object], args: tuple[Any, ...], error: BaseException
    ) -> None:
        """As `asyncio.Handle` reports what its callback raises."""
        source = format_helpers._format_callback_source(callback, args)
        message = f"Exception in callback {source}"
        self.call_exception_handler({"message": message, "exception": error})

    def _remove_cancelled(self) -> list[_When]:
        scheduled = self._scheduled
        many = len(scheduled) > MANY_TIMERS
        if many and self._timer_cancelled_count / len(scheduled) > 0.5:
            left = []
            for place in scheduled:
                if place.timer._cancelled:
                    place.timer._scheduled = False
                else:
                    left.append(place)
            heapq.heapify(left)
            self._scheduled, self._timer_cancelled_count = left, 0
            return left
        while scheduled and scheduled[0].timer._cancelled:
            self._timer_cancelled_count -= 1
            heapq.heappop(scheduled).timer._scheduled = False
        return scheduled
