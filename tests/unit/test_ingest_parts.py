"""The pure parts of ingest: acknowledgements in order, token buckets, duplicate agents."""

import asyncio
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggregator.ingest.duplicate_agents import ALIVE, CALM, MAX_INSTANCES, DuplicateAgentDetector
from aggregator.ingest.rate_limit import BURST, BYTES_PER_MESSAGE, RATE, NodeBudget
from aggregator.ingest.send_queue import Acks
from aggregator.runtime.rate_limited_log import RateLimitedLog


class Heard:
    """A stream that only hears which messages are safe."""

    def __init__(self) -> None:
        self.acked: list[int] = []
        self.failed: list[BaseException] = []

    async def write(self, message: object) -> None:
        raise AssertionError(message)

    def overflowed(self) -> None:
        raise AssertionError

    def safe(self, seq: int) -> None:
        self.acked.append(seq)

    def unsafe(self, error: BaseException) -> None:
        self.failed.append(error)


@pytest.mark.slow
@given(st.lists(st.booleans(), min_size=1, max_size=12), st.randoms(use_true_random=False))
def test_an_ack_never_covers_what_is_not_safe_and_everything_safe_is_acked(
    at_once: list[bool], rng: random.Random
) -> None:
    """Messages may become safe in any order."""

    async def run() -> None:
        loop = asyncio.get_running_loop()
        heard = Heard()
        acked, acks = heard.acked, Acks(heard)
        waiting: dict[int, asyncio.Future[None]] = {}
        for seq, safe in enumerate(at_once, start=1):
            if not safe:
                waiting[seq] = loop.create_future()
            acks.add(seq, waiting.get(seq))
        order = list(waiting)
        rng.shuffle(order)
        for seq in order:
            waiting.pop(seq).set_result(None)
            await asyncio.sleep(0)
            unsafe = min(waiting, default=len(at_once) + 1)
            assert (acked[-1] if acked else 0) == unsafe - 1
        assert acked[-1] == len(at_once)
        assert acked == sorted(set(acked))
        assert heard.failed == []

    asyncio.run(run())


async def test_after_one_that_failed_nothing_more_is_acked() -> None:
    heard = Heard()
    acks = Acks(heard)
    first: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    acks.add(1, None)
    acks.add(2, first)
    acks.add(3, None)
    first.set_exception(OSError("disk"))
    await asyncio.sleep(0)
    assert heard.acked == [1]
    assert [str(error) for error in heard.failed] == ["disk"]


@pytest.mark.slow
@given(
    st.lists(
        st.tuples(st.integers(0, 4_000_000), st.floats(0, 5)),
        min_size=1,
        max_size=60,
    )
)
def test_whoever_waits_as_told_stays_within_the_rate(steps: list[tuple[int, float]]) -> None:
    now, cost = 0.0, 0.0
    allowance = NodeBudget(now)
    for size, pause in steps:
        cost += 1 + size / BYTES_PER_MESSAGE
        now += allowance.spend(size, now) + pause
        assert cost <= BURST + RATE * now + 1e-6


def test_a_burst_is_let_through_at_once() -> None:
    allowance = NodeBudget(0.0)
    assert all(allowance.spend(100, 0.0) == 0.0 for _ in range(150))


def attach(
    conflicts: DuplicateAgentDetector, *instances: str, every: float = 1.0, start: float = 0.0
) -> bool:
    """Whether the last of these, that came one after the other, showed a conflict."""
    shown = False
    for n, instance in enumerate(instances):
        shown = conflicts.on_connect("node", instance, start + n * every)
    return shown


def test_an_instance_that_returns_twice_while_the_other_lives_is_a_conflict() -> None:
    assert not attach(DuplicateAgentDetector(), "a", "b", "a")
    assert attach(DuplicateAgentDetector(), "a", "b", "a", "b")
    assert attach(DuplicateAgentDetector(), "a", "b", "a", "a", "a", "b")


def test_reconnects_restarts_and_one_overlap_are_none() -> None:
    assert not attach(DuplicateAgentDetector(), *["a"] * 20)
    assert not attach(DuplicateAgentDetector(), *[f"i{n}" for n in range(20)])
    assert not attach(DuplicateAgentDetector(), "old", "new", "old", "newer", "newest")


def test_returns_long_after_the_other_was_heard_are_none() -> None:
    assert not attach(DuplicateAgentDetector(), *["a", "b"] * 5, every=ALIVE + 1)


def test_what_the_other_said_last_counts_and_not_when_it_came() -> None:
    conflicts = DuplicateAgentDetector()
    attach(conflicts, "a", "b", every=1.0)
    conflicts.on_message("node", "b", 500.0)
    assert not conflicts.on_connect("node", "a", 510.0)
    conflicts.on_message("node", "a", 520.0)
    assert conflicts.on_connect("node", "b", 530.0)


def test_a_conflict_is_over_when_it_has_been_calm_and_is_told_once() -> None:
    conflicts = DuplicateAgentDetector()
    attach(conflicts, "a", "b", "a", "b", start=100.0)
    assert conflicts.over(100.0 + CALM) == []
    assert conflicts.over(104.0 + CALM) == ["node"]
    assert conflicts.over(105.0 + CALM) == []
    assert not conflicts.on_connect("node", "a", 106.0 + CALM)


@given(st.lists(st.text("abcdefgh", min_size=1, max_size=2), max_size=100))
def test_what_is_remembered_of_a_node_is_bounded(instances: list[str]) -> None:
    conflicts = DuplicateAgentDetector()
    attach(conflicts, *instances)
    assert all(len(h.earlier) < MAX_INSTANCES for h in conflicts._nodes.values())
    assert all(len(h.returns) <= CALM + 1 for h in conflicts._nodes.values())


def test_the_same_trouble_is_said_now_and_then_with_how_often_it_was_not() -> None:
    say = RateLimitedLog(10.0)
    assert say("bad_token", 0.0) == {}
    assert say("bad_token", 1.0) is None
    assert say("expired", 1.0) == {}
    assert say("bad_token", 9.0) is None
    assert say("bad_token", 10.0) == {"left_out": 2}
    assert say("bad_token", 20.0) == {}
