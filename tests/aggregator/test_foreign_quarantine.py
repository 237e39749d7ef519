"""A Quarantine of another installation in the cluster: left alone, counted by its own record."""

import asyncio
from dataclasses import replace

from aggregator.cluster.node_names import is_marked
from aggregator.cluster.port import Action, Phase, Quarantine, QuarantineSpec, QuarantineStatus
from aggregator.quarantine.decide.admission_record import parse_record
from aggregator.quarantine.decide.node_marks import cordon_change
from aggregator.web.node_view import why
from tests.support.memory_cluster import World, phase_of
from tests.support.present import present
from tests.support.replica import OPEN, SETTINGS, Replica, fault, snapshot
from tests.support.virtual_replica import LoopClock, Running
from tests.support.virtual_time import VirtualTimeLoop, in_virtual_time, play
from tests.support.waiting import until

ILL = snapshot(fault())
THEIRS = QuarantineSpec(
    Action.DRAIN, "gpu", "xid:79", requester="sickbay", incident="i", installation="staging"
)


def world_with_theirs(phase: Phase) -> World:
    world = World()
    for name in ("n1", "n2"):
        world.add_node(name)
        world.add_pod(name, f"job-{name}")
    status = QuarantineStatus(phase, node_uid="uid-n1", cordoned_at=5.0)
    made = world.put_quarantine(Quarantine("n1", "q-theirs", "0", THEIRS, status))
    if phase is not Phase.ADMITTED:
        change = cordon_change(world.nodes["n1"], made)
        node = replace(
            world.nodes["n1"],
            unschedulable=True,
            taints=change.taints or (),
            annotations={k: v for k, v in change.annotations.items() if v is not None},
        )
        world.set_node(node)
    return world


def test_anothers_is_not_entered_voided_or_drained_and_takes_no_place() -> None:
    for phase in (Phase.ADMITTED, Phase.DRAINING, Phase.RELEASING):

        async def test(loop: VirtualTimeLoop, phase: Phase = phase) -> None:
            world = world_with_theirs(phase)
            before = dict(world.quarantines)
            settings = replace(SETTINGS, limits=replace(OPEN, concurrent=1, silent_drain_after=0))
            replica = await Replica(world, clock=LoopClock(loop), settings=settings).ready()
            replica.agent("n1", ILL)
            replica.agent("n2", ILL)
            await until(lambda: phase_of(world, "n2") is Phase.DRAINING)
            await until(lambda: replica.fleet.node_summaries["n1"].decision.hold is not None)
            await asyncio.sleep(60)
            hold = present(replica.fleet.node_summaries["n1"].decision.hold)
            assert (hold.limit, hold.value) == ("installation", "staging")
            assert world.quarantines["n1"] == before["n1"]
            assert set(parse_record(world.record.text).entries) == {"n2"}
            assert world.evicted == ["uid-job-n2"]
            node_summary = replica.fleet.node_summaries["n1"]
            assert "by the sickbay in namespace staging" in why(node_summary, node_summary.state())
            await replica.stop()

        play(test)


@in_virtual_time
async def test_marks_of_anothers_are_not_adopted_when_its_object_is_gone() -> None:
    world = world_with_theirs(Phase.CORDONED)
    await Replica(world, clock=Running()).ready()
    world.person_removes_by_force("n1")
    await asyncio.sleep(400)  # the list of nodes was read anew meanwhile
    assert is_marked(world.nodes["n1"])
    assert world.quarantines == {}
    assert parse_record(world.record.text).entries == {}
