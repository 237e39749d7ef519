"""The pace of a new controller: how many snapshots of agents are under way at a time."""

import asyncio

import pytest

from aggregator.relay.resync_pacer import (
    AHEAD,
    AHEAD_BUSY,
    LISTS_WITHIN,
    MISSED_AFTER,
    ResyncPacer,
)
from tests.support import virtual_time
from tests.support.virtual_time import loop_time
from tests.support.waiting import until

pytestmark = pytest.mark.decorated(by=virtual_time.in_virtual_time)


class Waiting:
    """The agents of one gateway that wait. Those that are ``there`` send their snapshot at once."""

    def __init__(self, waiting: int, *, there: bool = True) -> None:
        self.waiting = waiting
        self.received = 0
        self._there = there

    def permit(self, count: int) -> None:
        assert count > 0, "a permission cannot be taken back: the relay has no form for it"
        self.waiting -= count
        self.received += count if self._there else 0


@pytest.mark.parametrize(("listed_after", "expected"), [(2.0, 2.0), (60.0, LISTS_WITHIN)])
async def test_snapshots_wait_for_the_clusters_lists_but_not_for_ever(
    listed_after: float, expected: float
) -> None:
    began, gateway = loop_time(), Waiting(1_000)
    pacer = ResyncPacer(
        lambda: gateway.received, listed=lambda: loop_time() - began >= listed_after
    )
    pacer.join(gateway)
    running = asyncio.create_task(pacer.run())
    await until(lambda: gateway.waiting < 1_000)
    # A look in virtual time may be a second late.
    assert expected - 0.1 <= loop_time() - began <= expected + 1.5
    await until(lambda: gateway.waiting == 0)
    assert loop_time() - began <= expected + 2.5
    running.cancel()


def test_no_more_snapshots_are_under_way_than_are_taken_in_a_moment() -> None:
    busy, idle = Waiting(1_000, there=False), Waiting(30)
    pacer = ResyncPacer(lambda: busy.received + idle.received)
    pacer.join(busy)
    assert pacer.permit_some()
    assert busy.waiting == 1_000 - AHEAD_BUSY
    pacer.join(idle)
    assert pacer.permit_some()
    under_way = 1_000 - busy.waiting + 30 - idle.waiting
    assert AHEAD_BUSY - 5 <= under_way <= AHEAD_BUSY + 5, "none has come"
    busy.received += 150
    assert pacer.permit_some()
    assert idle.waiting == 0, "the room is shared"
    assert 1_000 - busy.waiting <= AHEAD_BUSY + 150 + 10


async def test_snapshots_that_do_not_come_are_not_waited_for_for_ever() -> None:
    began, gone = loop_time(), Waiting(3 * AHEAD, there=False)
    pacer = ResyncPacer(lambda: 0)
    pacer.join(gone)
    running = asyncio.create_task(pacer.run())
    await until(lambda: gone.waiting == 0)
    assert MISSED_AFTER <= loop_time() - began <= 4 * MISSED_AFTER
    running.cancel()


async def test_more_are_under_way_while_the_event_loop_keeps_up() -> None:
    busy = Waiting(1_000, there=False)
    pacer = ResyncPacer(lambda: 0)
    pacer.join(busy)
    running = asyncio.create_task(pacer.run())
    await until(lambda: 1_000 - busy.waiting >= AHEAD)
    assert 1_000 - busy.waiting <= AHEAD + 50
    running.cancel()


def test_nothing_is_permitted_while_more_are_missing_than_a_late_event_loop_allows() -> None:
    busy = Waiting(1_000, there=False)
    pacer = ResyncPacer(lambda: 0)
    pacer.join(busy)
    pacer._busy = False
    assert pacer.permit_some()
    assert busy.waiting == 1_000 - AHEAD
    pacer._busy = True
    assert pacer.permit_some()
    assert busy.waiting == 1_000 - AHEAD
