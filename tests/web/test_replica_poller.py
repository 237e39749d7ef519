"""When others are asked, how long each is waited for, when its report is old: virtual time."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from aggregator.clock import Clocks
from aggregator.quarantine.state.fleet import FleetState
from aggregator.replicas.membership.view import RESPONDS_WITHIN, Member
from aggregator.web.event_broker import EventBroker
from aggregator.web.replica_client import NoAnswer, ReplicaClient
from aggregator.web.replica_messages import NodeReports, NodesPart, PageAnswer
from aggregator.web.replica_poller import DEADLINE, EAGER, IDLE, ReplicaPoller
from aggregator.web.snapshot_cache import SnapshotCache
from tests.support.virtual_time import run
from tests.web.replicas import Seat, Town
from tests.web.support import NIGHT


class Others(ReplicaClient):
    """The other replicas: each answers unless it is told to hang or to fail."""

    def __init__(self) -> None:
        super().__init__(None, deadline=DEADLINE)
        self.asked: list[str] = []
        self.mood: dict[str, str] = {}
        self.revision = 1

    async def ask(self, member: Member, what: str, kind: type[Any], **query: str) -> Any:
        assert (what, kind) == ("part", PageAnswer)
        self.asked.append(member.name)
        match self.mood.get(member.name, "well"):
            case "hangs":
                await asyncio.sleep(DEADLINE)
                raise NoAnswer(f"does not answer: no reply within {DEADLINE:g} s")
            case "fails":
                raise NoAnswer("does not answer: refused")
            case "breaks":
                raise ZeroDivisionError("a mistake of ours")
        await asyncio.sleep(0.01)
        revision = f"9.{self.revision}"
        part = (
            None if query.get("have") == revision else NodesPart([NodeReports(f"{member.name}-1")])
        )
        return PageAnswer(member.name, revision, b"\x01", part)


class Scene:
    """Peers of replica a, in virtual time."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.clock = loop.time
        self.town = Town()
        for name in "abc":
            self.town.joins(name)
        self.others = Others()
        clocks = Clocks(loop.time, lambda: NIGHT + loop.time())
        moment = SnapshotCache(FleetState(), clocks).moment
        self.peers = ReplicaPoller(
            Seat("a", self.town), self.others, clocks, EventBroker(epoch=1), moment
        )

    async def asked_within(self, seconds: float) -> list[str]:
        before = len(self.others.asked)
        await asyncio.sleep(seconds)
        return self.others.asked[before:]

    async def looked_for(self, seconds: float) -> list[str]:
        """A page is open all the time; returns the replicas that were asked during it."""
        before = len(self.others.asked)
        until = self.clock() + seconds
        while self.clock() < until:
            await self.peers.answering_replicas()
            await asyncio.sleep(0.2)
        return self.others.asked[before:]

    def trouble(self, name: str) -> str:
        return self.peers.tellings()[name].trouble


@asynccontextmanager
async def scene() -> AsyncIterator[Scene]:
    one = Scene()
    running = asyncio.create_task(one.peers.run())
    try:
        yield one
    finally:
        running.cancel()
        await asyncio.wait({running})


def virtual(story: Callable[[Scene], Awaitable[None]]) -> None:
    async def main() -> None:
        async with scene() as one:
            await story(one)

    run(main())


def test_they_are_asked_each_second_while_somebody_looks_and_seldom_while_nobody_does() -> None:
    async def story(one: Scene) -> None:
        eager = await one.looked_for(20)
        assert 16 <= eager.count("b") == eager.count("c") <= 20 / EAGER + 1
        await asyncio.sleep(10)
        assert len(await one.asked_within(10 * IDLE)) == 20

    virtual(story)


def test_who_looks_after_a_while_sees_what_is_so_now() -> None:
    async def story(one: Scene) -> None:
        await one.peers.answering_replicas()
        await asyncio.sleep(100)
        one.others.revision += 1
        before = one.clock()
        await one.peers.answering_replicas()
        assert one.clock() - before < 0.1
        told = one.peers.tellings()["b"]
        assert told.seen_at >= before

    virtual(story)


def test_one_that_hangs_is_waited_for_once_and_not_again() -> None:
    async def story(one: Scene) -> None:
        one.others.mood["b"] = "hangs"
        before = one.clock()
        await one.peers.answering_replicas()
        assert one.clock() - before == pytest.approx(DEADLINE, abs=0.1)
        assert "no reply within" in one.trouble("b")
        assert one.trouble("c") == ""
        for _ in range(50):
            before = one.clock()
            await one.peers.answering_replicas()
            assert one.clock() == before
            await asyncio.sleep(0.2)

    virtual(story)


@pytest.mark.parametrize("mood", ["hangs", "fails", "breaks"])
def test_two_answers_that_fail_are_no_news_and_a_third_is(mood: str) -> None:
    async def story(one: Scene) -> None:
        await one.looked_for(3)
        one.others.mood["b"] = mood
        seen = one.peers.tellings()["b"].seen_at
        while not one.trouble("b"):
            await one.looked_for(0.2)
        late = one.clock() - seen
        assert RESPONDS_WITHIN < late < RESPONDS_WITHIN + EAGER + DEADLINE + 0.5
        assert one.peers.tellings()["b"].nodes["b-1"].agent == "unknown"
        one.others.mood["b"] = "well"
        await one.looked_for(4)
        assert one.trouble("b") == ""
        assert one.peers.tellings()["b"].nodes["b-1"].agent == "attached"

    virtual(story)


def test_one_that_leaves_is_asked_no_more_and_one_that_comes_back_is() -> None:
    async def story(one: Scene) -> None:
        await one.looked_for(3)
        one.town.leaves("b")
        await one.looked_for(3)
        assert one.trouble("b") == "has left"
        assert "b" not in one.peers.up()
        assert set(await one.looked_for(10)) == {"c"}
        one.town.joins("b")
        assert set(await one.looked_for(10)) == {"b", "c"}
        assert one.trouble("b") == ""
        one.town.leaves("b")
        await one.looked_for(700)
        assert set(one.peers.tellings()) == {"c"}

    virtual(story)


def test_one_that_starts_anew_elsewhere_is_asked_at_once() -> None:
    async def story(one: Scene) -> None:
        one.others.mood["b"] = "fails"
        await asyncio.sleep(20)
        one.others.mood["b"] = "well"
        one.town.joins("b", "http://elsewhere:8080")
        await asyncio.sleep(0.5)
        assert one.trouble("b") == ""

    virtual(story)


def test_alone_nobody_is_asked_and_nobody_waits() -> None:
    async def story(one: Scene) -> None:
        for name in "bc":
            one.town.leaves(name)
        await one.looked_for(700)
        assert not one.peers.others
        assert await one.looked_for(100) == []

    virtual(story)
