"""A person's edit, and uncordons that release no node, while the aggregator dies at any call.

As in test_interruption: it dies before or after each of its calls, another takes over with an empty
memory, and the end is the same.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from aggregator.cluster.node_names import is_marked
from aggregator.cluster.port import Action, Phase
from aggregator.quarantine.decide.uncordon import OnUncordon, UncordonRules
from tests.support.deaths import at_each_change, sees, until_it_dies
from tests.support.memory_cluster import World
from tests.support.replica import SETTINGS, Replica, fault, snapshot
from tests.support.virtual_replica import Running
from tests.support.virtual_time import in_virtual_time
from tests.support.waiting import until

ILL = snapshot(fault())
SETTLED = (Phase.CORDONED, Phase.DRAINING, Phase.DRAINED)


@dataclass(frozen=True)
class Story:
    """The events before, the action of a person or a tool then, and the end."""

    before: Callable[[World], None]
    act: Callable[[World], None]
    ended: Callable[[World], bool]
    check: Callable[[World], None]


def nothing(world: World) -> None:
    """The node is as it came."""


def somebody_elses_cordon(world: World) -> None:
    world.person_cordons("n1")


def sets_cordon(world: World) -> None:
    """Sets it once: an action that was set already is not set again."""
    found = world.quarantines.get("n1")
    if found is not None and found.spec.action is Action.DRAIN:
        world.person_edits_spec("n1", action=Action.CORDON)
        world.budget_blocks.clear()


def uncordons(world: World) -> None:
    """Uncordons once, for any client."""
    found = world.quarantines.get("n1")
    if found is None or found.status.recordons or found.status.phase not in SETTLED:
        return
    if world.nodes["n1"].unschedulable:
        world.person_uncordons("n1")


def is_overridden_and_shown(world: World) -> bool:
    found = world.quarantines["n1"]
    return found.spec.action is Action.CORDON and bool(found.status.override)


def check_override(world: World) -> None:
    found = world.quarantines["n1"]
    assert found.spec.action is Action.CORDON
    assert found.spec.intent_action is Action.DRAIN
    assert found.status.phase is Phase.CORDONED
    assert world.evicted == []
    assert is_marked(world.nodes["n1"])


def is_cordoned_again(world: World) -> bool:
    return world.nodes["n1"].unschedulable and bool(world.quarantines["n1"].status.uncordoned)


def check_kept(world: World) -> None:
    found, node = world.quarantines["n1"], world.nodes["n1"]
    assert is_marked(node)
    assert node.unschedulable
    assert found.status.phase in SETTLED
    assert 1 <= found.status.recordons <= 2  # a death between the two writes counts it once more
    assert found.status.applied is not None
    assert found.status.applied.cordoned
    assert "sickbay.dev/overruled" not in node.annotations
    assert world.evicted == []


STORIES = [
    pytest.param(Story(nothing, sets_cordon, is_overridden_and_shown, check_override), id="edit"),
    pytest.param(Story(nothing, uncordons, is_cordoned_again, check_kept), id="uncordon"),
    pytest.param(
        Story(somebody_elses_cordon, uncordons, is_cordoned_again, check_kept), id="foreign cordon"
    ),
]


@pytest.mark.parametrize("story", STORIES)
@in_virtual_time
async def test_death_at_any_call_loses_no_word_of_a_person(story: Story) -> None:
    settings = replace(SETTINGS, uncordon=UncordonRules(OnUncordon.CONFIRM))

    async def until_draining() -> World:
        world = World.of("n1")
        world.budget_blocks = {world.add_pod("n1", "a").uid}
        story.before(world)
        replica = await Replica(world, clock=Running(), settings=settings).ready()
        await replica.agent_brings("n1", ILL, Phase.DRAINING)
        await until(lambda: world.quarantines["n1"].status.blockers)
        await replica.stop()
        return world

    async def one(crash_at: int | None, *, after: bool) -> int:
        world = await until_draining()
        first = Replica(world, clock=Running(), settings=settings, crash_at=crash_at, after=after)
        await sees(first, n1=ILL)
        story.act(world)
        await until_it_dies(first, lambda: story.ended(world))
        second = Replica(world, clock=Running(), settings=settings)
        await sees(second, n1=ILL)
        story.act(world)
        await until(lambda: story.ended(world), within=120)
        await asyncio.sleep(600)
        story.check(world)
        await second.stop()
        return first.cluster.changes

    await at_each_change(one, least=1)
