"""When an agent connects again: pure, and 10,000 of them in a played failover."""

import heapq
import random
from collections.abc import Sequence
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.uplink.reconnect import (
    BASE,
    CAP,
    FEW,
    LIVING,
    LONGEST,
    REFUSED_CAP,
    RETURN,
    SOON,
    WELL_AFTER,
    ReconnectPolicy,
)
from nodeagent.uplink.stream import GREETING, ConnectTimeouts, Ended
from nodeagent.uplink.uplink import HANDSHAKE_WITHIN

NOBODY = Ended("UNAVAILABLE: connection refused", welcomed=False)
LOST = Ended("UNAVAILABLE: connection reset", welcomed=True)
LATE = Ended("no greeting in 15 s", welcomed=False, late=True)
REFUSED = Ended("UNAUTHENTICATED: bad token", welcomed=False, refused=True)


def longest() -> ReconnectPolicy:
    """A policy whose every wait is as long as it may be."""
    return ReconnectPolicy(lambda: 1.0)


def test_waits_double_up_to_the_cap_and_a_stream_that_was_well_begins_them_anew() -> None:
    policy = longest()
    waits = [policy.after(NOBODY, 0.0) for _ in range(FEW + 2)]
    assert waits[:3] == pytest.approx([BASE, 2 * BASE, 4 * BASE])
    assert waits[3:] == [SOON] * (FEW - 3) + [CAP, CAP]
    assert policy.after(LOST, WELL_AFTER) == RETURN
    assert policy.after(NOBODY, 0.0) == pytest.approx(2 * BASE)


def test_agents_of_a_replica_that_is_restarted_come_within_seconds_of_its_return() -> None:
    rng = random.Random(5)
    for away in (2.0, 4.0, 8.0):
        late, attempts = [], 0
        for _ in range(1000):
            policy = ReconnectPolicy(rng.random)
            at = policy.after(LOST, 1000.0)
            while at < away:
                at += policy.after(NOBODY, 0.0)
                attempts += away - 2.0 < at <= away
            late.append(at - away)
        assert sorted(late)[989] < 3.0
        assert away < 8.0 or attempts < 1100, "half an attempt a second: each resolves the name"


def test_after_a_welcomed_stream_the_wait_is_spread_as_for_all_others_that_it_ended_with() -> None:
    waits = [ReconnectPolicy(lambda n=n: n / 10).after(LOST, 1000.0) for n in range(10)]  # type: ignore[misc]  # a default binds
    assert waits == [pytest.approx(RETURN * n / 10) for n in range(10)]


def test_streams_that_were_welcomed_and_ended_soon_slow_it_down() -> None:
    policy = longest()
    waits = [policy.after(LOST, 1.0) for _ in range(12)]  # as two agents that claim one node
    assert waits == sorted(waits)
    assert (waits[0], waits[-1]) == (RETURN, CAP)
    assert CAP < WELL_AFTER, "or each would pass for well before the other comes back"


def test_patience_that_was_in_vain_twice_grows_until_somebody_has_greeted() -> None:
    policy = longest()
    seen = []
    for _ in range(8):
        seen.append((policy.patience.life, policy.patience.greeting))
        policy.after(LATE, 15.0)
    assert seen[:4] == [(15, 60), (15, 120), (30, 240), (60, 480)]
    assert seen[-1] == (LONGEST, LONGEST)
    policy.after(NOBODY, 0.0)
    assert policy.patience.life == LONGEST, "who is refused has learnt nothing of how long it takes"
    policy.after(LOST, 1.0)
    assert policy.patience == ConnectTimeouts(GREETING, LIVING)


def test_who_is_refused_comes_back_less_and_less_often_but_comes_back() -> None:
    policy = longest()
    waits = [policy.after(REFUSED, 0.0) for _ in range(40)]
    assert waits[0] == BASE
    assert waits == sorted(waits)
    assert waits[-1] == REFUSED_CAP


outcomes = st.builds(
    Ended,
    st.just("why"),
    welcomed=st.booleans(),
    refused=st.booleans(),
    late=st.booleans(),
)


@given(st.lists(st.tuples(outcomes, st.sampled_from([0.0, 1.0, 100.0])), max_size=60))
def test_whatever_happens_it_never_storms_and_never_gives_up(
    happened: Sequence[tuple[Ended, float]],
) -> None:
    policy = longest()
    for ended, lived in happened:
        assert BASE <= policy.after(ended, lived) <= REFUSED_CAP
        assert GREETING <= policy.patience.life <= policy.patience.greeting <= LONGEST


#: The seconds that a replica takes for one agent: a handshake, Hello, an answer.
SERVED = 0.001
#: An agent leaves a stopped replica when a heartbeat was not answered for so long, and then no
#: connection was accepted for HANDSHAKE_WITHIN.
ANSWER_WITHIN = 12.0
HEARTBEAT = 10.0
#: gRPC takes the next address of a name when one has not answered in this time.
NEXT_ADDRESS = 0.25


@pytest.mark.parametrize("stopped", [False, True], ids=["died", "was stopped"])
def test_10_000_agents_are_attached_again_30_s_after_one_of_three(*, stopped: bool) -> None:
    """A queue at each remaining replica, in virtual time; the arithmetic is in reconnect.py."""
    rng = random.Random(7)
    orphans = 10_000 // 3
    numbers = count()
    queue: list[tuple[float, int, ReconnectPolicy]] = []
    for _ in range(orphans):
        policy = ReconnectPolicy(rng.random)
        left = ANSWER_WITHIN + HEARTBEAT * rng.random() + HANDSHAKE_WITHIN if stopped else 0.0
        heapq.heappush(queue, (left + policy.after(LOST, 1000.0), next(numbers), policy))
    free_at = {1: 0.0, 2: 0.0}
    longest_queue, attempts, attached = 0.0, 0, []
    while queue:
        now, _, policy = heapq.heappop(queue)
        attempts += 1
        replica = rng.choice([0, 1, 2])
        if replica == 0:  # the name still has its address, and gRPC goes on to the next one
            now += NEXT_ADDRESS if stopped else 0.0
            replica = rng.choice([1, 2])
        done = free_at[replica] = max(now, free_at[replica]) + SERVED
        longest_queue = max(longest_queue, done - now)
        if done - now > policy.patience.life:
            again = now + policy.patience.life
            heapq.heappush(queue, (again + policy.after(LATE, 0.0), next(numbers), policy))
        else:
            attached.append(done)
    assert len(attached) == orphans
    assert max(attached) < 30.0
    assert longest_queue < 5.0, "nobody may wait longer than he is patient"
    assert attempts < 2 * orphans
