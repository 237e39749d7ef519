"""A node with pods that becomes unhealthy and is drained, in virtual time."""

import asyncio
from typing import Any

from aggregator.cluster.port import Phase, Quarantine, QuarantineStatus
from aggregator.quarantine.settings import Settings
from tests.support.memory_cluster import MemoryCluster, World, phase_of
from tests.support.replica import Replica, fault, snapshot
from tests.support.virtual_replica import Running
from tests.support.waiting import until

ILL = snapshot(fault())
GANG = {"jobset.sigs.k8s.io/jobset-name": "train"}


def world_with(*names: str, **changes: object) -> World:
    world = World()
    world.add_node("n1")
    for name in names:
        world.add_pod("n1", name, **changes)
    return world


class Busy(MemoryCluster):
    """The first write after the marks takes so long (seconds), as in a burst: it trails."""

    def __init__(self, world: World, trails: float = 0.0, **more: Any) -> None:
        super().__init__(world, **more)
        self.trails = trails

    async def write_quarantine_status(
        self, quarantine: Quarantine, status: QuarantineStatus
    ) -> Quarantine:
        if quarantine.status.phase is Phase.ADMITTED:
            await asyncio.sleep(self.trails)
        return await super().write_quarantine_status(quarantine, status)


async def begun(world: World, settings: Settings, **arguments: Any) -> Replica:
    """An aggregator that knows its cluster, and the node's fault."""
    replica = Replica(world, clock=Running(), settings=settings, **arguments)
    await until(lambda: not replica.fleet.view_lost)
    replica.agent("n1", ILL)
    return replica


async def drained(world: World, *, within: float = 60) -> None:
    def settled() -> bool:
        world.kubelets_finish()
        return phase_of(world, "n1") is Phase.DRAINED

    await until(settled, within=within)


def status(world: World) -> Any:
    return world.quarantines["n1"].status
