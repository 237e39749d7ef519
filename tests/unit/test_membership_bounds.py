"""The last moment and the first moment of each time that membership goes by."""

import pytest

from aggregator.replicas.membership.lease_store import Lease
from aggregator.replicas.membership.lease_timing import TIMES, LeaseTiming
from aggregator.replicas.membership.membership import (
    LAPSED,
    LEFT,
    STALE,
    STARTING,
    Draft,
    Membership,
)
from aggregator.replicas.membership.view import Member, MembershipView

ME, OTHER = Member("a", epoch="a1"), Member("b", epoch="b1", since=50.0)
BEGAN = 100.0


def joined(*others: Lease, asked: float = BEGAN) -> Membership:
    """Listed and written at `BEGAN`, and listed again when ``asked``."""
    found = Membership(ME, TIMES)
    found.listed(others, asked=BEGAN, answered=BEGAN)
    wrote(found, BEGAN)
    found.listed([*others, Lease(ME, "1", leaving=False)], asked=asked, answered=asked)
    return found


def wrote(found: Membership, at: float, *, answered: float | None = None) -> None:
    found.wrote(
        Lease(ME, "1", leaving=False), sent=at, answered=at if answered is None else answered
    )


def lease(version: str = "1", *, leaving: bool = False) -> Lease:
    return Lease(OTHER, version, leaving)


def members(found: Membership, now: float) -> set[str]:
    return set(found.membership_view(now).members)


def test_the_times_are_those_of_the_documentation() -> None:
    assert LeaseTiming() == LeaseTiming(3.0, 3.0, 1.0, 7.0, 10.0, 12.0, 9.0)
    assert TIMES.takeover == 24.0


@pytest.mark.parametrize(
    ("listed", "renewed", "reason"),
    [
        (0.0, 0.0, ""),
        (TIMES.list_max_age, 0.0, ""),
        (TIMES.list_max_age + 0.1, 0.0, STALE),
        (0.0, TIMES.renew_deadline - 0.1, ""),
        (0.0, TIMES.renew_deadline, LAPSED),
        (TIMES.list_max_age + 0.1, TIMES.renew_deadline, STALE),
    ],
)
def test_a_list_is_fresh_and_a_renewal_certain_for_so_long(
    listed: float, renewed: float, reason: str
) -> None:
    now = BEGAN + 50.0
    found = joined()
    wrote(found, now - renewed, answered=BEGAN + 1.0)
    found.listed([Lease(ME, "1", leaving=False)], asked=now - listed, answered=now)
    assert found.membership_view(now).frozen == reason
    assert found.certain(now) == (not reason)


def test_before_it_has_joined_it_is_starting() -> None:
    found = Membership(ME, TIMES)
    assert found.membership_view(BEGAN) == MembershipView("a", {}, frozen=STARTING)
    assert found.next_write(now=BEGAN, wall=5.0) is None
    found.listed([], asked=BEGAN, answered=BEGAN)
    assert found.membership_view(BEGAN).frozen == STARTING
    draft = found.next_write(now=BEGAN, wall=5.0)
    assert draft == Draft(Member("a", epoch="a1", since=5.0), "", leaving=False)


def test_alone_it_is_settled_at_once_and_among_others_after_its_wait() -> None:
    assert joined().membership_view(BEGAN).settled
    among = joined(lease())
    assert not among.membership_view(BEGAN + TIMES.takeover_wait - 0.1).settled
    assert among.membership_view(BEGAN + TIMES.takeover_wait).settled
    assert members(among, BEGAN) == {"a", "b"}


@pytest.mark.parametrize(
    ("after", "alive"), [(TIMES.lease_duration - 0.1, True), (TIMES.lease_duration, False)]
)
def test_a_lease_that_is_not_renewed_expires_at_its_time(after: float, *, alive: bool) -> None:
    found = joined(lease())
    for passed in (3.0, 6.0, 9.0, after):
        wrote(found, BEGAN + passed)
        found.listed([lease()], asked=BEGAN + passed, answered=BEGAN + passed)
    assert ("b" in members(found, BEGAN + after)) == alive


def test_a_renewal_is_the_first_moment_of_its_next_time() -> None:
    found = joined(lease())
    for passed in (3.0, 6.0, 9.0):
        wrote(found, BEGAN + passed)
        found.listed([lease("2")], asked=BEGAN + passed, answered=BEGAN + passed + 0.5)
    for passed in (12.0, 15.4):
        wrote(found, BEGAN + passed)
        found.listed([lease("2")], asked=BEGAN + passed, answered=BEGAN + passed)
    assert "b" in members(found, BEGAN + 15.4)
    wrote(found, BEGAN + 15.5)
    found.listed([lease("2")], asked=BEGAN + 15.5, answered=BEGAN + 15.5)
    assert "b" not in members(found, BEGAN + 15.5)


def test_while_we_cannot_write_no_lease_expires() -> None:
    found = joined(lease())
    for passed in range(1, 30):
        found.listed([lease()], asked=BEGAN + passed, answered=BEGAN + passed)
    assert "b" in members(found, BEGAN + 30)


def test_a_gap_in_the_lists_begins_each_time_anew() -> None:
    for gap, alive in ((TIMES.list_max_age, False), (TIMES.list_max_age + 0.1, True)):
        found, now = joined(lease()), BEGAN
        for passed in (gap, 3.0, 3.0):
            now += passed
            wrote(found, now)
            found.listed([lease()], asked=now, answered=now)
        assert ("b" in members(found, now)) == alive


def test_a_renewal_that_is_late_joins_again() -> None:
    for after, term in ((TIMES.renew_deadline - 0.1, 1), (TIMES.renew_deadline, 2)):
        found = joined()
        wrote(found, BEGAN + 1.0, answered=BEGAN + after)
        assert found.membership_view(BEGAN + after).term == term


def test_who_leaves_writes_it_once_and_only_after_it_has_joined() -> None:
    new = Membership(ME, TIMES)
    new.listed([], asked=BEGAN, answered=BEGAN)
    new.leave()
    assert new.next_write(now=BEGAN, wall=0.0) is None
    found = joined(lease())
    found.leave()
    draft = found.next_write(now=BEGAN, wall=0.0)
    assert draft is not None
    assert (draft.leaving, draft.version) == (True, "1")
    assert found.membership_view(BEGAN).frozen == LEFT
    assert members(found, BEGAN) == {"b"}
    found.wrote(Lease(ME, "2", leaving=True), sent=BEGAN, answered=BEGAN)
    assert found.next_write(now=BEGAN, wall=0.0) is None


def test_a_newcomer_is_younger_than_all_that_live() -> None:
    found = Membership(ME, TIMES)
    found.listed([lease()], asked=BEGAN, answered=BEGAN)
    for wall, since in ((0.0, 51.0), (51.0, 51.0), (60.0, 60.0)):
        draft = found.next_write(now=BEGAN, wall=wall)
        assert draft is not None
        assert draft.member.since == since
    left = Membership(ME, TIMES)
    left.listed([lease(leaving=True)], asked=BEGAN, answered=BEGAN)
    draft = left.next_write(now=BEGAN, wall=3.0)
    assert draft is not None
    assert draft.member.since == 3.0
    # A renewal keeps its time.
    kept = joined(lease()).next_write(now=BEGAN, wall=900.0)
    assert kept is not None
    assert kept.member.since == 0.0


def test_a_lease_that_is_missing_is_created() -> None:
    found = joined()
    found.missing()
    draft = found.next_write(now=BEGAN, wall=0.0)
    assert draft is not None
    assert draft.version == ""
