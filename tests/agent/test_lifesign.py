"""Whether the other side still lives: in virtual time."""

import asyncio

import pytest

from nodeagent.lifesign import SHORTEST, LifeSign
from tests.support.virtualtime import run


async def _gone(sign: LifeSign, within: float) -> bool:
    """Whether it is taken for gone within so many seconds from now."""
    try:
        async with asyncio.timeout(within):
            await sign.gone()
    except TimeoutError:
        return False
    return True


def test_who_answers_no_heartbeat_in_the_time_that_was_promised_is_gone() -> None:
    async def play() -> None:
        sign = LifeSign()
        sign.promised(15.0)
        for _ in range(3):
            sign.asked()
            assert not await _gone(sign, 9.9)
            sign.heard()
        assert not await _gone(sign, 1000), "nothing was asked"
        sign.asked()
        assert not await _gone(sign, 14.9)
        sign.asked()  # the next heartbeat is no new chance
        assert await _gone(sign, 0.2)
        assert await sign.gone() == "a heartbeat was not answered within 15 s"

    run(play())


@pytest.mark.parametrize("withdrawn", [False, True])
def test_who_promised_nothing_is_never_gone(*, withdrawn: bool) -> None:
    async def play() -> None:
        sign = LifeSign()
        if withdrawn:
            sign.promised(15.0)
            sign.asked()
            sign.promised(0.0)
        sign.asked()
        with sign.sending():
            assert not await _gone(sign, 1000)

    run(play())


def test_what_need_not_be_answered_is_to_be_taken_in_that_time() -> None:
    async def play() -> None:
        sign = LifeSign()
        sign.promised(15.0)
        with sign.sending():
            await asyncio.sleep(14)
        assert not await _gone(sign, 1000)
        with sign.sending():
            assert await _gone(sign, 15.1)

    run(play())


def test_a_message_that_was_taken_does_not_answer_the_heartbeat_before_it() -> None:
    async def play() -> None:
        sign = LifeSign()
        sign.promised(15.0)
        sign.asked()
        await asyncio.sleep(10)
        with sign.sending():
            await asyncio.sleep(0)
        assert await _gone(sign, 5.1)

    run(play())


def test_who_was_stopped_itself_reads_the_answer_before_it_leaves() -> None:
    """On waking, the deadline is due before the answer is read."""

    async def play() -> None:
        sign = LifeSign()
        sign.promised(15.0)
        sign.asked()
        await asyncio.sleep(14.0)  # as if it had slept all that time, and so much longer
        asyncio.get_running_loop().call_later(0.5, sign.heard)
        assert not await _gone(sign, 1000)

    run(play())


def test_a_promise_that_nobody_could_keep_is_not_taken_at_its_word() -> None:
    async def play() -> None:
        sign = LifeSign()
        sign.promised(0.001)
        sign.asked()
        assert not await _gone(sign, SHORTEST - 0.1)
        assert await _gone(sign, 0.2)

    run(play())
