"""Marks under our own keys set by others before us: kept beside ours, and restored after it.

A node may carry a taint, a label or an annotation with our key before its first fault: an operator
tries the taint, another tool copies it. A release restores exactly what was there.
"""

import json
from dataclasses import replace

import pytest

from aggregator.cluster.node_names import APPLIED, CODES, LABEL, TAINT
from aggregator.cluster.port import Phase, Quarantine, QuarantineStatus, Taint
from aggregator.health.model import Cleared
from aggregator.quarantine.decide.node_marks import cordon_change, read_applied, undo_change
from aggregator.quarantine.reconcile.rounds import REFRESH
from tests.aggregator.test_planner import SPEC
from tests.support.memory_cluster import World
from tests.support.replica import Replica, Turned, fault, snapshot
from tests.support.virtual_replica import Running
from tests.support.virtual_time import in_virtual_time, loop_time
from tests.support.waiting import until

ILL = snapshot(fault())
WELL = snapshot(cleared=(Cleared("xid:79", "GPU-1", "operator"),))
OTHER = Taint("example.com/theirs", "1", "NoSchedule")
THEIRS = {
    "execute": Taint(TAINT, "hold", "NoExecute", "2026-01-01T00:00:00Z"),
    "prefer": Taint(TAINT, "hold", "PreferNoSchedule"),
    "schedule": Taint(TAINT, "hold", "NoSchedule"),
    "same": Taint(TAINT, "gpu", "NoSchedule"),
    "empty": Taint(TAINT, "", "NoSchedule"),
}


async def quarantined(world: World, clock: Turned) -> Replica:
    replica = Replica(world, clock=clock)
    await replica.agent_brings("n1", ILL, Phase.DRAINED)
    return replica


async def released(world: World, replica: Replica) -> None:
    replica.agent("n1", WELL)
    replica.evaluate_due()
    replica.clock.time += 700
    replica.agent("n1", WELL)
    await until(lambda: not world.quarantines)


@pytest.mark.parametrize("theirs", THEIRS.values(), ids=THEIRS)
async def test_a_taint_of_our_key_that_was_there_before_is_there_again_after_the_release(
    theirs: Taint,
) -> None:
    world = World.of("n1", taints=(theirs, OTHER), labels={LABEL: "hold"}, annotations={CODES: "x"})
    replica = await quarantined(world, Turned())
    node = world.nodes["n1"]
    assert Taint(TAINT, "gpu", "NoSchedule") in node.taints
    if theirs.effect != "NoSchedule":
        assert theirs in node.taints
    assert node.labels[LABEL] == "gpu"
    await released(world, replica)
    node = world.nodes["n1"]
    assert set(node.taints) == {theirs, OTHER}
    assert node.labels == {LABEL: "hold"}
    assert node.annotations[CODES] == "x"
    assert APPLIED not in node.annotations
    assert not node.unschedulable


@pytest.mark.parametrize("deleted", [False, True])
async def test_it_is_restored_also_where_our_annotation_was_removed(*, deleted: bool) -> None:
    """The Quarantine's status keeps what we applied, so that the release undoes exactly that."""
    world, theirs = World(), THEIRS["schedule"]
    world.add_node("n1", taints=(theirs, OTHER), labels={LABEL: "hold"})
    replica = await quarantined(world, Turned())
    await until(lambda: world.quarantines["n1"].status.applied is not None)
    world.person_annotates("n1", APPLIED, None)
    if deleted:
        world.person_deletes("n1")
        await until(lambda: not world.quarantines)
    else:
        await released(world, replica)
    node = world.nodes["n1"]
    assert set(node.taints) == {theirs, OTHER}
    assert node.labels == {LABEL: "hold"}
    assert not node.unschedulable


async def test_without_our_annotation_nobody_is_told_that_it_was_cordoned_before() -> None:
    world = World.of("n1")
    replica = await quarantined(world, Turned())
    world.person_annotates("n1", APPLIED, None)
    await replica.controller.parts.cluster_events.refresh_nodes()
    replica.controller.parts.registry.node_state("n1").work.needs_read = True
    replica.controller.on_conflict("n1", "")
    await until(lambda: not replica.controller.parts.registry.node_state("n1").work.needs_read)
    assert replica.fleet.node_summaries["n1"].cluster.foreign == ""


@in_virtual_time
async def test_a_taint_of_our_key_on_a_node_that_we_never_marked_is_never_taken_for_ours() -> None:
    world = World()
    taints = (THEIRS["execute"], THEIRS["schedule"])
    world.add_node("n1", taints=taints, labels={LABEL: "hold"}, unschedulable=True)
    world.add_node("n2", annotations={APPLIED: json.dumps({"unschedulable": False})})
    replica = Replica(world, clock=Running())
    replica.agent("n1", snapshot())
    await until(lambda: "n2" in world.quarantines)  # ours, and without an object: adopted
    await until(lambda: loop_time() > 2 * REFRESH)
    assert world.nodes["n1"].taints == taints
    assert world.nodes["n1"].labels == {LABEL: "hold"}
    assert world.nodes["n1"].unschedulable
    assert "n1" not in world.quarantines


@pytest.mark.parametrize("theirs", [None, *THEIRS.values()], ids=[None, *THEIRS])
def test_marking_twice_remembers_what_was_there_before_the_first(theirs: Taint | None) -> None:
    world = World.of("n1", taints=() if theirs is None else (theirs,), labels={LABEL: "hold"})
    before = node = world.nodes["n1"]
    quarantine = Quarantine("n1", "q", "1", SPEC, QuarantineStatus())
    for _ in range(2):
        change = cordon_change(node, quarantine)
        assert change.taints is not None
        node = replace(
            node,
            taints=change.taints,
            unschedulable=True,
            labels={**node.labels, **{k: v for k, v in change.labels.items() if v is not None}},
            annotations={k: v for k, v in change.annotations.items() if v is not None},
        )
    assert len({(taint.key, taint.effect) for taint in node.taints}) == len(node.taints)
    undo = undo_change(node, "q", read_applied(node))
    assert undo.taints == before.taints
    assert undo.labels[LABEL] == "hold"
    assert undo.unschedulable is False
