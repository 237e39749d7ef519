"""Shares of a fleet-wide limit: they add up to the whole, and no replica is left with none."""

from typing import Any

import pytest

from aggregator.quarantine.drain.semaphore import fair_retry_share, fair_share


class View:
    """A membership view, as far as a share needs it."""

    def __init__(self, me: str, *members: str) -> None:
        self.me = me
        self.members = dict.fromkeys(members)


def share(whole: int, me: str, *members: str) -> int:
    view: Any = View(me, *members)
    return fair_share(whole, view)


@pytest.mark.parametrize("whole", [3, 10, 11, 12, 100])
def test_the_members_shares_add_up_to_the_whole(whole: int) -> None:
    members = ("a", "b", "c")
    shares = [share(whole, me, *members) for me in members]
    assert sum(shares) == whole
    assert max(shares) - min(shares) <= 1
    assert shares == sorted(shares, reverse=True)


def test_a_replica_always_has_a_share_of_one() -> None:
    assert [share(1, me, "a", "b", "c") for me in ("a", "b", "c")] == [1, 1, 1]
    assert share(2, "d", "a", "b", "c") == 1
    assert share(0, "d") == 1


def test_a_replica_that_is_no_member_yet_takes_the_part_of_one_more() -> None:
    assert share(40, "d", "a", "b", "c") == 10
    assert share(40, "a") == 40


@pytest.mark.parametrize(("whole", "retries"), [(1, 1), (4, 1), (5, 1), (10, 2), (50, 10)])
def test_retries_have_a_fifth_and_at_least_one(whole: int, retries: int) -> None:
    view: Any = View("a", "a")
    assert fair_retry_share(whole, view) == retries
