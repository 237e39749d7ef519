"""Two replicas in one process, on one cluster, with a played membership view."""

from collections.abc import Callable

from aggregator.cluster.port import Phase
from aggregator.quarantine.settings import Settings
from aggregator.replicas.membership.view import MembershipView
from tests.support.coordination import PlayedShards, member
from tests.support.memory_cluster import MemoryCluster, World, phase_of
from tests.support.replica import SETTINGS, Replica
from tests.support.replica_links import Links
from tests.support.virtual_replica import Running, soon

BOTH = ("a", "b")


def world_of_two() -> World:
    """Two nodes of each, with a job on each node."""
    made = World()
    for node in (*owned_by("a", 2), *owned_by("b", 2)):
        made.add_node(node, boot_id="boot-1")
        made.add_pod(node, f"job-{node}")
    return made


def owned_by(name: str, count: int = 1) -> list[str]:
    """Nodes that belong to this one of the two."""
    membership_view = MembershipView("a", {one: member(one) for one in BOTH})
    nodes = (f"n{number}" for number in range(1000))
    mine = [node for node in nodes if (found := membership_view.owner(node)) and found.name == name]
    return mine[:count]


async def drained(world: World, *nodes: str) -> None:
    """Wait until these are drained, while the kubelets do their part."""

    def done() -> bool:
        world.kubelets_finish()
        return all(phase_of(world, node) is Phase.DRAINED for node in nodes)

    await soon(done)


class Two:
    """Replicas a and b, each with its own view of the same cluster."""

    def __init__(
        self,
        world: World,
        settings: Settings = SETTINGS,
        cluster: Callable[[World], MemoryCluster] = MemoryCluster,
    ) -> None:
        self.world = world
        self.shards = {name: PlayedShards(name, BOTH) for name in BOTH}
        self.replicas = {
            name: Replica(
                world,
                clock=Running(),
                settings=settings,
                shards=self.shards[name],
                cluster=cluster(world),
            )
            for name in BOTH
        }
        self.links = Links()
        for name, replica in self.replicas.items():
            self.links.join(name, member(name).epoch, replica.controller.coordinator)

    def become(self, *members: str) -> None:
        for name in members:
            self.shards[name].become(members)

    async def settled(self) -> None:
        for replica in self.replicas.values():
            await soon(lambda replica=replica: not replica.fleet.view_lost)  # type: ignore[misc]

    async def stop(self) -> None:
        self.links.close()
        for replica in self.replicas.values():
            await replica.stop()
