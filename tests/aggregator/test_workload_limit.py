"""``limits.per_workload``: a gang loses so many nodes within a window, and no more."""

import asyncio
from dataclasses import replace

import pytest

from aggregator.clock import Clocks
from aggregator.cluster.port import (
    UNGUARDED,
    Action,
    Quarantine,
    QuarantineSpec,
    QuarantineStatus,
    Unreachable,
)
from aggregator.jobs.identity import POD_LOSS, SHIPPED, Markers
from aggregator.workloads.limit import MOST_WORKLOADS, WorkloadLimit, counted_workloads
from tests.support import virtual_time
from tests.support.drains import GANG
from tests.support.memory_cluster import MemoryCluster, World
from tests.support.replica import SETTINGS, Replica, fault, snapshot
from tests.support.virtual_replica import Running
from tests.support.waiting import until

pytestmark = pytest.mark.decorated(by=virtual_time.in_virtual_time)

WINDOW = 600.0
GANG_ANNOTATION = "scheduling.k8s.io/group-name"
JOB = {"batch.kubernetes.io/job-name": "train"}
ILL = snapshot(fault())
NODES = ("n1", "n2", "n3", "n4")


def world_of_a_gang() -> World:
    world = World()
    for node in NODES:
        world.add_node(node)
        world.add_pod(node, f"rank-{node}", labels=GANG)
        world.add_pod(node, f"alone-{node}", owner_kind="ReplicaSet")
    return world


def started(world: World, nodes: int = 2, clocks: Clocks | None = None) -> Replica:
    clock = Running()
    limit = WorkloadLimit(
        nodes,
        WINDOW,
        SHIPPED,
        lambda: list(world.quarantines.values()),
        clocks or Clocks(clock, clock),
    )
    settings = replace(SETTINGS, waits=limit)
    return Replica(world, clock=clock, settings=settings, cluster=MemoryCluster(world))


def ranks(world: World) -> list[str]:
    return sorted(uid for uid in world.evicted if "rank" in uid)


async def fall_ill(replica: Replica, *nodes: str) -> None:
    await until(lambda: not replica.fleet.view_lost)
    replica.agents(nodes, ILL)


async def test_a_third_node_at_once_is_held_and_alerted_also_by_the_next_controller() -> None:
    world = world_of_a_gang()
    replica = started(world)
    await fall_ill(replica, *NODES)
    await until(lambda: len(world.evicted) >= 6, within=60)
    await asyncio.sleep(60)
    assert len(ranks(world)) == 2
    assert sum("alone" in uid for uid in world.evicted) == 4  # pods of no gang go on
    held = [node for node in NODES if f"uid-rank-{node}" not in world.evicted]
    for node in held:
        [blocker] = world.quarantines[node].status.blockers
        assert "its gang lost 2 nodes within 10m" in blocker.reason
        assert "limits.per_workload is 2" in blocker.reason
        assert replica.notes.kinds(node).count("work.blocked") == 1
    world.kubelets_finish()
    await replica.stop()
    replica = started(world)
    await fall_ill(replica, *NODES)
    await asyncio.sleep(120)
    assert len(ranks(world)) == 2
    assert all("work.blocked" not in replica.notes.kinds(node) for node in held)
    await asyncio.sleep(WINDOW)  # the window is over: the next two
    await until(lambda: len(ranks(world)) == 4, within=120)


async def test_a_drain_that_is_still_under_way_counts_however_long_it_takes() -> None:
    world = world_of_a_gang()
    world.budget_blocks |= {"uid-rank-n1", "uid-rank-n2"}
    replica = started(world)
    await fall_ill(replica, "n1", "n2")
    await asyncio.sleep(3 * WINDOW)
    replica.agent("n3", ILL)
    await asyncio.sleep(60)
    assert ranks(world) == []
    [blocker] = world.quarantines["n3"].status.blockers
    assert "its gang lost 2 nodes" in blocker.reason


@pytest.mark.parametrize("ends", [True, False])
async def test_a_note_of_a_clock_that_was_set_back_counts_while_its_drain_goes_on(
    *, ends: bool
) -> None:
    world, now, ahead = world_of_a_gang(), Running(), 86_400.0
    clocks = Clocks(now, lambda: now() + ahead)
    replica = started(world, nodes=1, clocks=clocks)
    await until(lambda: not replica.fleet.view_lost)
    if not ends:
        world.budget_blocks.add("uid-rank-n1")
    replica.agent("n1", ILL)
    await until(lambda: "uid-alone-n1" in world.evicted, within=60)
    ahead = 0.0
    assert clocks.doubt()
    await asyncio.sleep(700)
    assert not clocks.doubt()
    replica.agent("n2", ILL)
    await until(lambda: "uid-alone-n2" in world.evicted, within=60)
    await asyncio.sleep(60)
    assert ("uid-rank-n2" in world.evicted) == ends


class Unanswering(MemoryCluster):
    """Notes of n1 are written, and neither answered nor shown by the watch."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.shown: dict[str, Quarantine] = {}

    async def write_quarantine_status(
        self, quarantine: Quarantine, status: QuarantineStatus
    ) -> Quarantine:
        before = quarantine
        written = await super().write_quarantine_status(quarantine, status)
        if status.evicted_workloads and quarantine.node == "n1":
            self.shown.setdefault("n1", before)
            raise Unreachable("no answer")
        return written


async def test_a_note_without_an_answer_counts_before_the_watch_shows_it() -> None:
    world, clock = world_of_a_gang(), Running()
    cluster = Unanswering(world)

    def quarantines() -> list[Quarantine]:
        return list({**world.quarantines, **cluster.shown}.values())

    limit = WorkloadLimit(1, WINDOW, SHIPPED, quarantines, Clocks(clock, clock))
    replica = Replica(world, clock=clock, settings=replace(SETTINGS, waits=limit), cluster=cluster)
    await fall_ill(replica, "n1")
    await until(lambda: "n1" in cluster.shown, within=60)
    await fall_ill(replica, "n2")
    await until(lambda: "uid-alone-n2" in world.evicted, within=60)
    await asyncio.sleep(60)
    assert ranks(world) == ["uid-rank-n1"]


async def test_a_persons_quarantine_counts_and_is_not_held_and_zero_sets_no_limit() -> None:
    world = world_of_a_gang()
    replica = started(world, nodes=1)
    await fall_ill(replica, "n1")
    await until(lambda: ranks(world) == ["uid-rank-n1"], within=60)
    replica.agent("n3", ILL)
    await until(lambda: "n3" in world.quarantines and bool(world.quarantines["n3"].status.blockers))
    assert "its gang lost 1 node within 10m" in world.quarantines["n3"].status.blockers[0].reason
    by_hand = QuarantineSpec(Action.DRAIN, "manual", "smoke", requester="alice")
    await replica.cluster.create_quarantine("n2", by_hand, guard=UNGUARDED)
    await until(lambda: len(ranks(world)) == 2, within=60)
    await asyncio.sleep(60)
    assert len(ranks(world)) == 2
    await replica.stop()
    world = world_of_a_gang()
    replica = started(world, nodes=0)
    await fall_ill(replica, *NODES)
    await until(lambda: len(ranks(world)) == 4, within=60)
    assert all(not one.status.evicted_workloads for one in world.quarantines.values())


async def test_a_gang_s_long_name_is_shortened_and_stays_another_gang_s() -> None:
    """An annotation may have 256 KiB, and a few of those are more than any object may have."""
    world = World.of("n1")
    for last in "ab":
        long = {GANG_ANNOTATION: "x" * 200_000 + last}
        world.add_pod("n1", f"rank-{last}", annotations=long)
    replica = started(world)
    await fall_ill(replica, "n1")
    await until(lambda: len(ranks(world)) == 2, within=60)
    one, other = (item.workload for item in world.quarantines["n1"].status.evicted_workloads)
    assert one != other
    assert max(len(one), len(other)) < 600


async def test_a_job_without_a_gang_counts_in_its_own_namespace() -> None:
    world = World()
    for node in NODES:
        world.add_node(node)
        world.add_pod(node, f"rank-{node}", labels=JOB, owner_name=f"j-{node}")
        # The job of another team by the same name, whose marker is a tenant's text.
        world.add_pod(node, f"claims-{node}", namespace=f"of-{node}", labels=JOB)
    replica = started(world)
    await fall_ill(replica, *NODES)
    await until(lambda: len(world.evicted) >= 6, within=60)
    await asyncio.sleep(60)
    assert len(ranks(world)) == 2
    assert sum("claims" in uid for uid in world.evicted) == 4
    held = [node for node in NODES if f"uid-rank-{node}" not in world.evicted]
    for node in held:
        [blocker] = world.quarantines[node].status.blockers
        assert "its job lost 2 nodes within 10m" in blocker.reason
        assert replica.notes.kinds(node).count("work.blocked") == 1


async def test_the_drain_of_a_node_with_more_jobs_than_are_counted_ends() -> None:
    world = World.of("n1")
    for number in range(MOST_WORKLOADS + 20):
        world.add_pod("n1", f"rank-{number}", owner_name=f"job-{number}")
    replica = started(world, nodes=1)
    await fall_ill(replica, "n1")

    def gone() -> bool:
        world.kubelets_finish()
        return len(ranks(world)) == MOST_WORKLOADS + 20

    await until(gone, within=600)
    assert len(world.quarantines["n1"].status.evicted_workloads) == MOST_WORKLOADS


async def test_a_pod_that_joins_200_gangs_takes_the_room_of_no_other() -> None:
    world = World.of("n1")
    world.add_pod("n1", "mallory", labels={"pod-group-name": "g0"})
    world.budget_blocks.add("uid-mallory")
    replica = started(world)
    await fall_ill(replica, "n1")
    for number in range(1, 200):
        pod = world.pods["n1/mallory"]
        labels = {"pod-group-name": f"g{number}"}
        world.pods["n1/mallory"] = replace(pod, labels=labels, version=world.tick())
        await asyncio.sleep(30)
    world.add_pod("n1", "rank", labels=GANG)
    await until(lambda: "uid-rank" in world.evicted, within=120)
    assert len(world.quarantines["n1"].status.evicted_workloads) < 10


def test_what_counts_is_a_gang_or_a_job_that_loses_work() -> None:
    world = World.of("n1")
    gang = world.add_pod("n1", "gang", labels=GANG)
    job = world.add_pod("n1", "job", labels=JOB)
    peer = world.add_pod("n1", "peer", labels=JOB)
    others = [
        world.add_pod("n1", "web", owner_kind="ReplicaSet"),
        world.add_pod("n1", "store", owner_kind="StatefulSet"),
        world.add_pod("n1", "agent", owner_kind="DaemonSet"),
        world.add_pod("n1", "odd", owner_kind="NodeSet"),
        world.add_pod("n1", "bare", owner_kind=""),
        world.add_pod("n1", "stated", labels=JOB, annotations={POD_LOSS: "nothing"}),
    ]
    found = counted_workloads([gang, job, peer, *others], SHIPPED)
    assert [[pod.name for pod in one.pods] for one in found.values()] == [["gang"], ["job", "peer"]]
    long = world.add_pod("n1", "long", annotations={"batch.kubernetes.io/job-name": "x" * 200_000})
    assert max(map(len, counted_workloads([long], SHIPPED))) < 600
    site = world.add_pod("n1", "site", annotations={"run": "7"}, owner_kind="")
    assert len(counted_workloads([site], Markers(jobs=("run",)))) == 1
