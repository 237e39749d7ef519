"""A replica's knowledge of a node that becomes its own: all durable facts, and none older."""

import asyncio
from dataclasses import replace

import pytest

from aggregator.cluster.port import ClusterError, EvictionResult, Guard, Phase, Pod, Unreachable
from aggregator.events import EventKind
from aggregator.health.model import Cleared, ClearedBy, Delta, Status
from aggregator.policy.network.verdict import UNREACHABLE, Finding
from aggregator.quarantine.decide.node_marks import read_overruled
from aggregator.quarantine.decide.uncertainty import EvidenceBasis
from tests.support import virtual_time
from tests.support.memory_cluster import MemoryCluster, World, phase_of
from tests.support.replica import OPEN, SETTINGS, FakeLine, fault, hello, snapshot
from tests.support.two_replicas import Two, drained, owned_by, world_of_two
from tests.support.virtual_replica import later, soon

ILL = snapshot(fault())
FIRST = fault("xid:48", "GPU-1", cleared_by=ClearedBy.GPU_RESET)
SECOND = fault("xid:48", "GPU-2", cleared_by=ClearedBy.GPU_RESET, source_seq=8)
FIRST_ENDS = Cleared("xid:48", "GPU-1", "gpu-reset")
SECOND_ENDS = Cleared("xid:48", "GPU-2", "gpu-reset")


@pytest.fixture
def world() -> World:
    return world_of_two()


def test_a_sign_that_another_replica_has_acknowledged_is_known_to_its_heir(world: World) -> None:
    async def main() -> None:
        two = Two(world)
        await two.settled()
        [node] = owned_by("b")
        two.replicas["b"].agent(node, snapshot(FIRST))
        await drained(world, node)
        acknowledged = two.replicas["b"].agent(node, Delta(cleared=(FIRST_ENDS,)))
        assert acknowledged is not None
        await acknowledged
        assert phase_of(world, node) is Phase.DRAINED  # until it has been well for long enough
        await two.replicas["b"].stop()
        two.become("a")
        two.replicas["a"].agent(node, snapshot())  # its agent has no need to say it again
        await soon(lambda: phase_of(world, node) is None)
        await two.stop()

    virtual_time.run(main())


def test_what_came_to_a_quarantine_after_it_was_made_is_known_to_its_heir(world: World) -> None:
    async def main() -> None:
        two = Two(world)
        await two.settled()
        [node] = owned_by("b")
        two.replicas["b"].agent(node, snapshot(FIRST))
        await drained(world, node)
        two.replicas["b"].agent(node, Delta(faults=(SECOND,)))
        await soon(lambda: len(world.quarantines[node].spec.evidence) == 2)
        await two.replicas["b"].stop()
        two.become("a")
        # Its agent has lost its memory: there is no positive sign for the second fault.
        two.replicas["a"].agent(node, snapshot(cleared=(FIRST_ENDS,)))
        await later(3600)
        assert phase_of(world, node) is Phase.DRAINED
        two.replicas["a"].agent(node, Delta(cleared=(SECOND_ENDS,)))
        await soon(lambda: phase_of(world, node) is None)
        await two.stop()

    virtual_time.run(main())


def test_a_person_s_word_of_another_replica_s_time_is_not_ended_by_an_older_sign(
    world: World,
) -> None:
    """The sign was heard here and could not be written; since then a person has spoken again."""

    async def main() -> None:
        two = Two(world)
        two.become("a")
        await two.settled()
        [node] = owned_by("b")
        a, b = two.replicas["a"], two.replicas["b"]
        line = FakeLine()
        a.agent(node, snapshot(FIRST), line=line)
        await drained(world, node)
        world.person_deletes(node)
        await soon(lambda: phase_of(world, node) is None)
        away: dict[str, ClusterError | None] = {"read_node": Unreachable("away")}
        a.cluster._fails = away.get
        a.agent(node, Delta(cleared=(FIRST_ENDS,)))
        await later(5)
        assert read_overruled(world.nodes[node].annotations)
        two.become("a", "b")
        await soon(lambda: line.sent_to)
        a.controller.on_disconnect(node, line, "left")
        away.clear()
        b.agent(node, snapshot(cleared=(FIRST_ENDS,)))
        await soon(lambda: not read_overruled(world.nodes[node].annotations))
        again = replace(FIRST, source_seq=9)
        b.agent(node, Delta(faults=(again,)))
        await drained(world, node)
        world.person_deletes(node)
        await soon(lambda: phase_of(world, node) is None)
        assert read_overruled(world.nodes[node].annotations)
        await b.stop()
        two.become("a")
        a.agent(node, snapshot(again))
        await later(600)
        assert phase_of(world, node) is None
        assert read_overruled(world.nodes[node].annotations)
        await two.stop()

    virtual_time.run(main())


def test_joining_anew_also_unhears_a_node_that_came_after_the_last_change(world: World) -> None:
    """Another replica may have had it meanwhile, heard of its repair, and given it back."""

    async def main() -> None:
        two = Two(world)
        await two.settled()
        a, shards, node = two.replicas["a"], two.shards["a"], owned_by("a", 3)[2]
        shards.take(replace(shards.membership_view, term=1))
        await later(1)
        world.add_node(node, boot_id="boot-1")
        shards.asleep, line = True, FakeLine()
        a.agent(node, snapshot(FIRST), line=line)
        a.controller.on_disconnect(node, line, "gone")
        shards.take(replace(shards.membership_view, term=2))
        await later(1)
        shards.asleep = False
        await later(900)
        assert phase_of(world, node) is None
        await two.stop()

    virtual_time.run(main())


def test_a_node_that_came_back_while_others_were_sent_home_is_heard_anew() -> None:
    """The agent was silent here, and its fault may have ended elsewhere."""

    async def main() -> None:
        world = World()
        away = owned_by("b", 300)
        for node in away:
            world.add_node(node, boot_id="boot-1")
        two = Two(world)
        two.become("a")
        await two.settled()
        a, last = two.replicas["a"], away[-1]
        for node in away:
            two.shards["a"].asleep = node == last
            line = FakeLine()
            a.agent(node, snapshot(FIRST) if node == last else snapshot(), line=line)
        a.controller.on_disconnect(last, line, "gone")
        two.shards["a"].become(("a", "b"))
        await later(0.2)  # in the middle of them
        two.shards["a"].become(("a",))
        await later(10)
        two.shards["a"].asleep = False
        await later(900)
        assert phase_of(world, last) is None
        await two.stop()

    virtual_time.run(main())


def test_who_may_not_act_for_a_node_acknowledges_no_sign_of_its_agent(world: World) -> None:
    """Such a replica may not know which fault the sign ends. The agent repeats it to its owner."""

    async def main() -> None:
        two = Two(world)
        await two.settled()
        [node] = owned_by("b")
        answer = two.replicas["a"].agent(node, snapshot(cleared=(FIRST_ENDS,)))  # it lost its way
        await later(60)
        assert isinstance(answer, asyncio.Future)
        assert not answer.done()
        await two.stop()

    virtual_time.run(main())


def test_a_sign_told_to_a_new_owner_ends_the_word_that_it_has_not_read_yet(world: World) -> None:
    """A person overruled the fault while the node was another's, after we last listed the nodes."""

    async def main() -> None:
        two = Two(world)
        await two.settled()
        two.become("a", "b")
        await later(1)
        [node] = owned_by("b")
        a, b = two.replicas["a"], two.replicas["b"]
        b.agent(node, snapshot(FIRST))
        await drained(world, node)
        world.person_deletes(node)
        await soon(lambda: phase_of(world, node) is None)
        await b.stop()
        two.become("a")
        answer = a.agent(node, snapshot(cleared=(FIRST_ENDS,)))
        if answer is not None:
            await answer
        assert not read_overruled(world.nodes[node].annotations)
        a.agent(node, Delta(faults=(replace(FIRST, source_seq=9),)))
        await drained(world, node)
        await two.stop()

    virtual_time.run(main())


def test_what_the_network_was_found_to_be_before_is_no_evidence_when_the_node_is_back(
    world: World,
) -> None:
    async def main() -> None:
        two = Two(world)
        two.become("a", "b")
        await two.settled()
        [node] = owned_by("b")
        b, shards, line = two.replicas["b"], two.shards["b"], FakeLine()
        b.agent(node, snapshot(), line=line)
        found = Finding(Status.FAILED, UNREACHABLE, "nobody reaches it", since=1.0)
        b.controller._network_tracker.answered({node: found})
        b.controller.on_disconnect(node, line, "gone")
        others = [f"r{number}" for number in range(20)]  # to one of them it goes, and comes back
        shards.become(("a", *others))
        await later(30)
        shards.become(("a", "b"))
        b.controller.on_connect(hello(node), line)
        health = b.fleet.node_summaries[node].agent.health
        assert health is not None
        assert health.inferred is None
        await two.stop()

    virtual_time.run(main())


class Slow(MemoryCluster):
    """A cluster whose evictions take a second; ``under_way`` and the most of them are shared."""

    under_way = most = 0

    async def evict(
        self,
        pod: Pod,
        *,
        dry_run: bool = False,
        background: bool = False,
        guard: Guard | None = None,
    ) -> EvictionResult:
        Slow.under_way += 1
        Slow.most = max(Slow.most, Slow.under_way)
        try:
            await later(1)
            return await super().evict(pod, dry_run=dry_run, background=background, guard=guard)
        finally:
            Slow.under_way -= 1


def test_evictions_at_once_are_counted_over_all_replicas(world: World) -> None:
    async def main() -> None:
        for node in world.nodes:
            for number in range(6):
                world.add_pod(node, f"job-{node}-{number}")
        two = Two(world, replace(SETTINGS, limits=replace(OPEN, evictions_at_once=3)), Slow)
        await two.settled()
        for name, replica in two.replicas.items():
            for node in owned_by(name, 2):
                replica.agent(node, ILL)
        await drained(world, *world.nodes)
        assert Slow.most == 3
        await two.stop()

    virtual_time.run(main())


def test_a_stop_that_was_set_while_nobody_led_is_told_by_whoever_leads_next(world: World) -> None:
    async def main() -> None:
        two = Two(world)
        await two.settled()
        await two.replicas["a"].stop()  # it led, and b has not noticed yet
        world.person_stops("a test")
        await later(20)
        two.become("b")
        await later(600)
        told = [one.kind for one in two.replicas["b"].notes.transitions]
        assert told.count(EventKind.STOPPED) == 1
        await two.stop()

    virtual_time.run(main())


def test_a_stop_is_told_by_the_leader_alone_also_when_another_one_leads_later(
    world: World,
) -> None:
    async def main() -> None:
        two = Two(world)
        await two.settled()
        world.person_stops("a test")
        await later(100)
        await two.replicas["a"].stop()
        two.become("b")
        await later(600)
        for name, times in (("a", 1), ("b", 0)):
            told = [one.kind for one in two.replicas[name].notes.transitions]
            assert told.count(EventKind.STOPPED) == times
        await two.stop()

    virtual_time.run(main())


def test_who_joins_anew_asks_a_thousand_agents_for_their_snapshots_bit_by_bit() -> None:
    async def main() -> None:
        world = World()
        nodes = owned_by("a", 400)
        for node in nodes:
            world.add_node(node, boot_id="boot-1")
        two = Two(world)
        await two.settled()
        shards, lines = two.shards["a"], {node: FakeLine() for node in nodes}
        for node in nodes:
            two.replicas["a"].agent(node, snapshot(), line=lines[node])
        shards.take(replace(shards.membership_view, term=1))
        await later(5)
        shards.take(replace(shards.membership_view, term=2))
        await later(0.25)
        assert 0 < sum(len(line.resyncs) for line in lines.values()) < len(nodes)
        await soon(lambda: all(line.resyncs for line in lines.values()))
        assert all(len(line.resyncs) == 1 for line in lines.values())
        await two.stop()

    virtual_time.run(main())


def test_who_is_left_alone_and_leads_now_blames_nobody_for_the_network_at_once(
    world: World,
) -> None:
    """The findings of the leader before it are all that it has, and are old."""

    async def main() -> None:
        two = Two(world)
        await two.settled()
        await two.replicas["a"].stop()  # it led
        two.become("b")
        coordinator = two.replicas["b"].controller.coordinator
        await later(1)
        assert coordinator.uncertainty().against(EvidenceBasis.REACH)
        assert not coordinator.uncertainty().against(EvidenceBasis.OTHER)
        await later(60)
        assert not coordinator.uncertainty().against(EvidenceBasis.REACH)
        await two.stop()

    virtual_time.run(main())
