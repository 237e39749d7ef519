"""A limit of the fleet on what goes on at once, shared out among the replicas."""

import asyncio
from collections.abc import Callable
from types import TracebackType

from aggregator.shards.council import Council


class Lane:
    """``async with`` it: at most ``most()`` are within at once, by what it says at that moment.

    Where it says less than before, those that are within stay; no other comes in until they leave.
    It must never say 0: nobody would be there to wake who waits.
    """

    def __init__(self, most: Callable[[], int]) -> None:
        self._most = most
        self._within = 0
        self._someone_left = asyncio.Event()

    async def __aenter__(self) -> None:
        while self._within >= self._most():
            self._someone_left.clear()
            await self._someone_left.wait()
        self._within += 1

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._within -= 1
        self._someone_left.set()  # all who wait look, the first of them first


def share(whole: int, council: Council) -> int:
    """Our part of a limit of the fleet: all parts together are the whole, but at least one each."""
    names = sorted(council.members)
    if council.me not in names:
        return max(1, whole // (len(names) + 1))
    part, rest = divmod(whole, len(names))
    return max(1, part + (names.index(council.me) < rest))
