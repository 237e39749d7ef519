"""A replica that knows of no others looks for one that is at work, in virtual time."""

import asyncio
from functools import partial

import pytest

from aggregator.replicas.membership.lease_store import LeaseStoreError
from aggregator.replicas.membership.lease_timing import TIMES
from aggregator.replicas.membership.sole_replica_guard import (
    find_live_replica,
    wait_until_sole_replica,
)
from aggregator.replicas.membership.view import Member
from tests.support.memory_lease_store import Link, MemoryBoard
from tests.support.virtual_time import run

ONE = Member("sickbay-aggregator-0", epoch="a")


def _looked(board: MemoryBoard, *, renewed_every: float = 0.0) -> tuple[str, float]:
    """The replica found, and after how many seconds; a Lease of ``ONE`` may be renewed."""

    async def renew() -> None:
        while renewed_every:
            await asyncio.sleep(renewed_every)
            board.write(ONE, board.leases[ONE.name].version, leaving=False)

    async def find_replica() -> tuple[str, float]:
        renewing = asyncio.create_task(renew())
        begun = asyncio.get_running_loop().time()
        found = await find_live_replica(Link(board, deadline=TIMES.deadline), _nobody)
        renewing.cancel()
        return found, asyncio.get_running_loop().time() - begun

    return run(find_replica())


def _nobody(name: str) -> None:
    """Is told of a Lease that is watched."""


def test_where_there_are_no_leases_it_takes_no_time() -> None:
    assert _looked(MemoryBoard()) == ("", 0.0)
    assert _waited(MemoryBoard()) == []


def test_a_lease_that_is_renewed_names_who_is_at_work() -> None:
    board = MemoryBoard()
    board.write(ONE, "", leaving=False)
    found, took = _looked(board, renewed_every=TIMES.retry_period)
    assert found == ONE.name
    assert took <= 2 * TIMES.retry_period


def test_a_lease_that_is_renewed_as_slowly_as_a_living_replica_may_is_seen_too() -> None:
    board = MemoryBoard()
    board.write(ONE, "", leaving=False)
    found, _ = _looked(board, renewed_every=TIMES.lease_duration - TIMES.retry_period - 0.1)
    assert found == ONE.name


def test_the_lease_of_one_that_died_is_watched_until_it_has_expired() -> None:
    board = MemoryBoard()
    board.write(ONE, "", leaving=False)
    found, took = _looked(board)
    assert found == ""
    assert took >= TIMES.lease_duration


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
        asyncio.get_running_loop().call_later(TIMES.retry_period + 1, another)
        return await find_live_replica(Link(board, deadline=TIMES.deadline), _nobody)

    assert run(comes()) == "another"


def test_of_several_leases_the_first_by_name_is_the_one_that_is_reported() -> None:
    board = MemoryBoard()
    for name in ("sickbay-aggregator-2", ONE.name, "sickbay-aggregator-1"):
        board.write(Member(name, epoch=name), "", leaving=False)
    watched: list[str] = []
    run(find_live_replica(Link(board, deadline=TIMES.deadline), watched.append))
    assert watched == [ONE.name]


def test_a_board_that_is_away_is_no_answer() -> None:
    async def away(_: str) -> None:
        raise LeaseStoreError("the API server is away")

    with pytest.raises(LeaseStoreError, match="is away"):
        run(find_live_replica(Link(MemoryBoard(), deadline=TIMES.deadline, before=away), _nobody))


def _waited(board: MemoryBoard, *, renewals: int = 0, outages: int = 0) -> list[str]:
    """The messages that it gives, without repeats, until it begins."""
    said: list[str] = []

    def note_state(what: str, why: str) -> None:
        if said[-1:] != [f"{what}: {why}"]:
            said.append(f"{what}: {why}")

    async def renew() -> None:
        for _ in range(renewals):
            await asyncio.sleep(TIMES.retry_period)
            board.write(ONE, board.leases[ONE.name].version, leaving=False)

    async def weather(_: str) -> None:
        nonlocal outages
        outages -= 1
        if outages >= 0:
            raise LeaseStoreError("the API server is away")

    async def wait() -> None:
        renewing = asyncio.create_task(renew())
        link = Link(board, deadline=TIMES.deadline, before=weather)
        await wait_until_sole_replica(
            link, waits=partial(note_state, "waits"), away=partial(note_state, "away")
        )
        await renewing

    run(wait())
    return said


def test_beside_a_replica_at_work_it_says_who_that_is_and_what_to_do() -> None:
    board = MemoryBoard()
    board.write(ONE, "", leaving=False)
    looks, waits = _waited(board, renewals=5)
    assert looks.startswith(f"waits: replica {ONE.name} has a Lease in this cluster")
    assert waits == (
        f"waits: replica {ONE.name} is at work in this cluster; this one has no section shards, "
        "would act for the same nodes, and waits until no other is: give it the configuration of "
        "the others, or stop it (docs/shards.md)"
    )


def test_beside_the_lease_of_one_that_died_it_says_that_it_begins_by_itself() -> None:
    board = MemoryBoard()
    board.write(ONE, "", leaving=False)
    [said] = _waited(board)
    assert said == (
        f"waits: replica {ONE.name} has a Lease in this cluster; it is watched for 12 s, and where "
        "no replica renews it, this one, which has no section shards, begins by itself "
        "(docs/shards.md)"
    )


def test_where_the_board_is_away_it_says_that_and_of_no_replica() -> None:
    assert _waited(MemoryBoard(), outages=2) == ["away: the API server is away"]


@pytest.mark.parametrize(
    ("asked", "waited"), [(None, TIMES.failure_pause), (0.0, TIMES.failure_pause), (30.0, 30.0)]
)
def test_a_board_that_is_away_is_asked_again_after_the_time_that_it_names(
    asked: float | None, waited: float
) -> None:
    refusals = 1

    async def away(_: str) -> None:
        nonlocal refusals
        refusals -= 1
        if refusals >= 0:
            raise LeaseStoreError("busy", retry_after=asked)

    async def wait() -> float:
        begun = asyncio.get_running_loop().time()
        link = Link(MemoryBoard(), deadline=TIMES.deadline, before=away)
        await wait_until_sole_replica(link, waits=_nobody, away=_nobody)
        return asyncio.get_running_loop().time() - begun

    assert run(wait()) == pytest.approx(waited)
