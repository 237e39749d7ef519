"""The owner of each node: rendezvous hashing, the leader, and replicas that run something else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggregator.replicas.membership.view import (
    Member,
    MembershipView,
    Ownership,
    SingleReplica,
    rendezvous_score,
)

NODES = [f"gpu-{number:05}" for number in range(3_000)]
NAMES = st.sets(st.text("abcdefgh-0123", min_size=1, max_size=12), min_size=1, max_size=8)


def membership_view(*names: str, me: str = "") -> MembershipView:
    return MembershipView(me=me or names[0], members={name: Member(name=name) for name in names})


def owners(of: MembershipView) -> dict[str, str]:
    found = {}
    for node in NODES:
        owner = of.owner(node)
        assert owner is not None
        found[node] = owner.name
    return found


def test_one_that_leaves_moves_only_its_own_nodes() -> None:
    before, after = (
        owners(membership_view("a", "b", "c", "d")),
        owners(membership_view("a", "b", "d")),
    )
    assert all(after[node] == owner for node, owner in before.items() if owner != "c")
    heirs = {after[node] for node, owner in before.items() if owner == "c"}
    assert heirs == {"a", "b", "d"}, "what it had is spread over all that stay"


def test_one_that_joins_takes_only_what_is_its() -> None:
    before, after = owners(membership_view("a", "b")), owners(membership_view("a", "b", "c"))
    assert {after[node] for node in NODES if after[node] != before[node]} == {"c"}


@pytest.mark.parametrize("replicas", [2, 3, 8])
def test_nodes_are_spread_evenly(replicas: int) -> None:
    names = [f"sickbay-aggregator-{number}" for number in range(replicas)]
    shares = list(owners(membership_view(*names)).values())
    fair = len(NODES) / replicas
    assert all(0.8 * fair < shares.count(name) < 1.2 * fair for name in names)


@given(names=NAMES, node=st.text(max_size=20))
def test_all_who_know_the_same_members_name_the_same_owner(names: set[str], node: str) -> None:
    one = membership_view(*sorted(names)).owner(node)
    other = membership_view(*sorted(names, reverse=True)).owner(node)
    assert one == other
    assert one is not None


@given(names=NAMES, more=NAMES, node=st.text(max_size=20))
def test_an_owner_stays_the_owner_wherever_fewer_are_seen(
    names: set[str], more: set[str], node: str
) -> None:
    """The basis of the safety argument: each node has one order of all replicas."""
    owner = membership_view(*(names | more)).owner(node)
    assert owner is not None
    if owner.name in names:
        assert membership_view(*names).owner(node) == owner


def test_the_weights_stay_what_they_were() -> None:
    """Replicas of two versions run side by side in a roll: they must agree."""
    assert rendezvous_score("sickbay-aggregator-0", "gpu-00001").hex() == "cb49f215cdcdd6ac"


def test_nobody_known_owns_nothing() -> None:
    assert MembershipView(me="a", members={}).owner("gpu-00001") is None
    assert MembershipView(me="a", members={}).leader is None


def test_the_oldest_leads_and_the_name_decides_between_two_of_one_age() -> None:
    members = [Member("c", since=10.0), Member("b", since=10.0), Member("a", since=11.0)]
    leader = MembershipView(me="a", members={member.name: member for member in members}).leader
    assert leader is not None
    assert leader.name == "b"


def test_who_runs_something_else_is_named() -> None:
    members = [
        Member("a", policy_hash="1111", version="0.2.0"),
        Member("b", policy_hash="1111", version="0.2.0"),
        Member("c", policy_hash="2222", version="0.2.0"),
        Member("d", policy_hash="2222", version="0.1.0"),
    ]
    picture = MembershipView(me="a", members={member.name: member for member in members})
    assert picture.differing == (
        "c runs policy 2222 (here 1111); d runs version 0.1.0 (here 0.2.0)"
    )
    assert membership_view("a", "b").differing == ""


def test_a_lease_that_tells_no_version_or_no_policy_is_said_to() -> None:
    members = [
        Member("a", policy_hash="1111", version="0.2.0"),
        Member("b", policy_hash="1111"),
        Member("c", version="0.2.0"),
    ]
    differing = MembershipView(
        me="a", members={member.name: member for member in members}
    ).differing
    assert differing == "b tells no version (here 0.2.0); c tells no policy (here 1111)"
    differing = MembershipView(
        me="b", members={member.name: member for member in members}
    ).differing
    assert differing.startswith("a runs version 0.2.0 (here none); ")


def test_another_mode_and_other_limits_are_named_and_who_does_not_tell_is_not() -> None:
    mine = Member("a", version="1", mode="drain", limits_hash="l1")
    others = [
        Member("b", version="1", mode="observe", limits_hash="l2"),
        Member("c", version="1", mode="drain", limits_hash="l2"),
        Member("d", version="1", mode="drain", limits_hash="l1"),
        Member("e", version="1"),
    ]
    picture = MembershipView(me="a", members={member.name: member for member in (mine, *others)})
    assert picture.differing == (
        "b runs in mode observe (here drain); c has other limits or pools than this one"
    )


def test_alone_everything_is_ours() -> None:
    alone: Ownership = SingleReplica(Member("a", address="here:1"))
    assert alone.owns("gpu-00001")
    assert alone.may_act("gpu-00001")
    assert alone.leads()
    assert alone.owner_address("gpu-00001") == ""
    assert alone.membership_view.settled
    assert alone.membership_view.leader == Member("a", address="here:1")
