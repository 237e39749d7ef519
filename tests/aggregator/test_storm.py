"""Acknowledgements in a storm: none is lost, and most come when the storm has been acted on."""

import asyncio

from aggregator.ingest.storm import AT_ONCE, LATER, Storm
from tests.support.virtualtime import run


class Owed:
    """Whoever owes; when it paid."""

    def __init__(self, paid: list[tuple[str, float]], name: str) -> None:
        self._paid = paid
        self._name = name

    def pay(self) -> None:
        self._paid.append((self._name, asyncio.get_running_loop().time()))


def test_few_are_acknowledged_at_once() -> None:
    async def play() -> None:
        paid: list[tuple[str, float]] = []
        storm, begun = Storm(), asyncio.get_running_loop().time()
        all_of_them = [Owed(paid, str(number)) for number in range(200)]
        for one in all_of_them:
            storm.let(one)
            await asyncio.sleep(1 / AT_ONCE)
        assert [name for name, _ in paid] == [str(number) for number in range(200)]
        assert paid[-1][1] - begun < 200 / AT_ONCE

    run(play())


def test_one_that_says_much_delays_no_other() -> None:
    async def play() -> None:
        paid: list[tuple[str, float]] = []
        storm, loud = Storm(), Owed(paid, "loud")
        for _ in range(500):
            storm.let(loud)
        storm.let(Owed(paid, "other"))
        assert len(paid) == 501
        assert paid[-1][0] == "other"

    run(play())


def test_a_storm_is_acknowledged_in_order_when_its_nodes_have_been_marked() -> None:
    async def play() -> None:
        paid: list[tuple[str, float]] = []
        storm, begun = Storm(), asyncio.get_running_loop().time()
        all_of_them = [Owed(paid, str(number)) for number in range(500)]
        for one in all_of_them:
            storm.let(one)
        assert len(paid) == AT_ONCE
        await asyncio.sleep(LATER - 0.1)
        assert len(paid) == AT_ONCE
        await asyncio.sleep(1.0)
        assert [name for name, _ in paid] == [str(number) for number in range(500)]
        # Not in one go: agents must be heard meanwhile.
        assert len({at for _, at in paid}) > 20
        assert paid[-1][1] - begun < LATER + 1.0

    run(play())


def test_after_a_storm_few_are_acknowledged_at_once_again() -> None:
    async def play() -> None:
        paid: list[tuple[str, float]] = []
        storm = Storm()
        all_of_them = [Owed(paid, str(number)) for number in range(100)]
        for one in all_of_them:
            storm.let(one)
        await asyncio.sleep(1.5)
        storm.let(Owed(paid, "another"))
        assert paid[-1][0] == "another"
        await asyncio.sleep(LATER)
        assert len(paid) == 101

    run(play())
