"""Where an agent goes next and when: pure, and 10,000 of them in a played failover."""

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
    FUTILE,
    HASTY,
    HOPS,
    LIVING,
    LONGEST,
    REFUSED_CAP,
    RETURN,
    RETURN_WITHIN,
    SILENT_WITHIN,
    WELL_AFTER,
    ReconnectPolicy,
)
from nodeagent.uplink.stream import GREETING, ConnectTimeouts, Ended

NAME, A, B = "aggregator:8443", "aggregator-0.aggregator:8443", "aggregator-1.aggregator:8443"

NOBODY = Ended("UNAVAILABLE: connection refused", welcomed=False)
LOST = Ended("UNAVAILABLE: connection reset", welcomed=True)
LATE = Ended("no greeting in 15 s", welcomed=False, late=True)
SILENT = Ended("a heartbeat was not answered within 12 s", welcomed=True, silent=True)
REFUSED = Ended("UNAUTHENTICATED: bad token", welcomed=False, refused=True)


def sent(to: str, *, welcomed: bool = False) -> Ended:
    return Ended(f"redirected to {to}", welcomed=welcomed, redirect=to)


def longest(configured: str = NAME) -> ReconnectPolicy:
    """A route whose every wait is as long as it may be."""
    return ReconnectPolicy(configured, lambda: 1.0)


def at_home() -> ReconnectPolicy:
    """An agent that the name sent to A, and that A has had for long."""
    route = longest()
    assert route.after(sent(A), 0.1) == 0
    assert (route.address, route.sent_by) == (A, NAME)
    return route


def test_a_redirect_is_followed_at_once() -> None:
    route = longest()
    assert route.after(sent(A), 0.0) == 0.0
    assert (route.address, route.sent_by) == (A, NAME)
    assert route.after(sent(B, welcomed=True), 1000.0) == 0.0
    assert (route.address, route.sent_by) == (B, A)


def test_after_a_stream_that_was_well_it_goes_back_there_once_and_then_to_the_name() -> None:
    route = at_home()
    assert route.patience == ConnectTimeouts(GREETING, LIVING)
    assert route.after(LOST, 1000.0) == RETURN
    assert (route.address, route.sent_by) == (A, NAME), "and who had sent it there is still told"
    assert route.patience == ConnectTimeouts(RETURN_WITHIN, LIVING), (
        "who lives there may take his time"
    )
    assert route.after(NOBODY, 0.0) <= RETURN
    assert (route.address, route.sent_by) == (NAME, "")
    assert route.patience == ConnectTimeouts(GREETING, LIVING)
    route.after(NOBODY, 0.0)
    assert route.address == NAME, "it is forgotten"


def test_it_goes_back_again_each_time_that_it_was_welcomed_there_but_slows_down() -> None:
    route = at_home()
    waits = []
    for _ in range(12):
        waits.append(route.after(LOST, 1.0))  # as two agents that claim one node have it
        assert route.address == A
    assert waits == sorted(waits)
    assert waits[-1] == CAP
    assert CAP < WELL_AFTER, "or each would pass for well before the other comes back"


def test_a_shard_that_sends_it_away_is_not_gone_back_to() -> None:
    route = at_home()
    route.after(sent(B, welcomed=True), 1000.0)
    route.after(NOBODY, 0.0)
    assert route.address == NAME
    route.after(sent(B), 0.0)
    route.after(LOST, 1000.0)
    assert route.address == B


def test_a_shard_that_sends_it_away_when_it_comes_back_is_obeyed() -> None:
    route = at_home()
    route.after(LOST, 1000.0)
    assert route.after(sent(B), 0.0) == 0.0
    assert (route.address, route.sent_by) == (B, A)


def test_what_was_welcomed_by_the_name_itself_goes_to_the_name() -> None:
    route = longest()
    assert route.after(LOST, 1000.0) == RETURN, "as all others did that it had"
    assert route.address == NAME
    assert route.patience == ConnectTimeouts(GREETING, LIVING), "there is nowhere else to go"


def test_patience_that_was_in_vain_twice_grows_until_somebody_has_greeted() -> None:
    route = longest()
    seen = []
    for _ in range(8):
        seen.append((route.patience.life, route.patience.greeting))
        route.after(LATE, 15.0)
    assert seen[:4] == [(15, 60), (15, 120), (30, 240), (60, 480)]
    assert seen[-1] == (LONGEST, LONGEST)
    route.after(NOBODY, 0.0)
    assert route.patience.life == LONGEST, "who is refused has learnt nothing of how long it takes"
    route.after(LOST, 1.0)
    assert route.patience == ConnectTimeouts(GREETING, LIVING)


def test_a_shard_that_is_gone_back_to_in_vain_says_nothing_of_the_others() -> None:
    route = at_home()
    route.after(LOST, 1000.0)
    route.after(LATE, RETURN_WITHIN)
    assert (route.address, route.patience) == (NAME, ConnectTimeouts(GREETING, LIVING))


def test_who_is_sent_to_nobody_does_not_ask_again_at_once() -> None:
    route = longest()
    route.after(sent(A), 0.0)
    wait = route.after(NOBODY, 0.0)
    assert (route.address, wait) == (NAME, BASE * 2**FUTILE)
    route.after(sent(A), 0.0)
    assert route.after(NOBODY, 0.0) == CAP


def test_and_even_the_luckiest_of_those_waits_half_of_that() -> None:
    route = ReconnectPolicy(NAME, lambda: 0.0)
    for longest_wait in (BASE * 2**FUTILE, CAP, CAP):
        route.after(sent(A), 0.0)
        assert route.after(NOBODY, 0.0) == longest_wait / 2


def test_a_shard_that_fell_silent_is_not_gone_back_to_and_is_not_waited_for_twice() -> None:
    route = at_home()
    assert route.after(SILENT, 1000.0) < RETURN
    assert (route.address, route.sent_by, route.patience) == (
        NAME,
        "",
        ConnectTimeouts(GREETING, LIVING),
    )
    for _ in range(HASTY):
        route.after(sent(A), 0.1)
        assert route.patience.life == SILENT_WITHIN, (
            "the others may not know yet, and its kernel listens"
        )
        assert route.after(NOBODY, SILENT_WITHIN) >= BASE * 2**FUTILE
        assert route.address == NAME
    route.after(sent(A), 0.1)
    assert route.patience.life == GREETING, "perhaps it is only slow"


def test_whoever_welcomes_it_after_a_silence_ends_its_haste() -> None:
    route = at_home()
    route.after(SILENT, 1000.0)
    route.after(sent(B), 0.1)
    route.after(sent(A, welcomed=True), 1000.0)
    assert (route.address, route.patience.life) == (A, GREETING)


def test_who_is_refused_comes_back_less_and_less_often_but_comes_back() -> None:
    route = longest()
    waits = [route.after(REFUSED, 0.0) for _ in range(40)]
    assert waits[0] == BASE
    assert waits == sorted(waits)
    assert waits[-1] == REFUSED_CAP


def test_a_circle_is_told_with_its_way_and_left() -> None:
    route = longest()
    for hop in range(HOPS):
        assert route.after(sent(A if hop % 2 == 0 else B), 0.0) == 0.0
    assert not route.circle
    wait = route.after(sent(A), 0.0)
    assert route.circle == f"{NAME} -> {A} -> {B} -> {A} -> {B} -> {A}"
    assert (route.address, route.sent_by, wait) == (NAME, "", BASE * 2**FUTILE)
    route.after(NOBODY, 0.0)
    assert not route.circle


def test_redirects_with_long_stays_in_between_are_no_circle() -> None:
    route = longest()
    for hop in range(50):
        assert route.after(sent(A if hop % 2 == 0 else B, welcomed=True), WELL_AFTER) == 0.0
        assert not route.circle


outcomes = st.builds(
    Ended,
    st.just("why"),
    welcomed=st.booleans(),
    redirect=st.sampled_from(["", "", NAME, A, B]),
    refused=st.booleans(),
    silent=st.booleans(),
)


@given(st.lists(st.tuples(outcomes, st.sampled_from([0.0, 1.0, 100.0])), max_size=60))
def test_whatever_happens_it_never_storms_and_the_name_is_tried_again(
    happened: Sequence[tuple[Ended, float]],
) -> None:
    route = longest()
    without_a_pause = 0
    for ended, lived in happened:
        wait = route.after(ended, lived)
        assert 0.0 <= wait <= max(CAP, REFUSED_CAP)
        at_once = wait == 0.0 and not (ended.welcomed and lived >= WELL_AFTER)
        without_a_pause = without_a_pause + 1 if at_once else 0
        assert without_a_pause <= HOPS
    for _ in range(2):
        route.after(NOBODY, 0.0)
    assert route.address == NAME


#: Seconds until the two replicas that are left know that the third is dead, and the seconds that a
#: replica takes for one agent: a handshake, Hello, an answer.
LEARNT = 18.0
SERVED = 0.001


#: An agent leaves a stopped replica when a heartbeat was not answered for so long, and then no
#: connection was accepted for SILENT_WITHIN.
ANSWER_WITHIN = 12.0
HEARTBEAT = 10.0


@pytest.mark.parametrize("stopped", [False, True], ids=["died", "was stopped"])
def test_10_000_agents_are_attached_again_30_s_after_one_of_three(*, stopped: bool) -> None:
    """A queue at each remaining replica, in virtual time; the arithmetic is in reconnect.py."""
    rng = random.Random(7)
    orphans = 10_000 // 3
    routes = [longest() for _ in range(orphans)]
    heirs = [rng.choice([1, 2]) for _ in range(orphans)]
    numbers = count()
    queue: list[tuple[float, int, int]] = []
    for orphan, route in enumerate(routes):
        route._random = rng.random
        route.after(sent("0"), 0.0)
        left = ANSWER_WITHIN + HEARTBEAT * rng.random() + SILENT_WITHIN if stopped else 0.0
        wait = route.after(SILENT if stopped else LOST, 1000.0)
        heapq.heappush(queue, (left + wait, next(numbers), orphan))
    free_at = {1: 0.0, 2: 0.0}
    longest_queue, questions, attached = 0.0, 0, []
    while queue:
        now, _, orphan = heapq.heappop(queue)
        route = routes[orphan]
        if route.address == "0":
            ended, done = NOBODY, now + (route.patience.life if stopped else 0.001)
        else:
            replica = rng.choice([1, 2]) if route.address == NAME else int(route.address)
            done = free_at[replica] = max(now, free_at[replica]) + SERVED
            questions += 1
            longest_queue = max(longest_queue, done - now)
            belongs = heirs[orphan] if now >= LEARNT else 0
            if replica == belongs:
                attached.append(done)
                continue
            ended = sent(str(belongs))
        heapq.heappush(queue, (done + route.after(ended, 0.0), next(numbers), orphan))
    assert len(attached) == orphans
    assert max(attached) < 30.0
    assert longest_queue < 5.0, "nobody may wait longer than he is patient"
    assert questions < 12 * orphans
