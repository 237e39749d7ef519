"""A fleet-wide limit on concurrent work, shared out among the replicas."""

import asyncio
from collections.abc import Callable
from types import TracebackType

from aggregator.replicas.membership.view import MembershipView


class ResizableSemaphore:
    """``async with`` it: at most ``most()`` are within at once, by its value at that moment.

    Where it says less than before, those that are within stay; no other comes in until they leave.
    It must never be 0: no task would be left to wake the waiters.
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


def fair_share(whole: int, membership_view: MembershipView) -> int:
    """Our part of a fleet-wide limit. All parts add up to the whole, with a minimum of one."""
    names = sorted(membership_view.members)
    if membership_view.me not in names:
        return max(1, whole // (len(names) + 1))
    part, rest = divmod(whole, len(names))
    return max(1, part + (names.index(membership_view.me) < rest))


def fair_retry_share(whole: int, membership_view: MembershipView) -> int:
    """The retries' share of our part: a fifth, so that first requests find the rest free."""
    return max(1, fair_share(whole, membership_view) // 5)
