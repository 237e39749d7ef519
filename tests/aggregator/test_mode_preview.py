"""In mode observe: what mode drain would do now, by admission's own answers; no node is changed."""

from dataclasses import replace

import pytest

from aggregator.cluster.port import Action
from aggregator.quarantine.decide.admission import Limits
from aggregator.quarantine.state.fleet import QuarantineSummary
from aggregator.web.mode_effect import mode_effect
from aggregator.web.models import ModeEffect
from aggregator.web.node_view import ViewMoment
from tests.support.fleet_views import view_fleet
from tests.support.memory_cluster import World
from tests.support.replica import OPEN, SETTINGS, Replica, Turned, fault, snapshot
from tests.support.waiting import until

ILL, WELL = snapshot(fault()), snapshot()
NAMES = [f"n{number}" for number in range(1, 21)]
SICK = NAMES[:7]


def world_of(names: list[str]) -> World:
    return World.of(*names)


async def fleet_in(mode: Action, limits: Limits) -> tuple[Replica, World]:
    """Seven of twenty nodes with a fault that asks for a drain, all decided on."""
    world = world_of(NAMES)
    settings = replace(SETTINGS, mode=mode, limits=limits)
    replica = Replica(world, clock=Turned(), settings=settings)
    await until(lambda: len(replica.fleet.node_summaries) == len(NAMES))
    for name in NAMES:
        replica.agent(name, ILL if name in SICK else WELL)
    states = (QuarantineSummary.HELD, QuarantineSummary.QUARANTINED)
    summaries = replica.fleet.node_summaries
    await until(lambda: all(summaries[name].state() in states for name in SICK))
    return replica, world


def effect_of(replica: Replica) -> ModeEffect:
    found = view_fleet(replica.fleet, ViewMoment(replica.clock(), replica.clock()))
    return mode_effect(found, replica.controller.mode_preview)


@pytest.mark.parametrize(
    ("limits", "held", "limit"),
    [
        (replace(OPEN, concurrent=3), 4, "limits.concurrent"),
        (replace(OPEN, concurrent_percent=10.0), 5, "limits.concurrent_percent"),
        (replace(OPEN, new_per_window=2), 5, "limits.cooldown"),
        (replace(OPEN), 0, ""),
    ],
)
async def test_the_preview_agrees_with_what_mode_drain_does(
    limits: Limits, held: int, limit: str
) -> None:
    observing, world = await fleet_in(Action.OBSERVE, limits)
    effect = effect_of(observing)
    assert world.writes == []
    await observing.stop()
    assert (effect.drained, effect.held, effect.cordoned) == (len(SICK) - held, held, 0)
    assert sum(one.nodes for one in effect.limits) == held
    assert limit in {one.limit for one in effect.limits} | {""}
    assert all(one.documentation.startswith("docs/holds.md#") for one in effect.limits)
    draining, _ = await fleet_in(Action.DRAIN, limits)
    await until(
        lambda: (
            sum(one.quarantine is not None for one in draining.fleet.node_summaries.values())
            == effect.drained
        )
    )
    real = [
        one.decision.hold.limit
        for one in draining.fleet.node_summaries.values()
        if one.decision.hold is not None
    ]
    assert len(real) == effect.held
    await draining.stop()


async def test_the_preview_obeys_the_stop_switch_and_counts_no_well_node() -> None:
    observing, world = await fleet_in(Action.OBSERVE, OPEN)
    assert sorted(effect_of(observing).nodes) == sorted(SICK)
    world.person_stops("maintenance")
    await until(lambda: observing.fleet.stop == "maintenance")
    effect = effect_of(observing)
    assert (effect.drained, effect.held, effect.nodes) == (0, len(SICK), [])
    assert [(one.limit, one.value) for one in effect.limits] == [("stop", "maintenance")]
    await observing.stop()


async def test_another_replicas_node_is_asked_about_without_its_evidence() -> None:
    observing, world = await fleet_in(Action.OBSERVE, replace(OPEN, concurrent=1))
    held = observing.controller.mode_preview(["far", SICK[0]])
    assert [(node, one.limit) for node, one in held.items()] == [(SICK[0], "limits.concurrent")]
    assert world.writes == []
    await observing.stop()
