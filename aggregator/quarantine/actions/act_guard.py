"""The guard of an act on a node: its checks, in the one order that leaves no gap."""

import math
from collections.abc import Awaitable, Callable

from aggregator.clock import Clocks
from aggregator.cluster.port import (
    Cluster,
    ClusterError,
    Guard,
    GuardRefused,
    GuardUnreadable,
    Phase,
    Quarantine,
)
from aggregator.quarantine.admission.stop_switch import StopSwitch

#: Why an act is not wanted any more, by what is known; empty: it is wanted.
Against = Callable[[], str]
#: The same by a read of what the act is for.
Read = Callable[[], Awaitable[str]]
#: Seconds for which a read of an object counts for an act.
MOST_AGE = 5.0
#: When a read began (monotonic) that there was not: each act reads its object then.
NEVER = -math.inf


class FreshRead:
    """The last read of what an act is for. ``began``: when it was requested (monotonic). ``read``
    reads it again.
    """

    def __init__(self, read: Read, *, clocks: Clocks, began: float) -> None:
        self._read = read
        self._now = clocks.now
        self._began = began

    async def renew(self) -> None:
        """Read it again where it is too old. Raises GuardRefused."""
        if self.is_fresh():
            return
        began = self._now()
        try:
            why = await self._read()
        except ClusterError as error:
            raise GuardUnreadable(
                f"the act waits, as what it is for can't be read: {error}",
                status=error.status,
                retry_after=error.retry_after,
            ) from error
        if why:
            raise GuardRefused(why)
        self._began = began

    def is_fresh(self) -> bool:
        return self._now() - self._began < MOST_AGE


def quarantine_read(cluster: Cluster, quarantine: Quarantine) -> Read:
    """The ``read`` of `FreshRead` for an act of this quarantine."""

    async def read() -> str:
        found = await cluster.read_quarantine(quarantine.node)
        if found is None or found.uid != quarantine.uid or found.deleting:
            return f"the quarantine of {quarantine.node} is gone"
        releasing = found.status.phase is Phase.RELEASING
        return f"{quarantine.node} is being released" if releasing else ""

    return read


def act_guard(
    *, switch: StopSwitch, against: Against, fresh: FreshRead | None = None, ends: Against = str
) -> Guard:
    """Checks that wait come first, and the known state is checked last, without a wait in
    between. ``ends``: a reason that ends a program, too.
    """

    def lost() -> str:
        return ends() or switch.lost()

    async def check() -> None:
        if fresh is not None:
            await fresh.renew()
        await switch.check()
        why = against() or lost()
        if why:
            raise GuardRefused(why)
        if fresh is not None and not fresh.is_fresh():
            raise GuardRefused(f"the act is for what was read more than {MOST_AGE:g} s ago")

    return Guard(check, lost)
