"""Replicas coordinate, in virtual time: they decide together as one replica would decide alone."""

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from contextvars import Context
from dataclasses import dataclass, field, replace

import pytest

from aggregator.events import EventKind
from aggregator.health.model import Component, Delta, Fault, Snapshot, Status
from aggregator.quarantine.controller import REFRESH
from aggregator.quarantine.coordination.coordinator import TICK
from aggregator.quarantine.decide.admission import Limits
from aggregator.quarantine.decide.admission_record import parse_record
from aggregator.quarantine.decide.cause_search import CommonLimits
from aggregator.quarantine.reconcile.cluster_events import FORGOTTEN_AFTER
from aggregator.quarantine.settings import Settings
from aggregator.quarantine.state.remote import LEAVING
from aggregator.replicas.membership.view import Member, MembershipView
from tests.support import virtual_time
from tests.support.coordination import PlayedShards, member
from tests.support.memory_cluster import MemoryCluster, World
from tests.support.networks import TARGET, Network, address
from tests.support.reachable_text import places_of
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
from tests.support.replica_links import Links, lateness
from tests.support.virtual_replica import LoopClock
from tests.support.waiting import until

RACK = "example.com/rack"
#: As shipped, except that no leader waits for a quorum.
SHIPPED = replace(
    SETTINGS,
    limits=replace(Limits(), quorum_percent=0),
    common=CommonLimits(domain_labels=(RACK,)),
)
WIDE = replace(SETTINGS, limits=OPEN, common=UNSUSPECTING)
WELL = snapshot()


@dataclass
class Bench:
    """Three replicas over so many nodes; each agent is attached where its node belongs."""

    loop: virtual_time.VirtualTimeLoop
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

    async def begin(self, nodes: int) -> "Bench":
        self.links = Links(late=lateness(random.Random(5), self.late))
        for number in range(nodes):
            self.world.add_node(f"n{number}", labels={RACK: f"r{number // 16}"})
        self.members = {f"r{number}": member(f"r{number}") for number in range(self.count)}
        for name in list(self.members):
            self.start(name)
        await until(lambda: not any(one.fleet.view_lost for one in self.replicas.values()))
        self.settle()
        await self.all_reported()
        return self

    def start(self, name: str) -> None:
        self.shards[name] = shards = PlayedShards(name, ())
        shards.take(self.membership_view(name))
        self.replicas[name] = replica = Replica(
            self.world,
            clock=LoopClock(self.loop),
            settings=self.settings,
            shards=shards,
            cluster=MemoryCluster(self.world),
        )
        self.links.join(name, self.members[name].epoch, replica.controller.coordinator)

    def membership_view(self, me: str) -> MembershipView:
        return MembershipView(me, dict(self.members), settled=True)

    def settle(self) -> None:
        """Every agent connects to the replica that owns its node by now."""
        for name in self.world.nodes:
            owner = self.membership_view("r0").owner(name)
            assert owner is not None
            if self.at.get(name) != owner.name:
                self.move(name, owner.name)

    def move(self, node: str, to: str) -> None:
        earlier = self.replicas.get(self.at.get(node, ""))
        if earlier is not None:
            earlier.controller.on_disconnect(node, self.lines[node], "redirected")
        self.at[node], self.lines[node] = to, FakeLine()
        controller = self.replicas[to].controller
        controller.on_connect(hello(node), self.lines[node])
        controller.on_evidence(node, self.evidence.get(node, WELL), self.loop.time())

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
        """All replicas learn which replicas are there now."""
        self.members.update(members)
        for name, shards in self.shards.items():
            shards.take(self.membership_view(name))

    async def all_reported(self) -> None:
        """All replicas have reported all their nodes to the leader."""
        await until(lambda: not self.leader.controller.coordinator.uncertainty().missing)
        await asyncio.sleep(3)

    @property
    def leader(self) -> Replica:
        leader = self.membership_view("r0").leader
        assert leader is not None
        return self.replicas[leader.name]

    @property
    def followers(self) -> list[Replica]:
        return [one for one in self.replicas.values() if one is not self.leader]

    def send_evidence(self, node: str, *evidence: Fault | Component) -> None:
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
            self.replicas[self.at[node]].controller.on_evidence(node, told, self.loop.time())

    def break_(self, numbers: Iterable[int], code: str = "xid:79") -> None:
        now = self.loop.time()
        for number in numbers:
            self.send_evidence(
                f"n{number}", fault(code, f"GPU-{number}", first_at=now, last_at=now)
            )

    def level(self, numbers: Iterable[int], check: str, name: str, reason: str) -> None:
        now = self.loop.time()
        status = Status.FAILED if reason else Status.OK
        for number in numbers:
            self.send_evidence(f"n{number}", component(check, name, status, reason, since=now))

    def level_unknown(self, number: int, check: str, name: str) -> None:
        self.send_evidence(
            f"n{number}", component(check, name, Status.UNKNOWN, since=self.loop.time())
        )

    @property
    def sick(self) -> set[str]:
        return set(self.world.quarantines)

    def holds(self) -> dict[str, str]:
        """The limit that holds each node, wherever it is."""
        return {
            one.node: one.decision.hold.limit
            for replica in self.replicas.values()
            for one in replica.fleet.node_summaries.values()
            if one.decision.hold is not None
        }

    def events_of(self, kind: EventKind) -> list[str]:
        """Events of this kind by any replica, now or before."""
        return [
            one.summary
            for replica in self.replicas.values()
            for one in replica.notes.transitions
            if one.kind is kind
        ]

    def admissions(self) -> int:
        return len(parse_record(self.world.record.text).admissions)


def on_bench(
    test: Callable[[Bench], Awaitable[None]],
    *,
    nodes: int = 60,
    settings: Settings = SHIPPED,
    late: float = 0.02,
) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, virtual_time.VirtualTimeLoop)
        bench = await Bench(loop, settings, late=late).begin(nodes)
        await test(bench)
        bench.links.close()
        for replica in bench.replicas.values():
            await replica.stop()

    virtual_time.run(main())


def test_faults_on_all_shards_are_quarantined_by_their_own() -> None:
    async def test(bench: Bench) -> None:
        assert {bench.at[f"n{number}"] for number in range(12)} == {"r0", "r1", "r2"}
        bench.break_(range(12))
        await until(lambda: len(bench.sick) == 12)
        assert bench.admissions() == 12

    on_bench(test, settings=WIDE)


def test_a_burst_over_three_shards_is_one_common_cause_told_once_and_shown_everywhere() -> None:
    async def test(bench: Bench) -> None:
        bench.break_(range(12))
        await asyncio.sleep(30)
        assert len(bench.sick) <= 5  # the first few of a burst, as with one replica
        assert len(bench.events_of(EventKind.COMMON_CAUSE)) == 1
        assert {tuple(one.fleet.causes) for one in bench.replicas.values()} == {
            tuple(bench.leader.fleet.causes)
        }
        assert len(bench.leader.fleet.causes) == 1
        assert len(bench.sick) + len(bench.holds()) == 12

    on_bench(test)


def test_proposals_over_all_shards_never_pass_a_limit() -> None:
    async def test(bench: Bench) -> None:
        bench.break_(range(40))
        for _ in range(40):
            assert len(parse_record(bench.world.record.text).entries) <= 7
            await asyncio.sleep(1)
        assert len(bench.sick) == 7
        assert set(bench.holds().values()) == {"limits.concurrent"}

    limits = replace(OPEN, concurrent=7)
    on_bench(test, settings=replace(WIDE, limits=limits), late=0.2)


@pytest.mark.parametrize("seed", range(4))
def test_no_weather_between_replicas_passes_a_limit_or_loses_a_fault(seed: int) -> None:
    """Streams break and heal, leaders die and come back, messages are late."""

    async def test(bench: Bench) -> None:
        rng = random.Random(seed)
        for turn in range(12):
            bench.break_([turn])
            one, other = rng.sample(sorted(bench.members), 2)
            bench.links.cut(one, other)
            await asyncio.sleep(rng.uniform(0, 8))
            if rng.random() < 0.5:
                bench.links.mend()
            if turn == 6:
                await bench.kill(rng.choice(sorted(bench.members)))
                await asyncio.sleep(rng.uniform(0, 12))
                bench.reform()
                bench.settle()
            assert len(parse_record(bench.world.record.text).entries) <= 9
        bench.links.mend()
        await until(lambda: len(bench.sick) == 9, bench.holds)
        await until(lambda: len(bench.sick) + len(bench.holds()) == 12)

    limits = replace(OPEN, concurrent=9)
    on_bench(test, settings=replace(WIDE, limits=limits), late=0.3)


def test_a_leader_that_dies_with_questions_in_flight_costs_no_fault_and_no_place_twice() -> None:
    async def test(bench: Bench) -> None:
        bench.break_(range(30))
        await asyncio.sleep(0.35)  # some are admitted, some asked, some answers on their way
        await bench.kill("r0")
        await asyncio.sleep(3)
        bench.reform()
        bench.settle()
        await until(lambda: len(bench.sick) == 30, bench.holds)
        assert bench.admissions() == 30

    on_bench(test, settings=WIDE, late=0.3)


def test_while_a_replica_has_not_told_of_its_nodes_only_a_few_explicit_faults_pass() -> None:
    async def test(bench: Bench) -> None:
        bench.links.cut("r0", "r2")
        heard = [n for n in range(60) if bench.at[f"n{n}"] != "r2"]
        bench.level(heard[:1], "nic-link", "eth0", "no-carrier")
        await asyncio.sleep(300)
        assert bench.sick == set()
        assert set(bench.holds().values()) == {"shards"}
        reason = (
            bench.replicas[bench.at[f"n{heard[0]}"]]
            .fleet.node_summaries[f"n{heard[0]}"]
            .decision.hold
        )
        assert reason is not None
        assert "r2 has not told of all nodes" in reason.reason
        shown = {name: one.fleet.incomplete for name, one in bench.replicas.items()}
        assert shown == {
            "r0": "r2 has not told of all nodes",
            "r1": "r2 has not told of all nodes",
            "r2": "r0, which leads, is not reached",
        }
        bench.break_(heard[10:20])
        await asyncio.sleep(60)
        assert len(bench.sick) == 3
        bench.links.mend()
        await until(lambda: len(bench.sick) == 11, bench.holds)
        assert not any(one.fleet.incomplete for one in bench.replicas.values())
        await until(lambda: bench.events_of(EventKind.REPLICAS_TOGETHER))
        [told] = bench.events_of(EventKind.REPLICAS_APART)
        assert told == (
            "for 1m the replicas have not told each other everything, so little is admitted: "
            "r2 has not told of all nodes"
        )

    on_bench(test, settings=WIDE)


def test_who_cannot_ask_the_leader_holds_and_asks_again_as_soon_as_it_can() -> None:
    async def test(bench: Bench) -> None:
        bench.links.cut("r0", "r2")
        theirs = [n for n in range(60) if bench.at[f"n{n}"] == "r2"]
        bench.break_(theirs[:2])
        await asyncio.sleep(20)
        hold = bench.replicas["r2"].fleet.node_summaries[f"n{theirs[0]}"].decision.hold
        assert hold is not None
        assert (hold.limit, hold.reason) == (
            "shards",
            "r0, which leads, is not reached; asked again in a moment",
        )
        bench.links.mend()
        healed = bench.loop.time()
        await until(lambda: len(bench.sick) == 2)
        assert bench.loop.time() - healed < 2

    on_bench(test, settings=WIDE)


def test_while_replicas_run_two_policies_nothing_new_is_admitted() -> None:
    async def test(bench: Bench) -> None:
        bench.reform(r2=replace(bench.members["r2"], policy_hash="another"))
        await asyncio.sleep(5)
        bench.break_(range(6))
        await asyncio.sleep(60)
        assert bench.sick == set()
        assert set(bench.holds().values()) == {"shards"}
        assert bench.events_of(EventKind.REPLICAS_APART) == []  # a rollout takes longer than that
        bench.reform(r2=member("r2"))
        await until(lambda: len(bench.sick) == 6)
        bench.reform(r2=replace(member("r2"), version="1.1"))
        await asyncio.sleep(1900)
        [told] = bench.events_of(EventKind.REPLICAS_APART)
        assert "r2 runs version 1.1" in told

    on_bench(test, settings=WIDE)


def test_a_common_cause_outlives_the_leader_that_found_it_and_is_told_once() -> None:
    async def test(bench: Bench) -> None:
        bench.break_(range(16))
        await until(lambda: all(one.fleet.causes for one in bench.replicas.values()))
        told = bench.events_of(EventKind.COMMON_CAUSE)
        stood = len(bench.sick)
        await bench.kill("r0")
        await asyncio.sleep(12)
        bench.reform()
        for _ in range(30):  # its agents are on their way
            await asyncio.sleep(1)
            assert bench.leader.fleet.causes
        bench.settle()
        await asyncio.sleep(120)
        assert all(one.fleet.causes for one in bench.replicas.values())
        assert len(bench.sick) == stood
        assert len(told) == 1
        assert (
            bench.events_of(EventKind.COMMON_CAUSE) == []
        )  # r0 told, and is gone; no second report
        assert bench.events_of(EventKind.COMMON_CAUSE_OVER) == []

    on_bench(test)


def test_what_a_replica_that_left_has_said_stands_until_its_nodes_speak_elsewhere() -> None:
    async def test(bench: Bench) -> None:
        theirs = [n for n in range(60) if bench.at[f"n{n}"] == "r2"]
        size = bench.leader.controller._registry.size
        assert size().reported == 60
        await bench.kill("r2")
        bench.reform()
        await asyncio.sleep(30)
        assert size().reported == 60
        await asyncio.sleep(31)
        assert size().reported == 60 - len(theirs)  # they have not been reported for too long
        bench.settle()
        await until(lambda: size().reported == 60)

    on_bench(test)


def test_a_rack_whose_nodes_are_spread_over_all_replicas_is_still_one_rack() -> None:
    async def test(bench: Bench) -> None:
        bench.level(range(16, 26), "nic-link", "eth0", "no-carrier")
        await asyncio.sleep(120)
        assert bench.sick == set()
        [cause] = bench.leader.fleet.causes.values()
        assert cause.nodes == 10
        for replica in bench.followers:
            [shown] = replica.fleet.causes.values()
            assert (shown.id, shown.reason) == (cause.id, cause.reason)
        bench.level(range(16, 26), "nic-link", "eth0", "")
        await asyncio.sleep(200)
        assert not any(one.fleet.causes for one in bench.replicas.values())
        assert (
            len(bench.events_of(EventKind.COMMON_CAUSE))
            == len(bench.events_of(EventKind.COMMON_CAUSE_OVER))
            == 1
        )

    on_bench(test)


def test_agents_that_fall_silent_on_all_shards_are_one_cause() -> None:
    async def test(bench: Bench) -> None:
        for number in range(20):
            node = f"n{number}"
            bench.replicas[bench.at[node]].controller.on_disconnect(node, bench.lines[node], "gone")
        await until(
            lambda: bench.events_of(EventKind.COMMON_CAUSE),
            within=SHIPPED.silence.silent_after + 30,
        )
        [told] = bench.events_of(EventKind.COMMON_CAUSE)
        assert "of 60 agents are silent" in told
        await until(lambda: all(one.fleet.causes for one in bench.replicas.values()))

    on_bench(test)


class Web:
    """The network of the fleet's nodes, and each node's view of it."""

    def __init__(self, bench: Bench, size: int) -> None:
        self.bench = bench
        self.net = Network(size, random.Random(1))

    def place(self) -> None:
        for number in range(self.net.size):
            node = f"n{number}"
            controller = self.bench.replicas[self.bench.at[node]].controller
            controller.placed(node, address(number))
            controller.assigned(node, self.net.assigned(number))
        self.report_all()

    def report_all(self) -> None:
        now = self.bench.loop.time()
        for number in range(self.net.size):
            seen = [
                Component(check, what, Status.OK if fine else Status.FAILED, "", "", now)
                for check, what, fine in self.net._seen_by(number)
            ]
            self.bench.send_evidence(f"n{number}", *seen)


def finding_of(bench: Bench, node: str) -> Component | None:
    health = bench.replicas[bench.at[node]].fleet.node_summaries[node].agent.health
    return health.inferred if health is not None else None


def test_whom_the_network_is_blamed_on_reaches_its_owner_and_no_other() -> None:
    async def test(bench: Bench) -> None:
        web = Web(bench, 60)
        web.place()
        await asyncio.sleep(5)
        victim = next(n for n in range(60) if bench.at[f"n{n}"] == "r2")
        web.net.mute.add(victim)  # its own probes fail, and others' to it do
        web.net.down.add(victim)
        web.report_all()
        await asyncio.sleep(5)
        found = finding_of(bench, f"n{victim}")
        assert found is not None
        assert found.status is Status.FAILED
        await until(lambda: bench.sick == {f"n{victim}"}, within=300)
        others = {finding.status for n in range(60) if (finding := finding_of(bench, f"n{n}"))}
        assert others == {Status.OK, Status.FAILED}

    on_bench(test, settings=replace(WIDE, common=CommonLimits(domain_labels=(RACK,))))


def test_a_target_that_all_miss_is_blamed_by_the_leader_and_shown_by_all() -> None:
    async def test(bench: Bench) -> None:
        web = Web(bench, 60)
        web.place()
        await asyncio.sleep(5)
        web.net.missed.add(TARGET)
        web.report_all()
        await asyncio.sleep(10)
        shown = [sorted(one.fleet.network) for one in bench.replicas.values()]
        assert shown == [[f"target reach {TARGET}"]] * 3
        assert len(bench.events_of(EventKind.NETWORK_BLAMED)) == 1
        assert bench.sick == set()

    on_bench(test)


def test_a_new_leader_blames_nobody_for_the_network_while_agents_are_on_their_way() -> None:
    async def test(bench: Bench) -> None:
        web = Web(bench, 60)
        web.place()
        await asyncio.sleep(5)
        victim = next(n for n in range(60) if bench.at[f"n{n}"] == "r2")
        await bench.kill("r0")
        await asyncio.sleep(12)
        bench.reform()
        bench.settle()
        web.net.down.add(victim)
        web.place()
        await asyncio.sleep(40)
        found = finding_of(bench, f"n{victim}")
        assert found is not None
        assert found.status is Status.OK  # as r0 last said
        await until(lambda: bench.sick == {f"n{victim}"}, within=300)

    on_bench(test, settings=replace(WIDE, common=CommonLimits(domain_labels=(RACK,))))


LABELLED = replace(WIDE, common=CommonLimits(domain_labels=(RACK,)))


def test_agents_of_several_replicas_that_lie_of_nodes_they_were_not_assigned_blame_nobody() -> None:
    async def test(bench: Bench) -> None:
        web = Web(bench, 60)
        web.place()
        victim = 7
        observers = set(web.net.observers(victim))
        liars = [n for n in range(60) if n not in observers and n != victim][:12]
        assert {bench.at[f"n{liar}"] for liar in liars} == {"r0", "r1", "r2"}
        for observer in observers:  # echoes to it are filtered, and they say so
            bench.level_unknown(observer, "peers", address(victim))
        for liar in liars:
            bench.level([liar], "peers", address(victim), "unreachable")
        await asyncio.sleep(300)
        assert bench.sick == set()
        for observer in observers:  # assigned observers are believed, wherever they are
            bench.level([observer], "peers", address(victim), "unreachable")
        await until(lambda: bench.sick == {f"n{victim}"}, within=300)

    on_bench(test, settings=LABELLED)


def test_a_lost_node_is_found_long_after_nodes_have_moved_away_from_the_leader() -> None:
    """The leader drops the addresses of agents that left it; their new owner reports them."""

    async def test(bench: Bench) -> None:
        web = Web(bench, 60)
        web.place()
        await asyncio.sleep(5)
        before = dict(bench.at)
        bench.members["r3"] = member("r3")
        bench.start("r3")
        await until(lambda: not bench.replicas["r3"].fleet.view_lost)
        bench.reform()
        bench.settle()
        await bench.all_reported()
        web.place()
        await asyncio.sleep(5)
        moved = [n for n in range(60) if before[f"n{n}"] == "r0" and bench.at[f"n{n}"] == "r3"]
        assert moved
        for number in moved:
            bench.replicas["r0"].controller.placed(f"n{number}", "")
            bench.replicas["r0"].controller.assigned(f"n{number}", ())
        victim = moved[0]
        for observer in web.net.observers(victim):
            bench.level([observer], "peers", address(victim), "unreachable")
        await until(lambda: bench.sick == {f"n{victim}"}, within=300)

    on_bench(test, settings=LABELLED)


def test_the_leader_remembers_no_name_that_another_replica_has_forgotten() -> None:
    """One that the cluster never had: its agent has a certificate, say."""

    async def test(bench: Bench) -> None:
        membership_view = bench.membership_view("r0")
        names = (f"stranger-{number}" for number in range(100))
        stranger = next(one for one in names if membership_view.owner(one) == bench.members["r2"])
        bench.move(stranger, "r2")
        owner = bench.replicas["r2"].controller
        owner.placed(stranger, "10.9.0.1")
        owner.assigned(stranger, ("10.9.0.2",))
        owner.on_evidence(
            stranger,
            snapshot(
                component("peers", "10.9.0.2", Status.FAILED, "unreachable", since=1.0),
                component("reach", "gateway", Status.FAILED, "unreachable", since=1.0),
            ),
            bench.loop.time(),
        )
        roots = (bench.leader.controller, bench.leader.fleet)
        await until(lambda: places_of(stranger, *roots))
        owner.on_disconnect(stranger, bench.lines[stranger], "gone")
        await asyncio.sleep(FORGOTTEN_AFTER + 2 * REFRESH + LEAVING)
        for replica in bench.replicas.values():
            replica.notes.transitions.clear()  # the events that the test remembers
        assert stranger not in bench.replicas["r2"].fleet.node_summaries
        assert places_of(stranger, *roots, owner) == []

    on_bench(test, nodes=6)


def test_a_new_owner_is_told_what_was_found_of_its_node_before() -> None:
    async def test(bench: Bench) -> None:
        web = Web(bench, 60)
        web.place()
        await asyncio.sleep(5)
        await bench.kill("r2")
        bench.reform()
        bench.settle()
        await asyncio.sleep(5)
        assert all(finding_of(bench, f"n{number}") is not None for number in range(60))

    on_bench(test)


@pytest.mark.parametrize("seed", range(3))
def test_three_replicas_find_the_causes_that_one_finds(seed: int) -> None:
    """The same day, once on one replica and once on three: faults here and there, racks, bursts."""

    def day(count: int) -> tuple[dict[str, tuple[int, int]], set[str]]:
        found: dict[str, tuple[int, int]] = {}
        ill: set[str] = set()

        async def main() -> None:
            loop = asyncio.get_running_loop()
            assert isinstance(loop, virtual_time.VirtualTimeLoop)
            bench = await Bench(loop, SHIPPED, count=count).begin(120)
            rng = random.Random(seed)
            for _ in range(6):
                rack = rng.randrange(7) * 16
                some = rng.sample(range(rack, rack + 16), rng.randrange(1, 12))
                if rng.random() < 0.5:
                    bench.level(some, "nic-link", "eth0", "no-carrier")
                else:
                    bench.break_(rng.sample(range(120), rng.randrange(1, 10)), "xid:79")
                await asyncio.sleep(rng.uniform(10, 90))
            await asyncio.sleep(30)
            causes = bench.leader.fleet.causes
            found.update({ident: (one.nodes, one.total) for ident, one in causes.items()})
            ill.update(bench.sick | bench.holds().keys())
            bench.links.close()
            for replica in bench.replicas.values():
                await replica.stop()

        virtual_time.run(main())
        return found, ill

    alone, together = day(1), day(3)
    assert alone[0]
    assert together == alone


def test_a_node_of_which_everything_fails_takes_the_stream_of_no_other() -> None:
    async def test(bench: Bench) -> None:
        node = next(f"n{n}" for n in range(60) if bench.at[f"n{n}"] == "r2")
        parts = [
            component("disk-mounts", f"/data/{'x' * 3_900}/{n}", Status.FAILED, "hung", since=1.0)
            for n in range(1_500)
        ]
        peers = [component("peers", f"10.1.{n // 256}.{n % 256}", Status.OK) for n in range(400)]
        bench.send_evidence(node, *parts, *peers)
        bench.send_evidence(node, *(fault("xid:79", f"GPU-{n}") for n in range(1_000)))
        await until(lambda: bench.sick == {node}, bench.holds)
        await asyncio.sleep(5)
        assert not bench.leader.controller.coordinator.uncertainty().missing

    on_bench(test, settings=WIDE)


def test_who_leads_again_goes_by_what_is_so_now_and_not_by_what_it_found_then() -> None:
    async def test(bench: Bench) -> None:
        web = Web(bench, 60)
        web.place()
        victim = next(n for n in range(60) if bench.at[f"n{n}"] == "r2")
        web.net.down.add(victim)
        web.report_all()
        await asyncio.sleep(5)

        def status() -> Status | None:
            found = finding_of(bench, f"n{victim}")
            return found.status if found is not None else None

        assert status() is Status.FAILED
        bench.reform(r0=replace(member("r0"), since=9.0))  # r1 leads now
        assert bench.leader is bench.replicas["r1"]
        await bench.all_reported()
        assert len(bench.replicas["r0"].controller.coordinator._remote_nodes) == 0
        web.net.down.clear()
        web.report_all()
        await until(lambda: status() is Status.OK, within=90)
        bench.reform(r0=member("r0"))
        await bench.all_reported()
        await asyncio.sleep(90)
        assert status() is Status.OK
        assert bench.leader.controller._registry.size().reported == 60
        assert bench.sick == set()

    on_bench(test, settings=replace(WIDE, common=CommonLimits(domain_labels=(RACK,))))


class _CountedTimers(virtual_time.VirtualTimeLoop):
    """Counts the timers that each task sets."""

    def __init__(self) -> None:
        self.timers: Counter[str] = Counter()
        super().__init__()

    def add_timer(
        self,
        when: float,
        callback: Callable[..., object],
        args: tuple[object, ...],
        context: Context | None,
    ) -> asyncio.TimerHandle:
        task = asyncio.current_task(self)
        self.timers[task.get_name() if task is not None else ""] += 1
        return super().add_timer(when, callback, args, context)


def test_a_replica_that_is_alone_wakes_up_to_coordinate_only_once_it_has_company() -> None:
    loop, shards = _CountedTimers(), PlayedShards("r0", ["r0"])

    async def test() -> None:
        replica = Replica(World(), clock=LoopClock(loop), shards=shards)
        await asyncio.sleep(600)
        assert loop.timers["coordinator"] == 0
        shards.become(["r0", "r1"])
        await asyncio.sleep(10)
        assert loop.timers["coordinator"] >= 10 / TICK
        shards.become(["r0"])  # the reports of the one that left may still count for a while
        await asyncio.sleep(LEAVING + 10)
        before = loop.timers["coordinator"]
        await asyncio.sleep(600)
        assert loop.timers["coordinator"] == before
        await replica.stop()

    loop.run_until_complete(test())
    loop.close()
