"""Lets a gateway make the first reads and the imports of a controller before it may take the Lease.

A Lease without renewals is taken when `lease_duration` is over. A cluster of 10,000 nodes is
listed in seconds, and no snapshot counts for an act before that. Reads alone are made here.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

from attrs import define

#: Seconds. Renewals of a live Lease are up to 4 s apart; with two lost requests, 8 s.
STILL_FOR = 6.0
POLL_EVERY = 0.5


class ReadAhead(Protocol):
    """The reads with which a controller begins, made before `Cluster.events` is called."""

    def begin(self) -> None:
        """Read from now on, unless it is done already."""

    def end(self) -> None:
        """Forget what was read."""


class StandbyLease(Protocol):
    """`LeaseHolder`, as far as it is needed here."""

    @property
    def holds(self) -> bool: ...

    def still_for(self) -> float: ...


@define(eq=False, repr=False, slots=False)
class Standby:
    """Of one gateway. Its `ReadAhead` is used by the controller that this replica becomes.

    ``load`` imports what that controller needs, and may be called again.
    """

    _lease: StandbyLease
    _ahead: ReadAhead
    _load: Callable[[], Awaitable[object]]

    async def run(self) -> None:
        """Until cancelled, when the Lease is ours."""
        while True:
            await asyncio.sleep(POLL_EVERY)
            if self._lease.still_for() >= STILL_FOR:
                self._ahead.begin()
                await self._load()
            elif not self._lease.holds:
                self._ahead.end()
