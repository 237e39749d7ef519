"""One that knows of no others looks whether any is at work, in virtual time."""

import asyncio
from functools import partial

import pytest

from aggregator.shards.board import BoardError
from aggregator.shards.company import at_work
from aggregator.shards.council import Member
from aggregator.shards.timing import TIMES
from tests.support.leaseboard import Link, MemoryBoard
from tests.support.virtualtime import run

ONE = Member("sickbay-aggregator-0", epoch="a")


def _looked(board: MemoryBoard, *, renewed_every: float = 0.0) -> tuple[str, float]:
    """Whom it finds, and after how many seconds; a Lease of ``ONE`` may be renewed meanwhile."""

    async def renew() -> None:
        while renewed_every:
            await asyncio.sleep(renewed_every)
            board.write(ONE, board.leases[ONE.name].version, leaving=False)

    async def look() -> tuple[str, float]:
        renewing = asyncio.create_task(renew())
        begun = asyncio.get_running_loop().time()
        found = await at_work(Link(board, deadline=TIMES.deadline))
        renewing.cancel()
        return found, asyncio.get_running_loop().time() - begun

    return run(look())


def test_where_there_are_no_leases_it_takes_no_time() -> None:
    assert _looked(MemoryBoard()) == ("", 0.0)


def test_a_lease_that_is_renewed_names_who_is_at_work() -> None:
    board = MemoryBoard()
    board.write(ONE, "", leaving=False)
    found, took = _looked(board, renewed_every=TIMES.tick)
    assert found == ONE.name
    assert took <= 2 * TIMES.tick


def test_a_lease_that_is_renewed_as_slowly_as_a_living_replica_may_is_seen_too() -> None:
    board = MemoryBoard()
    board.write(ONE, "", leaving=False)
    found, _ = _looked(board, renewed_every=TIMES.expiry - TIMES.tick - 0.1)
    assert found == ONE.name


def test_the_lease_of_one_that_died_is_watched_until_it_has_expired() -> None:
    board = MemoryBoard()
    board.write(ONE, "", leaving=False)
    found, took = _looked(board)
    assert found == ""
    assert took >= TIMES.expiry


def test_one_that_left_in_order_is_waited_for_no_longer() -> None:
    board = MemoryBoard()
    lease = board.write(ONE, "", leaving=False)
    board.write(ONE, lease.version, leaving=True)
    assert _looked(board) == ("", 0.0)


def test_one_that_comes_while_it_looks_is_seen() -> None:
    board = MemoryBoard()
    board.write(ONE, "", leaving=False)

    async def comes() -> str:
        another = partial(board.write, Member("another", epoch="b"), "", leaving=False)
        asyncio.get_running_loop().call_later(TIMES.tick + 1, another)
        return await at_work(Link(board, deadline=TIMES.deadline))

    assert run(comes()) == "another"


def test_a_board_that_is_away_is_no_answer() -> None:
    async def away(_: str) -> None:
        raise BoardError("the API server is away")

    with pytest.raises(BoardError, match="is away"):
        run(at_work(Link(MemoryBoard(), deadline=TIMES.deadline, before=away)))
