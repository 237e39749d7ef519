"""Several replicas confer, in virtual time: what one replica would decide, they decide together."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field, replace

from aggregator.health.model import Component, Delta, Fault, Snapshot, Status
from aggregator.quarantine.decide.admission import Limits
from aggregator.quarantine.decide.blame import CommonLimits
from aggregator.quarantine.decide.record import parse_record
from aggregator.quarantine.ledger import Kind
from aggregator.quarantine.settings import Settings
from aggregator.shards.council import Council, Member
from tests.support import virtualtime
from tests.support.councils import PlayedShards, member
from tests.support.links import Links, lateness
from tests.support.memorycluster import MemoryCluster, World
from tests.support.replica import (
    OPEN,
    SETTINGS,
    UNSUSPECTING,
    FakeLine,
    Replica,
    component,
    fault,
    hello,
    snapshot,
)
from tests.support.running import LoopClock
from tests.support.waiting import until

RACK = "example.com/rack"
#: As shipped, but that nobody waits for a quorum.
SHIPPED = replace(
    SETTINGS,
    limits=replace(Limits(), quorum_percent=0),
    common=CommonLimits(domain_labels=(RACK,)),
)
WIDE = replace(SETTINGS, limits=OPEN, common=UNSUSPECTING)
WELL = snapshot()


@dataclass
class Ward:
    """Three replicas over so many nodes; each agent is attached where its node belongs."""

    loop: virtualtime.VirtualTimeLoop
    settings: Settings
    count: int = 3
    late: float = 0.02
    world: World = field(default_factory=World)
    replicas: dict[str, Replica] = field(default_factory=dict)
    shards: dict[str, PlayedShards] = field(default_factory=dict)
    lines: dict[str, FakeLine] = field(default_factory=dict)
    evidence: dict[str, Snapshot] = field(default_factory=dict)
    at: dict[str, str] = field(default_factory=dict)
    started: float = 0.0

    async def begin(self, nodes: int) -> "Ward":
        self.links = Links(late=lateness(random.Random(5), self.late))
        for number in range(nodes):
            self.world.add_node(f"n{number}", labels={RACK: f"r{number // 16}"})
        self.members = {f"r{number}": member(f"r{number}") for number in range(self.count)}
        for name in list(self.members):
            self.start(name)
        await until(lambda: not any(one.fleet.view_lost for one in self.replicas.values()))
        self.settle()
        await self.conferred()
        return self

    def start(self, name: str) -> None:
        self.shards[name] = shards = PlayedShards(name, ())
        shards.take(self.council(name))
        self.replicas[name] = replica = Replica(
            self.world,
            clock=LoopClock(self.loop),
            settings=self.settings,
            shards=shards,
            cluster=MemoryCluster(self.world),
        )
        self.links.join(name, self.members[name].epoch, replica.controller.conferring)

    def council(self, me: str) -> Council:
        return Council(me, dict(self.members), settled=True)

    def settle(self) -> None:
        """Every agent goes where its node belongs by now."""
        for name in self.world.nodes:
            owner = self.council("r0").owner(name)
            assert owner is not None
            if self.at.get(name) != owner.name:
                self.move(name, owner.name)

    def move(self, node: str, to: str) -> None:
        earlier = self.replicas.get(self.at.get(node, ""))
        if earlier is not None:
            earlier.controller.detached(node, self.lines[node], "redirected")
        self.at[node], self.lines[node] = to, FakeLine()
        controller = self.replicas[to].controller
        controller.attached(hello(node), self.lines[node])
        controller.heard(node, self.evidence.get(node, WELL), self.loop.time())

    async def kill(self, name: str) -> None:
        """Gone at once; the others learn of it later, by `reform`."""
        self.links.leave(name)
        await self.replicas.pop(name).stop()
        self.members.pop(name)
        self.shards.pop(name)
        for node, where in self.at.items():
            if where == name:
                self.at[node] = ""

    def reform(self, **members: Member) -> None:
        """All replicas learn who is there now."""
        self.members.update(members)
        for name, shards in self.shards.items():
            shards.take(self.council(name))

    async def conferred(self) -> None:
        """All have told the leader of all their nodes."""
        await until(lambda: not self.leader.controller.conferring.doubt().missing)
        await asyncio.sleep(3)

    @property
    def leader(self) -> Replica:
        leader = self.council("r0").leader
        assert leader is not None
        return self.replicas[leader.name]

    @property
    def followers(self) -> list[Replica]:
        return [one for one in self.replicas.values() if one is not self.leader]

    def say(self, node: str, *evidence: Fault | Component) -> None:
        told = Delta(
            tuple(item for item in evidence if isinstance(item, Component)),
            tuple(item for item in evidence if isinstance(item, Fault)),
            (),
        )
        before = self.evidence.get(node, WELL)
        self.evidence[node] = Snapshot(
            (*before.components, *told.components), (*before.faults, *told.faults), ()
        )
        if self.at[node]:
            self.replicas[self.at[node]].controller.heard(node, told, self.loop.time())

    def break_(self, numbers: Iterable[int], code: str = "xid:79") -> None:
        now = self.loop.time()
        for number in numbers:
            self.say(f"n{number}", fault(code, f"GPU-{number}", first_at=now, last_at=now))

    def level(self, numbers: Iterable[int], check: str, name: str, reason: str) -> None:
        now = self.loop.time()
        status = Status.FAILED if reason else Status.OK
        for number in numbers:
            self.say(f"n{number}", component(check, name, status, reason, since=now))

    @property
    def sick(self) -> set[str]:
        return set(self.world.quarantines)

    def holds(self) -> dict[str, str]:
        """The limit that holds each node, wherever it is."""
        return {
            one.node: one.hold.limit
            for replica in self.replicas.values()
            for one in replica.fleet.patients.values()
            if one.hold is not None
        }

    def told(self, kind: Kind) -> list[str]:
        """By any replica, now or before."""
        return [
            one.summary
            for replica in self.replicas.values()
            for one in replica.notes.transitions
            if one.kind is kind
        ]

    def admissions(self) -> int:
        return len(parse_record(self.world.record.text).admissions)


def on_a_ward(
    test: Callable[[Ward], Awaitable[None]],
    *,
    nodes: int = 60,
    settings: Settings = SHIPPED,
    late: float = 0.02,
) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, virtualtime.VirtualTimeLoop)
        ward = await Ward(loop, settings, late=late).begin(nodes)
        await test(ward)
        ward.links.close()
        for replica in ward.replicas.values():
            await replica.stop()

    virtualtime.run(main())


def test_faults_on_all_shards_are_quarantined_by_their_own() -> None:
    async def test(ward: Ward) -> None:
        assert {ward.at[f"n{number}"] for number in range(12)} == {"r0", "r1", "r2"}
        ward.break_(range(12))
        await until(lambda: len(ward.sick) == 12)
        assert ward.admissions() == 12

    on_a_ward(test, settings=WIDE)


def test_a_burst_over_three_shards_is_one_common_cause_told_once_and_shown_everywhere() -> None:
    async def test(ward: Ward) -> None:
        ward.break_(range(12))
        await asyncio.sleep(30)
        assert len(ward.sick) <= 5  # the first few of a burst, as with one replica
        assert len(ward.told(Kind.COMMON_CAUSE)) == 1
        assert {tuple(one.fleet.causes) for one in ward.replicas.values()} == {
            tuple(ward.leader.fleet.causes)
        }
        assert len(ward.leader.fleet.causes) == 1
        assert len(ward.sick) + len(ward.holds()) == 12

    on_a_ward(test)
