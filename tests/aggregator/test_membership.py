"""Observed Leases become the membership view: expiry, freezing, newcomers, namesakes. Pure."""

from dataclasses import replace

import pytest

from aggregator.replicas.membership.lease_store import Lease
from aggregator.replicas.membership.lease_timing import TIMES, LeaseTiming
from aggregator.replicas.membership.membership import (
    LAPSED,
    LEFT,
    STALE,
    STARTING,
    SUPERSEDED,
    Membership,
)
from aggregator.replicas.membership.view import Member

ME = Member("a", epoch="a1")


class Story:
    """One replica on a clock that the test turns; the others' Leases are the test's own."""

    def __init__(self, *others: Lease, now: float = 500.0, wall: float = 1e9) -> None:
        self.now = now
        self.wall = wall
        self.others = {lease.member.name: lease for lease in others}
        self.mine: Lease | None = None
        self.version = 0
        self.is_ours = Membership(ME, TIMES)

    def list_leases(self) -> None:
        leases = list(self.others.values()) + ([self.mine] if self.mine else [])
        self.is_ours.listed(leases, asked=self.now, answered=self.now)

    def renew(self, *, took: float = 0.0) -> None:
        draft = self.is_ours.next_write(now=self.now, wall=self.wall)
        assert draft is not None
        assert draft.version == (self.mine.version if self.mine else "")
        self.version += 1
        self.mine = Lease(draft.member, f"m{self.version}", draft.leaving)
        self.is_ours.wrote(self.mine, sent=self.now, answered=self.now + took)
        self.now += took

    def begin(self) -> "Story":
        self.list_leases()
        self.renew()
        self.list_leases()
        return self

    def live(self, seconds: float, *renewed: str, renew: bool = True) -> None:
        """Ticks go by; those named renew their Leases, as we do."""
        end = self.now + seconds
        while self.now < end:
            self.now += TIMES.retry_period
            for name in renewed:
                self.other_writes(name)
            if renew:
                self.renew()
            self.list_leases()

    def other_writes(self, name: str) -> None:
        self.version += 1
        self.others[name] = replace(self.others[name], version=f"o{self.version}")

    @property
    def members(self) -> set[str]:
        return set(self.is_ours.membership_view(self.now).members)

    def acts(self) -> bool:
        return self.is_ours.certain(self.now)


def lease(name: str, *, since: float = 0.0, leaving: bool = False, epoch: str = "1") -> Lease:
    return Lease(Member(name, epoch=epoch, since=since), "0", leaving)


# -- joining ------------------------------------------------------------------------


def test_it_lists_before_it_writes() -> None:
    story = Story(lease("b"))
    assert story.is_ours.next_write(now=story.now, wall=0.0) is None
    assert story.is_ours.membership_view(story.now).frozen == STARTING
    assert not story.acts()


def test_a_newcomer_among_others_waits() -> None:
    story = Story(lease("b")).begin()
    assert story.members == {"a", "b"}
    while story.now < 500 + TIMES.takeover_wait:
        assert not story.acts()
        assert not story.is_ours.membership_view(story.now).settled
        story.live(TIMES.retry_period, "b")
    assert story.acts()
    assert story.is_ours.membership_view(story.now).settled


@pytest.mark.parametrize("others", [[], [lease("b", leaving=True)]])
def test_where_nobody_is_there_nobody_is_waited_for(others: list[Lease]) -> None:
    assert Story(*others).begin().acts()


def test_one_who_came_after_our_first_list_is_waited_for() -> None:
    story = Story()
    story.list_leases()
    story.others["b"] = lease("b")  # between that list and our write
    story.renew()
    assert not story.acts(), "nobody has looked since we joined"
    story.list_leases()
    assert not story.acts()


def test_our_own_dead_predecessor_is_not_waited_for() -> None:
    story = Story()
    story.mine = Lease(replace(ME, epoch="a0", since=5.0), "m0")
    story.begin()
    assert story.acts()
    assert story.mine.member.epoch == "a1"


def test_who_joins_is_the_youngest_whatever_its_wall_clock_says() -> None:
    story = Story(lease("b", since=2e9), wall=1e9).begin()
    leader = story.is_ours.membership_view(story.now).leader
    assert leader is not None
    assert leader.name == "b"


# -- expiry -------------------------------------------------------------------------


def test_a_lease_that_stands_still_expires_and_not_before_its_time() -> None:
    story = Story(lease("b"), lease("c")).begin()
    story.live(30, "b", "c")
    last = story.now
    while "b" in story.members:
        assert story.now - last < TIMES.lease_duration + TIMES.retry_period
        story.live(TIMES.retry_period, "c")
    assert story.now - last >= TIMES.lease_duration
    assert story.members == {"a", "c"}


def test_what_was_already_there_at_the_first_list_may_be_alive_and_gets_its_time() -> None:
    story = Story(lease("b")).begin()
    story.live(TIMES.lease_duration - TIMES.retry_period)
    assert "b" in story.members
    story.live(2 * TIMES.retry_period)
    assert "b" not in story.members


def test_one_who_comes_back_is_a_member_again() -> None:
    story = Story(lease("b")).begin()
    story.live(30)
    assert story.members == {"a"}
    story.other_writes("b")
    story.live(TIMES.retry_period)
    assert story.members == {"a", "b"}


def test_one_who_leaves_in_order_is_gone_at_the_next_look() -> None:
    story = Story(lease("b")).begin()
    story.live(30, "b")
    story.others["b"] = replace(story.others["b"], version="bye", leaving=True)
    story.list_leases()
    assert story.members == {"a"}
    assert story.acts()


def test_a_lease_deleted_by_hand_stands_still_and_moves_no_node_if_its_holder_lives() -> None:
    story = Story(lease("b")).begin()
    story.live(30, "b")
    kept = story.others.pop("b")
    story.live(TIMES.retry_period)
    assert story.members == {"a", "b"}
    story.others["b"] = kept
    story.live(30, "b")
    assert story.members == {"a", "b"}
    del story.others["b"]
    story.live(TIMES.lease_duration + 2 * TIMES.retry_period)
    assert story.members == {"a"}


def test_a_gap_in_the_view_says_nothing_against_anyone() -> None:
    story = Story(lease("b")).begin()
    story.live(30, "b")
    story.now += 60  # the API server was away, or we were paused
    story.list_leases()
    story.renew()
    story.list_leases()
    assert "b" in story.members
    story.live(TIMES.lease_duration - 2 * TIMES.retry_period)
    assert "b" in story.members, "its time begins when the view is whole again"
    story.live(3 * TIMES.retry_period)
    assert "b" not in story.members


def test_where_we_can_not_write_that_others_stand_still_says_nothing() -> None:
    """The server lists and refuses all writes, as etcd does when its disk is full."""
    story = Story(lease("b")).begin()
    story.live(30, "b")
    story.live(60, renew=False)
    assert story.members == {"a", "b"}
    assert story.is_ours.membership_view(story.now).frozen == LAPSED
    story.renew()  # it takes writes again, ours first
    story.list_leases()
    assert "b" in story.members


def test_nor_does_a_gap_in_the_lists_alone() -> None:
    story = Story(lease("b")).begin()
    story.live(30, "b")
    for _ in range(4):
        story.now += TIMES.retry_period
        story.renew()
    story.list_leases()
    assert "b" in story.members
    story.live(TIMES.lease_duration - 2 * TIMES.retry_period)
    assert "b" in story.members


def test_a_list_asked_for_before_we_had_joined_does_not_show_that_we_are_alone() -> None:
    story = Story()
    story.list_leases()
    asked = story.now
    story.renew(took=1.0)
    story.is_ours.listed([], asked=asked, answered=story.now)
    assert not story.acts()
    story.list_leases()
    assert story.acts()


# -- whether we may act -------------------------------------------------------------


def test_who_can_not_renew_stops_before_anybody_may_take_over() -> None:
    story = Story().begin()
    sent = story.now
    story.now += TIMES.renew_deadline - 0.5
    story.list_leases()
    assert story.acts()
    story.now = sent + TIMES.renew_deadline
    story.list_leases()
    assert not story.acts()
    assert story.is_ours.membership_view(story.now).frozen == LAPSED
    assert TIMES.renew_deadline < TIMES.lease_duration


def test_it_counts_from_when_the_renewal_was_sent() -> None:
    story = Story()
    story.list_leases()
    story.renew(took=2.5)
    story.list_leases()
    assert story.acts()
    story.now += TIMES.renew_deadline - 2.5
    story.list_leases()
    assert not story.acts()


def test_who_can_not_list_stops_before_a_newcomer_begins() -> None:
    story = Story().begin()
    asked = story.now
    story.now = asked + TIMES.list_max_age
    story.renew()
    assert story.acts()
    story.now += 0.1
    assert not story.acts()
    assert story.is_ours.membership_view(story.now).frozen == STALE
    assert story.members == {"a"}, "frozen as it was"
    assert TIMES.list_max_age < TIMES.takeover_wait


def test_a_lapse_with_others_about_is_followed_by_the_newcomers_wait() -> None:
    story = Story(lease("b")).begin()
    story.live(30, "b")
    eldest = story.is_ours.membership_view(story.now).leader
    assert eldest is not None
    story.now += 40
    story.renew()
    story.list_leases()
    assert not story.is_ours.membership_view(story.now).frozen
    assert not story.acts(), "b may have taken over"
    story.live(TIMES.takeover_wait + TIMES.retry_period, "b")
    assert story.acts()
    leader = story.is_ours.membership_view(story.now).leader
    assert leader is not None
    assert leader.name == "b", "b led meanwhile, and goes on"


def test_a_lapse_alone_ends_with_the_next_renewal() -> None:
    story = Story().begin()
    story.now += 60
    assert not story.acts()
    story.renew()
    story.list_leases()
    assert story.acts()


def test_a_late_answer_is_a_lapse_too() -> None:
    story = Story(lease("b")).begin()
    story.live(30, "b")
    story.renew(took=TIMES.renew_deadline + 1)  # paused between the two
    story.list_leases()
    story.renew()
    assert not story.acts()


def test_our_lease_deleted_by_hand_is_made_anew_and_nothing_stops_if_it_was_soon() -> None:
    story = Story(lease("b")).begin()
    story.live(30, "b")
    since = story.is_ours.membership_view(story.now).members["a"].since
    story.mine = None
    story.is_ours.missing()
    story.now += TIMES.retry_period
    story.renew()
    story.list_leases()
    assert story.acts()
    assert story.is_ours.membership_view(story.now).members["a"].since == since


# -- namesakes, and leaving ---------------------------------------------------------


def test_another_process_under_our_name_has_it_and_we_stop() -> None:
    story = Story(lease("b")).begin()
    story.live(30, "b")
    assert story.mine is not None
    story.mine = Lease(replace(ME, epoch="a2"), "stranger")
    story.list_leases()
    assert not story.acts()
    assert story.is_ours.membership_view(story.now).frozen == SUPERSEDED
    assert story.is_ours.next_write(now=story.now, wall=0.0) is None, "they don't wrestle for it"


def test_once_the_namesake_is_gone_we_join_again_and_wait() -> None:
    story = Story(lease("b")).begin()
    story.live(30, "b")
    story.mine = Lease(replace(ME, epoch="a2"), "stranger")
    story.list_leases()
    story.live(TIMES.lease_duration + TIMES.retry_period, "b", renew=False)
    assert story.is_ours.membership_view(story.now).frozen == SUPERSEDED
    story.renew()
    story.list_leases()
    assert not story.is_ours.membership_view(story.now).frozen
    assert not story.acts()
    story.live(TIMES.takeover_wait + TIMES.retry_period, "b")
    assert story.acts()


def test_who_leaves_acts_no_more_and_is_no_member() -> None:
    story = Story(lease("b")).begin()
    story.live(30, "b")
    story.is_ours.leave()
    assert not story.acts()
    assert story.is_ours.membership_view(story.now).frozen == LEFT
    assert story.members == {"b"}
    story.renew()
    assert story.mine is not None
    assert story.mine.leaving
    assert story.is_ours.next_write(now=story.now, wall=0.0) is None


def test_an_answer_to_an_older_list_is_not_believed() -> None:
    story = Story(lease("b")).begin()
    story.is_ours.listed([], asked=story.now - 1.0, answered=story.now + 1.0)
    assert story.members == {"a", "b"}
    story.now += TIMES.retry_period
    story.renew()  # at the version that we wrote, not as "missing"


def test_an_older_list_takes_neither_our_lease_nor_another_s() -> None:
    """A list may be overtaken by a later one: it shows an earlier state."""
    story = Story(lease("b")).begin()
    newer = story.now
    mine = story.mine
    assert mine is not None
    story.is_ours.listed(
        [Lease(replace(mine.member, epoch="another"), "stolen"), lease("c")],
        asked=newer - 1.0,
        answered=newer + 1.0,
    )
    assert story.members == {"a", "b"}
    draft = story.is_ours.next_write(now=story.now, wall=0.0)
    assert draft is not None
    assert draft.version == mine.version
    assert not story.is_ours.membership_view(story.now).frozen
    # The same list, asked for now, is believed: the name is another's.
    story.is_ours.listed(
        [Lease(replace(mine.member, epoch="another"), "stolen"), lease("b"), lease("c")],
        asked=newer + 2.0,
        answered=newer + 2.0,
    )
    assert story.members >= {"b", "c"}
    assert story.is_ours.membership_view(newer + 2.0).frozen


# -- the times ----------------------------------------------------------------------


def test_the_times_fit_into_thirty_seconds() -> None:
    assert TIMES.takeover <= 24
    joining = 2 * TIMES.deadline + TIMES.takeover_wait
    assert joining <= 15


@pytest.mark.parametrize(
    "wrong",
    [
        {"renew_deadline": 12.0},
        {"takeover_wait": 7.0},
        {"list_max_age": 6.0},
        {"deadline": 4.0, "list_max_age": 8.0},
    ],
)
def test_times_that_would_let_two_act_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must be under"):
        replace(TIMES, **wrong)


def test_scaled_times_keep_their_proportions() -> None:
    assert LeaseTiming().scaled(0.5).lease_duration == 6.0


def test_a_lease_stands_still_by_its_version_whatever_else_it_seems_to_say() -> None:
    """A number that is none (nan), in an annotation, never equals itself."""
    story = Story(lease("b")).begin()
    until = story.now + TIMES.lease_duration + 3 * TIMES.retry_period
    while story.now < until:
        stands = story.others["b"]
        story.others["b"] = replace(stands, member=replace(stands.member, since=float("nan")))
        story.live(TIMES.retry_period)
    assert story.members == {"a"}
