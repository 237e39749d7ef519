"""A node with pods that becomes unhealthy and is drained, in virtual time."""

import asyncio
from typing import Any

from aggregator.cluster.port import Phase, Pod, Quarantine, QuarantineStatus
from aggregator.quarantine.settings import Settings
from tests.support.memory_cluster import MemoryCluster, World, phase_of
from tests.support.replica import Replica, fault, snapshot
from tests.support.virtual_replica import Running
from tests.support.waiting import until

ILL = snapshot(fault())
GANG = {"jobset.sigs.k8s.io/jobset-name": "train"}


def world_with(*names: str, **changes: object) -> World:
    world = World.of("n1")
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
    replica = await Replica(world, clock=Running(), settings=settings, **arguments).ready()
    replica.agent("n1", ILL)
    return replica


async def drained(world: World, *, within: float = 60) -> None:
    def settled() -> bool:
        world.kubelets_finish()
        return phase_of(world, "n1") is Phase.DRAINED

    await until(settled, within=within)


def status(world: World) -> Any:
    return world.quarantines["n1"].status


class Noted(MemoryCluster):
    """Notes each phase that is written, and when each request for pods is sent, after a wait."""

    def __init__(self, world: World, *, delay: float = 0.0, **more: Any) -> None:
        super().__init__(world, **more)
        self.delay = delay
        self.phases: list[tuple[str, Phase]] = []
        self.polled_at: list[float] = []

    async def write_quarantine_status(
        self, quarantine: Quarantine, status: QuarantineStatus
    ) -> Quarantine:
        self.phases.append((quarantine.node, status.phase))
        return await super().write_quarantine_status(quarantine, status)

    async def pods_on(self, node: str, *, background: bool = False) -> list[Pod]:
        await asyncio.sleep(self.delay)
        self.polled_at.append(asyncio.get_running_loop().time())
        return await super().pods_on(node, background=background)


def transitions(replica: Replica, node: str = "n1") -> list[str]:
    kinds = replica.notes.kinds(node)
    return [one for one in kinds if one.startswith("quarantine.")]
