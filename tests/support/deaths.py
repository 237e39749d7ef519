"""A process that dies before or after any of its changes, for a story that another one ends."""

from collections.abc import Callable
from typing import Protocol

from aggregator.health.model import Snapshot
from tests.support.replica import Replica
from tests.support.waiting import until


async def sees(replica: Replica, **snapshots: Snapshot) -> None:
    """The replica knows the cluster and has these of its agents, or has died on the way."""
    await until(lambda: not replica.fleet.view_lost or replica.cluster.crashed.is_set())
    for node, snapshot in snapshots.items():
        replica.agent(node, snapshot)


async def until_it_dies(
    replica: Replica, ended: Callable[[], object], *, within: float = 120
) -> None:
    """Until it has died, or has reached the end where no change of it is the last; and stop it."""
    await until(lambda: replica.cluster.crashed.is_set() or ended(), within=within)
    await replica.stop()


class Run(Protocol):
    """A run whose process dies at this change, if given; it returns how many were made."""

    async def __call__(self, at: int | None, /, *, after: bool) -> int: ...


async def at_each_change(run: Run, *, least: int, most: int = 1000) -> None:
    """Run it whole, then twice for each of its changes: it dies before that one, or after it."""
    changes = await run(None, after=False)
    assert least <= changes
    for at in range(1, min(changes, most) + 1):
        for after in (False, True):
            await run(at, after=after)
