"""Drains that make no progress: returning pods, rejected evictions, many at once. Virtual time."""

import asyncio
from collections import Counter
from dataclasses import replace

import pytest

from aggregator.cluster.node_names import TAINT
from aggregator.cluster.port import Phase, Taint, Toleration, Unreachable
from aggregator.events import EventKind
from aggregator.quarantine.decide.drain_plan import DrainRules, Leave, NamespaceRule
from aggregator.quarantine.decide.operator_requests import EXEMPT
from aggregator.quarantine.settings import Settings
from tests.support import virtual_time
from tests.support.drains import GANG, ILL, begun, drained, status, world_with
from tests.support.memory_cluster import MemoryCluster, World, phase_of
from tests.support.replica import OPEN, SETTINGS, Replica
from tests.support.virtual_replica import Running
from tests.support.waiting import until

pytestmark = pytest.mark.decorated(by=virtual_time.in_virtual_time)

#: Between two empty reads, as in production (conftest.py).
EMPTY_FOR = 5.0
HOUR = 3600.0
TOLERATES_ALL = (Toleration(operator="Exists"),)
TOLERATES_OURS = (Toleration(TAINT, "Exists", "", "NoSchedule"),)


async def kubelets(world: World, seconds: float) -> None:
    """Let time pass, the kubelets and the pods' controllers doing their part."""
    for _ in range(int(seconds * 4)):
        await asyncio.sleep(0.25)
        world.kubelets_finish()


# -- pods that come back -------------------------------------------------------------------


@pytest.mark.parametrize("tolerations", [TOLERATES_ALL, TOLERATES_OURS, ()])
async def test_a_pod_that_comes_back_to_its_node_is_named_and_not_evicted_without_end(
    tolerations: tuple[Toleration, ...],
) -> None:
    world = world_with("web-0", owner_kind="StatefulSet", tolerations=tolerations)
    world.come_back.add("jobs/web-0")
    replica = await begun(world, SETTINGS)
    await kubelets(world, 60)
    assert 1 <= len(world.evicted) <= 3
    (blocker,) = status(world).blockers
    assert blocker.pod == "jobs/web-0"
    assert "came back" in blocker.reason
    assert ("it tolerates the taint" in blocker.reason) == bool(tolerations)
    assert phase_of(world, "n1") is Phase.DRAINING
    assert status(world).pods_remaining == 1
    early = len(world.evicted)
    await kubelets(world, 2 * HOUR)
    assert early < len(world.evicted) <= early + 6  # it is asked now and then
    notes = replica.notes.kinds("n1")
    assert notes.count("work.blocked") == 1
    await replica.stop()
    before = len(world.evicted)
    replica = await begun(world, SETTINGS)
    await kubelets(world, 120)
    assert len(world.evicted) - before <= (0 if tolerations else 1)
    assert "work.blocked" not in replica.notes.kinds("n1")
    world.come_back.clear()
    world.pods.clear()
    await drained(world, within=120)


async def test_a_pod_that_comes_back_is_not_deleted_without_end_where_its_namespace_is_forced() -> (
    None
):
    world = world_with("web-0", owner_kind="StatefulSet", tolerations=TOLERATES_ALL)
    world.come_back.add("jobs/web-0")
    world.budget_blocks.add("uid-web-0")
    forces = NamespaceRule("jobs", Leave.FORCE, force_after=60)
    settings = replace(SETTINGS, drain=DrainRules(namespaces=(forces,)))
    await begun(world, settings)
    await kubelets(world, HOUR)
    assert world.forced == ["uid-web-0"]
    assert len(world.evicted) <= 6


async def test_a_pod_that_was_there_before_goes_although_its_sibling_came_back() -> None:
    owner = {"owner_kind": "ReplicaSet", "owner_name": "web", "tolerations": TOLERATES_ALL}
    world = world_with("web-a", "web-b", **owner)
    world.budget_blocks.add("uid-web-b")
    world.come_back.add("jobs/web-a")
    await begun(world, SETTINGS)
    await kubelets(world, 60)
    assert world.evicted == ["uid-web-a"]
    world.budget_blocks.clear()
    await kubelets(world, 90)
    assert world.evicted[:2] == ["uid-web-a", "uid-web-b"]


async def test_a_node_is_drained_once_two_reads_some_seconds_apart_find_it_empty() -> None:
    world = world_with("a")
    await begun(world, SETTINGS)
    await until(lambda: world.evicted)
    world.kubelets_finish()
    gone_at = asyncio.get_running_loop().time()
    await asyncio.sleep(3)
    assert phase_of(world, "n1") is Phase.DRAINING
    world.add_pod("n1", "b", tolerations=TOLERATES_ALL, created_at=gone_at + 3)
    await asyncio.sleep(30)
    assert phase_of(world, "n1") is Phase.DRAINING
    assert status(world).pods_remaining == 1
    del world.pods["n1/b"]
    await until(lambda: phase_of(world, "n1") is Phase.DRAINED, within=120)


async def test_pods_that_come_after_the_drain_are_said_and_not_evicted() -> None:
    world = world_with("a")
    replica = await begun(world, SETTINGS)
    await drained(world)
    evicted, now = list(world.evicted), asyncio.get_running_loop().time()
    world.add_pod("n1", "late", tolerations=TOLERATES_ALL, created_at=now)
    asked = Counter(replica.cluster.asked)
    await until(lambda: status(world).pods_remaining == 1, within=700)
    told = status(world)
    assert (told.phase, told.blockers[0].pod) == (Phase.DRAINED, "jobs/late")
    assert "on it again: jobs/late" in told.message
    assert told.pods_read_at > now
    await asyncio.sleep(HOUR)
    assert world.evicted == evicted
    reads = replica.cluster.asked["pods_on"] - asked["pods_on"]
    assert HOUR / 300 - 2 <= reads <= HOUR / 150
    del world.pods["n1/late"]
    await until(lambda: status(world).pods_remaining == 0, within=700)
    assert status(world).blockers == ()
    assert replica.notes.kinds("n1").count("work.blocked") == 1


# -- rejected evictions --------------------------------------------------------------------


async def test_the_deadline_comes_although_every_eviction_fails() -> None:
    world = world_with("a")
    failing = MemoryCluster(
        world, fails=lambda name: Unreachable("503") if name == "evict" else None
    )
    settings = replace(SETTINGS, drain=DrainRules(deadline=HOUR))
    replica = await begun(world, settings, cluster=failing)
    await asyncio.sleep(HOUR + 120)
    assert status(world).pods_remaining == 1
    assert replica.notes.kinds("n1").count("quarantine.overdue") == 1


# -- what waits in a queue ----------------------------------------------------------------


class Queue:
    """Evictions wait in it until it is opened."""

    def __init__(self) -> None:
        self.waiting = 0
        self.open = asyncio.Event()

    async def __call__(self, name: str) -> None:
        if name in ("evict", "delete_pod"):
            self.waiting += 1
            await self.open.wait()


@pytest.mark.parametrize("gang", [False, True])
async def test_a_release_waits_for_none_of_its_evictions_and_none_is_sent_after_it(
    *, gang: bool
) -> None:
    world = world_with("a", "b", "c", "d", "e", labels=GANG if gang else {})
    queue = Queue()
    await begun(world, SETTINGS, cluster=MemoryCluster(world, in_queue=queue))
    await until(lambda: queue.waiting >= 4)
    world.person_uncordons("n1")
    await until(lambda: not world.quarantines, within=10)
    queue.open.set()
    await asyncio.sleep(120)
    assert world.evicted == []


async def test_a_stop_lets_none_of_the_evictions_go_that_wait() -> None:
    world = world_with("a", "b")
    queue = Queue()
    await begun(world, SETTINGS, cluster=MemoryCluster(world, in_queue=queue))
    await until(lambda: queue.waiting >= 2)
    world.person_stops("hold it")
    queue.open.set()
    await asyncio.sleep(120)
    assert world.evicted == []
    world.person_stops("")
    await drained(world, within=120)  # the control: it goes on


# -- many at once --------------------------------------------------------------------------

MANY = 200
ROOM = replace(SETTINGS, limits=replace(OPEN, concurrent=10_000))


async def many_blocked(count: int, settings: Settings = ROOM) -> tuple[World, Replica]:
    world = World.of("new")
    for number in range(count):
        world.add_node(f"n{number}")
        world.budget_blocks.add(world.add_pod(f"n{number}", f"p{number}").uid)
    replica = await Replica(world, clock=Running(), settings=settings).ready()
    for number in range(count):
        replica.agent(f"n{number}", ILL)
    await until(lambda: replica.cluster.asked["evict"] >= count)
    return world, replica


async def test_blocked_drains_make_a_few_requests_a_second_however_many_they_are() -> None:
    world, replica = await many_blocked(MANY)
    await asyncio.sleep(120)
    before = Counter(replica.cluster.asked)
    await asyncio.sleep(150)
    asked = Counter(replica.cluster.asked) - before
    assert asked.total() / 150 <= 15, asked
    assert asked["evict"] >= MANY  # the control: each is still asked
    background = replica.cluster.in_background
    assert background["evict"] >= asked["evict"]
    world.budget_blocks.clear()

    def drained() -> bool:
        world.kubelets_finish()
        return all(phase_of(world, f"n{number}") is Phase.DRAINED for number in range(MANY))

    await until(drained, within=200)


async def test_beside_blocked_drains_a_new_pod_is_asked_within_a_second() -> None:
    world, replica = await many_blocked(MANY)
    await asyncio.sleep(60)
    world.add_pod("new", "job")
    replica.agent("new", ILL)
    await until(lambda: world.evicted, within=1)


# -- what is said ----------------------------------------------------------------------------


async def test_a_node_that_was_exempted_in_its_drain_says_so_and_why() -> None:
    world = world_with("a")
    world.budget_blocks.add("uid-a")
    replica = await begun(world, SETTINGS)
    await until(lambda: phase_of(world, "n1") is Phase.DRAINING)
    world.person_annotates("n1", EXEMPT, "until 2100-01-01T00:00:00Z the benchmark must end")
    await until(lambda: "left alone" in status(world).message, within=60)
    assert "exempt until 2100-01-01T00:00:00Z: the benchmark must end" in status(world).message
    await replica.stop()
    other = Replica(world, clock=Running())  # and so does a replica that starts then
    world.person_annotates("n1", EXEMPT, "until 2100-01-01T00:00:00Z the rack is rewired")
    await until(lambda: "the rack is rewired" in status(world).message, within=400)
    other.agent("n1", ILL)
    world.person_annotates("n1", EXEMPT, None)
    await until(lambda: status(world).message == "evicting pods", within=400)


async def test_a_drain_that_a_stale_mark_keeps_is_reported_again_and_goes_on_once_it_is_gone() -> (
    None
):
    world = world_with("a")
    world.budget_blocks.add("uid-a")
    replica = await begun(world, SETTINGS)
    await until(lambda: phase_of(world, "n1") is Phase.DRAINING)
    mark = Taint("ToBeDeletedByClusterAutoscaler", "", "NoSchedule")
    before = world.nodes["n1"].taints
    world.set_node(replace(world.nodes["n1"], taints=(*before, mark)))
    await until(lambda: "the autoscaler is removing it" in status(world).message, within=90)
    assert "quarantine.held" not in replica.notes.kinds("n1")
    await until(lambda: "older than 1h" in status(world).message, within=HOUR + 120)
    await asyncio.sleep(HOUR)
    told = [one for one in replica.notes.transitions if one.kind is EventKind.HELD]
    assert [one.details["limit"] for one in told] == ["stale-mark"]
    world.budget_blocks.clear()
    world.set_node(replace(world.nodes["n1"], taints=before))
    await drained(world, within=300)


async def test_the_number_of_pods_left_is_the_last_reads_and_says_when_that_was() -> None:
    names = [f"p{number}" for number in range(13)]
    world = world_with(*names)
    world.budget_blocks |= {f"uid-{name}" for name in names}
    await begun(world, SETTINGS)
    await until(lambda: "n1" in world.quarantines and status(world).pods_remaining == 13)
    for name in names[:4]:
        world.budget_blocks.discard(f"uid-{name}")
    await until(lambda: len(world.evicted) == 4, within=120)
    world.kubelets_finish()
    left = asyncio.get_running_loop().time()
    await until(lambda: status(world).pods_remaining == 9, within=60)
    assert status(world).pods_read_at >= left - 1


# -- a fleet's driver upgrade ----------------------------------------------------------------

UPGRADE = {"nvidia.com/gpu-driver-upgrade-state": "pod-restart-required"}


async def test_a_driver_upgrade_of_the_fleet_costs_a_read_per_node_in_some_minutes() -> None:
    world = World.of(*(f"n{number}" for number in range(300)), labels=UPGRADE)
    replica = await Replica(world, clock=Running(), settings=ROOM).ready()
    for number in range(300):
        replica.agent(f"n{number}", ILL)
    await asyncio.sleep(600)
    before = replica.cluster.asked["read_node"]
    await asyncio.sleep(600)
    assert 300 <= replica.cluster.asked["read_node"] - before <= 900
    assert {
        one.decision.hold.limit
        for one in replica.fleet.node_summaries.values()
        if one.decision.hold
    } == {"maintenance"}
    # The list of nodes shows that a label is gone.
    world.set_node(replace(world.nodes["n7"], labels={}))
    await until(lambda: phase_of(world, "n7") is Phase.DRAINED, within=240)


async def test_a_node_that_is_not_there_is_not_asked_for_in_every_round() -> None:
    world = World.of("n1")
    replica = await Replica(world, clock=Running(), settings=ROOM).ready()
    for number in range(100):
        replica.agent(f"absent{number}", ILL)
    await asyncio.sleep(120)
    before = replica.cluster.asked["read_node"]
    await asyncio.sleep(600)
    assert replica.cluster.asked["read_node"] - before <= 900
    world.add_node("absent3")
    await until(lambda: phase_of(world, "absent3") is Phase.DRAINED, within=300)
