"""One thread for blocking work: a disk that hangs must hold up neither the loop nor the exit.

An executor's threads are joined when the process ends, so that one stuck in a system call keeps the
process alive for ever; this one is a daemon.
"""

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class WorkerThread:
    """Runs calls one after the other. The thread begins with the first call."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._stopped = False

    async def run(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """The function's result or its exception. Cancelled, the call itself still runs out."""
        assert not self._stopped, f"{self._name} was stopped"
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()

        def settle(result: T | None, error: BaseException | None) -> None:
            if done.done():
                return
            if error is not None:
                done.set_exception(error)
            else:
                done.set_result(result)  # type: ignore[arg-type]  # no error: it is a T

        def call() -> None:
            result: T | None = None
            failure: BaseException | None = None
            try:
                result = function(*args, **kwargs)
            except BaseException as error:  # noqa: BLE001 - it is raised in the caller
                failure = error
            with contextlib.suppress(RuntimeError):  # the loop has closed, so no caller waits
                loop.call_soon_threadsafe(settle, result, failure)

        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
            self._thread.start()
        self._calls.put(call)
        return await done

    async def run_if_wanted(self, function: Callable[[], T]) -> T:
        """As `run`, but a call that has not begun when its caller is cancelled is not made."""
        wanted = True

        def call() -> T:
            if not wanted:
                raise asyncio.CancelledError
            return function()

        try:
            return await self.run(call)
        except asyncio.CancelledError:
            wanted = False
            raise

    def stop(self) -> None:
        """End after the pending calls. Doesn't wait: the last call may hang."""
        self._stopped = True
        self._calls.put(None)

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            call()
