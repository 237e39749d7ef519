"""Whether replicas are at work where one has been told of none.

A replica without the section ``shards`` takes every node for its own. Beside replicas that share
them it would act for theirs, so it looks for their Leases before it begins. As everywhere here, a
Lease says that its replica lives by being renewed while we look, and by nothing that stands in it.
"""

import asyncio

from aggregator.shards.board import LeaseBoard
from aggregator.shards.timing import TIMES, Times


async def at_work(board: LeaseBoard, times: Times = TIMES) -> str:
    """The name of a replica that is; empty: no Lease was renewed within `Times.expiry`, or left.

    Where there are no Leases, it takes one request and no time. Raises `BoardError`.
    """
    loop = asyncio.get_running_loop()
    seen = {lease.member.name: lease.version for lease in await board.list() if not lease.leaving}
    until = loop.time() + times.expiry
    while seen and loop.time() < until:
        await asyncio.sleep(times.tick)
        standing = [lease for lease in await board.list() if not lease.leaving]
        for lease in standing:
            if seen.get(lease.member.name) != lease.version:
                return lease.member.name
        seen = {lease.member.name: lease.version for lease in standing}
    return ""
