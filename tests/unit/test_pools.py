"""Pools: the first that selects a node has it; its mode and limits."""

from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggregator.cluster.port import Action
from aggregator.policy.label_selector import LabelSelector
from aggregator.quarantine.decide.admission import (
    AdmissionBatch,
    FleetSize,
    Limits,
    Outcome,
    Proposal,
)
from aggregator.quarantine.decide.admission_record import (
    MOST_COOLDOWNS,
    Entry,
    Known,
    Rebuilt,
    Record,
    discontinuity,
    dump_record,
    parse_record,
    rebuild,
)
from aggregator.quarantine.decide.pool_budget import PoolFacts, allowance, cooldown_id
from aggregator.quarantine.decide.pools import Pool, PoolLimits, Pools

OPEN = Limits(
    concurrent=1_000,
    concurrent_percent=100,
    quorum_percent=0,
    new_per_window=1_000,
    new_per_window_percent=100,
    cooldown=0.0,
)
SIZE = FleetSize(100, 100)
CANARY = Pool("canary", LabelSelector({"pool": "canary"}), Action.DRAIN)


def test_the_first_pool_that_selects_a_node_has_it() -> None:
    every = Pool("every", LabelSelector(), Action.CORDON)
    pools = Pools((CANARY, every), Action.OBSERVE)
    assert pools.name_of({"pool": "canary"}) == "canary"
    assert pools.name_of({"pool": "b"}) == "every"
    assert Pools((every, CANARY)).name_of({"pool": "canary"}) == "every"
    assert Pools((CANARY,)).name_of({}) == "default"
    assert pools.names == ("canary", "every", "default")
    assert Pools().names == ()


def test_a_pools_mode_replaces_that_of_the_file_in_both_directions() -> None:
    quiet = Pool("quiet", LabelSelector({"pool": "quiet"}), Action.OBSERVE)
    like_the_file = Pool("plain", LabelSelector({"pool": "plain"}))
    pools = Pools((CANARY, quiet, like_the_file), Action.CORDON)
    modes = {name: pools.mode_of(name) for name in pools.names}
    assert modes == {
        "canary": Action.DRAIN,
        "quiet": Action.OBSERVE,
        "plain": Action.CORDON,
        "default": Action.CORDON,
    }


def test_a_node_whose_labels_are_not_known_has_the_mildest_mode() -> None:
    assert Pools((CANARY,), Action.CORDON).mode_of("") is Action.CORDON
    assert (
        Pools((replace(CANARY, mode=Action.OBSERVE),), Action.DRAIN).mode_of("") is Action.OBSERVE
    )
    assert Pools((), Action.DRAIN).mode_of("") is Action.DRAIN
    assert Pools((), Action.DRAIN).name_of(None) == ""


# -- limits ---------------------------------------------------------------------------------------


def proposal(node: str, pool: str) -> Proposal:
    return Proposal(node, f"inc-{node}", "", policy_pool=pool)


def ask(
    record: Record,
    facts: PoolFacts,
    *proposals: Proposal,
    limits: Limits = OPEN,
    size: FleetSize = SIZE,
    now: float = 5.0,
    unrecorded: dict[str, str] | None = None,
) -> Outcome:
    return AdmissionBatch(record, limits, size, now=now, pools=facts, unrecorded=unrecorded).admit(
        proposals
    )


def test_a_pools_limit_holds_its_nodes_and_no_other() -> None:
    facts = PoolFacts({"a": PoolLimits(concurrent=1), "b": PoolLimits()}, {"a": 10, "b": 10})
    asked = [proposal("n1", "a"), proposal("n2", "a"), proposal("n3", "b"), proposal("n4", "b")]
    asked.append(proposal("n5", "default"))
    outcome = ask(Record(), facts, *asked)
    assert outcome.admitted == {"n1", "n3", "n4", "n5"}
    held = outcome.held["n2"]
    assert (held.limit, held.value) == ("pools.limits.concurrent", "1")
    assert held.reason == "1 node of pool a is in quarantine; its limit is 1"


def test_a_share_is_of_the_pool() -> None:
    facts = PoolFacts({"a": PoolLimits(concurrent_percent=50)}, {"a": 5})
    outcome = ask(Record(), facts, *(proposal(f"n{n}", "a") for n in range(4)))
    assert len(outcome.admitted) == 2
    assert outcome.held["n2"].reason == "2 of 5 nodes of pool a are in quarantine; 50 % allow 2"


def test_a_pools_limit_never_raises_that_of_the_fleet() -> None:
    facts = PoolFacts({"a": PoolLimits(concurrent=50, new_per_window=50)}, {"a": 100})
    asked = [proposal(f"n{n}", "a") for n in range(4)]
    few = ask(Record(), facts, *asked, limits=replace(OPEN, concurrent=2))
    assert len(few.admitted) == 2
    assert {held.limit for held in few.held.values()} == {"limits.concurrent"}
    slow = ask(Record(), facts, *asked, limits=replace(OPEN, new_per_window=1))
    assert len(slow.admitted) == 1


def test_a_pools_rate_cools_down_this_pool_alone() -> None:
    limits = replace(OPEN, window=600.0, cooldown=900.0)
    facts = PoolFacts({"a": PoolLimits(new_per_window=1), "b": PoolLimits()}, {"a": 9, "b": 9})
    first = ask(Record(), facts, proposal("n1", "a"), proposal("n2", "a"), limits=limits)
    assert first.admitted == {"n1"}
    assert first.held["n2"].limit == "pools.limits.new_per_window"
    assert set(first.record.cooldowns) == {cooldown_id("a")}
    later = ask(
        first.record,
        facts,
        proposal("n2", "a"),
        proposal("n3", "b"),
        limits=limits,
        now=5.0 + 700,
    )
    assert later.admitted == {"n3"}
    assert later.held["n2"].limit == "limits.cooldown"
    assert "no new quarantine is admitted in pool a until" in later.held["n2"].reason
    batch = AdmissionBatch(first.record, limits, SIZE, now=6.0)
    assert batch.escalation_hold(proposal("n1", "a"))
    assert not batch.escalation_hold(proposal("n3", "b"))
    over = ask(first.record, facts, proposal("n2", "a"), limits=limits, now=5.0 + 901)
    assert over.admitted == {"n2"}


def test_a_pool_that_gets_another_name_keeps_the_rate_that_it_has_used() -> None:
    entry = Entry("n1", "i", "", 1.0, policy_pool="old")
    record = Record().enter([entry])
    facts = PoolFacts({"new": PoolLimits(new_per_window=1)}, {"new": 9}, {"n1": "new"})
    held = ask(record, facts, proposal("n2", "new")).held["n2"]
    assert held.limit == "pools.limits.new_per_window"


def test_a_rate_of_a_pool_is_checked_before_that_of_the_fleet() -> None:
    """The fleet's would cool all pools down for a node that its pool holds anyway."""
    limits = replace(OPEN, new_per_window=1, cooldown=900.0)
    facts = PoolFacts({"a": PoolLimits(new_per_window=1)}, {"a": 9})
    outcome = ask(Record(), facts, proposal("n1", "a"), proposal("n2", "a"), limits=limits)
    assert outcome.held["n2"].limit == "pools.limits.new_per_window"
    assert set(outcome.record.cooldowns) == {cooldown_id("a")}


def test_a_node_that_changed_its_pool_counts_in_both() -> None:
    facts = PoolFacts(
        {"a": PoolLimits(concurrent=1), "b": PoolLimits(concurrent=1)},
        {"a": 9, "b": 9},
        {"n1": "b"},
    )
    entry = Entry("n1", "i", "", 1.0, policy_pool="a")
    record = Record().enter([entry])
    outcome = ask(record, facts, proposal("n2", "a"), proposal("n3", "b"))
    assert not outcome.admitted
    again = record.enter([msgspec.structs.replace(entry, policy_pool="b")])
    assert again.entries["n1"].policy_pool == "a", "entered again it stays where it was admitted"


def test_what_stands_without_a_known_pool_counts_in_every_pool() -> None:
    facts = PoolFacts({"a": PoolLimits(concurrent=1), "b": PoolLimits(concurrent=1)}, {}, {})
    old = Record().enter([Entry("n1", "i", "", 1.0)])
    assert not ask(old, facts, proposal("n2", "a"), proposal("n3", "b")).admitted
    by_hand = ask(Record(), facts, proposal("n2", "a"), unrecorded={"n9": ""})
    assert not by_hand.admitted
    present = replace(facts, present={"n1": "b"})
    assert ask(old, present, proposal("n2", "a")).admitted == {"n2"}


def test_a_node_that_is_gone_counts_in_no_pool() -> None:
    facts = PoolFacts({"a": PoolLimits(concurrent=1)}, {"a": 9})
    record = Record().enter([Entry("n1", "i", "", 1.0, policy_pool="a")])
    gone = replace(SIZE, absent=frozenset({"n1"}))
    assert ask(record, facts, proposal("n2", "a"), size=gone).admitted == {"n2"}
    assert not ask(record, facts, proposal("n2", "a")).admitted


@pytest.mark.parametrize("pool", ["", "other"])
def test_a_node_of_no_known_pool_waits(pool: str) -> None:
    facts = PoolFacts({"a": PoolLimits()}, {"a": 9})
    outcome = ask(Record(), facts, proposal("n1", pool))
    assert outcome.held["n1"].limit == "pools"


def test_without_pools_no_node_waits_for_its_labels() -> None:
    assert ask(Record(), PoolFacts(), proposal("n1", "")).admitted == {"n1"}


POOLS = ("a", "b")
bounds = st.builds(
    PoolLimits,
    concurrent=st.none() | st.integers(1, 4),
    concurrent_percent=st.none() | st.floats(1, 100),
    new_per_window=st.none() | st.integers(1, 3),
)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), st.lists(st.integers(0, 12), min_size=1, max_size=6)),
        st.tuples(st.just("move"), st.tuples(st.integers(0, 12), st.sampled_from(POOLS))),
        st.tuples(st.just("release"), st.integers(0, 12)),
        st.tuples(st.just("void"), st.integers(0, 12)),
        st.tuples(st.just("pause"), st.sampled_from([1.0, 50.0, 120.0, 700.0])),
        st.tuples(st.just("restart"), st.none()),
    ),
    max_size=40,
)


@pytest.mark.slow
@given(st.fixed_dictionaries(dict.fromkeys(POOLS, bounds)), steps, st.integers(1, 8))
def test_no_interleaving_passes_a_limit_of_a_pool_or_of_the_fleet(
    pool_limits: dict[str, PoolLimits], steps: list[tuple[str, Any]], fleet: int
) -> None:
    """Proposals, moves between pools, releases, voided admissions, restarts and roll-backs."""
    limits = replace(OPEN, concurrent=fleet, window=600.0, cooldown=60.0)
    of = {f"n{n}": POOLS[n % 2] for n in range(13)}
    record, now = Record(), 10_000.0
    admitted_in: dict[str, str] = {}  # of the nodes that stand
    times: dict[str, list[float]] = {pool: [] for pool in POOLS}
    begun: dict[str, float] = {}
    for what, which in steps:
        match what:
            case "pause":
                now += which
            case "restart":
                record = parse_record(dump_record(record))
            case "move":
                number, pool = which
                of[f"n{number}"] = pool
            case "release" | "void" if f"n{which}" in record.entries:
                entry = record.entries[f"n{which}"]
                if what == "void":
                    record = record.withdraw([entry])
                    times[admitted_in[entry.node]].remove(begun[entry.node])
                else:
                    record = record.forget_nodes([entry])
                del admitted_in[entry.node]
            case "ask":
                sizes = {pool: sum(1 for one in of.values() if one == pool) for pool in POOLS}
                facts = PoolFacts(pool_limits, sizes, of)
                asked = [proposal(f"n{n}", of[f"n{n}"]) for n in which]
                before = set(record.entries)
                record = ask(record, facts, *asked, limits=limits, now=now).record
                for node in record.entries.keys() - before:
                    pool = admitted_in[node] = of[node]
                    begun[node] = now
                    times[pool].append(now)
                    bound = pool_limits[pool]
                    # By where they were admitted, and by where they are now.
                    counts = [
                        sum(1 for one in admitted_in.values() if one == pool),
                        sum(1 for one in admitted_in if of[one] == pool),
                    ]
                    assert len(admitted_in) <= fleet
                    if bound.concurrent is not None:
                        assert max(counts) <= bound.concurrent
                    if bound.concurrent_percent is not None:
                        assert max(counts) <= allowance(sizes[pool], bound.concurrent_percent)
                    lately = [at for at in times[pool] if now - at < limits.window]
                    if bound.new_per_window is not None:
                        assert len(lately) <= bound.new_per_window


# -- the record ---------------------------------------------------------------------------------


def test_a_record_without_pools_names_none() -> None:
    record = Record().enter([Entry("n1", "i", "p", 1.0)])
    assert dump_record(record) == (
        '{"admissions":[[1.0,""]],"cooldowns":{},"entries":[{"node":"n1","incident":"i",'
        '"pool":"p","at":1.0}],"generation":0,"operations":[],"past_repairs":{},'
        '"rebuilt":null}'
    )


def test_a_record_keeps_the_pools_of_its_entries_and_their_times() -> None:
    entries = [Entry(f"n{n}", "i", "", float(n), policy_pool="a") for n in range(3)]
    record = Record().enter([*entries, Entry("n9", "i", "", 9.0, policy_pool="default")])
    nine = (9.0, "default")
    assert record.admissions == ((0.0, "a"), (1.0, "a"), (2.0, "a"), nine)
    assert parse_record(dump_record(record)) == record
    assert record.withdraw(entries[:1]).admissions == ((1.0, "a"), (2.0, "a"), nine)
    assert record.forget_nodes(entries).admissions == record.admissions
    pruned = record.pruned(100.0, window=99.5, cooldown=1.0)
    assert pruned.admissions == ((1.0, "a"), (2.0, "a"), nine)
    assert record.pruned(1_000.0, window=10.0, cooldown=1.0).admissions == ()
    assert record.pruned(100.0, window=1_000.0, cooldown=1.0) is record, "there is nothing to prune"


def test_the_cooldowns_of_pools_stay() -> None:
    record = Record().cool(cooldown_id("a"), 0.0, "first")
    for number in range(2 * MOST_COOLDOWNS):
        record = record.cool(f"rack=r{number} check:x", 1.0 + number, "y")
    assert len(record.cooldowns) == MOST_COOLDOWNS
    assert cooldown_id("a") in record.cooldowns


def test_a_rebuilt_record_keeps_the_times_of_pools() -> None:
    entry = Entry("n1", "i", "", 1.0, policy_pool="a")
    known = Known("u1", "text", replace(Record().enter([entry]), generation=4))
    empty = Record()
    assert discontinuity(known, "u2", "", empty)
    made = rebuild(empty, known, [entry], rebuilt=Rebuilt(5.0, "gone", "u2"), newest=4)
    assert made.admissions == ((1.0, "a"),)
    assert made.entries["n1"].policy_pool == "a"
