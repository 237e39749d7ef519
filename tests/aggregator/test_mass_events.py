"""Many nodes at once, through the whole controller, in virtual time: the nodes that are
quarantined, those that are held and why, the reports, and that a release is never held.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field, replace

import pytest

from aggregator.alerts.alert import alert_of
from aggregator.cluster.port import Action, ClusterError, Phase, QuarantineSpec
from aggregator.events import EventKind
from aggregator.health.model import Cleared, Component, Delta, Fault, Snapshot, Status
from aggregator.quarantine.decide.admission import Limits
from aggregator.quarantine.decide.admission_record import parse_record
from aggregator.quarantine.decide.common_cause import CommonLimits
from aggregator.quarantine.reconcile import node_rounds
from aggregator.quarantine.reconcile.rounds import ROUNDS
from aggregator.quarantine.settings import Settings, SilenceRules
from tests.support import virtual_time
from tests.support.memory_cluster import MemoryCluster, World, phase_of
from tests.support.present import of_type, present
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
from tests.support.virtual_replica import LoopClock
from tests.support.virtual_time import played_by
from tests.support.waiting import until

CLIQUE = "nvidia.com/gpu.clique"
RACK = "example.com/rack"
#: As shipped, except that no leader waits for a quorum.
SHIPPED = replace(
    SETTINGS,
    limits=replace(Limits(), quorum_percent=0),
    common=CommonLimits(domain_labels=(RACK,)),
)
WIDE = replace(SHIPPED, limits=replace(SHIPPED.limits, concurrent=1_000, concurrent_percent=100))
WELL = snapshot()
GONE = snapshot(fault("xid:79"))


@dataclass
class Fleet:
    """An aggregator over so many nodes, their agents attached and well."""

    loop: virtual_time.VirtualTimeLoop
    settings: Settings
    world: World = field(default_factory=World)
    lines: dict[str, FakeLine] = field(default_factory=dict)
    version: str = "0.1.0"
    calls: int = 0

    async def begin(self, nodes: int, **labels: Callable[[int], str]) -> "Fleet":
        for number in range(nodes):
            told = {name.replace("__", "/"): of(number) for name, of in labels.items()}
            self.world.add_node(f"n{number}", labels=told)
        self.start()
        await self.seen()
        for number in range(nodes):
            self.attach(f"n{number}")
        await asyncio.sleep(0)  # all are evaluated
        return self

    def start(self) -> None:
        self.replica = Replica(
            self.world,
            clock=LoopClock(self.loop),
            settings=self.settings,
            cluster=MemoryCluster(self.world, fails=self._count),
        )

    def _count(self, _: str) -> ClusterError | None:
        self.calls += 1
        return None

    async def seen(self) -> None:
        await until(lambda: not self.replica.fleet.view_lost)

    async def restart(self, evidence: dict[str, Snapshot]) -> None:
        """Another process, which remembers nothing; the agents come back, some with faults."""
        await self.replica.stop()
        self.world.listeners.clear()
        self.start()
        await self.seen()
        for name in self.world.nodes:
            self.attach(name, evidence.get(name, WELL))

    def attach(self, name: str, evidence: Snapshot = WELL, *, version: str = "") -> None:
        self.lines[name] = FakeLine()
        told = replace(hello(name), agent_version=version or self.version)
        self.replica.controller.on_connect(told, self.lines[name])
        self.replica.controller.on_evidence(name, evidence, self.loop.time())

    def send_evidence(
        self, name: str, *evidence: Fault | Component, cleared: tuple[Cleared, ...] = ()
    ) -> None:
        told = Delta(
            tuple(item for item in evidence if isinstance(item, Component)),
            tuple(item for item in evidence if isinstance(item, Fault)),
            cleared,
        )
        self.replica.controller.on_evidence(name, told, self.loop.time())

    def break_(self, numbers: Iterable[int], code: str = "xid:79") -> None:
        for number in numbers:
            now = self.loop.time()
            self.send_evidence(
                f"n{number}", fault(code, f"GPU-{number}", first_at=now, last_at=now)
            )

    def mend(self, numbers: Iterable[int], code: str = "xid:79") -> None:
        for number in numbers:
            self.send_evidence(f"n{number}", cleared=(Cleared(code, f"GPU-{number}", "operator"),))

    def level(self, numbers: Iterable[int], check: str, name: str, reason: str) -> None:
        status = Status.FAILED if reason else Status.OK
        for number in numbers:
            self.send_evidence(
                f"n{number}", component(check, name, status, reason, since=self.loop.time())
            )

    @property
    def sick(self) -> list[str]:
        return sorted(self.world.quarantines, key=lambda name: int(name[1:]))

    def holds(self) -> dict[str, str]:
        """The limit that holds each node."""
        node_summaries = self.replica.fleet.node_summaries.values()
        return {
            one.node: one.decision.hold.limit
            for one in node_summaries
            if one.decision.hold is not None
        }

    def summaries_of(self, kind: EventKind) -> list[str]:
        return [one.summary for one in self.replica.notes.transitions if one.kind is kind]

    def alerts(self, kind: EventKind) -> list[str]:
        found = [alert_of(one) for one in self.replica.notes.transitions if one.kind is kind]
        return [one.summary for one in found if one is not None]


Test = Callable[[Fleet], Awaitable[None]]


def play(
    test: Test, nodes: int, settings: Settings = SHIPPED, **labels: Callable[[int], str]
) -> None:
    """Play the test on a fleet. ``labels``: of a node by its number; "__" is the slash."""

    async def main() -> None:
        loop = of_type(asyncio.get_running_loop(), virtual_time.VirtualTimeLoop)
        fleet = await Fleet(loop, settings).begin(nodes, **labels)
        try:
            await test(fleet)
        finally:
            await fleet.replica.stop()

    virtual_time.run(main())


@played_by(play, 3)
async def test_three_nodes_alone_are_not_paralysed(fleet: Fleet) -> None:
    fleet.break_([0])
    await until(lambda: phase_of(fleet.world, "n0") is Phase.DRAINED)
    fleet.mend([0])
    await asyncio.sleep(700)
    assert fleet.sick == []
    fleet.break_([1])
    await asyncio.sleep(2_000)
    assert fleet.sick == ["n1"]


@played_by(play, 4)
async def test_of_four_nodes_one_is_lost_at_once_another_after_the_cooldown_and_no_third(
    fleet: Fleet,
) -> None:
    """The shipped limits."""
    fleet.break_([0])
    await until(lambda: fleet.sick == ["n0"])
    fleet.break_([1, 2])
    await asyncio.sleep(60)
    assert len(fleet.holds()) == 2
    assert set(fleet.holds().values()) <= {"limits.new_per_window_percent", "limits.cooldown"}
    for _ in range(2):
        await asyncio.sleep(SHIPPED.limits.cooldown + 60)
        assert len(fleet.sick) == 2
    [(last, limit)] = fleet.holds().items()
    hold = present(fleet.replica.fleet.node_summaries[last].decision.hold)
    assert limit == "limits.concurrent_percent"
    assert hold.reason.endswith("5 % allow 2 (limits.small_fleet_floor)")


@played_by(play, 1000, WIDE)
async def test_a_storm_of_faults_a_partial_recovery_and_a_new_fault_in_the_cooldown(
    fleet: Fleet,
) -> None:
    began = fleet.loop.time()
    fleet.break_(range(30))
    await asyncio.sleep(20)
    assert len(fleet.sick) == 10, "the rate's ten, and not one more"
    held = set(fleet.holds().values())
    assert held <= {"limits.new_per_window", "limits.cooldown"}
    assert len(fleet.holds()) == 20
    assert len(fleet.summaries_of(EventKind.COOLDOWN)) == 1
    fleet.mend(range(5, 30))  # partial recovery: of the quarantined, and of the held
    await asyncio.sleep(0.1)
    fleet.break_([500])  # another node, another fault
    await asyncio.sleep(700)
    assert set(fleet.sick) == {f"n{number}" for number in range(5)}, "releases go on"
    assert fleet.holds() == {"n500": "limits.cooldown"}, "who is well is held no more"
    # The aggregator dies, and the cooldown does not.
    ill = {f"n{number}": snapshot(fault("xid:79", f"GPU-{number}")) for number in (*range(5), 500)}
    await fleet.restart(ill)
    await asyncio.sleep(5)
    assert fleet.holds() == {"n500": "limits.cooldown"}
    assert fleet.loop.time() < began + 900
    await asyncio.sleep(began + 910 - fleet.loop.time())
    assert "n500" in fleet.sick, "still true, and admitted"


@played_by(play, 100)
async def test_30_percent_of_the_agents_silent_at_once_is_an_alert_and_nothing_else(
    fleet: Fleet,
) -> None:
    for number in range(30):
        name = f"n{number}"
        fleet.replica.controller.on_disconnect(name, fleet.lines[name], "gone")
    await asyncio.sleep(600)
    assert fleet.world.writes == []
    assert fleet.holds() == {}
    assert fleet.alerts(EventKind.COMMON_CAUSE) == [
        "common cause: 30 of 100 agents are silent; no node is quarantined for it"
    ]
    fleet.break_([50])  # and one that is not silent is seen to
    await until(lambda: phase_of(fleet.world, "n50") is Phase.DRAINED)
    for number in range(30):
        fleet.attach(f"n{number}")
    await asyncio.sleep(120)
    assert len(fleet.summaries_of(EventKind.COMMON_CAUSE_OVER)) == 1
    assert fleet.replica.fleet.causes == {}


@played_by(play, 100, replace(WIDE, silence=SilenceRules(silent_failing="cordon")))
async def test_where_silence_may_cordon_the_silence_of_many_does_not(fleet: Fleet) -> None:
    for number in range(30):  # each with a failure of its own, none of them common
        fleet.level([number], "dns" if number % 10 else "reach", f"dns://{number}", "timeout")
        await asyncio.sleep(700)
    assert fleet.replica.fleet.causes == {}
    for number in range(30):
        name = f"n{number}"
        fleet.replica.controller.on_disconnect(name, fleet.lines[name], "gone")
    await asyncio.sleep(400)
    assert fleet.world.quarantines == {}
    assert set(fleet.holds().values()) == {"limits.common_cause_percent"}
    assert [one.scope for one in fleet.replica.fleet.causes.values()] == ["agents"]


@played_by(play, 100, replace(WIDE, silence=SilenceRules(silent_failing="cordon")))
async def test_one_silent_agent_that_was_failing_is_cordoned_where_the_site_says_so(
    fleet: Fleet,
) -> None:
    """The other side of the test above: it can fail."""
    fleet.level([3], "dns", "dns://10.0.0.2", "timeout")
    await asyncio.sleep(1)
    fleet.replica.controller.on_disconnect("n3", fleet.lines["n3"], "gone")
    await asyncio.sleep(400)
    assert fleet.sick == ["n3"]


@played_by(play, 200, WIDE, **{"example.com__rack": lambda number: f"r{number // 18}"})
async def test_a_leaf_switch_that_dies_quarantines_nobody_and_is_alerted_once(fleet: Fleet) -> None:
    rack = range(36, 54)
    fleet.level(rack, "nic-link", "eth0", "no-carrier")
    fleet.break_([40])  # one of its nodes has a fault of its own
    fleet.break_([190])
    await asyncio.sleep(120)
    assert fleet.sick == ["n40", "n190"]
    assert set(fleet.holds().values()) == {"limits.domain_percent"}
    assert len(fleet.holds()) == 17
    [cause] = fleet.replica.fleet.causes.values()
    assert cause.reason.startswith("example.com/rack=r2: check nic-link on 18 of 18 nodes")
    hold = present(fleet.replica.fleet.node_summaries["n36"].decision.hold)
    assert hold.reason == cause.reason
    # The cause is reported once, and none of its nodes besides.
    await asyncio.sleep(1_800)
    assert len(fleet.alerts(EventKind.COMMON_CAUSE)) == 1
    assert fleet.alerts(EventKind.HELD) == []
    assert len(fleet.alerts(EventKind.INCIDENT_OPENED)) == 2
    assert fleet.sick == ["n40", "n190"]
    # In the third hour the process is restarted: the same cause, from the evidence alone.
    down = {
        f"n{number}": snapshot(
            component("nic-link", "eth0", Status.FAILED, "no-carrier", since=cause.since)
        )
        for number in rack
    }
    ill = {f"n{number}": snapshot(fault("xid:79", f"GPU-{number}")) for number in (40, 190)}
    await fleet.restart(down | ill)
    await asyncio.sleep(1_200)
    assert fleet.sick == ["n40", "n190"]
    assert len(fleet.replica.fleet.causes) == 1
    # The switch recovers; one node's own cable does not, and is acted on after the cooldown.
    fleet.level([n for n in rack if n not in (40, 44)], "nic-link", "eth0", "")
    await asyncio.sleep(300)
    assert fleet.replica.fleet.causes == {}
    assert len(fleet.summaries_of(EventKind.COMMON_CAUSE_OVER)) == 1
    assert fleet.holds() == {"n44": "limits.cooldown"}
    await asyncio.sleep(1_000)
    assert fleet.sick == ["n40", "n44", "n190"]


@played_by(play, 90, WIDE, **{"nvidia.com__gpu.clique": lambda number: f"c{number // 18}"})
async def test_two_nodes_of_an_nvlink_clique_are_the_cliques_and_one_is_its_own(
    fleet: Fleet,
) -> None:
    fleet.break_([0, 18, 19], "xid:74")
    await asyncio.sleep(30)
    assert fleet.sick == ["n0"]
    assert fleet.holds() == {
        "n18": "limits.clique_label",
        "n19": "limits.clique_label",
    }
    assert len(fleet.alerts(EventKind.COMMON_CAUSE)) == 1
    fleet.break_([18])  # and off the bus: that is no fabric's fault
    await asyncio.sleep(30)
    assert fleet.sick == ["n0", "n18"]


@played_by(play, 1000, WIDE)
async def test_a_new_agent_version_that_flags_many_nodes_is_itself_the_suspect(
    fleet: Fleet,
) -> None:
    for number in range(0, 1_000, 25):
        fleet.attach(f"n{number}", version="0.2.0")
    codes = ("xid:79", "xid:48", "xid:95", "xid:119")
    for turn, number in enumerate(range(0, 1_000, 25)):
        fleet.break_([number], codes[turn % 4])
    fleet.break_([1])  # the old agent is believed
    await asyncio.sleep(60)
    assert fleet.sick == ["n1"]
    assert set(fleet.holds().values()) == {"limits.domain_percent"}
    [cause] = fleet.replica.fleet.causes.values()
    assert cause.reason.startswith("agent 0.2.0: actionable evidence on 40 of 40 nodes")


@played_by(play, 200, WIDE)
async def test_a_driver_that_is_rolled_out_in_waves_and_reads_wrong_quarantines_nobody(
    fleet: Fleet,
) -> None:
    """The verdict acts at once elsewhere: the first of a wave must wait for the others."""
    rng = random.Random(2)
    for wave in range(3):
        wrong = []
        for number in range(wave * 20, wave * 20 + 20):
            fleet.attach(f"n{number}", version="0.2.0")
            wrong.append((rng.uniform(0, 60), number))
        began = 0.0
        for at, number in sorted(wrong):
            await asyncio.sleep(at - began)
            began = at
            fleet.level([number], "gpu-recovery", f"GPU-{number}", "reset")
        await asyncio.sleep(120)
    assert fleet.world.quarantines == {}
    fleet.level([150], "gpu-recovery", "GPU-150", "reset")
    fleet.break_([151])
    await asyncio.sleep(20)
    assert fleet.world.quarantines == {}, "the whole fleet cools down"
    await asyncio.sleep(900)
    assert "n151" in fleet.sick


@played_by(play, 100, WIDE)
async def test_a_node_that_falls_ill_right_after_its_upgrade_and_alone_waits_two_minutes(
    fleet: Fleet,
) -> None:
    fleet.attach("n3", version="0.2.0")
    await asyncio.sleep(60)
    fleet.break_([3])
    await asyncio.sleep(100)
    assert fleet.holds() == {"n3": "limits.after_upgrade"}
    await asyncio.sleep(30)
    assert fleet.sick == ["n3"]


@played_by(play, 500, WIDE)
async def test_who_is_held_for_a_moment_does_not_stand_in_line_behind_all_that_a_cause_holds(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_rounds, "HELD_A_ROUND", 10)
    fleet.level(range(300), "gpu-recovery", "GPU-1", "reset")
    await asyncio.sleep(1000)  # until the fleet has cooled down; the cause goes on
    assert len(fleet.holds()) == 300
    fleet.attach("n400", version="0.2.0")
    fleet.break_([400])
    await asyncio.sleep(110)
    assert fleet.holds()["n400"] == "limits.after_upgrade"
    await asyncio.sleep(10 + 2 * ROUNDS)
    assert fleet.sick == ["n400"]


@pytest.mark.parametrize("code", ["xid:13", "xid:31", "xid:43", "xid:45"])
@played_by(play, 300)
async def test_a_job_that_crashes_on_a_thousand_nodes_is_no_common_cause_and_holds_nothing(
    fleet: Fleet, code: str
) -> None:
    fleet.break_(range(200), code)
    fleet.break_([250])
    await asyncio.sleep(60)
    assert fleet.sick == ["n250"]
    assert fleet.replica.fleet.causes == {}
    assert fleet.alerts(EventKind.COMMON_CAUSE) == []


def test_every_limit_tripped_at_once_still_releases() -> None:
    async def test(fleet: Fleet) -> None:
        fleet.world.person_creates("n99", QuarantineSpec(Action.CORDON, "manual", "by hand"))
        fleet.break_(range(4))
        await until(lambda: len(fleet.sick) == 5)
        fleet.level(range(60), "nic-link", "eth0", "no-carrier")
        fleet.break_(range(4, 60))
        for number in range(60, 90):
            name = f"n{number}"
            fleet.replica.controller.on_disconnect(name, fleet.lines[name], "gone")
        await asyncio.sleep(120)
        assert len(fleet.sick) == 5
        assert {cause.scope for cause in fleet.replica.fleet.causes.values()} >= {"agents"}
        assert fleet.replica.fleet.cooling
        fleet.world.person_stops("drill")
        await asyncio.sleep(10)
        assert set(fleet.holds().values()) == {"stop"}
        fleet.mend(range(2))
        fleet.level(range(2), "nic-link", "eth0", "")
        fleet.world.person_deletes("n2")
        fleet.world.person_uncordons("n3")
        fleet.world.person_deletes("n99")
        await asyncio.sleep(700)
        assert fleet.sick == []
        assert parse_record(fleet.world.record.text).entries == {}

    limits = replace(SHIPPED.limits, concurrent_percent=5, new_per_window_percent=5)
    play(test, 100, replace(SHIPPED, limits=limits))


@played_by(play, 10000, WIDE)
async def test_limits_trip_at_ten_thousand_nodes_and_what_a_person_makes_goes_through(
    fleet: Fleet,
) -> None:
    fleet.level(range(60), "nic-link", "eth0", "no-carrier")
    fleet.break_(random.Random(1).sample(range(1_000, 10_000), 40))
    await asyncio.sleep(120)
    assert len(fleet.sick) <= 10
    assert not set(fleet.sick) & {f"n{number}" for number in range(60)}
    assert len(fleet.holds()) + len(fleet.sick) == 100
    fleet.world.person_creates("n7", QuarantineSpec(Action.DRAIN, "manual", "by hand"))
    await until(lambda: phase_of(fleet.world, "n7") is Phase.DRAINED)


def test_a_thousand_faults_at_once_are_admitted_in_a_moment_where_the_limits_are_raised() -> None:
    async def test(fleet: Fleet) -> None:
        before, calls = time.process_time(), fleet.calls
        fleet.break_(range(1_000))
        await until(lambda: len(fleet.sick) == 1_000)
        spent = time.process_time() - before
        assert fleet.calls - calls < 12_000
        assert spent < 20.0, spent  # some 1 s, most of it for the cluster and the evaluation

    raised = replace(SETTINGS, limits=replace(OPEN, concurrent=5_000), common=replace(UNSUSPECTING))
    play(test, 1_000, raised)


@played_by(play, 150, WIDE)
async def test_what_is_held_costs_no_request_however_long(fleet: Fleet) -> None:
    fleet.level(range(60), "nic-link", "eth0", "no-carrier")
    await asyncio.sleep(120)
    assert len(fleet.holds()) == 60
    calls = fleet.calls
    await asyncio.sleep(1_800)
    # The list of nodes, and the cause's cooldown written anew each time half of it has passed.
    assert fleet.calls - calls <= 1_800 / 180 + 1_800 / 450 + 4


@played_by(play, 100, replace(SHIPPED, mode=Action.OBSERVE))
async def test_mode_observe_shows_the_common_cause_and_writes_nothing(fleet: Fleet) -> None:
    fleet.level(range(60), "nic-link", "eth0", "no-carrier")
    await asyncio.sleep(600)
    assert fleet.world.writes == []
    assert len(fleet.alerts(EventKind.COMMON_CAUSE)) == 1
    assert len(fleet.replica.fleet.causes) == 1


@played_by(play, 100)
async def test_what_many_nodes_share_makes_no_cordon_a_drain(fleet: Fleet) -> None:
    fleet.level([1, 2], "nic-link", "eth0", "down")
    await asyncio.sleep(60)
    assert fleet.sick == ["n1", "n2"]
    pod = fleet.world.add_pod("n1", "job")
    everybody = [*range(10, 70), 1]
    fleet.level(everybody, "gpu-recovery", "GPU-0", "reset")
    await asyncio.sleep(300)
    assert fleet.sick == ["n1", "n2"]
    assert fleet.world.quarantines["n1"].spec.action is Action.CORDON
    assert fleet.world.evicted == []
    assert fleet.holds()["n1"] == fleet.holds()["n10"]
    fleet.level([*range(10, 70)], "gpu-recovery", "GPU-0", "")
    await asyncio.sleep(2000)  # the cause is over, and the node is still unhealthy
    assert fleet.world.evicted == [pod.uid]
    assert "n1" not in fleet.holds()
