"""Admission: never over a limit, whatever is proposed, in whatever order, however often."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggregator.quarantine.decide.admission import (
    Limits,
    Outcome,
    Proposal,
    Size,
    admit,
    allowance,
)
from aggregator.quarantine.decide.record import (
    Entry,
    Record,
    RecordUnreadable,
    dump_record,
    parse_record,
)

OPEN = Limits(concurrent=1_000, concurrent_percent=100, quorum_percent=0)
POOLS = ("a", "b", "")


def proposal(node: str, pool: str = "") -> Proposal:
    return Proposal(node, f"inc-{node}", pool, "drain")


def entry(node: str, pool: str = "", incident: str = "i") -> Entry:
    return Entry(node, incident, pool, "drain", 1.0)


def standing(*nodes: str, pool: str = "") -> Record:
    return Record().enter([entry(node, pool) for node in nodes], "hash")


def ask(
    record: Record, limits: Limits, size: Size, *nodes: str, pool: str = "", stop: str = ""
) -> Outcome:
    proposals = [proposal(node, pool) for node in nodes]
    return admit(record, proposals, limits, size, now=5.0, policy_hash="hash", stop=stop)


names = st.integers(0, 30).map(lambda number: f"n{number}")
pools = st.sampled_from(POOLS)
proposals = st.lists(st.builds(proposal, names, pools), max_size=20)
records = st.lists(st.builds(entry, names, pools, st.sampled_from(["i", ""])), max_size=12).map(
    lambda entries: Record().enter(entries, "old")
)
limits = st.builds(
    Limits,
    concurrent=st.integers(0, 10),
    concurrent_percent=st.floats(0, 100),
    pool_label=st.sampled_from(["", "pool"]),
    pool_percent=st.floats(0, 100),
    quorum_percent=st.floats(0, 100),
)
sizes = st.builds(
    lambda counts, reported, listed: Size(sum(counts.values()), reported, counts, listed=listed),
    st.fixed_dictionaries({pool: st.integers(0, 40) for pool in POOLS}),
    st.integers(0, 120),
    st.sampled_from([True, True, True, False]),
)
stops = st.sampled_from(["", "", "drill"])


def most(limits: Limits, size: Size) -> int:
    """The fleet's limit, written down once more: rounded down, but one of anything may be lost."""
    by_share = 0
    if size.nodes and limits.concurrent_percent > 0:
        by_share = max(1, int(size.nodes * limits.concurrent_percent / 100 + 1e-9))
    return min(limits.concurrent, by_share)


@given(records, proposals, limits, sizes, stops)
def test_no_order_of_proposals_passes_a_limit(
    record: Record, asked: list[Proposal], limits: Limits, size: Size, stop: str
) -> None:
    outcome = admit(record, asked, limits, size, now=5.0, policy_hash="new", stop=stop)
    before, after = record.entries, outcome.record.entries
    # Everybody has an answer, and one alone.
    assert outcome.admitted | set(outcome.held) == {one.node for one in asked}
    assert outcome.admitted & set(outcome.held) == set()
    # Who stands, stands: a limit that was lowered evicts nobody.
    assert before.items() <= after.items()
    new = after.keys() - before.keys()
    assert new == {node for node in outcome.admitted if node not in before}
    if stop:
        assert not outcome.admitted  # nor what stood before: it would be begun now
    if not new:
        return
    assert size.listed
    assert size.reported >= size.nodes * limits.quorum_percent / 100
    assert len(after) <= most(limits, size)
    if limits.pool_label:
        for pool in {after[node].pool for node in new}:
            share = max(1, int(size.pools[pool] * limits.pool_percent / 100 + 1e-9))
            assert limits.pool_percent > 0
            assert outcome.record.in_pool(pool) <= share
    assert len(outcome.record.admissions) == len(record.admissions) + len(new)


@given(records, proposals, limits, sizes)
def test_asking_again_changes_nothing(
    record: Record, asked: list[Proposal], limits: Limits, size: Size
) -> None:
    once = admit(record, asked, limits, size, now=5.0, policy_hash="h")
    twice = admit(once.record, asked, limits, size, now=9.0, policy_hash="h")
    assert twice.record == once.record
    assert twice.admitted == once.admitted
    assert twice.held.keys() == once.held.keys()


@given(records, proposals, limits, sizes, stops)
def test_what_holds_a_proposal_is_named_with_its_value(
    record: Record, asked: list[Proposal], limits: Limits, size: Size, stop: str
) -> None:
    outcome = admit(record, asked, limits, size, now=5.0, policy_hash="h", stop=stop)
    values = {
        "stop": stop,
        "limits.concurrent": str(limits.concurrent),
        "limits.concurrent_percent": f"{limits.concurrent_percent:g}%",
        "limits.pool_percent": f"{limits.pool_percent:g}%",
        "limits.quorum_percent": f"{limits.quorum_percent:g}%",
    }
    for held in outcome.held.values():
        assert held.value == values[held.limit]
        assert held.reason


def test_a_pool_of_three_can_lose_one_and_not_two() -> None:
    limits = replace(OPEN, pool_label="pool", pool_percent=5)
    size = Size(3, 3, {"a": 3})
    outcome = ask(Record(), limits, size, "n1", "n2", pool="a")
    assert outcome.admitted == {"n1"}
    assert outcome.held["n2"].limit == "limits.pool_percent"
    assert outcome.held["n2"].reason == ("1 of 3 nodes of pool a are in quarantine; 5 % allow 1")


def test_a_lowered_limit_evicts_nobody_and_admits_nobody() -> None:
    record = standing("n1", "n2", "n3")
    outcome = ask(record, replace(OPEN, concurrent=1), Size(100, 100), "n1", "n4")
    assert set(outcome.record.entries) == {"n1", "n2", "n3"}
    assert outcome.admitted == {"n1"}
    assert outcome.held["n4"].limit == "limits.concurrent"


def test_the_stop_switch_holds_everything_and_says_why() -> None:
    outcome = ask(standing("n1"), OPEN, Size(100, 100), "n1", "n2", stop="fire drill")
    assert outcome.admitted == set()  # what stands would be begun now
    assert outcome.record == standing("n1")
    assert outcome.held.keys() == {"n1", "n2"}
    assert (outcome.held["n2"].limit, outcome.held["n2"].value) == ("stop", "fire drill")


def test_nothing_is_admitted_before_enough_of_the_fleet_has_reported() -> None:
    limits = replace(OPEN, quorum_percent=50)
    assert ask(Record(), limits, Size(100, 49), "n1").held["n1"].limit == "limits.quorum_percent"
    assert ask(Record(), limits, Size(100, 50), "n1").admitted == {"n1"}


def test_what_was_made_by_hand_counts_and_is_never_refused() -> None:
    by_hand = Record().enter([entry("n1", incident=""), entry("n2", incident="")], "h")
    assert ask(by_hand, replace(OPEN, concurrent=2), Size(100, 100), "n3").held
    full = by_hand.enter([entry(f"m{n}", incident="") for n in range(50)], "h")
    assert len(full.entries) == 52


def test_a_limit_of_nothing_is_nothing() -> None:
    size = Size(100, 100, {"a": 100})
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
    ],
)
def test_shares_are_rounded_down_and_never_to_none(
    total: int, percent: float, allowed: int
) -> None:
    assert allowance(total, percent) == allowed


# -- the record ----------------------------------------------------------------------------------


@given(records)
def test_a_record_survives_its_text(record: Record) -> None:
    assert parse_record(dump_record(record)) == record
    assert dump_record(parse_record(dump_record(record))) == dump_record(record)


@given(records, st.lists(names, max_size=5))
def test_forgetting_takes_out_these_and_no_other(record: Record, nodes: list[str]) -> None:
    after = record.forget(nodes)
    assert set(after.entries) == set(record.entries) - set(nodes)
    assert after.admissions == record.admissions


@given(records, st.lists(st.builds(entry, names, pools), max_size=5))
def test_an_entry_that_stands_keeps_its_time_and_is_no_new_admission(
    record: Record, entries: list[Entry]
) -> None:
    late = [replace(one, at=99.0) for one in entries]
    after = record.enter(late, "h")
    for name, known in record.entries.items():
        assert after.entries[name].at == known.at
    assert len(after.admissions) - len(record.admissions) == len(after.entries) - len(
        record.entries
    )


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        "[]",
        "nonsense",
        "null",
        '{"entries": {}, "admissions": 3, "policyHash": ""}',
        '{"entries": {"n1": {}}, "admissions": [], "policyHash": ""}',
        '{"entries": [], "admissions": [], "policyHash": ""}',
    ],
)
def test_a_record_that_is_not_ours_is_refused_and_not_taken_for_empty(text: str) -> None:
    with pytest.raises(RecordUnreadable, match="can't be read"):
        parse_record(text)


def test_no_record_yet_is_an_empty_one() -> None:
    assert parse_record("") == Record()


def test_five_hundred_entries_fit_a_config_map() -> None:
    record = standing(*(f"node-with-a-long-name-{n:05}.example" for n in range(500)))
    assert len(dump_record(record).encode()) < 128 * 1024
