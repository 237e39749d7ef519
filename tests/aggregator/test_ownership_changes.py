"""Nodes move between replicas: two controllers on one cluster, with a played membership view."""

import asyncio
from dataclasses import replace

import pytest

from aggregator.cluster.port import Phase
from aggregator.health.model import Cleared, ClearedBy, Delta
from tests.support import virtual_time
from tests.support.coordination import PlayedShards, member
from tests.support.memory_cluster import MemoryCluster, World, phase_of
from tests.support.replica import OPEN, SETTINGS, FakeLine, Replica, fault, snapshot
from tests.support.two_replicas import BOTH, Two, drained, owned_by, world_of_two
from tests.support.virtual_replica import Running, later, soon

ILL = snapshot(fault())


@pytest.fixture
def world() -> World:
    return world_of_two()


def test_each_replica_acts_for_its_own_nodes_alone(world: World) -> None:
    async def main() -> None:
        two = Two(world)
        await two.settled()
        [mine], [theirs] = owned_by("a"), owned_by("b")
        for node in (mine, theirs):  # both agents came to a, which is wrong for one
            two.replicas["a"].agent(node, ILL)
        await drained(world, mine)
        await later(60)
        assert phase_of(world, theirs) is None
        assert two.replicas["b"].notes.transitions == []
        await two.stop()

    virtual_time.run(main())


def test_an_agent_is_told_where_its_node_belongs(world: World) -> None:
    async def main() -> None:
        two = Two(world)
        await two.settled()
        [mine], [theirs] = owned_by("a"), owned_by("b")
        controller = two.replicas["a"].controller
        assert (controller.owner_address(mine), controller.owner_address(theirs)) == ("", "b:8443")
        await two.stop()

    virtual_time.run(main())


def test_what_a_dead_replica_had_begun_its_heir_ends(world: World) -> None:
    """Killed with its node cordoned; the agent tells its successor the same, which drains on."""

    async def main() -> None:
        two = Two(world)
        await two.settled()
        [node] = owned_by("b")
        two.replicas["b"].agent(node, ILL)
        await soon(lambda: phase_of(world, node) in (Phase.CORDONED, Phase.DRAINING))
        await two.replicas["b"].stop()
        two.become("a")
        two.replicas["a"].agent(node, ILL)
        await drained(world, node)
        assert len(world.evicted) == 1
        await two.stop()

    virtual_time.run(main())


def test_after_a_take_over_nothing_is_released_or_evicted_before_the_agent_has_spoken(
    world: World,
) -> None:
    async def main() -> None:
        two = Two(world)
        await two.settled()
        [node] = owned_by("b")
        two.replicas["b"].cluster.crash_in(6, after=True)  # somewhere on its way
        two.replicas["b"].agent(node, ILL)
        await soon(two.replicas["b"].cluster.crashed.is_set)
        await later(SETTINGS.limits.silent_drain_after)  # a is up for as long as it would wait
        before, evictions = phase_of(world, node), list(world.evicted)
        two.become("a")
        await later(SETTINGS.limits.silent_drain_after - 20)
        assert world.evicted == evictions
        assert phase_of(world, node) in (before, Phase.CORDONED)
        await drained(world, node)
        await two.stop()

    virtual_time.run(main())


def test_a_node_that_moves_is_heard_no_more_where_it_was(world: World) -> None:
    async def main() -> None:
        two = Two(world)
        two.become("a")
        await two.settled()
        [node] = owned_by("b")
        line = FakeLine()
        a = two.replicas["a"]
        cured = fault("xid:48", cleared_by=ClearedBy.GPU_RESET)
        a.agent(node, snapshot(cured), line=line)
        await drained(world, node)
        two.become("a", "b")
        await soon(lambda: line.sent_to == "b:8443")
        a.agent(node, Delta(cleared=(Cleared("xid:48", "GPU-1", "gpu-reset"),)))  # a last word
        await later(900)
        assert phase_of(world, node) is Phase.DRAINED  # a may not release it any more
        a.controller.on_disconnect(node, line, "left")
        assert a.fleet.node_summaries[node].agent.health is None
        two.replicas["b"].agent(node, snapshot())
        await later(900)
        assert phase_of(world, node) is Phase.DRAINED  # "it is not there" is no positive sign
        signs = (Cleared("xid:48", "GPU-1", "gpu-reset"),)
        two.replicas["b"].agent(node, Delta(cleared=signs))
        await soon(lambda: phase_of(world, node) is None)
        assert not a.notes.kinds(node).count("agent.silent")
        await two.stop()

    virtual_time.run(main())


def test_while_replicas_run_two_policies_none_releases_by_itself(world: World) -> None:
    async def main() -> None:
        shards = PlayedShards("a", ["a"])
        replica = Replica(
            world, clock=Running(), settings=replace(SETTINGS, limits=OPEN), shards=shards
        )
        await soon(lambda: not replica.fleet.view_lost)
        [node] = owned_by("a")
        cured = fault("xid:48", cleared_by=ClearedBy.GPU_RESET)
        replica.agent(node, snapshot(cured))
        await drained(world, node)
        shards.membership_view = replace(
            shards.membership_view,
            members={"a": member("a"), "b": replace(member("b"), policy_hash="another")},
        )
        replica.agent(node, Delta(cleared=(Cleared("xid:48", "GPU-1", "gpu-reset"),)))
        await soon(
            lambda: (
                "b runs policy another"
                in replica.fleet.node_summaries[node].quarantine_view.release_held
            )
        )
        await later(3600)
        assert phase_of(world, node) is Phase.DRAINED
        shards.become(["a"])
        await soon(lambda: phase_of(world, node) is None)
        await replica.stop()

    virtual_time.run(main())


def test_who_was_paused_does_nothing_on_waking_until_its_place_is_certain(world: World) -> None:
    async def main() -> None:
        two = Two(world)
        await two.settled()
        [node] = owned_by("a")
        two.shards["a"].asleep = True
        two.replicas["a"].agent(node, ILL)
        await later(600)
        assert phase_of(world, node) is None
        two.shards["a"].asleep = False
        await soon(lambda: phase_of(world, node) is not None)
        await two.stop()

    virtual_time.run(main())


def test_a_thousand_agents_are_sent_home_bit_by_bit() -> None:
    async def main() -> None:
        world = World()
        nodes = [f"n{number}" for number in range(1000)]
        for node in nodes:
            world.add_node(node, boot_id="boot-1")
        shards = PlayedShards("a", ["a"])
        replica = Replica(world, clock=Running(), shards=shards)
        await soon(lambda: not replica.fleet.view_lost)
        lines = {node: FakeLine() for node in nodes}
        for node in nodes:
            replica.agent(node, snapshot(), line=lines[node])
        shards.become(BOTH)
        loop = asyncio.get_running_loop()
        begun = loop.time()
        theirs = {node for node in nodes if shards.owner_address(node)}
        await soon(lambda: {node for node in nodes if lines[node].sent_to} == theirs)
        assert len(theirs) / 500 * 0.8 <= loop.time() - begun <= 5
        await replica.stop()

    virtual_time.run(main())


def test_two_that_both_believe_to_own_a_node_evict_nobody_twice(world: World) -> None:
    """The fences of docs/fences.md hold without coordination: of two that act one fails."""

    async def main() -> None:
        settings = replace(SETTINGS, limits=OPEN)
        cluster = [MemoryCluster(world) for _ in BOTH]
        both = [Replica(world, clock=Running(), settings=settings, cluster=c) for c in cluster]
        for replica in both:
            await soon(lambda replica=replica: not replica.fleet.view_lost)  # type: ignore[misc]
        for node in list(world.nodes):
            for replica in both:
                replica.agent(node, ILL)
        await drained(world, *world.nodes)
        assert sorted(world.evicted) == sorted(set(world.evicted))
        for replica in both:
            await replica.stop()

    virtual_time.run(main())


def test_what_is_told_to_have_gone_was_ours_before(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="sickbay.quarantine")

    def logged_moves() -> list[tuple[int, int]]:
        found = [vars(one) for one in caplog.records if one.getMessage() == "nodes moved"]
        caplog.clear()
        return sorted((one["came"], one["went"]) for one in found)

    async def main() -> None:
        two = Two(world)
        two.become("a", "b")
        await two.settled()
        two.become("a", "b")  # they are known by now
        await later(5)
        assert {went for _, went in logged_moves()} == {0}
        two.become("a")
        await later(5)
        assert logged_moves() == [(2, 0)]
        two.shards["a"].become(("a", "b"))
        await later(5)
        assert logged_moves() == [(0, 2)]
        await two.stop()

    virtual_time.run(main())
