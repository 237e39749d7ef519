"""Admission: never over a limit, for any proposals, in any order and number."""

from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggregator.quarantine.decide.admission import (
    UNREAD_NODE,
    AdmissionBatch,
    FleetSize,
    Limits,
    OpenCause,
    Outcome,
    Proposal,
    settling,
)
from aggregator.quarantine.decide.admission_record import (
    FLEET,
    MOST_ADMISSIONS,
    MOST_COOLDOWNS,
    Cooldown,
    Entry,
    Rebuilt,
    Record,
    RecordUnreadable,
    dump_record,
    parse_record,
)
from aggregator.quarantine.decide.held import Held
from aggregator.quarantine.decide.pool_budget import allowance
from tests.support.present import present

OPEN = Limits(
    concurrent=1_000,
    concurrent_percent=100,
    quorum_percent=0,
    new_per_window=1_000,
    new_per_window_percent=100,
)
POOLS = ("a", "b", "")


def proposal(node: str, pool: str = "") -> Proposal:
    return Proposal(node, f"inc-{node}", pool)


def entry(node: str, pool: str = "", incident: str = "i") -> Entry:
    return Entry(node, incident, pool, 1.0)


def standing(*nodes: str, pool: str = "") -> Record:
    return Record().enter([entry(node, pool) for node in nodes])


def ask(
    record: Record, limits: Limits, size: FleetSize, *nodes: str, pool: str = "", stop: str = ""
) -> Outcome:
    proposals = [proposal(node, pool) for node in nodes]
    return AdmissionBatch(record, limits, size, now=5.0, stop=stop).admit(proposals)


names = st.integers(0, 30).map(lambda number: f"n{number}")
pools = st.sampled_from(POOLS)
proposals = st.lists(st.builds(proposal, names, pools), max_size=20)
cooldowns = st.dictionaries(
    st.sampled_from(["", "check:nic-link", "rack=r1 check:nic-link"]),
    st.builds(Cooldown, st.floats(-2_000, 2_000), st.text(max_size=20)),
)
records = st.builds(
    lambda entries, cooling: replace(Record().enter(entries), cooldowns=cooling),
    st.lists(st.builds(entry, names, pools, st.sampled_from(["i", ""])), max_size=12),
    cooldowns,
)
limits = st.builds(
    Limits,
    concurrent=st.integers(0, 10),
    concurrent_percent=st.floats(0, 100),
    pool_label=st.sampled_from(["", "pool"]),
    pool_percent=st.floats(0, 100),
    quorum_percent=st.floats(0, 100),
    new_per_window=st.integers(1, 8),
    new_per_window_percent=st.floats(0.1, 100),
    window=st.sampled_from([10.0, 600.0]),
    cooldown=st.sampled_from([0.0, 20.0, 900.0]),
)
sizes = st.builds(
    lambda counts, reported, listed: FleetSize(
        sum(counts.values()), reported, counts, listed=listed
    ),
    st.fixed_dictionaries({pool: st.integers(0, 40) for pool in POOLS}),
    st.integers(0, 120),
    st.sampled_from([True, True, True, False]),
)
stops = st.sampled_from(["", "", "drill"])


def most(limits: Limits, size: FleetSize) -> int:
    """The fleet's limit, written down once more: rounded down, except that one may be lost."""
    by_share = 0
    if size.nodes and limits.concurrent_percent > 0:
        by_share = max(1, int(size.nodes * limits.concurrent_percent / 100 + 1e-9))
    return min(limits.concurrent, small(by_share, limits, size.nodes, size.nodes))


def small(share: int, limits: Limits, of: int, nodes: int) -> int:
    """The floor of a fleet of fewer than 40 nodes: two, and no more than half."""
    return max(share, min(limits.small_fleet_floor, of // 2)) if 0 < nodes < 40 and share else share


@given(records, proposals, limits, sizes, stops)
def test_no_order_of_proposals_passes_a_limit(
    record: Record, asked: list[Proposal], limits: Limits, size: FleetSize, stop: str
) -> None:
    outcome = AdmissionBatch(record, limits, size, now=5.0, stop=stop).admit(asked)
    before, after = record.entries, outcome.record.entries
    # Every node has an answer, and only one.
    assert outcome.admitted | set(outcome.held) == {one.node for one in asked}
    assert outcome.admitted & set(outcome.held) == set()
    # Existing entries stay: a lowered limit evicts no node.
    assert before.items() <= after.items()
    new = after.keys() - before.keys()
    assert new == {node for node in outcome.admitted if node not in before}
    if stop:
        assert not outcome.admitted  # nor what stood before: it would be begun now
    if not new:
        return
    lately = [at for at, _ in outcome.record.admissions if abs(5.0 - at) < limits.window]
    assert len(lately) <= limits.new_per_window
    if limits.new_per_window_percent < 100:
        assert len(lately) <= allowance(size.nodes, limits.new_per_window_percent)
    assert size.listed
    assert size.reported >= size.nodes * limits.quorum_percent / 100
    assert len(after) <= most(limits, size)
    if limits.pool_label:
        for pool in {after[node].pool for node in new}:
            share = max(1, int(size.pools[pool] * limits.pool_percent / 100 + 1e-9))
            assert limits.pool_percent > 0
            share = small(share, limits, size.pools[pool], size.nodes)
            assert outcome.record.in_pool(pool) <= share
    assert len(outcome.record.admissions) == len(record.admissions) + len(new)


@given(records, proposals, limits, sizes)
def test_asking_again_changes_nothing(
    record: Record, asked: list[Proposal], limits: Limits, size: FleetSize
) -> None:
    once = AdmissionBatch(record, limits, size, now=5.0).admit(asked)
    twice = AdmissionBatch(once.record, limits, size, now=5.0).admit(asked)
    assert twice.record == once.record
    assert twice.admitted == once.admitted
    assert twice.held.keys() == once.held.keys()


@given(records, proposals, limits, sizes, stops)
def test_what_holds_a_proposal_is_named_with_its_value(
    record: Record, asked: list[Proposal], limits: Limits, size: FleetSize, stop: str
) -> None:
    outcome = AdmissionBatch(record, limits, size, now=5.0, stop=stop).admit(asked)
    values = {
        "stop": stop,
        "limits.concurrent": str(limits.concurrent),
        "limits.concurrent_percent": f"{limits.concurrent_percent:g}%",
        "limits.pool_percent": f"{limits.pool_percent:g}%",
        "limits.quorum_percent": f"{limits.quorum_percent:g}%",
        "limits.new_per_window": str(limits.new_per_window),
        "limits.new_per_window_percent": f"{limits.new_per_window_percent:g}%",
        "limits.cooldown": {20.0: "20s", 900.0: "15m"}.get(limits.cooldown),
    }
    for held in outcome.held.values():
        assert held.value == values[held.limit]
        assert held.reason


@given(records)
def test_a_records_text_has_all_of_it_in_one_order(record: Record) -> None:
    text = dump_record(record)
    assert parse_record(text) == record
    backwards = dict(reversed([*record.entries.items()]))
    assert dump_record(replace(record, entries=backwards)) == text


def test_a_query_for_a_node_in_quarantine_holds_no_other_node() -> None:
    """A cause trips a cooldown where it holds a proposal, and not where it is only looked up."""
    cause = OpenCause("limits.common_cause_percent", "10%", "a driver", fleetwide=True)
    explained = replace(proposal("n1"), suspects=(frozenset({"driver"}),))
    batch = AdmissionBatch(standing("n1"), OPEN, FleetSize(9, 9), now=5.0, causes={"driver": cause})
    assert present(batch.escalation_hold(explained)).cause == "driver"
    assert present(batch.repair_hold(explained)).cause == "driver"
    assert batch.admit([proposal("n2")]).admitted == {"n2"}
    held = batch.admit([replace(explained, node="n3"), proposal("n4")]).held
    assert [held[node].limit for node in ("n3", "n4")] == [cause.limit, "limits.cooldown"]


def test_a_limit_of_nothing_is_nothing() -> None:
    size = FleetSize(100, 100, {"a": 100})
    for limits in (
        replace(OPEN, concurrent=0),
        replace(OPEN, concurrent_percent=0),
        replace(OPEN, pool_label="pool", pool_percent=0),
    ):
        assert ask(Record(), limits, size, "n1", pool="a").admitted == frozenset()


@pytest.mark.parametrize(
    ("total", "percent", "allowed"),
    [
        (0, 5, 0),
        (1, 5, 1),
        (3, 5, 1),
        (40, 5, 2),
        (59, 5, 2),
        (100, 29, 29),
        (10_000, 5, 500),
        (3, 100, 3),
        (100, 0, 0),
        (1_000, 0.5, 5),
        (1, 0.5, 1),
    ],
)
def test_shares_are_rounded_down_and_never_to_none(
    total: int, percent: float, allowed: int
) -> None:
    assert allowance(total, percent) == allowed


def test_a_pool_of_no_known_node_admits_nobody() -> None:
    limits = replace(OPEN, pool_label="pool", pool_percent=100)
    outcome = ask(Record(), limits, FleetSize(10, 10, {"a": 10}), "n1", pool="b")
    assert outcome.held["n1"].reason == ("0 of 0 nodes of pool b are in quarantine; 100 % allow 0")


def test_a_pool_counts_what_stands_without_an_entry_and_not_what_is_absent() -> None:
    limits = replace(OPEN, pool_label="pool", pool_percent=50)
    record = standing("n1", "n2", pool="a")
    size = FleetSize(100, 100, {"a": 6})

    def of_pool(size: FleetSize, **unrecorded: str) -> Outcome:
        asked = [proposal("n8", "a"), proposal("n9", "a")]
        return AdmissionBatch(record, limits, size, now=5.0, unrecorded=unrecorded).admit(asked)

    assert of_pool(size).admitted == {"n8"}
    assert of_pool(size, n3="a").admitted == set()
    assert of_pool(size, n3="b").admitted == {"n8"}
    absent = replace(size, absent=frozenset({"n1"}))
    assert of_pool(absent).admitted == {"n8", "n9"}
    assert of_pool(absent, n3="a").admitted == {"n8"}
    # Absent nodes of other pools, without an entry, or without a Quarantine have no effect.
    assert of_pool(replace(size, absent=frozenset({"n3", "n7"})), n3="a").admitted == {"n8"}
    others = standing("n1", pool="b").enter([entry("n2", "a"), entry("n3", "a")])
    gone = replace(size, absent=frozenset({"n1"}))
    asked = [proposal("n8", "a"), proposal("n9", "a")]
    found = AdmissionBatch(others, limits, gone, now=5.0).admit(asked)
    assert found.admitted == {"n8"}


def test_the_fleets_limit_counts_what_stands_without_an_entry_and_not_what_is_absent() -> None:
    limits, record = replace(OPEN, concurrent=4), standing("n1", "n2")

    def asked(*absent: str, **unrecorded: str) -> frozenset[str]:
        size = FleetSize(100, 100, absent=frozenset(absent))
        return (
            AdmissionBatch(record, limits, size, now=5.0, unrecorded=unrecorded)
            .admit([proposal("n7"), proposal("n8"), proposal("n9")])
            .admitted
        )

    assert asked() == {"n7", "n8"}
    assert asked(n3="") == {"n7"}
    assert asked("n1") == {"n7", "n8", "n9"}
    assert asked("n1", n3="") == {"n7", "n8"}
    assert asked("n3", n3="") == {"n7", "n8"}


@pytest.mark.parametrize(
    ("at", "held"),
    [(1000.0, True), (1014.9, True), (985.1, True), (1015.0, False), (985.0, False)],
)
def test_nothing_is_admitted_for_a_quarter_of_a_minute_after_a_record_was_rebuilt(
    at: float, *, held: bool
) -> None:
    record = replace(Record(), rebuilt=Rebuilt(1000.0, "was deleted", "uid"))
    hold = settling(record, at)
    assert (hold is not None) == held
    outcome = AdmissionBatch(record, OPEN, FleetSize(9, 9), now=at).admit([proposal("n1")])
    assert dict(outcome.held) == ({"n1": hold} if held else {})
    if hold is not None:
        assert (hold.limit, hold.value) == ("record", "rebuilt")


# -- how fast --------------------------------------------------------------------------------------

RATE = replace(OPEN, new_per_window=3, window=600.0, cooldown=900.0)


def at(
    record: Record,
    now: float,
    *proposals: Proposal,
    limits: Limits = RATE,
    size: FleetSize | None = None,
    causes: dict[str, OpenCause] | None = None,
) -> Outcome:
    size = size or FleetSize(100, 100)
    return AdmissionBatch(record, limits, size, now=now, causes=causes).admit(proposals)


def many(count: int, first: int = 0) -> list[Proposal]:
    return [proposal(f"n{number}") for number in range(first, first + count)]


def test_after_the_rate_has_held_one_nothing_is_admitted_for_the_cooldown() -> None:
    first = at(Record(), 1_000, *many(5))
    assert len(first.admitted) == 3
    assert first.held["n3"].limit == "limits.new_per_window"
    assert first.held["n3"].reason == "3 nodes were admitted within 10m; the limit is 3"
    assert first.held["n4"].limit == "limits.cooldown"
    # Only the record survives: the window is empty again, and the cooldown is not over.
    kept = parse_record(dump_record(first.record))
    later = at(kept, 1_700, proposal("n9"))
    assert later.held["n9"].limit == "limits.cooldown"
    assert later.held["n9"].value == "15m"
    assert later.held["n9"].reason == (
        "no new quarantine is admitted until 00:31 UTC (15m after it began): "
        "3 nodes were admitted within 10m; the limit is 3"
    )
    assert later.record is kept, "a node that is held costs no write"
    after = at(kept, 1_901, *many(5, first=10))
    assert len(after.admitted) == 3, "held no longer than that, and no more than that at once"
    assert after.record.cooldowns[FLEET].at == 1_901


def test_a_full_fleet_trips_no_rate() -> None:
    limits = replace(RATE, concurrent=2)
    outcome = at(Record(), 1_000, *many(9), limits=limits)
    assert {held.limit for held in outcome.held.values()} == {"limits.concurrent"}
    assert outcome.record.cooldowns == {}


def test_the_shipped_rate_lets_three_nodes_lose_one_and_ten_thousand_ten() -> None:
    shipped = replace(Limits(), concurrent=1_000, concurrent_percent=100, quorum_percent=0)
    for nodes, admitted in ((1, 1), (3, 1), (10, 2), (50, 10), (10_000, 10)):
        outcome = at(Record(), 0, *many(40), limits=shipped, size=FleetSize(nodes, nodes))
        assert len(outcome.admitted) == admitted
    assert outcome.held["n20"].limit == "limits.cooldown"


def test_what_was_admitted_and_not_begun_uses_nothing_up() -> None:
    record = at(Record(), 1_000, *many(3)).record
    assert at(record.withdraw([record.entries["n1"]]), 1_001, proposal("n9")).admitted == {"n9"}
    assert at(record.forget_nodes([record.entries["n1"]]), 1_001, proposal("n9")).held


def test_a_clock_that_was_set_back_a_year_holds_nobody_for_a_year() -> None:
    year = 365 * 86400.0
    record = at(Record(), year, *many(5)).record
    assert record.cooldowns
    assert at(record, 1_000, proposal("n9")).admitted == {"n9"}


@given(
    st.lists(st.tuples(st.floats(0, 400), st.integers(0, 6), st.booleans()), max_size=30),
    st.integers(1, 5),
    st.sampled_from([0.0, 30.0, 900.0]),
)
def test_no_interleaving_of_proposals_releases_and_restarts_passes_the_rate(
    steps: list[tuple[float, int, bool]], rate: int, cooldown: float
) -> None:
    limits = replace(RATE, new_per_window=rate, cooldown=cooldown)
    record, now, times, number = Record(), 10_000.0, [], 0
    tripped: list[float] = []
    for pause, count, restart in steps:
        now += pause
        if restart:
            record = parse_record(dump_record(record))
        asked = many(count, first=number)
        number += count
        outcome = at(record, now, *asked, limits=limits)
        if outcome.admitted and cooldown:
            assert all(now - before >= cooldown for before in tripped)
        if any(held.limit == "limits.new_per_window" for held in outcome.held.values()):
            tripped.append(now)
        times += [now] * len(outcome.admitted)
        assert sum(1 for time in times if now - time < limits.window) <= rate
        record = outcome.record
        if count % 2:
            record = record.forget_nodes(record.entries.values())


@pytest.mark.parametrize(
    ("percent", "rate", "nodes", "admitted"),
    [
        (100, 5, 2, 5),  # all of a small fleet may go, and one node more than once
        (99.9, 5, 2, 1),
        (50, 5, 10, 5),
        (50, 6, 10, 5),
        (50, 4, 10, 4),
    ],
)
def test_the_rate_is_the_lesser_of_a_number_and_a_share(
    percent: float, rate: int, nodes: int, admitted: int
) -> None:
    limits = replace(RATE, new_per_window=rate, new_per_window_percent=percent)
    size = FleetSize(nodes, nodes)
    record = Record()
    done = 0
    for number in range(rate + 1):  # one after the other, and each is released at once
        outcome = at(record, 1_000, proposal(f"n{number}"), limits=limits, size=size)
        done += len(outcome.admitted)
        record = outcome.record.forget_nodes(outcome.record.entries.values())
    assert done == admitted
    [held] = outcome.held.values()
    by_share = 0 < percent < 100 and admitted < rate
    assert record.cooldowns[FLEET].because.endswith(
        f"{percent:g} % of {nodes} allow {admitted}" if by_share else f"the limit is {rate}"
    )
    assert held.limit in (
        "limits.cooldown",
        "limits.new_per_window",
        "limits.new_per_window_percent",
    )


def test_without_a_cooldown_the_rate_alone_holds() -> None:
    limits = replace(RATE, cooldown=0.0)
    outcome = at(Record(), 1_000, *many(5), limits=limits)
    assert {held.limit for held in outcome.held.values()} == {"limits.new_per_window"}
    assert outcome.record.cooldowns == {}
    place = suspected("n1", {DISK})
    found = at(Record(), 1_000, place, limits=limits, causes={DISK: OPEN_DISK})
    assert found.held["n1"].limit == "limits.common_cause_nodes"
    assert found.record.cooldowns == {}
    short = replace(limits, cooldown=0.5)
    assert at(Record(), 1_000, *many(5), limits=short).record.cooldowns.keys() == {FLEET}
    cools = at(Record(), 1_000, place, limits=short, causes={DISK: OPEN_DISK})
    assert cools.record.cooldowns.keys() == {DISK, FLEET}


# -- nodes that were not read: another tool may hold them ------------------------------------------


def listed(count: int) -> list[Proposal]:
    return [replace(one, read=False) for one in many(count)]


def test_a_node_that_was_not_read_trips_no_rate_and_one_is_to_be_read() -> None:
    first = at(Record(), 1_000, *listed(1_000))
    assert first.admitted == {"n0", "n1", "n2"}
    assert first.record.cooldowns == {}
    assert [node for node, held in first.held.items() if held is UNREAD_NODE] == ["n3"]
    assert first.held["n9"].limit == "limits.new_per_window"
    again = at(first.record, 1_001, *listed(50))
    assert [n for n, held in again.held.items() if held is UNREAD_NODE] == ["n3"]
    assert again.record is first.record


def test_a_cause_of_the_fleet_cools_it_down_at_once_whatever_was_read() -> None:
    """Else another node of the same moment would be admitted while the first one is read."""
    for read in (False, True):
        first = replace(suspected("n0", {DISK}), read=read)
        own = replace(proposal("n1"), read=read)
        found = at(Record(), 1_000, first, own, causes={DISK: OPEN_DISK})
        assert found.admitted == frozenset()
        assert found.held["n1"].limit == "limits.cooldown"
        assert found.record.cooldowns.keys() == {DISK, FLEET}


def test_a_withdrawal_gives_back_the_place_and_the_trip_of_the_rate_alone() -> None:
    tripped = at(Record(), 1_000, *many(4)).record
    assert tripped.cooldowns[FLEET].spare == 0
    kept = parse_record(dump_record(tripped))
    assert kept.cooldowns == tripped.cooldowns
    back = kept.withdraw([kept.entries["n1"]])
    assert (len(back.admissions), back.cooldowns) == (2, {})
    assert at(back, 1_001, proposal("n9")).admitted == {"n9"}
    # Two above a limit that was lowered: the third that is withdrawn gives it back.
    lower = at(at(Record(), 1_000, *many(3)).record, 1_001, *many(5), limits=LOWER).record
    assert lower.cooldowns[FLEET].spare == 2
    for node, left in (("n0", 1), ("n1", 0), ("n2", None)):
        lower = lower.withdraw([lower.entries[node]])
        found = lower.cooldowns.get(FLEET)
        assert (found.spare if found is not None else None) == left
    # A cooldown that a cause began is the cause's, also where the rate's came first.
    both = at(tripped, 1_001, suspected("n9", {DISK}), causes={DISK: OPEN_DISK}).record
    assert both.cooldowns[FLEET].spare is None
    assert both.withdraw(both.entries.values()).cooldowns == both.cooldowns


@given(
    st.integers(1, 5),
    st.permutations([f"h{number}" for number in range(9)] + [f"f{number}" for number in range(3)]),
    st.lists(st.integers(1, 4), min_size=12, max_size=12),
)
def test_nodes_that_another_tool_holds_cost_the_others_nothing_in_any_order(
    rate: int, order: list[str], batches: list[int]
) -> None:
    """``h``: held by another tool, which the list of nodes does not show."""
    limits = replace(RATE, new_per_window=rate, new_per_window_percent=100)
    record, now = Record(), 1_000.0
    waiting = [replace(proposal(node), read=False) for node in order]
    begun: set[str] = set()
    for _ in range(30):  # rounds of five seconds, all before the cooldown would end
        still: list[Proposal] = []
        pending = list(waiting)
        for size in (*batches, len(order)):
            some, pending = pending[:size], pending[size:]
            outcome = at(record, now, *some, limits=limits)
            assert len(outcome.record.admissions) <= rate
            record = outcome.record
            for one in some:
                is_held = one.node.startswith("h")
                if one.node in outcome.admitted and is_held:
                    assert not one.read, "never after it was read"
                    record = record.withdraw([record.entries[one.node]])  # the patch fails
                elif one.node in outcome.admitted:
                    begun.add(one.node)
                elif outcome.held[one.node] is UNREAD_NODE:
                    if not is_held:
                        still.append(replace(one, read=True))
                else:
                    still.append(one)
        waiting, now = still, now + 5
    free = {node for node in order if node.startswith("f")}
    assert len(begun) == min(rate, len(free)), "as if no other node had been there"
    assert len(record.admissions) == len(begun)
    assert (FLEET in record.cooldowns) == (len(free) > rate)


LOWER = replace(RATE, new_per_window=1)


# -- common causes ---------------------------------------------------------------------------------

SWITCH = "rack=r1 check:nic-link"
OPEN_SWITCH = OpenCause("limits.domain_percent", "20%", "rack=r1: nic-link on 9 of 18", False)
DISK = "check:disk-space"
OPEN_DISK = OpenCause("limits.common_cause_nodes", "50", "check disk-space fails", True)


def suspected(node: str, *suspects: set[str]) -> Proposal:
    return replace(proposal(node), suspects=tuple(frozenset(found) for found in suspects))


def test_nobody_is_quarantined_for_a_common_cause() -> None:
    asked = [suspected("n1", {SWITCH, "check:nic-link"}), suspected("n2", {"check:nic-link"})]
    outcome = at(Record(), 1_000, *asked, causes={SWITCH: OPEN_SWITCH})
    assert outcome.admitted == {"n2"}, "the same fault in another rack is another matter"
    held = outcome.held["n1"]
    assert (held.limit, held.value) == ("limits.domain_percent", "20%")
    assert held.reason == OPEN_SWITCH.reason
    assert held.cause == SWITCH


def test_a_node_with_a_fault_of_its_own_besides_is_no_victim_of_the_common_cause() -> None:
    asked = suspected("n1", {DISK}, {"rule:gpu-fatal"})
    assert at(Record(), 0, asked, causes={SWITCH: OPEN_SWITCH}).admitted == {"n1"}
    assert at(Record(), 0, asked, causes={DISK: OPEN_DISK}).admitted == {"n1"}
    both = {DISK: OPEN_DISK, "rule:gpu-fatal": OPEN_DISK}
    assert at(Record(), 0, asked, causes=both).held


def test_a_place_cools_down_alone_and_a_cause_of_the_fleet_cools_down_all() -> None:
    place = at(Record(), 1_000, suspected("n1", {SWITCH}), causes={SWITCH: OPEN_SWITCH}).record
    assert at(place, 1_100, suspected("n1", {SWITCH})).held["n1"].limit == "limits.cooldown"
    assert at(place, 1_100, suspected("n2", {DISK})).admitted == {"n2"}
    whole = at(Record(), 1_000, suspected("n1", {DISK}), causes={DISK: OPEN_DISK}).record
    assert at(whole, 1_100, suspected("n2", {SWITCH})).held["n2"].limit == "limits.cooldown"
    assert at(whole, 1_901, suspected("n2", {SWITCH})).admitted == {"n2"}


def test_a_cause_that_lasts_holds_its_own_until_a_cooldown_after_and_the_rest_once() -> None:
    record, writes = Record(), 0
    for now in range(1_000, 9_000, 5):
        outcome = at(record, now, suspected("n1", {DISK}), causes={DISK: OPEN_DISK})
        assert outcome.held["n1"].limit == "limits.common_cause_nodes"
        writes += outcome.record is not record
        record = outcome.record
    assert writes <= 8_000 / (RATE.cooldown / 2) + 1
    assert at(record, 9_000, suspected("n2", {SWITCH})).admitted == {"n2"}
    # The cause is over: a node that still shows it waits for half a cooldown at least.
    assert at(record, 9_000 + 449, suspected("n1", {DISK})).held
    assert at(record, 9_000 + 900, suspected("n1", {DISK})).admitted == {"n1"}


def test_a_cooldown_is_prolonged_after_half_of_it_and_names_the_latest_cause() -> None:
    asked, causes = suspected("n1", {SWITCH}), {SWITCH: OPEN_SWITCH}
    first = at(Record(), 1_000, asked, causes=causes).record
    assert first.cooldowns == {SWITCH: Cooldown(1_000, OPEN_SWITCH.reason)}
    assert at(first, 1_449, asked, causes=causes).record is first
    worse = {SWITCH: replace(OPEN_SWITCH, reason="on 18 of 18")}
    second = at(first, 1_450, asked, causes=worse).record
    assert second.cooldowns == {SWITCH: Cooldown(1_450, "on 18 of 18")}


def test_a_cause_of_the_whole_fleet_begins_the_fleets_cooldown_once() -> None:
    asked, causes = suspected("n1", {DISK}), {DISK: OPEN_DISK}
    first = at(Record(), 1_000, asked, causes=causes).record
    assert first.cooldowns.keys() == {DISK, FLEET}
    later = at(first, 1_500, asked, causes=causes).record
    assert later.cooldowns[DISK].at == 1_500
    assert later.cooldowns[FLEET].at == 1_000
    # Where the fleet cools down already, that one stands.
    cooling = replace(Record(), cooldowns={FLEET: Cooldown(900.0, "the rate")})
    beside = at(cooling, 1_000, asked, causes=causes).record
    assert beside.cooldowns[FLEET] == Cooldown(900.0, "the rate")


def test_of_several_causes_the_first_by_name_is_named() -> None:
    a, b, c = (f"check:{name}" for name in "abc")
    asked = suspected("n1", {b, c}, {a, c})
    causes = {
        ident: OpenCause("limits.domain_percent", "20%", f"{ident} fails", False)
        for ident in (c, b, a)
    }
    assert at(Record(), 1_000, asked, causes=causes).held["n1"].cause == a
    for some, cause in (((b, c), b), ((c,), c), ((a, c), a)):
        open_now = {ident: causes[ident] for ident in some}
        assert at(Record(), 1_000, asked, causes=open_now).held["n1"].cause == cause
    alone = {b: causes[b]}
    assert at(Record(), 1_000, asked, causes=alone).admitted == {"n1"}
    cooling = replace(Record(), cooldowns={one: Cooldown(1_000.0, one) for one in (c, b, a)})
    held = at(cooling, 1_100, asked).held["n1"]
    assert (held.limit, held.cause) == ("limits.cooldown", a)


def test_only_what_makes_us_suspect_ourselves_restrains_a_drain() -> None:
    limits = replace(RATE, concurrent=0, after_upgrade=120.0)
    full = at(Record(), 1_000, *many(3)).record

    def restraint(asked: Proposal, record: Record = full) -> Held | None:
        batch = AdmissionBatch(
            record, limits, FleetSize(100, 100), now=1_001, causes={SWITCH: OPEN_SWITCH}
        )
        return batch.escalation_hold(asked)

    assert restraint(proposal("n1")) is None, "it is counted already"
    held = present(restraint(suspected("n1", {SWITCH})))
    assert held.cause == SWITCH
    soon = restraint(replace(proposal("n1"), unsettled="its driver is new"))
    assert soon == Held("limits.after_upgrade", "2m", "its driver is new")
    cooling = replace(full, cooldowns={FLEET: Cooldown(1_000.0, "the rate")})
    tripped = present(restraint(proposal("n1"), cooling))
    assert (tripped.limit, tripped.value) == ("limits.cooldown", "15m")


# -- the record ----------------------------------------------------------------------------------


def test_who_was_superseded_takes_out_no_later_entry() -> None:
    first = at(Record(), 1_000, proposal("n1")).record
    again = at(first.forget_nodes(first.entries.values()), 1_100, proposal("n1")).record
    for late in (
        again.forget_nodes(first.entries.values()),
        again.withdraw(first.entries.values()),
    ):
        assert late == again


@given(records, st.lists(names, max_size=5))
def test_forgetting_takes_out_these_and_no_other(record: Record, nodes: list[str]) -> None:
    meant = [entry(node) for node in nodes] + [
        record.entries[n] for n in nodes if n in record.entries
    ]
    after = record.forget_nodes(meant)
    assert set(after.entries) == set(record.entries) - set(nodes)
    assert after.admissions == record.admissions


@given(records, st.lists(st.builds(entry, names, pools), max_size=5))
def test_an_entry_that_stands_keeps_its_time_and_is_no_new_admission(
    record: Record, entries: list[Entry]
) -> None:
    late = [msgspec.structs.replace(one, at=99.0) for one in entries]
    after = record.enter(late)
    for name, known in record.entries.items():
        assert after.entries[name].at == known.at
    assert len(after.admissions) - len(record.admissions) == len(after.entries) - len(
        record.entries
    )


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("{}", "'entries' is missing in it"),
        ("[]", "not as sickbay writes it"),
        ("nonsense", "JSON is malformed: .*byte 4"),
        ('{"entries": [],\n "admissions": [],,', "JSON is malformed: .*byte 34"),
        ('{"entries": [], "admissions": [[NaN, ""]]}', "JSON is malformed"),
        ('{"entries": [], "admissions": [[1e999, ""]]}', "out of range"),
        (r'{"entries": [], "admissions": [[1, "\udc00"]]}', "surrogate"),
        ("null", "not as sickbay writes it"),
        ('{"entries": [], "admissions": 3}', "not as sickbay writes it"),
        ('{"entries": [{}], "admissions": []}', "'node' is missing in it"),
        (
            '{"entries": [{"node": "n1"}], "admissions": []}',
            "missing required field `incident`",
        ),
        (
            '{"entries": {"n1": {}}, "admissions": []}',
            "not as sickbay writes it",
        ),
    ],
)
def test_a_record_that_is_not_ours_is_refused_and_not_taken_for_empty(
    text: str, wrong: str
) -> None:
    with pytest.raises(RecordUnreadable, match=wrong):
        parse_record(text)


def test_a_record_from_before_there_were_cooldowns_is_read() -> None:
    known = '{"node": "n1", "incident": "i", "pool": "p", "action": "drain", "at": 1.5}'
    text = f'{{"entries": [{known}], "admissions": [[1.5, ""]], "policy_hash": "h"}}'
    assert parse_record(text) == Record({"n1": Entry("n1", "i", "p", 1.5)}, ((1.5, ""),))


def test_a_record_stays_small_whatever_happens() -> None:
    record = Record().cool(FLEET, 0.0, "x" * 10_000)
    for number in range(3 * MOST_COOLDOWNS):
        record = record.cool(f"rack=r{number} check:nic-link", 1.0 + number, "y" * 10_000)
    assert len(record.cooldowns) == MOST_COOLDOWNS
    assert FLEET in record.cooldowns
    for number in range(2 * MOST_ADMISSIONS // 1000):
        made = (entry(f"n{number}-{n}") for n in range(1000))
        entries = [msgspec.structs.replace(one, at=1.7e9 + n / 7) for n, one in enumerate(made)]
        record = record.enter(entries).forget_nodes(entries)
    assert len(record.admissions) == MOST_ADMISSIONS
    assert len(dump_record(record).encode()) < 200 * 1024


def test_no_record_yet_is_an_empty_one() -> None:
    assert parse_record("") == Record()


def test_five_hundred_entries_fit_a_config_map() -> None:
    record = standing(*(f"node-with-a-long-name-{n:05}.example" for n in range(500)))
    assert len(dump_record(record).encode()) < 128 * 1024
