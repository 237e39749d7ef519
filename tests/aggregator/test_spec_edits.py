"""A person's edits of a Quarantine's spec hold, and are shown."""

import asyncio
from dataclasses import replace

import pytest

from aggregator.cluster.port import Action, ClusterError, Phase, QuarantineSpec, Unreachable
from aggregator.health.model import Cleared, Status
from aggregator.quarantine.decide.intent import OURS, is_overridden
from aggregator.quarantine.decide.operator_requests import FORCE
from tests.support.memory_cluster import World, phase_of
from tests.support.replica import SETTINGS, Replica, Turned, component, fault, snapshot
from tests.support.virtual_replica import Running
from tests.support.virtual_time import in_virtual_time
from tests.support.waiting import until

pytestmark = pytest.mark.decorated(by=in_virtual_time)

ILL = snapshot(fault())
OVERRIDDEN = "quarantine.overridden"


def world_with_a_blocked_job() -> World:
    world = World.of("n1")
    world.budget_blocks = {world.add_pod("n1", "a").uid}
    return world


def action_of(world: World) -> str:
    return world.quarantines["n1"].spec.action.value


async def draining(world: World, replica: Replica) -> None:
    await until(lambda: not replica.fleet.view_lost)
    replica.agent("n1", ILL)
    await until(lambda: world.quarantines and world.quarantines["n1"].status.blockers)


async def test_a_weaker_action_that_a_person_sets_holds_stops_evictions_and_is_shown() -> None:
    world = world_with_a_blocked_job()
    replica = Replica(world, clock=Running())
    await draining(world, replica)
    world.person_edits_spec("n1", action=Action.CORDON)
    await until(lambda: phase_of(world, "n1") is Phase.CORDONED)
    world.budget_blocks.clear()
    replica.agent("n1", snapshot(fault(), fault("xid:48", "GPU-2")))  # it asks for a drain too
    await asyncio.sleep(600)
    found = world.quarantines["n1"]
    assert found.spec.action is Action.CORDON
    assert {item.code for item in found.spec.evidence} == {"xid:79", "xid:48"}
    assert world.evicted == []
    assert "a person set cordon" in found.status.override
    assert replica.notes.kinds("n1").count(OVERRIDDEN) == 1
    changed = [t for t in replica.notes.transitions if t.kind == "quarantine.overridden"]
    assert "drain" in changed[0].summary


async def test_an_override_is_ended_by_the_person_who_sets_the_action_back() -> None:
    world = world_with_a_blocked_job()
    replica = Replica(world, clock=Running())
    await draining(world, replica)
    world.person_edits_spec("n1", action=Action.CORDON)
    await until(lambda: world.quarantines["n1"].status.override)
    world.budget_blocks.clear()
    world.person_edits_spec("n1", action=Action.DRAIN)
    await until(lambda: world.evicted == ["uid-a"])
    assert world.quarantines["n1"].status.override == ""


async def test_an_override_holds_after_the_aggregator_has_lost_its_memory() -> None:
    world = world_with_a_blocked_job()
    first = Replica(world, clock=Running())
    await draining(world, first)
    await first.stop()
    world.person_edits_spec("n1", action=Action.CORDON)  # while no aggregator runs
    world.budget_blocks.clear()
    second = await Replica(world, clock=Running()).ready()
    second.agent("n1", ILL)
    await asyncio.sleep(600)
    assert world.quarantines["n1"].spec.action is Action.CORDON
    assert world.quarantines["n1"].status.override
    assert world.evicted == []


async def test_a_drain_that_its_maker_makes_a_cordon_is_shown_as_one() -> None:
    """A person's own Quarantine has no override, so no other write follows the edit."""
    world = world_with_a_blocked_job()
    replica = await Replica(world, clock=Running()).ready()
    replica.agent("n1", snapshot())
    world.person_creates("n1", QuarantineSpec(Action.DRAIN, "manual", "fan 3", requester="ann"))
    await until(lambda: world.quarantines["n1"].status.blockers)
    world.person_edits_spec("n1", action=Action.CORDON)
    await until(lambda: phase_of(world, "n1") is Phase.CORDONED)
    status = world.quarantines["n1"].status
    assert (status.blockers, status.pods_remaining) == ((), None)
    assert status.message == replica.cluster.words.in_force.format(node="n1")
    assert OVERRIDDEN not in replica.notes.kinds("n1")


async def test_a_force_that_becomes_a_cordon_is_shown_as_one_though_a_write_fails() -> None:
    """The intent is written first, and with that the annotation calls for no further write."""
    world, failed = world_with_a_blocked_job(), list[str]()

    def fails(name: str) -> ClusterError | None:
        found = world.quarantines.get("n1")
        cordon = found is not None and found.spec.action is Action.CORDON
        if failed or not cordon or name != "write_quarantine_status":
            return None
        failed.append(name)
        return Unreachable("503")

    replica = await Replica(world, clock=Running(), fails=fails).ready()
    replica.agent("n1", snapshot())
    events = replica.controller.parts.cluster_events
    world.person_annotates("n1", FORCE, "drain fan 3")
    await events.refresh_nodes()
    await until(lambda: world.quarantines and world.quarantines["n1"].status.blockers)
    world.person_annotates("n1", FORCE, "cordon fan 3")
    await events.refresh_nodes()
    await until(lambda: phase_of(world, "n1") is Phase.CORDONED)
    assert failed


async def test_an_override_does_not_outlive_its_quarantine() -> None:
    world = world_with_a_blocked_job()
    replica = Replica(world, clock=Running())
    await draining(world, replica)
    world.person_edits_spec("n1", action=Action.CORDON)
    await until(lambda: world.quarantines["n1"].status.override)
    replica.agent("n1", snapshot(cleared=(Cleared("xid:79", "GPU-1", "replaced"),)))
    await asyncio.sleep(1000)
    assert world.quarantines == {}
    world.budget_blocks.clear()
    replica.agent("n1", snapshot(fault("xid:48", "GPU-2", source_seq=99)))
    await until(lambda: world.evicted == ["uid-a"])


async def test_a_stronger_action_that_a_person_sets_holds_too() -> None:
    world = World.of("n1")
    world.add_pod("n1", "a")
    replica = await Replica(world, clock=Running()).ready()
    failed = component("disk-space", "/", Status.FAILED, "bytes")
    replica.agent("n1", snapshot(failed))
    await asyncio.sleep(300)
    assert action_of(world) == "cordon"
    assert world.evicted == []
    world.person_edits_spec("n1", action=Action.DRAIN)
    await until(lambda: world.evicted == ["uid-a"])
    assert action_of(world) == "drain"
    assert "a person set drain" in world.quarantines["n1"].status.override


async def test_a_persons_drain_evicts_nobody_where_the_mode_is_cordon() -> None:
    world = World.of("n1")
    world.add_pod("n1", "a")
    settings = replace(SETTINGS, mode=Action.CORDON)
    replica = await Replica(world, clock=Running(), settings=settings).ready()
    await replica.agent_brings("n1", ILL, Phase.CORDONED)
    world.person_edits_spec("n1", action=Action.DRAIN)
    await until(lambda: world.quarantines["n1"].status.override)
    await asyncio.sleep(600)
    assert world.quarantines["n1"].spec.action is Action.DRAIN
    assert world.evicted == []


async def test_an_edit_of_a_forced_quarantine_holds_until_its_annotation_changes() -> None:
    world = world_with_a_blocked_job()
    Replica(world, clock=Running())
    world.person_annotates("n1", FORCE, "drain fan 3")
    await until(lambda: world.quarantines and world.quarantines["n1"].status.blockers)
    world.person_edits_spec("n1", action=Action.CORDON, reason="other words")
    await until(lambda: world.quarantines["n1"].status.override)
    world.budget_blocks.clear()
    await asyncio.sleep(600)
    assert world.quarantines["n1"].spec.action is Action.CORDON
    assert world.quarantines["n1"].spec.reason == "other words"
    assert world.evicted == []
    world.person_annotates("n1", FORCE, "cordon fan 3")
    await asyncio.sleep(600)
    world.person_annotates("n1", FORCE, "drain fan 4")
    await until(lambda: world.evicted == ["uid-a"], within=600)
    assert world.quarantines["n1"].status.override == ""


@pytest.mark.parametrize("field", ["reason", "requester"])
async def test_other_words_of_a_person_in_the_spec_stay(field: str) -> None:
    world = world_with_a_blocked_job()
    replica = Replica(world, clock=Running())
    await draining(world, replica)
    world.person_edits_spec("n1", **{field: "mine"})
    replica.agent("n1", snapshot(fault(), fault("xid:48", "GPU-2")))
    await asyncio.sleep(600)
    assert getattr(world.quarantines["n1"].spec, field) == "mine"


@pytest.mark.asyncio
async def test_what_was_made_before_actions_were_told_apart_takes_its_action_for_ours() -> None:
    world = world_with_a_blocked_job()
    first = Replica(world, clock=Turned())
    await draining(world, first)
    await first.stop()
    found = world.quarantines["n1"]
    world.put_quarantine(replace(found, spec=replace(found.spec, intent_action=None)))
    second = await Replica(world, clock=Turned()).ready()
    second.agent("n1", ILL)
    await until(lambda: world.quarantines["n1"].spec.intent_action is Action.DRAIN)
    world.person_edits_spec("n1", action=Action.CORDON)
    await until(lambda: world.quarantines["n1"].status.override)


def test_a_hand_made_quarantine_has_no_action_but_its_makers() -> None:
    spec = QuarantineSpec(Action.DRAIN, "manual", "smells of smoke")
    assert spec.requester != OURS
    assert not is_overridden(spec)
