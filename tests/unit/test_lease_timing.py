"""Times of the Leases: where two bounds meet, the arithmetic does not hold any more."""

import pytest

from aggregator.replicas.membership.lease_timing import TIMES, LeaseTiming
from aggregator.replicas.membership.view import Member, MembershipView, SingleReplica


@pytest.mark.parametrize(
    ("at", "under", "said"),
    [
        (
            {"renew_deadline": 12.0},
            {"renew_deadline": 11.9},
            "renew_deadline must be under lease_duration",
        ),
        ({"list_max_age": 9.0}, {"list_max_age": 8.9}, "list_max_age must be under takeover_wait"),
        (
            {"retry_period": 4.0, "renew_deadline": 11.0},
            {"retry_period": 3.9},
            "retry_period + deadline must be under list_max_age",
        ),
        (
            {"deadline": 3.5, "list_max_age": 8.0},
            {"deadline": 3.4, "list_max_age": 8.0},
            "retry_period + 2 deadlines must be under renew_deadline",
        ),
    ],
)
def test_times_that_meet_are_refused_and_those_just_apart_are_not(
    at: dict[str, float], under: dict[str, float], said: str
) -> None:
    LeaseTiming(**under)
    with pytest.raises(ValueError, match="must be under") as refused:
        LeaseTiming(**at)
    assert str(refused.value) == said


def test_all_times_that_do_not_fit_are_named() -> None:
    with pytest.raises(ValueError, match="must be under") as refused:
        LeaseTiming(renew_deadline=20.0, list_max_age=20.0)
    assert (
        str(refused.value)
        == "renew_deadline must be under lease_duration; list_max_age must be under takeover_wait"
    )


def test_the_takeover_is_two_lists_and_a_lease_duration() -> None:
    assert TIMES.takeover == 24.0
    assert TIMES.scaled(0.5).takeover == 12.0


def test_a_single_replica_owns_all_leads_and_calls_nobody() -> None:
    called: list[None] = []
    alone = SingleReplica(Member("a", address="host:1"))
    alone.on_change(lambda: called.append(None))
    assert (alone.owns("n1"), alone.may_act("n1"), alone.leads()) == (True, True, True)
    assert alone.owner_address("n1") == ""
    view = alone.membership_view
    assert (view.me, dict(view.members), view.settled) == (
        "a",
        {"a": Member("a", address="host:1")},
        True,
    )
    assert (view.frozen, view.among_others, view.differing) == ("", "", "")
    assert SingleReplica().membership_view.me == "here"
    assert called == []


def test_an_address_is_told_among_others_alone() -> None:
    one, two = Member("a", address="host:1"), Member("b", address="host:2")
    assert MembershipView("a", {"a": one}).among_others == ""
    assert MembershipView("a", {"a": one, "b": two}).among_others == "host:1"
    assert MembershipView("c", {"a": one, "b": two}).among_others == ""
    assert MembershipView("c", {"a": one, "b": two}).differing == ""
    assert MembershipView("a", {}).leader is None
    assert MembershipView("a", {}).owner("n1") is None
