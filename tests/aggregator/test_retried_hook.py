"""Retries of webhooks of ``drain.notice``: bounded, spread, ended by an answer. Virtual time."""

import asyncio
import random
from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest

from aggregator.cluster.port import UNGUARDED, Guard
from aggregator.hooks.retried import MOST_CALLS, RetriedHook
from aggregator.quarantine.drain.hooks import HookAnswer, HookResult
from tests.support import virtual_time

FAILED = HookAnswer(HookResult.FAILED, "HTTP 500")
DONE = HookAnswer(HookResult.DONE, "saved")


@dataclass
class Receiver:
    """Gives the answers in turn, and the last one for ever."""

    answers: list[HookAnswer]
    at: list[float] = field(default_factory=list)
    limits: list[float] = field(default_factory=list)

    async def call(self, values: Mapping[str, str], *, limit: float, guard: Guard) -> HookAnswer:
        self.at.append(asyncio.get_running_loop().time())
        self.limits.append(limit)
        return self.answers[min(len(self.at), len(self.answers)) - 1]

    def asked(self, limit: float = 3600.0, seed: int = 1) -> HookAnswer:
        hook = RetriedHook(self, random.Random(seed))
        return virtual_time.run(hook.call({}, limit=limit, guard=UNGUARDED))


@pytest.mark.parametrize("end", [DONE, HookAnswer(HookResult.LATER, "on it")])
def test_an_answer_ends_the_attempts(end: HookAnswer) -> None:
    receiver = Receiver([FAILED, FAILED, end])
    assert receiver.asked() == end
    assert len(receiver.at) == 3


def test_failures_are_tried_again_so_often_with_ever_longer_pauses_that_differ() -> None:
    receiver, other = Receiver([FAILED]), Receiver([FAILED])
    assert receiver.asked() == FAILED
    assert len(receiver.at) == MOST_CALLS
    pauses = [after - before for before, after in zip(receiver.at, receiver.at[1:], strict=False)]
    assert 1 <= pauses[0] <= 2
    assert all(pause <= 60 for pause in pauses)
    assert pauses[-1] > 10 * pauses[0]
    other.asked(seed=2)
    assert [at - other.at[0] for at in other.at] != [at - receiver.at[0] for at in receiver.at]


def test_no_attempt_begins_after_the_limit_and_each_has_only_the_time_left() -> None:
    receiver = Receiver([FAILED])
    receiver.asked(limit=10.0)
    assert 2 <= len(receiver.at) < MOST_CALLS
    assert receiver.at[-1] - receiver.at[0] < 10
    assert receiver.limits == sorted(receiver.limits, reverse=True)
    assert receiver.limits[-1] <= 9


def test_a_named_delay_is_kept_and_none_is_endless() -> None:
    asked = Receiver([HookAnswer(HookResult.FAILED, "HTTP 503", 100.0), DONE])
    assert asked.asked() == DONE
    assert asked.at[1] - asked.at[0] == pytest.approx(100)
    endless = Receiver([HookAnswer(HookResult.FAILED, "HTTP 503", 3600.0), DONE])
    assert endless.asked() == DONE
    assert endless.at[1] - endless.at[0] == pytest.approx(300)
