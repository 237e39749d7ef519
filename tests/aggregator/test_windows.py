"""Evidence evaluated over time: flaps, jobs, `for`; and that no memory is needed for it."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aggregator.cluster.port import Action, Phase, Quarantine, QuarantineStatus
from aggregator.health.model import ClearedBy, Component, Delta, Fault, Hello, Snapshot, Status
from aggregator.health.node import NodeHealth
from aggregator.policy.evaluate import Evaluation, Incident, evaluate
from aggregator.policy.rules import Policy, matches
from aggregator.policy.windows import (
    Flapping,
    failing,
    flapping,
    jobs,
    lasting,
    recurrences,
    timeline,
)
from aggregator.policy.windows import repeated as occurred
from aggregator.quarantine.decide.intent import changed_intent, incidents_of, wanted_of
from nodeagent.evidence.latch import Latch
from nodeagent.evidence.state import State, dump, restore
from nodeagent.model import ClearedBy as NodeClearedBy
from nodeagent.model import Clearing, FaultSighting, Gone, Observation
from nodeagent.model import Status as NodeStatus
from nodeagent.uplink import codec as agent_wire
from tests.support import decoded
from tests.support.memory_cluster import World
from tests.support.replica import Replica, Turned, fault, hello, shipped_policy, snapshot
from tests.support.virtual_replica import later
from tests.support.virtual_time import in_virtual_time
from tests.support.waiting import until

H = 3600.0
OK, FAILED, UNKNOWN, DEGRADED = Status.OK, Status.FAILED, Status.UNKNOWN, Status.DEGRADED

SITE = shipped_policy(
    """rules:
  - {name: application-xid-repeated, action: cordon}
  - {name: link-flapping, flaps: 3, within: 1h, action: cordon, healthyFor: 5m}
"""
)


def link(*told: tuple[float, Status]) -> Component:
    at, status = told[-1]
    reason = {FAILED: "link-down", UNKNOWN: "no-sysfs"}.get(status, "")
    return Component("nic-link", "eth0", status, reason, "", at, told)


def flaps(*starts: float, lasting: float = 5.0) -> tuple[tuple[float, Status], ...]:
    """Well at first, then down at each of these for a few seconds."""
    told = [(0.0, OK)]
    for at in starts:
        told += [(at, FAILED), (at + lasting, OK)]
    return tuple(told)


def seen(*times: float, of: str = "GPU-1") -> Fault:
    return fault(
        "xid:31",
        of,
        cleared_by=ClearedBy.EXPIRY,
        first_at=times[0],
        last_at=times[-1],
        count=len(times),
        occurrences=times,
    )


@dataclass
class Bench:
    """An aggregator's memory of one node."""

    policy: Policy = SITE
    health: NodeHealth = field(default_factory=lambda: NodeHealth(hello("n1")))
    incidents: Mapping[str, Incident] = field(default_factory=dict)
    closed: list[Incident] = field(default_factory=list)

    def fold(self, told: Snapshot | Delta, now: float) -> Evaluation:
        if isinstance(told, Snapshot):
            self.health.snapshot(told)
        else:
            self.health.delta(told)
        return self.at(now)

    def at(self, now: float) -> Evaluation:
        evaluation = evaluate(self.policy, self.health, self.incidents, now)
        self.incidents = evaluation.incidents
        self.closed += evaluation.closed
        return evaluation

    @property
    def acting(self) -> list[Incident]:
        return [one for one in self.incidents.values() if one.action != "observe"]


# -- flapping --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("told", "found"),
    [
        (flaps(100, 200), None),
        (flaps(100, 200, 300), Flapping(300, 100 + H)),
        (flaps(100, 200, 100 + H), None),  # the first is too old when the third comes
        (flaps(100, 200, 300, 400), Flapping(300, 200 + H)),  # it has flapped since the third
        (flaps(100, 200, 300, 2 * H, 2 * H + 1, 2 * H + 2), Flapping(2 * H + 2, 3 * H)),
        # At the very moment at which the first flapping is over the next has come: it goes on.
        (flaps(0, 10, 20, H), Flapping(20, 10 + H)),
        (flaps(0, 10, 20, H + 1), Flapping(H + 1, 10 + H)),
        # Unknown is not well: one failure with a look between that gave no result.
        (((0, OK), (1, FAILED), (2, UNKNOWN), (3, FAILED), (4, UNKNOWN), (5, FAILED)), None),
        # No look saw it well before the first.
        (((0, FAILED), (1, OK), (2, FAILED), (3, OK), (4, FAILED)), None),
        (((0, DEGRADED), (1, FAILED), (2, DEGRADED), (3, FAILED), (4, OK), (5, FAILED)), None),
    ],
)
def test_flapping_is_changes_from_well_to_failed(
    told: tuple[tuple[float, Status], ...], found: Flapping | None
) -> None:
    least = 4 if told[0][1] is DEGRADED else 3
    assert flapping(link(*told), least, H) == found


def test_a_component_that_flaps_counts_as_failing_until_it_has_been_steady() -> None:
    bench = Bench()
    bench.fold(snapshot(link(*flaps(1000, 1100))), 1200.0)
    assert bench.acting == []
    bench.fold(Delta((link(*flaps(1000, 1100, 1200)),)), 1300.0)
    (incident,) = bench.acting
    assert [item.code for item in incident.in_force] == ["nic-link:flaps"]
    assert (incident.action, incident.since) == ("cordon", 1200.0)
    evaluate_again = bench.at(1301.0).evaluate_again
    assert evaluate_again == 1000.0 + H
    bench.at(evaluate_again - 1)
    assert bench.acting[0].in_force
    bench.at(evaluate_again)
    assert bench.acting[0].in_force == ()  # steady: now it must stay well for its time
    bench.at(evaluate_again + 299)
    assert bench.acting
    assert [one.id for one in bench.at(evaluate_again + 301).closed] == [incident.id]


@pytest.mark.parametrize("flapless", [True, False])
def test_flapping_that_no_rule_counts_is_over_once_the_link_is_up(*, flapless: bool) -> None:
    bench = Bench()
    bench.fold(snapshot(link(*flaps(1000, 1100, 1200))), 1300.0)
    assert [item.code for item in bench.acting[0].in_force] == ["nic-link:flaps"]
    rules = [one for one in SITE.rules if one.name != "link-flapping"]
    if flapless:
        (was,) = (one for one in SITE.rules if one.name == "link-flapping")
        rules.append(replace(was, flaps=0))
    bench.policy = replace(SITE, rules=tuple(rules))
    down = flaps(1000, 1100, 1200, 1305)[:-1]
    bench.fold(Delta((link(*down),)), 1306.0)
    assert "nic-link:flaps" in {item.code for item in bench.acting[0].in_force}
    bench.fold(Delta((link(*down, (1310.0, OK)),)), 1310.0)
    (incident,) = bench.incidents.values()
    assert incident.in_force == ()
    assert incident.recovering_since == 1310.0


def test_a_flapping_link_that_is_down_at_the_end_is_not_well() -> None:
    bench = Bench()
    down = (*flaps(1000, 1100, 1200)[:-1],)
    bench.fold(snapshot(link(*down)), 1210.0)
    for now in (1000 + H, 1000 + 2 * H, 1000 + 20 * H):
        bench.at(now)
    (incident,) = bench.acting
    assert {item.code for item in incident.in_force} == {"nic-link:flaps", "nic-link:link-down"}


def test_a_failure_that_no_message_showed_begins_the_recovery_anew() -> None:
    bench = Bench()
    bench.fold(snapshot(link((0.0, OK), (900.0, FAILED))), 1000.0)
    (opened,) = bench.acting
    bench.fold(Delta((link((0.0, OK), (900.0, FAILED), (1010.0, OK)),)), 1010.0)
    # It went and came back between two messages; the ring shows it.
    told = ((0.0, OK), (900.0, FAILED), (1010.0, OK), (1250.0, FAILED), (1255.0, OK))
    bench.fold(Delta((link(*told),)), 1256.0)
    bench.at(1400.0)  # five minutes after the first recovery
    assert [one.id for one in bench.acting] == [opened.id]
    bench.at(1554.0)
    assert bench.acting
    bench.at(1556.0)
    assert bench.acting == []


@in_virtual_time
async def test_a_person_who_uncordons_a_flapping_node_is_not_contradicted() -> None:
    """The node is well when they look; its past must not quarantine it again at once."""
    world = World.of("n1")
    clock = Turned(1300.0)
    replica = Replica(world, clock=clock, policy=SITE)
    try:
        replica.agent("n1", snapshot(link(*flaps(1000, 1100, 1200))))
        node_summary = replica.fleet.node_summaries["n1"]
        await until(
            lambda: (
                node_summary.quarantine and node_summary.quarantine.status.phase is Phase.CORDONED
            )
        )
        world.person_uncordons("n1")
        await until(lambda: node_summary.quarantine is None)
        for number in range(5):
            clock.time += 10
            told = flaps(*(1000 + 100 * n for n in range(4 + number)))
            replica.agent("n1", Delta((link(*told),)))
        await later(600)
        assert node_summary.quarantine is None
        assert node_summary.cluster.overruled
        # That it is down for good is another matter.
        clock.time = 5000.0
        replica.agent("n1", Delta((link(*flaps(1000, 1100, 1200), (4900.0, FAILED)),)))
        await until(lambda: node_summary.quarantine is not None)
    finally:
        await replica.stop()


# -- `for` -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("told", "began", "counted"),
    [
        (((0, OK), (10, FAILED)), 10, 10),
        (((0, OK), (10, FAILED), (20, UNKNOWN), (50, FAILED)), 10, 40),
        (((0, OK), (10, FAILED), (20, OK), (30, UNKNOWN), (50, FAILED)), 50, 50),
        (((10, FAILED), (20, UNKNOWN), (30, FAILED), (31, UNKNOWN), (40, FAILED)), 10, 29),
    ],
)
def test_a_look_that_told_nothing_neither_ends_a_failure_nor_counts_to_it(
    told: tuple[tuple[float, Status], ...], began: float, counted: float
) -> None:
    assert failing(link(*told)) == (began, counted)


def test_a_rule_of_several_components_is_about_each_of_them_and_no_other() -> None:
    site = shipped_policy(
        """rules:
  - {name: two-ports, kind: network, check: nic-link, components: [eth0, "ib*"], action: cordon}
  - {name: two-gpus, kind: gpu, faults: [xid:79], components: [GPU-1, GPU-2], action: drain}
"""
    )
    names = [rule.name for rule in site.rules]
    assert {"two-ports", "two-gpus"} <= {*names}
    down = [
        Component("nic-link", name, FAILED, "link-down", "", 0.0)
        for name in ("eth0", "ib3", "eth1", "xib0")
    ]
    faults = [fault("xid:79", f"GPU-{number}") for number in (1, 2, 3)]
    health = NodeHealth(hello("n1"))
    health.snapshot(snapshot(*down, *faults))
    found = {(one.rule.name, one.component) for one in matches(site, health, 5000.0)}
    assert {one for one in found if one[0] in ("two-ports", "two-gpus")} == {
        ("two-ports", "eth0"),
        ("two-ports", "ib3"),
        ("two-gpus", "GPU-1"),
        ("two-gpus", "GPU-2"),
    }


# -- jobs ------------------------------------------------------------------------------------------


def test_a_fault_lasts_while_its_lines_come_without_a_pause_of_a_minute() -> None:
    assert lasting(seen(*range(0, 481, 28)), least=470) == 470
    assert lasting(seen(*range(0, 451, 28)), least=470) is None
    broken = (*range(0, 300, 28), *range(400, 700, 28))
    assert lasting(seen(*broken), least=470) is None, "a pause of 100 s"
    assert lasting(seen(0, 1, 2), least=60) is None, "many at once"


def repeated(first: Fault, *others: Fault) -> float | None:
    return jobs(first, timeline((first, *others)), least=3, apart=600.0, within=24 * H)


def test_jobs_are_told_apart_by_the_time_between_them() -> None:
    assert repeated(seen(0, 600, 1200)) == 1200
    assert repeated(seen(0, 599, 1198, 1797)) is None  # one job that goes on
    assert repeated(seen(0, 10, 700, 710, 1400)) == 1400
    assert repeated(seen(0, 12 * H, 24 * H)) is None
    assert repeated(seen(0, 12 * H, 24 * H, 24 * H + 700)) == 24 * H + 700


@given(st.lists(st.floats(0.0, 3600.0), min_size=1, max_size=60))
@settings(max_examples=60)
def test_lines_of_one_occurrence_count_once_though_the_agent_keeps_only_some(
    times: list[float],
) -> None:
    """The agent's ring keeps the first and the last line of each half minute of a burst."""
    ordered = sorted(times)
    pauses = sum(later - earlier >= 60.0 for earlier, later in pairwise(ordered))
    latch = Latch(boot_id="boot-1", epoch="e")
    for number, at in enumerate(ordered):
        sighting = FaultSighting(
            code="xid:109",
            check="xid",
            component="GPU-1",
            message="",
            source="kmsg",
            source_seq=number,
            at=at,
            cleared_by=NodeClearedBy.GPU_RESET,
            historical=False,
            details={},
        )
        latch.apply([sighting], at)
    [entry] = latch.faults.values()
    told = seen(*entry.occurrences)
    occurrences = max(
        count for count in range(1, 62) if occurred(told, least=count, within=24 * H) is not None
    )
    if len(entry.occurrences) < 32:
        assert occurrences == pauses + 1
    assert occurrences <= pauses + 1


def test_a_job_that_goes_on_for_a_day_is_one_job() -> None:
    assert repeated(seen(*(float(at) for at in range(0, 24 * 3600, 599)))) is None
    # Its end is its last occurrence: another GPU's occurrence then is of the same job.
    long = seen(*(float(at) for at in range(0, 6001, 500)), 20_000.0, 40_000.0, 60_000.0)
    assert repeated(long, seen(6500, of="GPU-2")) == 60_000.0
    assert repeated(long) == 40_000.0


occurrences = st.lists(st.integers(0, 60), min_size=1, max_size=12, unique=True).map(sorted)


@given(occurrences, st.lists(st.integers(0, 60), max_size=3), st.integers(1, 4))
def test_jobs_are_what_a_count_by_hand_finds(
    mine: list[int], others: list[int], least: int
) -> None:
    apart, within = 5, 40
    cuts = [0, *(n for n in range(1, len(mine)) if mine[n] - mine[n - 1] >= apart), len(mine)]
    runs = [mine[begin:end] for begin, end in pairwise(cuts)]
    alone = [
        run[0]
        for run in runs
        if all(at <= run[0] - apart or at >= run[-1] + apart for at in others)
    ]
    windows = [alone[n : n + least] for n in range(len(alone) - least + 1)]
    expected = next((one[-1] for one in windows if one[-1] - one[0] < within), None)
    rest = [seen(float(at), of=f"GPU-{2 + n}") for n, at in enumerate(others)]
    told = seen(*map(float, mine))
    found = jobs(told, timeline((told, *rest)), least=least, apart=apart, within=within)
    assert found == expected


def test_what_comes_to_several_gpus_at_once_is_the_jobs() -> None:
    mine = seen(0, 7200, 14400)
    assert repeated(mine, seen(7300, of="GPU-2")) is None
    assert repeated(mine, seen(3600, of="GPU-2")) == 14400
    assert repeated(seen(0, 7200, 14400, 20000), seen(7300, of="GPU-2")) == 20000


def test_an_application_xid_over_several_jobs_acts_where_a_site_says_so() -> None:
    bench = Bench()
    bench.fold(snapshot(seen(100, 110, 120, 800)), 900.0)
    assert bench.acting == []
    bench.fold(Delta(faults=(seen(100, 110, 120, 800, 1500),)), 1500.0)
    (incident,) = bench.acting
    assert (incident.action, incident.since) == ("cordon", 1500.0)
    shipped = Bench(shipped_policy())
    shipped.fold(snapshot(seen(100, 800, 1500)), 1600.0)
    assert shipped.acting == []
    assert [item.rule for one in shipped.incidents.values() for item in one.evidence] == [
        "application-xid-repeated"
    ]


def test_the_job_of_eight_gpus_acts_on_none_of_them() -> None:
    bench = Bench()
    all_gpus = [seen(100 + n, 900 + n, 1700 + n, 2500 + n, of=f"GPU-{n}") for n in range(8)]
    bench.fold(snapshot(*all_gpus), 3000.0)
    assert bench.acting == []


def test_an_incident_begins_when_its_evidence_had_lasted_and_not_when_we_looked() -> None:
    late = Bench()
    late.fold(snapshot(link((0.0, OK), (1000.0, FAILED)), seen(400)), 9000.0)
    assert {one.action: one.since for one in late.incidents.values()} == {
        "cordon": 1030.0,
        "observe": 400.0,
    }


@given(st.lists(st.tuples(st.integers(0, 90), st.sampled_from(list(Status))), max_size=30))
def test_flapping_is_what_a_count_second_by_second_finds(changes: list[tuple[int, Status]]) -> None:
    least, within = 3, 20
    told: list[tuple[float, Status]] = []
    for second, status in sorted(changes, key=lambda change: change[0]):
        if not told or second > told[-1][0]:
            told.append((float(second), status))
    if not told:
        return
    well, starts = False, []
    for at, status in told:
        if status is FAILED and well:
            starts.append(at)
        if status is not UNKNOWN:
            well = status is not FAILED
    flapped = [
        second
        for second in range(130)
        if sum(1 for start in starts if second - within < start <= second) >= least
    ]
    found = flapping(link(*told), least, within)
    assert (found is None) == (not flapped)
    if found is not None:
        assert found.until == flapped[-1] + 1
        assert found.since in flapped
        assert found.since - 1 not in flapped


@given(
    st.lists(st.integers(0, 100), min_size=1, max_size=20),
    st.lists(st.integers(0, 100), max_size=6),
)
def test_more_of_the_past_never_makes_fewer_jobs_and_another_gpu_never_makes_more(
    mine: list[int], others: list[int]
) -> None:
    def when(times: list[int], theirs: list[int]) -> float | None:
        other = [seen(*(float(at) for at in sorted(theirs)), of="GPU-2")] if theirs else []
        told = seen(*(float(at) for at in sorted(times)))
        return jobs(told, timeline((told, *other)), least=3, apart=10.0, within=60.0)

    alone, shared = when(mine, []), when(mine, others)
    if shared is not None:
        assert alone is not None
        assert alone <= shared
    if alone is not None:
        assert alone in mine
        later = [*mine, max(mine) + 200]
        assert when(later, []) == alone


# -- restarts --------------------------------------------------------------------------------------


class Node:
    """The agent's latch, through its own state file and the contract's own bytes."""

    def __init__(self) -> None:
        self.latch = Latch(boot_id="boot-1", epoch="e")
        self.seq = 0

    def sees(self, step: tuple[str, ...], now: float) -> None:
        match step:
            case ("level", check, of, status, reason):
                seen_now = Observation(check, of, NodeStatus[status], reason)
                self.latch.apply([seen_now], now)
            case ("fault", code, of):
                self.seq += 1
                ends = {
                    "xid:79": NodeClearedBy.REBOOT,
                    "xid:48": NodeClearedBy.GPU_RESET,
                    "xid:31": NodeClearedBy.EXPIRY,
                }[code]
                self.latch.apply(
                    [FaultSighting(code, "xid", of, "", "kmsg", self.seq, now, ends)], now
                )
            case ("gone", check, of):
                self.latch.apply([Gone(check, of)], now)
            case ("reset", of):
                self.latch.apply([Clearing(of, "gpu-reset")], now)
            case ("restart",):
                document = dump(State(self.latch), now)
                self.latch = restore(document, boot_id="boot-1", new_epoch=None).latch
        self.latch.expire(now)

    def delta(self, now: float) -> Delta:
        out = self.latch.delta(now)
        if out is None:
            return Delta()
        return decoded.delta(agent_wire.delta(out, now).delta, at=now)

    def acknowledged(self) -> None:
        self.latch.acknowledge(self.latch.last_seq)

    def snapshot(self, now: float) -> Snapshot:
        message = agent_wire.snapshot(self.latch.snapshot(now), now, 0.0)
        return decoded.snapshot(message.snapshot, at=now)


class Aggregator:
    """Evaluates, and keeps the cluster's object: the quarantine's intent."""

    def __init__(self) -> None:
        self.bench = Bench(health=NodeHealth(_hello()))
        self.quarantine: Quarantine | None = None

    def fold(self, told: Snapshot | Delta, now: float) -> None:
        self.bench.fold(told, now)
        self._keep()

    def at(self, now: float) -> None:
        self.bench.at(now)
        self._keep()

    def greet(self, told: Snapshot, now: float) -> None:
        """The agent attaches anew."""
        self.bench.health.greet(_hello())
        self.fold(told, now)

    def restart(
        self, told: Snapshot, now: float, *, boot: str = "boot-1", epoch: str = "e"
    ) -> None:
        self.bench = Bench(health=NodeHealth(replace(hello("n1", boot), spool_epoch=epoch)))
        if self.quarantine is not None:
            self.bench.incidents = incidents_of(self.quarantine, SITE, now)
        self.fold(told, now)

    def _keep(self) -> None:
        wanted = wanted_of(self.bench.incidents, frozenset(), Action.DRAIN, SITE.hash)
        if wanted is None:
            self.quarantine = None
        elif self.quarantine is None:
            if wanted.in_force is not Action.OBSERVE:
                status = QuarantineStatus(phase=Phase.ADMITTED)
                self.quarantine = Quarantine("n1", "u", "1", wanted.spec, status)
        else:
            spec = changed_intent(self.quarantine.spec, wanted)
            if spec is not None:
                self.quarantine = replace(self.quarantine, spec=spec)

    def evaluated(self) -> set[tuple[object, ...]]:
        """The evidence in force, with its incident."""
        return {
            (ident, one.kind, item.code, item.component, item.action, item.lost)
            for ident, one in self.bench.incidents.items()
            for item in one.in_force
        }

    def remembered(self) -> set[tuple[str, str]]:
        """The quarantine's evidence: only level evidence is forgotten with its own end."""
        spec = self.quarantine.spec.evidence if self.quarantine is not None else ()
        return {(item.code, item.component) for item in spec if not item.cleared_by}

    def starts(self) -> dict[str, float]:
        return {ident: one.since for ident, one in self.bench.incidents.items() if one.in_force}


def _hello() -> Hello:
    return replace(hello("n1"), spool_epoch="e")


levels = st.tuples(
    st.just("level"),
    st.just("nic-link"),
    st.sampled_from(["eth0", "eth1"]),
    st.sampled_from(["OK", "FAILED", "UNKNOWN", "DEGRADED"]),
    st.just("link-down"),
)
disks = st.tuples(
    st.just("level"),
    st.just("disk-write"),
    st.just("/data"),
    st.sampled_from(["OK", "FAILED"]),
    st.sampled_from(["io-error", "read-only"]),
)
latched = st.tuples(
    st.just("fault"),
    st.sampled_from(["xid:31", "xid:31", "xid:48", "xid:79"]),
    st.sampled_from(["GPU-1", "GPU-2"]),
)
gone = st.tuples(st.just("gone"), st.just("nic-link"), st.sampled_from(["eth0", "eth1"]))
resets = st.tuples(st.just("reset"), st.sampled_from(["GPU-1", "GPU-2"]))
happenings = st.lists(
    st.tuples(
        st.one_of(levels, levels, disks, latched, latched, resets, gone),
        st.sampled_from([1, 5, 31, 200, 700, 4000]),  # seconds before it
        st.sets(st.sampled_from(["agent", "aggregator"])),
    ),
    max_size=25,
)


@settings(max_examples=150, deadline=None)
@given(happenings)
def test_restarts_of_aggregator_and_agent_change_no_evaluation(
    many: list[tuple[tuple[str, ...], int, set[str]]],
) -> None:
    """One node, two aggregators: one that never restarts and hears all, one that does, often.

    Both hear of the same latch, which lives in one agent that is restarted too.
    """
    node, steady, shaken, now = Node(), Aggregator(), Aggregator(), 1000.0
    steady.fold(node.snapshot(now), now)
    shaken.fold(node.snapshot(now), now)
    for step, passed, trouble in many:
        now += passed
        steady.at(now)
        shaken.at(now)
        node.sees(step, now)
        if "agent" in trouble:
            node.sees(("restart",), now)
            steady.greet(node.snapshot(now), now)
            shaken.greet(node.snapshot(now), now)
        else:
            told = node.delta(now)
            steady.fold(told, now)
            if "aggregator" not in trouble:
                shaken.fold(told, now)
        if "aggregator" in trouble:
            shaken.restart(node.snapshot(now), now)
        node.acknowledged()
        # No evidence is forgotten, and only evidence that failed before in this quarantine, had
        # recovered, and fails again is added: it need not last for its time a second time.
        assert steady.evaluated() <= shaken.evaluated()
        more = {
            (str(code), str(of)) for _, _, code, of, _, _ in shaken.evaluated() - steady.evaluated()
        }
        assert more <= shaken.remembered()
        assert {one.id for one in steady.bench.acting} <= {one.id for one in shaken.bench.acting}
        for ident, start in shaken.starts().items():
            assert start <= now
            assert ident in steady.bench.incidents or more


def test_a_restart_does_not_move_the_start_of_what_is_still_failing() -> None:
    node, aggregator = Node(), Aggregator()
    aggregator.fold(node.snapshot(1000.0), 1000.0)
    for at, status in ((1100.0, "OK"), (1200.0, "FAILED")):
        node.sees(("level", "nic-link", "eth0", status, "link-down"), at)
        aggregator.fold(node.delta(at), at)
    aggregator.at(1230.0)
    before = aggregator.starts()
    assert list(before.values()) == [1230.0]
    aggregator.restart(node.snapshot(5000.0), 5000.0)
    assert aggregator.starts() == before


def test_a_component_that_is_gone_for_good_is_so_after_a_restart_too() -> None:
    """Such an end can't be seen twice: it is written, or the node would never be released."""
    node, aggregator = Node(), Aggregator()
    aggregator.fold(node.snapshot(1000.0), 1000.0)
    for at, step in (
        (1100.0, ("level", "nic-link", "eth0", "FAILED", "link-down")),
        (1200.0, ("level", "nic-link", "eth0", "OK", "")),
        (1300.0, ("gone", "nic-link", "eth0")),
    ):
        aggregator.at(at)
        node.sees(step, at)
        aggregator.fold(node.delta(at), at)
        node.acknowledged()
    aggregator.restart(node.snapshot(1310.0), 1310.0)
    (incident,) = aggregator.bench.acting
    assert incident.in_force == ()
    aggregator.at(1310.0 + incident.healthy_for + 1)
    assert aggregator.bench.acting == []


# -- a check that fails again and again -----------------------------------------------------------


def failed_for(*starts: float, lasting: float = 60.0) -> Component:
    """A link that failed at each of these times, for so long; well since."""
    told: list[tuple[float, Status]] = [(0.0, OK)]
    for start in starts:
        told += [(start, FAILED), (start + lasting, OK)]
    return link(*told)


def test_failures_of_a_check_count_for_a_day_where_they_lasted() -> None:
    told = failed_for(100.0, 1000.0, 2000.0)
    bad = frozenset({FAILED})
    found = recurrences(told, bad, least=60.0, now=3000.0, within=H)
    assert list(found) == [160.0, 1060.0, 2060.0]
    assert list(recurrences(told, bad, least=61.0, now=3000.0, within=H)) == []
    assert list(recurrences(told, bad, least=60.0, now=160.0 + H, within=H)) == [1060.0, 2060.0]
    lasts = link((0.0, OK), (100.0, FAILED), (120.0, UNKNOWN), (130.0, FAILED))
    assert list(recurrences(lasts, bad, least=60.0, now=200.0, within=H)) == [200.0]
    assert list(recurrences(lasts, bad, least=60.0, now=150.0, within=H)) == []


FLAPS_OFTEN = "flaps, 3 times or more within 1d"


def fails_again(bench: Bench, *, times: int, every: float = 1000.0) -> list[int]:
    """The link fails for two minutes each time. Returns how often an incident had closed by each.

    The shipped rule `link-down` counts from half a minute on, and recovers in five.
    """
    starts, closed = [], []
    for number in range(times):
        starts.append(1000.0 + number * every)
        fallen = replace(failed_for(*starts, lasting=120.0), status=FAILED, since=starts[-1])
        fallen = replace(fallen, recent=fallen.recent[:-1], reason="link-down")
        bench.fold(Delta((fallen,)) if number else snapshot(fallen), starts[-1])
        bench.at(starts[-1] + 61)
        bench.fold(Delta((failed_for(*starts, lasting=120.0),)), starts[-1] + 120)
        bench.at(starts[-1] + every - 1)
        closed.append(len([one for one in bench.closed if one.action != "observe"]))
    return closed


def test_a_check_that_fails_again_and_again_is_not_released_each_time() -> None:
    """Issue node-operation-controller#31: 10 of 10 failures were cordoned and released."""
    bench = Bench(shipped_policy())
    closed = fails_again(bench, times=10)
    # The third and fourth wait for 10 and 20 minutes; the fifth comes before the fourth is over.
    assert closed == [1, 2, 3, 3, 3, 3, 3, 3, 3, 3]
    [open_one] = bench.acting
    assert open_one.summary.endswith(FLAPS_OFTEN)
    assert open_one.healthy_for == 300.0 * 2**8
    assert [FLAPS_OFTEN in one.summary for one in bench.closed if one.action != "observe"] == [
        False,
        False,
        True,
    ]


def test_a_process_without_memory_gives_the_same_recovery_time() -> None:
    """A restart and a failover: the agent's ring has the failures."""
    bench, other = Bench(shipped_policy()), Bench(shipped_policy())
    fails_again(bench, times=5)
    starts = [1000.0 + number * 1000 for number in range(5)]
    down = replace(failed_for(*starts, lasting=120.0), status=FAILED, since=starts[-1])
    down = replace(down, recent=down.recent[:-1], reason="link-down")
    other.fold(snapshot(down), starts[-1] + 61)
    assert [one.summary for one in other.acting] == [one.summary for one in bench.acting]
    assert [one.healthy_for for one in other.acting] == [one.healthy_for for one in bench.acting]


def test_a_node_that_flapped_is_released_once_its_failures_are_old_enough() -> None:
    bench = Bench(shipped_policy())
    fails_again(bench, times=10)
    well_from = 10_000.0 + 120
    steps, now = 0, well_from
    while bench.acting:
        look = bench.at(now).evaluate_again
        steps += 1
        assert steps < 50
        if look is None:
            break
        now = look
    assert bench.acting == []
    assert 10 * H < now - well_from <= 24 * H


def test_while_evidence_of_flapping_is_in_force_no_time_counts_towards_recovery() -> None:
    """Five short failures in an hour: the rule `link-flapping` observes them."""
    bench = Bench(shipped_policy())
    short = [60.0 * number for number in range(1, 6)]
    told = [*flaps(*short), (600.0, FAILED)]
    bench.fold(snapshot(link(*told)), 661.0)
    assert bench.acting
    bench.fold(Delta((link(*told, (700.0, OK)),)), 700.0)
    bench.at(700.0 + 1200)
    assert bench.acting, "link-flapping is in force for an hour"
    bench.at(600.0 + H)
    bench.at(600.0 + H + 301)
    assert bench.acting == []
