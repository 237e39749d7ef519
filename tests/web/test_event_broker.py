"""The fan-out to event streams: bounded, in order, never in the way."""

import asyncio
import json
from typing import Any

import pytest

from aggregator.events import EventKind, Transition
from aggregator.web.event_broker import QUEUE, EventBroker, TooManyStreams
from aggregator.web.snapshot_cache import SnapshotCache
from tests.support.node_states import summary_in
from tests.support.waiting import until
from tests.web.support import NIGHT, Hands, big_fleet, pulse_alone, small_fleet


def happened(number: int, node: str = "node-1") -> Transition:
    return Transition(NIGHT + number, EventKind.MOVED, node, f"{node}: evicted pod-{number}")


def events(frames: bytes | None) -> list[tuple[str, dict[str, Any]]]:
    found = []
    for block in (frames or b"").decode().strip().split("\n\n"):
        lines = dict(line.split(": ", 1) for line in block.splitlines())
        if lines:
            found.append((lines["event"], json.loads(lines["data"])))
    return found


async def test_a_transition_reaches_every_subscriber_in_order() -> None:
    feed = EventBroker(epoch=1)
    with feed.subscribe() as one, feed.subscribe() as other:
        for number in range(3):
            feed.record_event(happened(number))
        for reader in (one, other):
            told = events(await reader.next(1))
            assert [data["summary"][-1] for _, data in told] == ["0", "1", "2"]


async def test_a_slow_reader_is_told_how_much_it_missed_and_holds_up_nobody() -> None:
    feed = EventBroker(epoch=1)
    with feed.subscribe() as slow, feed.subscribe() as quick:
        for number in range(QUEUE + 50):
            feed.record_event(happened(number))
            if number % 100 == 99:
                await quick.next(1)
        told = events(await slow.next(1))
        assert told[-1] == ("missed", {"transitions": 50})
        assert len(told) == QUEUE + 1
        assert "missed" not in [name for name, _ in events(await quick.next(1))]


async def test_a_reader_that_looks_at_one_node_hears_of_no_other() -> None:
    feed = EventBroker(epoch=1)
    with feed.subscribe("node-2") as reader:
        feed.record_event(happened(1, "node-1"))
        feed.record_event(happened(2, "node-2"))
        assert [data["node"] for _, data in events(await reader.next(1))] == ["node-2"]


async def test_who_comes_back_gets_what_happened_meanwhile() -> None:
    feed = EventBroker(epoch=7)
    for number in range(5):
        feed.record_event(happened(number))
    with feed.subscribe(last="7.3") as reader:
        assert reader.resumed
        told = events(await reader.next(1))
        assert [data["summary"][-1] for _, data in told] == ["3", "4"]


@pytest.mark.parametrize(
    "last",
    [
        "",
        "nonsense",
        "6.3",
        "7.",
        "7.99",
        "7.-1",
        "7.²",
        pytest.param("7." + "9" * 5000, id="long"),
    ],
)
async def test_an_id_of_another_life_or_none_resumes_nothing(last: str) -> None:
    feed = EventBroker(epoch=7)
    feed.record_event(happened(1))
    with feed.subscribe(last=last) as reader:
        assert not reader.resumed
        assert await reader.next(0.01) == b""


async def test_leaving_frees_the_place_and_places_are_bounded() -> None:
    feed = EventBroker(epoch=1, most=1)
    with feed.subscribe():
        assert feed.streams == 1
        with pytest.raises(TooManyStreams):
            feed.subscribe()
    assert feed.streams == 0
    feed.subscribe()


async def test_closing_ends_every_reader() -> None:
    feed = EventBroker(epoch=1)
    with feed.subscribe() as reader:
        waiting = asyncio.create_task(reader.next(60))
        await asyncio.sleep(0)
        feed.close()
        assert await waiting is None
    with pytest.raises(TooManyStreams):
        feed.subscribe()


async def test_what_history_knew_comes_after_what_was_noted_and_once() -> None:
    feed = EventBroker(epoch=1)
    feed.record_event(happened(9))
    feed.prime([happened(9), happened(8), happened(7, "node-2")])
    assert [one.summary[-1] for one in feed.recent()] == ["9", "8", "7"]
    assert [one.summary[-1] for one in feed.recent(node="node-2")] == ["7"]
    assert len(feed.recent(limit=2)) == 2


class Watched:
    """A change notifier on a fleet, with a reader."""

    def __init__(self, hands: Hands, node: str = "") -> None:
        self.fleet = small_fleet(hands)
        self.feed = EventBroker(epoch=1)
        self.troubles = list[str]()
        self.pulse = pulse_alone(
            self.fleet, hands.clocks(), self.feed, lambda: tuple(self.troubles)
        )
        self.reader = self.feed.subscribe(node)

    async def ticks(self) -> int:
        return [name for name, _ in events(await self.reader.next(0.01))].count("fleet")


async def test_a_change_without_a_transition_is_noticed_and_time_alone_is_none() -> None:
    hands = Hands()
    watched = Watched(hands)
    await watched.pulse.publish_tick()
    assert await watched.ticks() == 1
    hands.advance(30)
    await watched.pulse.publish_tick()
    assert await watched.ticks() == 0
    watched.fleet.node_summaries["node-1"].agent.attached = False
    hands.advance(30)
    await watched.pulse.publish_tick()
    assert await watched.ticks() == 1


async def test_a_reader_of_one_node_is_ticked_for_that_node_alone() -> None:
    hands = Hands()
    watched = Watched(hands, "node-1")
    await watched.pulse.publish_tick()
    assert await watched.ticks() == 1, "who has just come is told once"
    watched.fleet.node_summaries["node-8"].agent.conflict = "two of them"
    hands.advance(5)
    await watched.pulse.publish_tick()
    assert await watched.ticks() == 0
    watched.fleet.node_summaries["node-1"].cluster.foreign = "hall-2"
    hands.advance(5)
    await watched.pulse.publish_tick()
    assert await watched.ticks() == 1


@pytest.mark.parametrize("node", ["", "node-1"])
async def test_every_reader_is_ticked_for_what_each_page_reports(node: str) -> None:
    hands = Hands()
    watched = Watched(hands, node)
    await watched.pulse.publish_tick()
    assert await watched.ticks() == 1
    for name in ("stop", "view_lost", "history"):
        if name == "history":
            watched.troubles.append("history is not written")
        else:
            setattr(watched.fleet, name, "for a reason")
        hands.advance(5)
        await watched.pulse.publish_tick()
        assert await watched.ticks() == 1
        hands.advance(5)
        await watched.pulse.publish_tick()
        assert await watched.ticks() == 0


async def test_a_reader_of_one_node_is_ticked_when_it_goes_and_comes_back() -> None:
    hands = Hands()
    watched = Watched(hands, "node-1")
    await watched.pulse.publish_tick()
    assert await watched.ticks() == 1
    known = watched.fleet.node_summaries.pop("node-1")
    for again in (False, True):
        if again:
            watched.fleet.node_summaries["node-1"] = known
        hands.advance(5)
        await watched.pulse.publish_tick()
        assert await watched.ticks() == 1


async def test_ticks_that_were_not_read_become_one() -> None:
    hands = Hands()
    watched = Watched(hands)
    for number in range(5):
        watched.fleet.record_entries = number + 10
        hands.advance(5)
        await watched.pulse.publish_tick()
    assert await watched.ticks() == 1


async def test_a_burst_of_transitions_is_four_ticks_a_second_at_most() -> None:
    hands = Hands()
    watched = Watched(hands)
    running = asyncio.create_task(watched.pulse.run())
    loop = asyncio.get_running_loop()
    began, ticks = loop.time(), 0
    while loop.time() - began < 1.0:
        watched.fleet.record_entries += 1
        hands.advance(0.3)
        watched.feed.record_event(happened(watched.fleet.record_entries))
        ticks += await watched.ticks()
        await asyncio.sleep(0)
    running.cancel()
    assert 1 <= ticks <= 5


async def test_a_snapshot_at_a_large_fleet_lets_others_work_in_between() -> None:
    hands = Hands()
    snapshots = SnapshotCache(big_fleet(hands), hands.clocks())
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    beside = asyncio.create_task(other())
    snapshot = await snapshots.current_snapshot()
    beside.cancel()
    assert turns >= 20
    assert len(snapshot.found.names) == 7500
    assert await snapshots.current_snapshot() is snapshot, "one serves all requests for a while"
    hands.advance(60)
    assert (await snapshots.current_snapshot()).revision == snapshot.revision
    await until(beside.done)


async def test_nodes_that_come_and_go_are_seen() -> None:
    hands = Hands()
    fleet = small_fleet(hands)
    snapshots = SnapshotCache(fleet, hands.clocks())
    await snapshots.current_snapshot()
    summary_in(fleet, "node-10")
    del fleet.node_summaries["node-1"]
    hands.advance(5)
    found = (await snapshots.current_snapshot()).found
    assert found.names[0] == "node-2"
    assert found.names[-1] == "node-10"
