"""The loop of tests in virtual time does what asyncio's own does, in the same order."""

import asyncio
import selectors
import signal
import threading
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.virtual_time import VirtualTimeLoop, run


class _Jumping(selectors.DefaultSelector):
    now = 1000.0

    def select(self, timeout: float | None = None) -> list[Any]:
        ready = super().select(0)
        if not ready:
            assert timeout is not None
            self.now += timeout
        return ready


class _AsynciosOwn(asyncio.SelectorEventLoop):
    """asyncio's own loop, whose clock jumps."""

    def __init__(self) -> None:
        self._jumping = _Jumping()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now


#: One step of a task: what it does, how long it takes, and the index of the task or timer it is
#: about.
_STEP = st.tuples(
    st.sampled_from(
        ("sleep", "timeout", "soon", "later", "cancel", "cancel timer", "spawn", "many")
    ),
    st.sampled_from((0.0, 0.0, 0.1, 0.5, 1.0, 1.5)),
    st.integers(0, 5),
)
_TASK = st.lists(_STEP, max_size=8)
Steps = list[tuple[str, float, int]]


def _played(loop: asyncio.AbstractEventLoop, tasks: list[Steps]) -> list[Any]:
    """The steps of the tasks, in its order, each with its time."""
    told: list[Any] = []
    running: list[asyncio.Task[None]] = []
    timers: list[asyncio.TimerHandle] = []

    def note(what: object) -> None:
        told.append((loop.time(), what))

    async def one(name: str, steps: Steps) -> None:
        try:
            for number, (what, seconds, index) in enumerate(steps):
                note((name, number))
                if what == "sleep":
                    await asyncio.sleep(seconds)
                elif what == "timeout":
                    try:
                        async with asyncio.timeout(seconds):
                            await asyncio.sleep(0.5)
                    except TimeoutError:
                        note((name, "timeout"))
                elif what == "soon":
                    loop.call_soon(note, (name, number, "soon"))
                elif what == "later":
                    timers.append(loop.call_later(seconds, note, (name, number, "later")))
                elif what == "cancel" and running:
                    running[index % len(running)].cancel()
                elif what == "cancel timer" and timers:
                    timers[index % len(timers)].cancel()
                elif what == "spawn":
                    running.append(
                        asyncio.create_task(one(f"{name}.{number}", steps[number + 1 :]))
                    )
                elif what == "many":  # so many that those cancelled are removed at once
                    made = [loop.call_later(seconds, note, (name, n)) for n in range(120)]
                    for timer in made[index:]:
                        timer.cancel()
        except asyncio.CancelledError:
            note((name, "cancelled"))
            raise

    async def main() -> None:
        for number, steps in enumerate(tasks):
            running.append(asyncio.create_task(one(str(number), steps)))
        await asyncio.sleep(20)

    with closing(loop):
        loop.run_until_complete(main())
        return told


@pytest.mark.slow
@settings(max_examples=150)
@given(st.lists(_TASK, max_size=5))
def test_callbacks_and_timers_come_in_asyncios_order(
    tasks: list[Steps],
) -> None:
    assert _played(VirtualTimeLoop(), tasks) == _played(_AsynciosOwn(), tasks)


def _heard_from(cause: Callable[[asyncio.AbstractEventLoop, asyncio.Event], object]) -> None:
    async def main() -> None:
        event = asyncio.Event()
        cause(asyncio.get_running_loop(), event)
        for _ in range(100_000):
            if event.is_set():
                return
            await asyncio.sleep(0.01)
        raise AssertionError("never heard")

    run(main())


def test_a_signal_is_heard() -> None:
    def cause(loop: asyncio.AbstractEventLoop, event: asyncio.Event) -> None:
        loop.add_signal_handler(signal.SIGUSR1, event.set)
        signal.raise_signal(signal.SIGUSR1)

    _heard_from(cause)


def test_another_thread_is_heard() -> None:
    def cause(loop: asyncio.AbstractEventLoop, event: asyncio.Event) -> None:
        other = threading.Thread(target=loop.call_soon_threadsafe, args=(event.set,))
        other.start()
        other.join()

    _heard_from(cause)


def test_a_file_is_read() -> None:
    async def main() -> bytes:
        server = await asyncio.start_server(_greet, "127.0.0.1")
        host, port = server.sockets[0].getsockname()
        reader, writer = await asyncio.open_connection(host, port)
        found = await reader.read()
        writer.close()
        server.close()
        return found

    async def _greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"well")
        writer.close()

    async def _ticking() -> bytes:
        ticks = asyncio.create_task(_ticks())  # else there is no timer to turn to
        try:
            return await main()
        finally:
            ticks.cancel()

    async def _ticks() -> None:
        while True:  # noqa: ASYNC110 - it waits for nothing
            await asyncio.sleep(1)

    assert run(_ticking()) == b"well"


def test_an_error_in_a_callback_is_reported_and_the_loop_goes_on() -> None:
    told: list[str] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: told.append(repr(context["exception"])))
        loop.call_soon(lambda: 1 / 0)
        await asyncio.sleep(1)

    run(main())
    assert told == ["ZeroDivisionError('division by zero')"]


def test_a_wait_for_what_never_happens_is_an_error() -> None:
    async def main() -> None:
        await asyncio.Event().wait()

    with pytest.raises(AssertionError, match="never happen"):
        run(main())


def test_a_closed_loop_takes_no_more_work() -> None:
    loop = VirtualTimeLoop()
    loop.close()
    with pytest.raises(RuntimeError, match="closed"):
        loop.call_soon(print)
    with pytest.raises(RuntimeError, match="closed"):
        loop.call_later(1, print)
