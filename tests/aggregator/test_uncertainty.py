"""Admissions by a leader that does not know what the other replicas know."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from aggregator.quarantine.decide.admission import (
    FleetSize,
    Limits,
    Proposal,
    admit,
    escalation_hold,
)
from aggregator.quarantine.decide.admission_record import Entry, Record
from aggregator.quarantine.decide.uncertainty import (
    NO_UNCERTAINTY,
    UNSURE,
    EvidenceBasis,
    Uncertainty,
)

OPEN = Limits(
    concurrent=1_000,
    concurrent_percent=100,
    quorum_percent=0,
    new_per_window=1_000,
    new_per_window_percent=100,
)
SIZE = FleetSize(1_000, 1_000)
MISSING = Uncertainty(missing="r2 has not told of all nodes")

names = st.integers(0, 40).map(lambda number: f"n{number}")
proposals = st.lists(
    st.builds(
        lambda node, basis: Proposal(node, f"i-{node}", "", "drain", basis=basis),
        names,
        st.sampled_from(EvidenceBasis),
    ),
    max_size=20,
    unique_by=lambda one: one.node,
)
doubts = st.builds(
    Uncertainty,
    st.sampled_from(["", "this replica's own place is not certain"]),
    st.sampled_from(["", "r2 runs policy 2 (here 1)"]),
    st.sampled_from(["", "r2 has not told of all nodes"]),
    st.sampled_from(["", "the leader is new"]),
)
standing = st.lists(names, max_size=6, unique=True).map(
    lambda nodes: Record().enter([Entry(node, "i", "", "drain", 1.0) for node in nodes], "p")
)


@given(standing, proposals, doubts)
def test_in_doubt_few_pass_and_what_stands_stays(
    record: Record, asked: list[Proposal], uncertainty: Uncertainty
) -> None:
    outcome = admit(record, asked, OPEN, SIZE, now=5.0, policy_hash="p", uncertainty=uncertainty)
    basis = {one.node: one.basis for one in asked}
    new = outcome.record.entries.keys() - record.entries.keys()
    assert record.entries.keys() <= outcome.record.entries.keys()
    assert outcome.admitted == new | (basis.keys() & record.entries.keys())
    assert outcome.admitted | outcome.held.keys() == basis.keys()
    if uncertainty.differing or uncertainty.unsure:
        assert not new
    if uncertainty.missing:
        assert {basis[node] for node in new} <= {EvidenceBasis.FAULT}
        assert len(outcome.record.admissions) <= max(UNSURE, len(record.admissions))
    if uncertainty.network:
        assert EvidenceBasis.REACH not in {basis[node] for node in new}
    if uncertainty == NO_UNCERTAINTY:
        assert new == basis.keys() - record.entries.keys()
    assert not outcome.record.cooldowns  # the uncertainty passes by itself: it needs no cooldown
    for hold in outcome.held.values():
        assert (hold.limit, hold.reason) != ("shards", "")


def test_the_few_are_counted_in_the_record_and_not_by_each_new_leader() -> None:
    record = Record()
    for turn in range(4):  # each time another leader, which remembers nothing
        asked = [Proposal(f"n{turn}", "i", "", "drain", basis=EvidenceBasis.FAULT)]
        record = admit(
            record, asked, OPEN, SIZE, now=10.0 * turn, policy_hash="p", uncertainty=MISSING
        ).record
    assert list(record.entries) == ["n0", "n1", "n2"]
    asked = [Proposal("n9", "i", "", "drain", basis=EvidenceBasis.FAULT)]
    later = OPEN.window + 30
    outcome = admit(record, asked, OPEN, SIZE, now=later, policy_hash="p", uncertainty=MISSING)
    assert outcome.admitted == {"n9"}


def test_a_hold_names_who_is_missing_and_what_passes() -> None:
    asked = [Proposal("n1", "i", "", "drain", basis=EvidenceBasis.OTHER)]
    outcome = admit(Record(), asked, OPEN, SIZE, now=1.0, policy_hash="p", uncertainty=MISSING)
    hold = outcome.held["n1"]
    assert (hold.limit, hold.value) == ("shards", "incomplete")
    assert hold.reason == (
        "until the leader knows of all nodes, only faults that the catalogue knows pass: r2 has "
        "not told of all nodes"
    )


def test_a_cordon_that_rests_on_a_check_becomes_no_drain_in_doubt() -> None:
    proposal = Proposal("n1", "i", "", "drain", basis=EvidenceBasis.OTHER)

    def hold(basis: EvidenceBasis, uncertainty: Uncertainty) -> bool:
        asked = replace(proposal, basis=basis)
        return (
            escalation_hold(Record(), asked, OPEN, now=1.0, causes={}, uncertainty=uncertainty)
            is not None
        )

    assert hold(EvidenceBasis.OTHER, MISSING)
    assert not hold(EvidenceBasis.FAULT, MISSING)
    assert hold(EvidenceBasis.FAULT, Uncertainty(differing="r2 runs policy 2"))
    assert hold(EvidenceBasis.REACH, Uncertainty(network="the leader is new"))
    assert not hold(EvidenceBasis.OTHER, NO_UNCERTAINTY)
