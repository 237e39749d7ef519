"""The precedence of the holds, their words, and the record that a decision leaves."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggregator.quarantine.decide.admission import (
    SETTLES,
    AdmissionBatch,
    FleetSize,
    Limits,
    OpenCause,
    Outcome,
    Proposal,
    lost,
    quorum,
    stopped,
)
from aggregator.quarantine.decide.admission_record import FLEET, Cooldown, Entry, Rebuilt, Record
from aggregator.quarantine.decide.held import Held
from aggregator.quarantine.decide.pool_budget import floored

NOW = 10_000.0
SIZE = FleetSize(100, 100)
OPEN = Limits(
    concurrent=50,
    concurrent_percent=100,
    quorum_percent=0,
    new_per_window=50,
    new_per_window_percent=100,
)
CAUSE = "check:disk"
DISK = OpenCause("limits.common_cause_nodes", "50", "check disk fails", fleetwide=True)


def proposal(node: str = "n1", **changes: Any) -> Proposal:
    return replace(Proposal(node, f"i-{node}", ""), **changes)


def entries(*nodes: str, at: float = 0.0) -> Record:
    return Record().enter([Entry(node, "i", "", at) for node in nodes])


def at(
    *asked: Proposal,
    record: Record | None = None,
    limits: Limits = OPEN,
    size: FleetSize = SIZE,
    **known: Any,
) -> Outcome:
    return AdmissionBatch(record or Record(), limits, size, now=NOW, **known).admit(asked)


def held(*asked: Proposal, **known: Any) -> Held:
    return at(*asked, **known).held[asked[-1].node]


def test_the_documented_defaults() -> None:
    assert Limits() == Limits(20, 5.0, "", 20.0, 50.0, 10, 20.0, 600.0, 900.0, 120.0)
    assert Limits().small_fleet_floor == 2
    assert (SETTLES, FLEET) == (15.0, "")


# -- precedence ----------------------------------------------------------------------------------

#: Each holds by itself; the earlier is told where several do.
HOLDS: list[tuple[dict[str, Any], str]] = [
    ({"stop": "drill"}, "stop"),
    ({"record": replace(entries("m1"), rebuilt=Rebuilt(NOW, "was deleted", "u"))}, "record"),
    ({"size": replace(SIZE, listed=False)}, "limits.quorum_percent"),
    ({"causes": {CAUSE: DISK}}, "limits.common_cause_nodes"),
    ({"limits": replace(OPEN, concurrent=0)}, "limits.concurrent"),
]


@pytest.mark.parametrize("first", range(len(HOLDS)))
def test_the_most_general_hold_is_told(first: int) -> None:
    together: dict[str, Any] = {}
    for changes, _ in HOLDS[first:]:
        together |= changes
    assert held(proposal(suspects=(frozenset({CAUSE}),)), **together).limit == HOLDS[first][1]


def test_a_fleets_cooldown_is_told_before_what_is_unsettled_and_full() -> None:
    cooling = replace(Record(), cooldowns={FLEET: Cooldown(NOW - 60.0, "too many")})
    unsettled = proposal(unsettled="its driver is new")
    full = replace(OPEN, concurrent=0)
    assert held(unsettled, record=cooling, limits=full).limit == "limits.cooldown"
    assert held(unsettled, limits=full).limit == "limits.after_upgrade"
    assert held(proposal(), limits=full).limit == "limits.concurrent"


def test_limits_are_told_from_the_fleets_to_the_pools_and_the_rate_last() -> None:
    pools = replace(SIZE, pools={"a": 10})
    limits = Limits(
        concurrent=1,
        concurrent_percent=1,
        pool_label="pool",
        pool_percent=10,
        quorum_percent=0,
        new_per_window=1,
        new_per_window_percent=1,
    )
    record = Record().enter([Entry("m1", "i", "a", NOW)])
    asked = proposal(pool="a")
    told = []
    changes: tuple[dict[str, Any], ...] = (
        {},
        {"concurrent": 9},
        {"concurrent_percent": 100},
        {"pool_percent": 100},
        {"new_per_window": 9},
        {"new_per_window_percent": 100},
    )
    for change in changes:
        limits = replace(limits, **change)
        found = at(asked, record=record, limits=limits, size=pools).held
        told.append(found["n1"].limit if found else "")
    assert told == [
        "limits.concurrent",
        "limits.concurrent_percent",
        "limits.pool_percent",
        "limits.new_per_window",
        "limits.new_per_window_percent",
        "",
    ]


# -- words ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (stopped("drill"), Held("stop", "drill", "the fleet-wide stop switch is set: drill")),
        (
            lost("was deleted"),
            Held(
                "record",
                "lost",
                "the admission record was deleted: it is rebuilt from the Quarantines in force, "
                "and no quarantine is admitted until then",
            ),
        ),
        (
            quorum(Limits(), FleetSize(0, 0, listed=False)),
            Held(
                "limits.quorum_percent",
                "50%",
                "the cluster's nodes could not be counted yet, so no share of them is known",
            ),
        ),
        (
            quorum(Limits(), FleetSize(10, 4)),
            Held(
                "limits.quorum_percent",
                "50%",
                "4 of 10 nodes have reported since the start; 50 % must have",
            ),
        ),
        (quorum(Limits(), FleetSize(10, 5)), None),
        (quorum(Limits(), FleetSize(0, 0)), None),
    ],
)
def test_a_hold_of_all_nodes_says_what_it_waits_for(
    found: Held | None, expected: Held | None
) -> None:
    assert found == expected


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        (
            {"concurrent": 2},
            Held("limits.concurrent", "2", "2 nodes are in quarantine; the limit is 2"),
        ),
        (
            {"concurrent_percent": 2.0},
            Held(
                "limits.concurrent_percent",
                "2%",
                "2 of 100 nodes are in quarantine; 2 % allow 2",
            ),
        ),
        (
            {"pool_label": "pool", "pool_percent": 20.0},
            Held(
                "limits.pool_percent",
                "20%",
                "2 of 10 nodes of pool (none) are in quarantine; 20 % allow 2",
            ),
        ),
        (
            {"new_per_window": 2},
            Held("limits.new_per_window", "2", "2 nodes were admitted within 10m; the limit is 2"),
        ),
        (
            {"new_per_window_percent": 2.0},
            Held(
                "limits.new_per_window_percent",
                "2%",
                "2 nodes were admitted within 10m; 2 % of 100 allow 2",
            ),
        ),
        (
            {"new_per_window": 2, "new_per_window_percent": 2.0},
            Held("limits.new_per_window", "2", "2 nodes were admitted within 10m; the limit is 2"),
        ),
    ],
)
def test_a_limit_says_how_many_there_are_and_how_many_it_allows(
    limits: dict[str, Any], expected: Held
) -> None:
    size = replace(SIZE, pools={"": 10})
    asked = [proposal(f"n{number}") for number in range(3)]
    found = at(*asked, limits=replace(OPEN, **limits), size=size)
    assert found.admitted == {"n0", "n1"}
    assert found.held == {"n2": expected}


def test_a_cooldown_says_until_when_and_why() -> None:
    cooling = replace(Record(), cooldowns={FLEET: Cooldown(9_900.0, "too many")})
    assert held(proposal(), record=cooling) == Held(
        "limits.cooldown",
        "15m",
        "no new quarantine is admitted until 03:00 UTC (15m after it began): too many",
        FLEET,
    )
    own = replace(Record(), cooldowns={CAUSE: Cooldown(9_900.0, "disks")})
    found = held(proposal(suspects=(frozenset({CAUSE, "other"}),)), record=own)
    assert found.reason.startswith("no quarantine like it is admitted until ")
    assert found.cause == CAUSE
    apart = proposal(suspects=(frozenset({CAUSE}), frozenset({"other"})))
    assert at(apart, record=own).admitted == {"n1"}
    assert at(proposal(), record=own).admitted == {"n1"}


def test_a_node_that_has_just_changed_its_version_says_so() -> None:
    assert held(proposal(unsettled="its driver is new")) == Held(
        "limits.after_upgrade", "2m", "its driver is new"
    )


# -- the record ----------------------------------------------------------------------------------


def test_a_decision_without_effect_writes_nothing() -> None:
    old = replace(entries("m1"), cooldowns={"over": Cooldown(0.0, "long ago")})
    full = at(proposal(), record=old, limits=replace(OPEN, concurrent=0))
    assert full.record is old
    assert at(proposal("m1"), record=old).record is old
    assert at(record=old).record is old


def test_an_admission_enters_the_node_once_and_prunes_what_is_over() -> None:
    old = replace(entries("m1"), cooldowns={"over": Cooldown(0.0, "long ago")})
    found = at(proposal(pool="a"), proposal(pool="a"), record=old)
    assert found.record.entries["n1"] == Entry("n1", "i-n1", "a", NOW)
    assert found.record.admissions == ((NOW, ""),)
    assert found.record.cooldowns == {}
    assert found.admitted == {"n1"}


def test_a_rate_that_was_reached_cools_the_fleet_down_without_an_admission() -> None:
    limits = replace(OPEN, new_per_window=1)
    record = entries("m1", at=NOW)
    found = at(proposal(), record=record, limits=limits)
    assert found.record.cooldowns == {
        FLEET: Cooldown(NOW, "1 node was admitted within 10m; the limit is 1", spare=0)
    }
    assert found.record.entries == record.entries
    assert at(proposal(), record=record, limits=replace(limits, cooldown=0.0)).record is record


def test_a_node_that_was_held_and_is_asked_for_again_has_one_answer() -> None:
    first = proposal(suspects=(frozenset({CAUSE}),))
    limits = replace(OPEN, cooldown=0.0)
    found = at(first, proposal(), limits=limits, causes={CAUSE: DISK})
    assert found.admitted == {"n1"}
    assert found.held == {}


def test_a_drain_is_held_by_what_is_suspected_and_by_no_count() -> None:
    def hold(asked: Proposal, **known: Any) -> Held | None:
        limits = replace(OPEN, concurrent=0, new_per_window=0, quorum_percent=100.0)
        causes = known.pop("causes", {})
        batch = AdmissionBatch(entries("n1"), limits, SIZE, now=NOW, causes=causes, **known)
        return batch.escalation_hold(asked)

    assert hold(proposal()) is None
    suspect = proposal(suspects=(frozenset({CAUSE}),))
    assert hold(suspect) is None
    assert hold(suspect, causes={CAUSE: DISK}) == Held(DISK.limit, "50", DISK.reason, CAUSE)


IDS = ("check:disk", "version:driver", "rack:7", FLEET)
SUSPECTS = st.frozensets(st.sampled_from(IDS[:3]))


@given(
    suspects=st.lists(SUSPECTS, max_size=3).map(tuple),
    opened=st.sets(st.sampled_from(IDS[:3])),
    cooling=st.sets(st.sampled_from(IDS)),
    unsettled=st.sampled_from(("", "its version has just changed")),
    reported=st.integers(0, 100),
    standing=st.integers(0, 60),
)
def test_a_repair_is_held_by_what_would_hold_the_node_as_a_new_one_except_counts(
    suspects: tuple[frozenset[str], ...],
    opened: set[str],
    cooling: set[str],
    unsettled: str,
    reported: int,
    standing: int,
) -> None:
    record = replace(
        entries("n1", *(f"m{number}" for number in range(standing)), at=NOW - 5000),
        cooldowns={ident: Cooldown(NOW - 10, "why") for ident in cooling},
    )
    causes = dict.fromkeys(opened, DISK)
    size, limits = FleetSize(100, reported), replace(OPEN, quorum_percent=50.0)
    asked = proposal(suspects=suspects, unsettled=unsettled)
    hold = AdmissionBatch(record, limits, size, now=NOW, causes=causes).repair_hold(asked)
    unlimited = replace(limits, concurrent=1000, new_per_window=1000)
    anew = at(replace(asked, node="new"), record=record, limits=unlimited, size=size, causes=causes)
    assert hold == anew.held.get("new")
    all_explained = bool(suspects) and all(one & opened for one in suspects)
    assert hold is not None or (reported >= 50 and not all_explained and FLEET not in cooling)


@pytest.mark.parametrize(
    ("most", "of", "fleet", "allowed"),
    [
        (1, 1, 1, 1),
        (1, 2, 2, 1),
        (1, 3, 3, 1),
        (1, 4, 4, 2),
        (1, 39, 39, 2),
        (2, 40, 40, 2),
        (1, 40, 40, 1),
        (1, 4, 39, 2),
        (1, 4, 40, 1),
        (4, 20, 20, 4),
    ],
)
def test_the_floor_of_small_fleets_weakens_no_limit_of_a_larger_one(
    most: int, of: int, fleet: int, allowed: int
) -> None:
    assert floored(most, 2, of=of, fleet=fleet) == allowed
    assert floored(most, 1, of=of, fleet=fleet) == most
