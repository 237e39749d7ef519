"""Drains that begin beside many others: a node without pods to evict is drained by one write."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from aggregator.cluster.port import (
    ClusterError,
    Guard,
    Phase,
    Quarantine,
    QuarantineStatus,
    Unreachable,
)
from aggregator.quarantine.decide.operator_requests import EXEMPT
from aggregator.quarantine.drain import drainer
from aggregator.quarantine.drain.hooks import HookAnswer, HookResult, HookRules
from tests.support.drains import (
    ILL,
    Noted,
    begin_among_many,
    begun,
    drained,
    status,
    transitions,
    world_with,
)
from tests.support.memory_cluster import World, phase_of
from tests.support.replica import SETTINGS, Replica
from tests.support.virtual_replica import Running
from tests.support.virtual_time import in_virtual_time
from tests.support.waiting import until


@pytest.fixture(autouse=True)
def _among_many(monkeypatch: pytest.MonkeyPatch, _empty_for: None) -> None:
    begin_among_many(monkeypatch)


async def marked(world: World, cluster: Noted, **more: Any) -> tuple[Replica, float]:
    """The node has its taint, since then."""
    replica = await begun(world, more.pop("settings", SETTINGS), cluster=cluster, **more)
    await until(lambda: world.nodes["n1"].taints)
    return replica, asyncio.get_running_loop().time()


# -- a node without pods --------------------------------------------------------------------------


@pytest.mark.parametrize(("waits", "looks"), [(0.0, 2), (6.0, 1)])
@in_virtual_time
async def test_a_node_without_pods_is_drained_by_one_write_5_s_after_its_taint(
    waits: float, looks: int
) -> None:
    """``waits``: until a request for pods has its turn."""
    world = world_with()
    cluster = Noted(world, delay=waits)
    replica, tainted_at = await marked(world, cluster)
    await until(lambda: phase_of(world, "n1") is Phase.DRAINED)
    assert cluster.phases == [("n1", Phase.DRAINED)]
    assert len(cluster.polled_at) == looks
    assert cluster.polled_at[-1] - tainted_at >= 5.0
    now = status(world)
    assert now.cordoned_at < now.drain_started_at <= now.drained_at < now.deadline_at
    assert (now.pods_remaining, now.blockers) == (0, ())
    assert now.pods_read_at > now.cordoned_at
    assert now.applied is not None
    told = transitions(replica)
    assert told[-3:] == ["quarantine.cordoned", "quarantine.draining", "quarantine.drained"]
    await asyncio.sleep(600)
    assert transitions(replica) == told


@in_virtual_time
async def test_a_pod_that_a_scheduler_placed_before_it_saw_the_taint_is_evicted() -> None:
    world = world_with()
    cluster = Noted(world)
    _replica, _ = await marked(world, cluster)
    await asyncio.sleep(3)
    world.add_pod("n1", "late")

    await drained(world)
    assert world.evicted == ["uid-late"]
    assert cluster.phases[0] == ("n1", Phase.DRAINING)


@in_virtual_time
async def test_the_end_whose_answer_is_lost_is_told_once() -> None:
    lost: list[str] = []

    def loses_one(name: str) -> ClusterError | None:
        if name != "write_quarantine_status" or lost:
            return None
        lost.append(name)
        return Unreachable("the answer is lost")

    world = world_with()
    replica, _ = await marked(world, Noted(world, loses=loses_one))
    await until(lambda: phase_of(world, "n1") is Phase.DRAINED)
    await asyncio.sleep(60)
    told = transitions(replica)
    assert [told.count(f"quarantine.{kind}") for kind in ("draining", "drained")] == [1, 1]


@pytest.mark.parametrize("fails_at", ["pods_on", "write_quarantine_status"])
@in_virtual_time
async def test_a_request_that_fails_for_a_while_leaves_a_drained_node(fails_at: str) -> None:
    world, loop = world_with(), asyncio.get_running_loop()
    until_then = loop.time() + 20.0

    def fails(name: str) -> ClusterError | None:
        return Unreachable("503") if name == fails_at and loop.time() < until_then else None

    replica, _ = await marked(world, Noted(world, fails=fails))
    await until(lambda: phase_of(world, "n1") is Phase.DRAINED, within=120)
    assert loop.time() > until_then
    told = transitions(replica)
    assert [told.count(f"quarantine.{kind}") for kind in ("draining", "drained")] == [1, 1]


@in_virtual_time
async def test_a_replica_that_follows_one_that_died_meanwhile_drains_the_node() -> None:
    world = world_with()
    replica, _ = await marked(world, Noted(world))
    await asyncio.sleep(2)
    assert phase_of(world, "n1") is Phase.ADMITTED
    await replica.stop()
    again = await Replica(world, clock=Running(), settings=SETTINGS).ready()
    again.agent("n1", ILL)
    await until(lambda: phase_of(world, "n1") is Phase.DRAINED, within=120)
    assert world.nodes["n1"].taints
    await again.stop()


# -- a node with pods -----------------------------------------------------------------------------


@in_virtual_time
async def test_the_drain_of_a_node_with_pods_begins_at_once() -> None:
    world = world_with("a")
    cluster = Noted(world)
    _replica, tainted_at = await marked(world, cluster)
    await until(lambda: world.evicted)
    assert asyncio.get_running_loop().time() - tainted_at < 2.0
    assert cluster.phases[0] == ("n1", Phase.DRAINING)


@in_virtual_time
async def test_a_pod_that_is_stuck_is_seen_to_by_the_drain_itself() -> None:
    world = world_with("a", deleting=True, deletion_at=1.0)
    cluster = Noted(world)
    _replica, _ = await marked(world, cluster)
    await until(lambda: cluster.phases)
    assert cluster.phases[0] == ("n1", Phase.DRAINING)


def test_the_hook_is_asked_although_no_pod_is_there() -> None:
    """It may end jobs that no pod stands for."""

    class Asked:
        def __init__(self) -> None:
            self.times = 0

        async def call(self, values: Any, *, limit: float, guard: Guard) -> HookAnswer:
            self.times += 1
            return HookAnswer(HookResult.DONE, "")

    @in_virtual_time
    async def test() -> None:
        world, hook = world_with(), Asked()
        settings = replace(SETTINGS, hooks=HookRules(pre_evict=hook))
        replica, _ = await marked(world, Noted(world), settings=settings)
        await until(lambda: phase_of(world, "n1") is Phase.DRAINED)
        assert hook.times == 1
        await replica.stop()

    test()


# -- people, meanwhile ----------------------------------------------------------------------------


def _uncordons(world: World) -> None:
    world.person_uncordons("n1")


def _deletes(world: World) -> None:
    world.person_deletes("n1")


@pytest.mark.parametrize("ends", [_uncordons, _deletes])
@in_virtual_time
async def test_a_release_does_not_wait_for_the_proof_that_the_node_is_empty(
    ends: Callable[[World], None],
) -> None:
    world = world_with()
    replica, _ = await marked(world, Noted(world))
    await asyncio.sleep(1)
    ended = asyncio.get_running_loop().time()
    ends(world)
    await until(lambda: "n1" not in world.quarantines)
    assert asyncio.get_running_loop().time() - ended < 3.0
    assert not world.nodes["n1"].taints
    assert "quarantine.drained" not in transitions(replica)


@in_virtual_time
async def test_a_node_that_is_exempted_meanwhile_is_not_drained() -> None:
    world = world_with()
    cluster = Noted(world)
    _replica, _ = await marked(world, cluster)
    await asyncio.sleep(1)
    world.person_annotates("n1", EXEMPT, "until 2100-01-01T00:00:00Z the job must end")
    await asyncio.sleep(60)
    assert Phase.DRAINED not in {phase for _, phase in cluster.phases}


@in_virtual_time
async def test_the_stop_switch_keeps_the_node_marked_and_not_drained() -> None:
    world = world_with()
    cluster = Noted(world)
    _replica, _ = await marked(world, cluster)
    await asyncio.sleep(1)
    world.person_stops("wait")
    await asyncio.sleep(60)
    assert phase_of(world, "n1") is Phase.CORDONED
    world.person_stops("")
    await until(lambda: phase_of(world, "n1") is Phase.DRAINED)


# -- how many are many ----------------------------------------------------------------------------


def test_only_drains_beside_many_others_look_for_pods_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(drainer, "MANY_BEGIN", 3)

    class Slow(Noted):
        async def write_quarantine_status(
            self, quarantine: Quarantine, status: QuarantineStatus
        ) -> Quarantine:
            if quarantine.status.phase is Phase.ADMITTED:
                await asyncio.sleep(8.0)
            return await super().write_quarantine_status(quarantine, status)

    @in_virtual_time
    async def test() -> None:
        world = World()
        names = [f"n{number}" for number in range(1, 7)]
        for name in names:
            world.add_node(name)
        cluster = Slow(world)
        replica = await Replica(world, clock=Running(), settings=SETTINGS, cluster=cluster).ready()
        for name in names:
            replica.agent(name, ILL)
        await until(lambda: all(phase_of(world, name) is Phase.DRAINED for name in names))
        first = dict(reversed(cluster.phases))
        assert list(first.values()).count(Phase.DRAINING) == 3
        assert list(first.values()).count(Phase.DRAINED) == 3
        await replica.stop()

    test()
