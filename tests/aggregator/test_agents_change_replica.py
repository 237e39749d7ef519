"""Two replicas with real listeners, and simulated nodes that go where they are sent."""

from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

from aggregator.cluster.port import Phase
from aggregator.replicas.membership.view import MembershipView
from tests.support.coordination import PlayedShards, member
from tests.support.in_process_aggregator import InProcessAggregator, running_aggregator
from tests.support.memory_cluster import World, phase_of
from tests.support.simulator import Simulator
from tests.support.waiting import until

NODES = 24


def membership_view(name: str, live: Sequence[tuple[str, InProcessAggregator]]) -> MembershipView:
    """The replicas that are there, each reached where it listens."""
    members = {one: replace(member(one), address=bench.address) for one, bench in live}
    return MembershipView(name, members, settled=True)


async def test_nodes_are_sent_home_come_back_when_their_replica_dies_and_go_again_when_it_is_back(
    tmp_path: Path,
) -> None:
    world, names = World(), [f"sim-{number:04d}" for number in range(1, NODES + 1)]
    one, two = PlayedShards("one", ["one"]), PlayedShards("two", ["two"])
    async with AsyncExitStack() as ending, AsyncExitStack() as second:
        first = await ending.enter_async_context(
            running_aggregator(*names, world=world, shards=one)
        )
        other = await second.enter_async_context(running_aggregator(world=world, shards=two))
        both = [("one", first), ("two", other)]
        one.take(membership_view("one", both))
        two.take(membership_view("two", both))
        homes = {first.address: 0, other.address: 0}
        for name in names:
            homes[one.owner_address(name) or first.address] += 1
        assert min(homes.values()) > 0
        line: list[str | Path] = ["--nodes", str(NODES), "--aggregator", first.address]
        simulator = ending.enter_context(Simulator(line, log=tmp_path / "simulator.log"))
        await until(lambda: simulator.at == homes, what=simulator.log)

        # It dies. The first replica counts it as alive for a while more, and redirects agents to
        # it.
        orphan = next(name for name in names if one.owner_address(name))
        await second.aclose()
        await until(lambda: "refused" in simulator.said("nodes attached")[-1]["trouble"])
        simulator.inject(node=orphan, fault="xid:79")
        one.take(membership_view("one", both[:1]))
        await until(lambda: simulator.at == {first.address: NODES}, what=simulator.log)
        await until(lambda: phase_of(world, orphan) is Phase.DRAINED, what="what it had to tell")
        assert len(world.quarantines) == 1

        # It is back, and its own agents are redirected to it in the middle of their streams.
        again = PlayedShards("two", ["two"])
        back = await ending.enter_async_context(running_aggregator(world=world, shards=again))
        both = [("one", first), ("two", back)]
        again.take(membership_view("two", both))
        one.take(membership_view("one", both))
        homes = {first.address: homes[first.address], back.address: homes[other.address]}
        await until(lambda: simulator.at == homes, what=simulator.log)
        assert len(simulator.gaps) >= 2
        assert max(simulator.gaps) < 60
