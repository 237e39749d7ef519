"""The requests that the drain of one node costs, and the changes that its few reads still show."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggregator.cluster.port import Action, Node, Phase, Quarantine
from aggregator.quarantine.decide.drain_plan import DrainRules, Leave, NamespaceRule
from aggregator.quarantine.decide.operator_requests import EXEMPT
from aggregator.quarantine.reconcile.poller import DRAINING_EVERY
from tests.support import virtual_time
from tests.support.drains import Busy, begun, status, world_with
from tests.support.memory_cluster import MemoryCluster, World, phase_of
from tests.support.replica import SETTINGS, Replica
from tests.support.waiting import until

pytestmark = pytest.mark.decorated(by=virtual_time.in_virtual_time)

#: Between two empty reads, as in production (conftest.py).
EMPTY_FOR = 5.0
#: The poller sleeps so long between two rounds (seconds), and a little for each node.
ROUND = 6.0


async def test_a_draining_node_is_first_polled_one_interval_after_its_taint() -> None:
    world = world_with("a")
    waits = NamespaceRule("jobs", Leave.WAIT, wait=3600.0)
    replica = await begun(world, replace(SETTINGS, drain=DrainRules(namespaces=(waits,))))
    await until(lambda: phase_of(world, "n1") is Phase.DRAINING)
    before = replica.cluster.asked["read_node"]
    await asyncio.sleep(DRAINING_EVERY - 1)
    assert replica.cluster.asked["read_node"] == before
    await asyncio.sleep(ROUND + 1)
    assert replica.cluster.asked["read_node"] == before + 1


async def test_a_drain_begun_with_the_marks_costs_two_writes_and_no_read_of_an_empty_node() -> None:
    replica = await drained_by(world := empty_world(), 0.0)
    assert world.phases == [Phase.DRAINING, Phase.DRAINED]
    assert replica.cluster.asked["write_quarantine_status"] == 2
    assert replica.cluster.asked["read_node"] == 0
    assert replica.cluster.asked["read_quarantine"] == 0
    found = status(world)
    assert all((found.cordoned_at, found.drain_started_at, found.deadline_at, found.applied))
    assert found.node_uid == world.nodes["n1"].uid
    kinds = replica.notes.kinds("n1")
    told = [one for one in kinds if one.startswith("quarantine.")]
    assert told[-3:] == ["quarantine.cordoned", "quarantine.draining", "quarantine.drained"]


def test_a_node_that_was_only_marked_is_read_before_its_first_eviction() -> None:
    """No watch tells of the exemption: the read alone does."""

    class Unwatched(MemoryCluster):
        async def read_node(self, name: str, **how: bool) -> Node | None:
            self.world.person_annotates(name, EXEMPT, "until 2100-01-01T00:00:00Z the job must end")
            return await super().read_node(name, **how)

    async def scenario() -> None:
        world = world_with("a", "b")
        await begun(world, SETTINGS, cluster=Unwatched(world))
        await until(lambda: phase_of(world, "n1") is Phase.DRAINING)
        await until(lambda: "the job must end" in status(world).message)
        assert world.evicted == []

    virtual_time.run(scenario())


async def test_a_cordon_is_written_as_such_and_costs_no_write_of_a_drain() -> None:
    world = empty_world()
    await begun(world, replace(SETTINGS, mode=Action.CORDON))
    await until(lambda: phase_of(world, "n1") is Phase.CORDONED)
    await asyncio.sleep(60)
    assert world.phases == [Phase.CORDONED]


@pytest.mark.parametrize("after", [0.1, 10.0, 40.0])
async def test_an_exemption_is_seen_within_one_interval_at_any_time_of_a_drain(
    after: float,
) -> None:
    world = world_with("a")
    waits = NamespaceRule("jobs", Leave.WAIT, wait=3600.0)
    await begun(world, replace(SETTINGS, drain=DrainRules(namespaces=(waits,))))
    await until(lambda: phase_of(world, "n1") is Phase.DRAINING)
    await asyncio.sleep(after)
    world.person_annotates("n1", EXEMPT, "until 2100-01-01T00:00:00Z the job must end")
    await until(lambda: "the job must end" in status(world).message, within=DRAINING_EVERY + ROUND)


# -- one read of the pods, or two -----------------------------------------------------------------


@dataclass
class Seen(World):
    """Notes the pods that are on the node when it is written that it is drained.

    ``on_taint`` is called at the moment of the node's first taint.
    """

    left_behind: list[str] = field(default_factory=list)
    phases: list[Phase] = field(default_factory=list)
    on_taint: Callable[[], object] | None = None

    def set_node(self, node: Node) -> None:
        super().set_node(node)
        if node.taints and self.on_taint is not None:
            self.on_taint()
            self.on_taint = None

    def store_quarantine(self, quarantine: Quarantine) -> Quarantine:
        if quarantine.status.phase is not Phase.ADMITTED:
            self.phases.append(quarantine.status.phase)
        if quarantine.status.phase is Phase.DRAINED:
            self.left_behind += self.pods
        return super().store_quarantine(quarantine)


def empty_world() -> Seen:
    world = Seen()
    world.add_node("n1")
    return world


async def drained_by(world: World, trails: float) -> Replica:
    """It became ill, and is drained."""
    replica = await begun(world, SETTINGS, cluster=Busy(world, trails))
    await until(lambda: phase_of(world, "n1") is Phase.DRAINED)
    return replica


@pytest.mark.parametrize(
    ("trails", "reads"), [(0.0, 2), (EMPTY_FOR - 0.1, 2), (EMPTY_FOR + 0.1, 1)]
)
async def test_the_pods_of_an_empty_node_are_read_once_where_that_is_late_enough(
    trails: float, reads: int
) -> None:
    replica = await drained_by(empty_world(), trails)
    assert replica.cluster.asked["pods_on"] == reads
    view = replica.fleet.node_summaries["n1"].quarantine_view
    just_empty = view.was_just_empty(asyncio.get_running_loop().time(), 1.0)
    assert just_empty == (reads == 2), "after one read a repair reads the pods again"


@given(trails=st.floats(0, 3 * EMPTY_FOR), late=st.floats(0, EMPTY_FOR, exclude_max=True))
def test_a_pod_that_a_scheduler_places_before_it_sees_the_taint_is_never_left_behind(
    trails: float, late: float
) -> None:
    """However late our own requests are, and whether one read or two find the node empty."""

    async def scenario() -> None:
        world = empty_world()
        loop = asyncio.get_running_loop()
        world.on_taint = lambda: loop.call_later(late, world.add_pod, "n1", "late")
        await begun(world, SETTINGS, cluster=Busy(world, trails))

        def settled() -> bool:
            world.kubelets_finish()
            return phase_of(world, "n1") is Phase.DRAINED

        await until(settled)
        assert world.evicted == ["uid-late"]
        assert world.left_behind == []

    virtual_time.run(scenario())


async def test_a_replica_that_takes_a_drain_over_reads_the_pods_twice() -> None:
    world = empty_world()
    first = await begun(world, SETTINGS, cluster=Busy(world, 2 * EMPTY_FOR))
    await until(lambda: phase_of(world, "n1") is Phase.ADMITTED and world.nodes["n1"].taints)
    await first.stop()
    await asyncio.sleep(2 * EMPTY_FOR)
    second = await drained_by(world, 2 * EMPTY_FOR)
    assert second.cluster.asked["pods_on"] == 2
    await second.stop()
