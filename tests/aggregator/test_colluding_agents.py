"""Compromised agents lie about the nodes that they reach, through real streams to the controller.

Echoes between the nodes are filtered unless a test says otherwise, as in many clouds: honest agents
then know nothing of their peers, and the reports of the compromised ones are the only ones.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace

import pytest

from aggregator.health.model import Component, Delta, Hello, Snapshot, Status
from aggregator.ingest.stream_table import PEERS_EVERY
from aggregator.quarantine.decide.admission import Limits
from aggregator.quarantine.decide.common_cause import CommonLimits
from tests.support import evidence as said
from tests.support import virtual_time
from tests.support.agent_calls import BelievedStreams, Call
from tests.support.memory_cluster import World
from tests.support.present import of_type
from tests.support.replica import SETTINGS, Replica
from tests.support.virtual_replica import LoopClock
from tests.support.virtual_time import played_by
from tests.support.waiting import until

NODES = 100
#: As shipped.
SHIPPED = replace(SETTINGS, limits=Limits(), common=CommonLimits())
#: Long enough for rule `network-lost` (90 s), many times over.
LONG = 600.0


def name(node: int) -> str:
    return f"n{node}"


def address(node: int) -> str:
    return f"10.0.0.{node + 1}"


def peer(to: str, status: Status, since: float) -> Component:
    reason = {Status.FAILED: "unreachable", Status.UNKNOWN: "never-answered"}.get(status, "")
    return Component("peers", to, status, reason, "", since)


class Fleet:
    """One aggregator with the shipped limits and rules, and an agent's stream from each node."""

    def __init__(self, loop: virtual_time.VirtualTimeLoop, world: World) -> None:
        self.loop = loop
        self.world = world
        self.begin()

    def begin(self) -> None:
        """An aggregator starts, the first or one after a crash: its only memory is its secret."""
        loop = self.loop
        self.replica = Replica(self.world, clock=LoopClock(loop), settings=SHIPPED)
        self.streams = BelievedStreams(self.replica.controller, loop.time, probe_key=b"k")
        self.calls: dict[int, Call] = {}
        self.seqs: dict[int, int] = {}

    def attach(self, node: int, *, named: str = "") -> None:
        """The node's agent connects and gives its snapshot; ``named``: under another name."""
        call = self.calls[node] = Call(address(node))
        self.streams.serve(call)
        told = Hello(named or name(node), "boot-1", "epoch-1", "0.1.0", 1, instance=f"i{node}")
        call.incoming.put_nowait(said.hello(told))
        now = self.loop.time()
        gateway = Component("reach", "gateway", Status.OK, "", "", now)
        call.incoming.put_nowait(said.snapshot(Snapshot((gateway,), ()), at=now))
        self.seqs[node] = 1

    async def start(self) -> None:
        await self.attach_all(range(NODES))
        await self.pass_time(2 * PEERS_EVERY)

    async def attach_all(self, nodes: Iterable[int]) -> None:
        await until(lambda: not self.replica.fleet.view_lost)
        for node in nodes:
            self.attach(node)
        await until(lambda: self.streams.stats.acks >= len(self.calls))

    async def crash(self) -> None:
        await self.close()
        self.begin()

    async def pass_time(self, seconds: float) -> None:
        for _ in range(int(seconds)):
            self.streams.table.tick()
            await asyncio.sleep(1)

    def report_edges(self, node: int, edges: Mapping[str, Status]) -> None:
        self.seqs[node] += 1
        now = self.loop.time()
        told = tuple(peer(to, status, now) for to, status in edges.items())
        message = said.delta(Delta(components=told), seq=self.seqs[node], at=now)
        self.calls[node].incoming.put_nowait(message)

    def assigned(self, node: int) -> list[str]:
        """The addresses that the node's agent is to probe."""
        return self.calls[node].peers()[-1]

    def observers(self, node: int) -> list[int]:
        return [other for other in self.calls if address(node) in self.assigned(other)]

    def tell_of(self, victim: int, liars: Iterable[int], *, honest: Status, lie: Status) -> None:
        """All agents report on what they were asked to probe; liars lie about ``victim`` alone."""
        lying = set(liars)
        for node in self.calls:
            edges = dict.fromkeys(self.assigned(node), honest)
            if node in lying:
                edges = dict.fromkeys(edges, Status.OK)
                edges[address(victim)] = lie
            self.report_edges(node, edges)

    async def close(self) -> None:
        await self.streams.close()
        await self.replica.stop()

    @property
    def blamed(self) -> set[str]:
        """The nodes that are in quarantine, or would be if no limit held them."""
        held = {
            one.node
            for one in self.replica.fleet.node_summaries.values()
            if one.decision.hold is not None
        }
        return set(self.world.quarantines) | held


def on_a_fleet(test: Callable[[Fleet], Awaitable[None]]) -> None:
    async def main() -> None:
        loop = of_type(asyncio.get_running_loop(), virtual_time.VirtualTimeLoop)
        world = World.of(*(name(node) for node in range(NODES)))
        fleet = Fleet(loop, world)
        await fleet.start()
        await test(fleet)
        await fleet.close()

    virtual_time.run(main())


pytestmark = pytest.mark.decorated(by=played_by(on_a_fleet))


async def test_three_agents_that_lie_about_nodes_of_their_choice_have_nobody_cordoned(
    fleet: Fleet,
) -> None:
    for node in range(NODES):
        fleet.report_edges(node, dict.fromkeys(fleet.assigned(node), Status.UNKNOWN))
    lies = {address(n): Status.FAILED for n in (40, 41, 42)}
    lies |= {address(n): Status.OK for n in range(50, 60)}
    for liar in range(3):
        fleet.report_edges(liar, lies)
    await fleet.pass_time(LONG)
    assert fleet.blamed == set()


async def test_a_hundred_unassigned_reports_have_nobody_cordoned(fleet: Fleet) -> None:
    victim = 40
    observers = fleet.observers(victim)
    for node in range(NODES):
        if node not in observers and node != victim:
            edges = dict.fromkeys(fleet.assigned(node), Status.OK)
            fleet.report_edges(node, edges | {address(victim): Status.FAILED})
    await fleet.pass_time(LONG)
    assert fleet.blamed == set()


async def test_three_of_the_assigned_observers_have_nobody_cordoned_where_echoes_are_filtered(
    fleet: Fleet,
) -> None:
    victim = 40
    liars = random.Random(1).sample(fleet.observers(victim), 3)
    fleet.tell_of(victim, liars, honest=Status.UNKNOWN, lie=Status.FAILED)
    await fleet.pass_time(LONG)
    assert fleet.blamed == set()


async def test_one_honest_observer_that_reaches_a_node_outweighs_all_others(fleet: Fleet) -> None:
    victim = 40
    liars = fleet.observers(victim)[:-1]
    fleet.tell_of(victim, liars, honest=Status.OK, lie=Status.FAILED)
    await fleet.pass_time(LONG)
    assert fleet.blamed == set()


async def test_liars_that_come_back_first_after_a_crash_have_nobody_cordoned(fleet: Fleet) -> None:
    """Until the others are back only they and their victim are there, and probe each other."""
    victim, liars = 40, set(range(6))
    assert len(liars & set(fleet.observers(victim))) < 4
    await fleet.crash()
    await fleet.attach_all([*liars, victim])
    await fleet.pass_time(PEERS_EVERY + 5)
    assert len(liars & set(fleet.observers(victim))) >= 4, "they alone were assigned it"
    lies = dict.fromkeys(map(address, range(NODES)), Status.OK)
    for _ in range(4):
        for liar in liars:
            fleet.report_edges(liar, lies | {address(victim): Status.FAILED})
        await fleet.pass_time(30)
    await fleet.attach_all(set(range(NODES)) - liars - {victim})
    for node in set(range(NODES)) - liars:
        fleet.report_edges(node, dict.fromkeys(fleet.assigned(node), Status.UNKNOWN))
    await fleet.pass_time(LONG)
    assert fleet.world.quarantines == {}


async def test_a_node_that_is_lost_is_found_soon_after_a_crash_of_the_aggregator(
    fleet: Fleet,
) -> None:
    lost = 40
    before = {node: fleet.assigned(node) for node in fleet.calls}
    await fleet.crash()
    await fleet.attach_all(range(NODES))
    await fleet.pass_time(PEERS_EVERY + 5)
    assert {node: fleet.assigned(node) for node in fleet.calls} == before, "by the same secret"
    for node in range(NODES):
        edges = dict.fromkeys(fleet.assigned(node), Status.OK)
        fleet.report_edges(node, edges | {to: Status.FAILED for to in edges if to == address(lost)})
    await fleet.pass_time(180)
    assert set(fleet.world.quarantines) == {name(lost)}


async def test_a_node_that_its_assigned_observers_lost_is_cordoned(fleet: Fleet) -> None:
    lost = 40
    for node in range(NODES):
        edges = dict.fromkeys(fleet.assigned(node), Status.OK)
        fleet.report_edges(node, edges | {to: Status.FAILED for to in edges if to == address(lost)})
    await fleet.pass_time(LONG)
    assert set(fleet.world.quarantines) == {name(lost)}
