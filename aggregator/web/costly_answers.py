"""Answers that take seconds of a processor and of the history's only reader, such as the report of
jobs, which an open page requests at each change of the fleet.

One is made at a time, and it serves for twenty times as long as it took, for a minute at most.
"""

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

from aggregator.runtime.recent import Recent
from aggregator.web.snapshot_cache import rest

T = TypeVar("T")

#: Answers that are remembered, and the seconds for which one serves at most.
_MOST, _LONGEST = 16, 60.0


class CostlyAnswers(Generic[T]):
    """By query."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._made: Recent[Hashable, tuple[float, T]] = Recent(_MOST)

    async def get(
        self, query: Hashable, make: Callable[[], Awaitable[T]], now: Callable[[], float]
    ) -> T:
        """The answer that is remembered, or that of ``make``, whose error is raised, not kept.

        ``now`` gives monotonic seconds.
        """
        async with self._lock:
            began = now()
            until, answer = self._made.get(query, (began, None))
            if answer is None or began >= until:
                answer = await make()
                lasts = min(_LONGEST, rest(now() - began))
                self._made[query] = (now() + lasts, answer)
            return answer
