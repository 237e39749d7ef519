"""Whether replicas are at work where one has been told of none.

A replica without the section ``shards`` takes every node for its own. Beside replicas that share
them it would act for theirs, so it looks for their Leases before it begins. As everywhere here, a
Lease says that its replica lives by being renewed while we look, and by nothing that stands in it.
"""

import asyncio
from collections.abc import Callable

from aggregator.shards.board import BoardError, Forbidden, LeaseBoard
from aggregator.shards.timing import TIMES, Times

#: The whole configuration: one that joins with another mode or policy holds up all that is new.
_IN_COMPANY = (
    "replica {name} is at work in this cluster; this one has no section shards, would act for the "
    "same nodes, and waits until no other is: give it the configuration of the others, or stop it "
    "(docs/shards.md)"
)
_LOOKS = (
    "replica {name} has a Lease in this cluster; it is watched for {seconds:g} s, and where nobody "
    "renews it, this one, which has no section shards, begins by itself (docs/shards.md)"
)


async def until_alone(
    board: LeaseBoard, *, waits: Callable[[str], None], away: Callable[[str], None]
) -> None:
    """Return once no other is at work. ``waits``, ``away``: told why not yet, again and again:
    for another replica, or for an answer. Raises `Forbidden`.
    """
    told = ""

    def stands(name: str) -> None:
        waits(told or _LOOKS.format(name=name, seconds=TIMES.expiry))

    while True:
        try:
            name = await at_work(board, stands)
        except Forbidden:
            raise
        except BoardError as error:
            away(str(error))
            await asyncio.sleep(max(TIMES.retry, error.retry_after or 0))
            continue
        if not name:
            return
        told = _IN_COMPANY.format(name=name)
        waits(told)


async def at_work(board: LeaseBoard, stands: Callable[[str], None], times: Times = TIMES) -> str:
    """The name of a replica that is; empty: no Lease was renewed within `Times.expiry`, or left.

    Where there are no Leases, it takes one request and no time; ``stands`` is told of one that is
    to be watched. Raises `BoardError`.
    """
    loop = asyncio.get_running_loop()
    seen = {lease.member.name: lease.version for lease in await board.list() if not lease.leaving}
    if seen:
        stands(min(seen))
    until = loop.time() + times.expiry
    while seen and loop.time() < until:
        await asyncio.sleep(times.tick)
        standing = [lease for lease in await board.list() if not lease.leaving]
        for lease in standing:
            if seen.get(lease.member.name) != lease.version:
                return lease.member.name
        seen = {lease.member.name: lease.version for lease in standing}
    return ""
