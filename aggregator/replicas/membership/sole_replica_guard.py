"""Finds live replicas beside one that is configured without others.

A replica without the section ``shards`` takes every node for its own. Beside replicas that share
them it would act on theirs, so it checks their Leases before it begins. As everywhere here, a
replica counts as live if its Lease is renewed while we watch, regardless of the Lease's content.
"""

import asyncio
from collections.abc import Callable

from aggregator.replicas.membership.lease_store import LeaseForbidden, LeaseStore, LeaseStoreError
from aggregator.replicas.membership.lease_timing import TIMES, LeaseTiming

#: The whole configuration: a replica that joins with another mode or policy blocks new admissions.
_IN_COMPANY = (
    "replica {name} is at work in this cluster; this one has no section shards, would act for the "
    "same nodes, and waits until no other is: give it the configuration of the others, or stop it "
    "(docs/shards.md)"
)
_LOOKS = (
    "replica {name} has a Lease in this cluster; it is watched for {seconds:g} s, and where no "
    "replica renews it, this one, which has no section shards, begins by itself (docs/shards.md)"
)


async def wait_until_sole_replica(
    board: LeaseStore, *, waits: Callable[[str], None], away: Callable[[str], None]
) -> None:
    """Return once no other is at work. ``waits`` and ``away`` are called again and again with the
    reason for the wait: another replica, or a store that does not answer. Raises `LeaseForbidden`.
    """
    told = ""

    def stands(name: str) -> None:
        waits(told or _LOOKS.format(name=name, seconds=TIMES.lease_duration))

    while True:
        try:
            name = await find_live_replica(board, stands)
        except LeaseForbidden:
            raise
        except LeaseStoreError as error:
            away(str(error))
            await asyncio.sleep(max(TIMES.failure_pause, error.retry_after or 0))
            continue
        if not name:
            return
        told = _IN_COMPANY.format(name=name)
        waits(told)


async def find_live_replica(
    board: LeaseStore, stands: Callable[[str], None], times: LeaseTiming = TIMES
) -> str:
    """The name of a live replica; empty: no Lease was renewed within `LeaseTiming.lease_duration`.

    Without Leases it takes one request and no time; ``stands`` is called with a Lease that is to be
    watched. Raises `LeaseStoreError`.
    """
    loop = asyncio.get_running_loop()
    seen = {lease.member.name: lease.version for lease in await board.list() if not lease.leaving}
    if seen:
        stands(min(seen))
    until = loop.time() + times.lease_duration
    while seen and loop.time() < until:
        await asyncio.sleep(times.retry_period)
        standing = [lease for lease in await board.list() if not lease.leaving]
        for lease in standing:
            if seen.get(lease.member.name) != lease.version:
                return lease.member.name
        seen = {lease.member.name: lease.version for lease in standing}
    return ""
