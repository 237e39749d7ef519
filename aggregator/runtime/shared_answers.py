"""Remembers answers for a short time. Callers that come together share one."""

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

from aggregator.runtime.recent import Recent

T = TypeVar("T")

#: Answers that are remembered, the oldest give way.
MOST = 4096


class SharedAnswers(Generic[T]):
    """``now`` is monotonic seconds. ``lasts``: the seconds for which an answer counts, from the
    answer and the seconds that it took. ``most`` are remembered, and ``at_once`` are made.
    """

    def __init__(
        self,
        now: Callable[[], float],
        *,
        lasts: Callable[[T, float], float],
        most: int = MOST,
        at_once: int = MOST,
    ) -> None:
        self._now = now
        self._lasts = lasts
        self._known: Recent[Hashable, tuple[float, T]] = Recent(most)
        self._pending: dict[Hashable, asyncio.Task[T]] = {}
        self._turns = asyncio.Semaphore(at_once)

    def __len__(self) -> int:
        return len(self._known)

    @property
    def pending(self) -> int:
        """How many answers are being made, or wait for their turn."""
        return len(self._pending)

    def known(self, key: Hashable) -> bool:
        """Whether there is an answer that counts or is on its way, or the last one was positive."""
        found = self._known.get(key)
        return key in self._pending or (
            found is not None and bool(found[1] or self._now() < found[0])
        )

    async def get(self, key: Hashable, make: Callable[[], Awaitable[T]]) -> T:
        """The remembered answer, or that of ``make``, whose error is raised, not kept."""
        found = self._known.get(key)
        if found is not None and self._now() < found[0]:
            return found[1]
        task = self._pending.get(key)
        if task is None:
            task = self._pending[key] = asyncio.create_task(self._make(key, make))
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
        # Shield: a client that goes must not end the work for the others that wait for it.
        return await asyncio.shield(task)

    async def _make(self, key: Hashable, make: Callable[[], Awaitable[T]]) -> T:
        try:
            async with self._turns:
                began = self._now()
                answer = await make()
            self._known[key] = (began + self._lasts(answer, self._now() - began), answer)
            return answer
        finally:
            del self._pending[key]
