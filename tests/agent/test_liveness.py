"""Whether the other side still lives: in virtual time."""

import asyncio

import pytest

from nodeagent.uplink.liveness import MOST, SHORTEST, PeerLiveness
from tests.support.virtual_time import in_virtual_time

pytestmark = pytest.mark.decorated(by=in_virtual_time)

WHERE = "aggregator-0.aggregator:8443"


class Other:
    """The other side: whether a process is there, and how many connections were tried."""

    def __init__(self, *, lives: bool = False) -> None:
        self.lives = lives
        self.tried: list[float] = []
        self.sign = PeerLiveness(self._try)
        self.sign.promised(12.0, WHERE)

    async def _try(self, address: str) -> bool:
        assert address == WHERE
        self.tried.append(asyncio.get_running_loop().time())
        if not self.lives:
            await asyncio.sleep(5)
        return self.lives

    async def gone(self, within: float) -> bool:
        """Whether it is taken for gone within so many seconds from now."""
        task = asyncio.create_task(self.sign.gone())
        await asyncio.wait([task], timeout=within)
        done = task.done()
        task.cancel()
        return done


async def test_who_answers_no_heartbeat_in_time_and_takes_no_connection_is_gone() -> None:
    other = Other()
    for _ in range(3):
        other.sign.heartbeat_sent()
        assert not await other.gone(9.9)
        other.sign.on_peer_message()
    assert not await other.gone(1000), "nothing was asked"
    other.sign.heartbeat_sent()
    assert not await other.gone(10)
    other.sign.heartbeat_sent()  # the next heartbeat is no new chance
    assert not await other.gone(1.9)
    assert other.tried == []
    assert await other.gone(5.2)
    said = await other.sign.gone()
    assert said.startswith("a heartbeat was not answered within 12 s, and no process takes")
    assert WHERE in said


async def test_who_is_late_and_lives_is_waited_for_longer_and_longer() -> None:
    other = Other(lives=True)
    began = asyncio.get_running_loop().time()
    other.sign.heartbeat_sent()
    assert not await other.gone(500)
    late = [at - began for at in other.tried]
    assert late[:4] == [12, 36, 84, 180]
    assert late[-1] - late[-2] == 12 * MOST
    other.sign.on_peer_message()
    other.sign.heartbeat_sent()
    assert not await other.gone(11.9)
    tried = len(other.tried)
    assert not await other.gone(0.2)
    assert len(other.tried) == tried + 1, "who answered is expected in time again"
    other.lives = False
    assert await other.gone(24 + 5.1), "and who lived may stop"


@pytest.mark.parametrize("promise", [(0.0, WHERE), (12.0, ""), (0.0, "")])
@pytest.mark.parametrize("withdrawn", [False, True])
async def test_who_promised_nothing_is_never_gone(
    promise: tuple[float, str], *, withdrawn: bool
) -> None:
    other = Other()
    if withdrawn:
        other.sign.heartbeat_sent()
    other.sign.promised(*promise)
    other.sign.heartbeat_sent()
    assert not other.sign.sends()
    assert not await other.gone(1000)
    assert other.tried == []


async def test_what_need_not_be_answered_is_to_be_taken_in_that_time() -> None:
    other = Other()
    assert other.sign.sends()
    await asyncio.sleep(11)
    other.sign.on_peer_message()
    assert not await other.gone(1000)
    assert other.sign.sends()
    assert await other.gone(17.1)


async def test_a_message_that_was_taken_does_not_answer_the_heartbeat_before_it() -> None:
    other = Other()
    other.sign.heartbeat_sent()
    await asyncio.sleep(10)
    assert not other.sign.sends()
    assert await other.gone(7.1)


async def test_what_comes_while_a_connection_is_tried_counts() -> None:
    """We were stopped ourselves: the answer was in our buffer, and is read a moment later."""
    other = Other()
    other.sign.heartbeat_sent()
    asyncio.get_running_loop().call_later(16.0, other.sign.on_peer_message)
    assert not await other.gone(1000)
    assert len(other.tried) == 1


async def test_an_answer_that_waits_for_our_own_event_loop_counts() -> None:
    other = Other()
    other.sign.heartbeat_sent()
    loop = asyncio.get_running_loop()

    def turn(left: int) -> None:
        if left:
            loop.call_soon(turn, left - 1)
        else:
            other.sign.on_peer_message()

    loop.call_later(12.0, turn, 5)
    assert not await other.gone(1000)
    assert other.tried == []


async def test_a_promise_that_nobody_could_keep_is_not_taken_at_its_word() -> None:
    other = Other()
    other.sign.promised(0.001, WHERE)
    other.sign.heartbeat_sent()
    assert not await other.gone(SHORTEST - 0.1)
    assert other.tried == []
    assert await other.gone(5.2)
