"""Evidence of which entries were dropped, or no evidence at all, while the aggregator dies.

As in test_interruption: it dies before or after each of its calls, another takes over with an empty
memory, and the end is the same. Evidence that could not be taken releases and quarantines no node,
and the process that takes over tells people of it.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from aggregator.cluster.node_names import is_marked
from aggregator.cluster.port import Phase
from aggregator.health.model import Cleared, Lost
from tests.support.deaths import at_each_change, sees
from tests.support.memory_cluster import World, phase_of
from tests.support.replica import FakeLine, Replica, fault, hello, snapshot
from tests.support.virtual_replica import Running, soon
from tests.support.virtual_time import in_virtual_time
from tests.support.waiting import until

ILL = snapshot(fault())
#: As ingest passes it on where an entry is beyond a bound: the others, and that one was dropped.
DROPPED = (Lost("aggregator", 1, "faults[1].code: 300 bytes; expected at most 64"),)
ILL_AND_DROPPED = replace(ILL, lost=DROPPED, partial=True)
ALL_DROPPED = replace(snapshot(), lost=DROPPED, partial=True)
WELL = snapshot(cleared=(Cleared("xid:79", "GPU-1", "operator"),))


def says_what_was_left(replica: Replica) -> None:
    replica.agent("n1", ILL_AND_DROPPED)


def says_nothing_that_is_left(replica: Replica) -> None:
    replica.agent("n1", ALL_DROPPED)


def is_never_understood(replica: Replica) -> None:
    """The agent's stream is up, and no snapshot of it was accepted."""
    replica.controller.on_connect(hello("n1"), FakeLine())
    replica.controller.on_refusal("n1", "snapshot.seq: 1 after 2")


@dataclass(frozen=True)
class Story:
    """``ill``: the node was drained before. ``kind``: the event that people must be told of."""

    ill: bool
    speaks: Callable[[Replica], None]
    kind: str
    phase: Phase | None


STORIES = [
    pytest.param(
        Story(False, says_what_was_left, "evidence.lost", Phase.DRAINED), id="dropped-ill"
    ),
    pytest.param(
        Story(False, says_nothing_that_is_left, "evidence.lost", None), id="all-dropped-well"
    ),
    pytest.param(
        Story(True, says_nothing_that_is_left, "evidence.lost", Phase.DRAINED),
        id="all-dropped-quarantined",
    ),
    pytest.param(Story(False, is_never_understood, "agent.silent", None), id="no-snapshot-well"),
    pytest.param(
        Story(True, is_never_understood, "agent.silent", Phase.DRAINED),
        id="no-snapshot-quarantined",
    ),
]


async def begun(*, ill: bool) -> World:
    world = World.of("n1")
    if ill:
        replica = Replica(world, clock=Running())
        await sees(replica, n1=ILL)
        await until(lambda: phase_of(world, "n1") is Phase.DRAINED)
        await replica.stop()
    return world


@pytest.mark.parametrize("story", STORIES)
@in_virtual_time
async def test_death_at_any_call_makes_nothing_of_evidence_that_was_not_taken(story: Story) -> None:
    async def one(crash_at: int | None, *, after: bool) -> int:
        world = await begun(ill=story.ill)
        first = Replica(world, clock=Running(), crash_at=crash_at, after=after)
        await sees(first)
        story.speaks(first)
        died = asyncio.create_task(first.cluster.crashed.wait())
        await asyncio.wait({died}, timeout=120)
        died.cancel()
        await first.stop()
        second = Replica(world, clock=Running())
        await sees(second)
        story.speaks(second)
        await asyncio.sleep(400)
        assert phase_of(world, "n1") is story.phase
        assert is_marked(world.nodes["n1"]) == (story.phase is not None)
        assert second.notes.kinds("n1").count(story.kind) == 1
        await is_evaluated_by_what_is_taken(world, second)
        await second.stop()
        return first.cluster.changes

    await at_each_change(one, least=0, most=30)


async def is_evaluated_by_what_is_taken(world: World, replica: Replica) -> None:
    """The positive control: a snapshot that is taken whole quarantines it, or ends that."""
    if phase_of(world, "n1") is None:
        await replica.agent_brings("n1", ILL, Phase.DRAINED)
    else:
        replica.agent("n1", ILL)
        replica.agent("n1", WELL)
        await soon(lambda: not world.quarantines)
        assert not is_marked(world.nodes["n1"])
