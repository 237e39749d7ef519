"""Our marks removed or changed by people while the quarantine stands and the node is cordoned.

That is no release. The aggregator notices it from the watch, reports it, and sets the marks again
after a grace period, a few times with a growing grace; then it only reports it.
"""

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest

from aggregator.cluster.node_names import APPLIED, CODES, LABEL, TAINT
from aggregator.cluster.port import (
    Action,
    ClusterError,
    Conflict,
    MarksStatus,
    Node,
    Phase,
    Refused,
    Taint,
    Unreachable,
)
from aggregator.health.model import Cleared
from aggregator.quarantine.decide.lost_marks import RestoreRules, restore_at
from aggregator.quarantine.reconcile.rounds import REFRESH
from tests.support.memory_cluster import MemoryCluster, World
from tests.support.replica import SETTINGS, Replica, fault, snapshot
from tests.support.virtual_replica import Running
from tests.support.virtual_time import in_virtual_time, loop_time
from tests.support.waiting import until

pytestmark = pytest.mark.decorated(by=in_virtual_time)

ILL = snapshot(fault())
WELL = snapshot(cleared=(Cleared("xid:79", "GPU-1", "operator"),))
RULES = RestoreRules()
OURS = Taint(TAINT, "gpu", "NoSchedule")


def changed_taint(**changes: str) -> Callable[[Node], Node]:
    def change(node: Node) -> Node:
        taints = tuple(replace(t, **changes) if t == OURS else t for t in node.taints)
        return replace(node, taints=taints)

    return change


def without(node: Node, *keys: str) -> Node:
    return replace(
        node,
        labels={k: v for k, v in node.labels.items() if k not in keys},
        annotations={k: v for k, v in node.annotations.items() if k not in keys},
        taints=tuple(t for t in node.taints if t.key not in keys),
    )


REMOVALS: dict[str, tuple[Callable[[Node], Node], set[str]]] = {
    "taint": (lambda node: without(node, TAINT), {"taint"}),
    "value": (changed_taint(value="none"), {"taint"}),
    "effect": (changed_taint(effect="PreferNoSchedule"), {"taint"}),
    "label": (lambda node: without(node, LABEL), {"label"}),
    "label-value": (lambda n: replace(n, labels={**n.labels, LABEL: "x"}), {"label"}),
    "applied": (lambda node: without(node, APPLIED), {"applied"}),
    "codes": (lambda node: without(node, CODES), {"codes"}),
    "condition": (lambda node: replace(node, condition=""), {"condition"}),
    "overwritten": (lambda node: replace(node, condition="False"), {"condition"}),
    "all": (
        lambda node: replace(without(node, TAINT, LABEL, APPLIED, CODES), condition=""),
        {"taint", "label", "applied", "codes", "condition"},
    ),
}


def is_whole(world: World) -> bool:
    node = world.nodes["n1"]
    return (
        OURS in node.taints
        and node.labels.get(LABEL) == "gpu"
        and APPLIED in node.annotations
        and CODES in node.annotations
        and node.condition == "True"
        and node.unschedulable
    )


async def drained(world: World, **how: object) -> Replica:
    world.add_node("n1")
    replica = Replica(world, clock=Running(), **how)  # type: ignore[arg-type]  # a test's words
    await replica.agent_brings("n1", ILL, Phase.DRAINED)
    node_state = replica.controller.parts.registry.node_state("n1")
    await until(lambda: is_whole(world) and node_state.quarantine_view.trail is None)
    return replica


def missing(world: World) -> set[str]:
    return set(world.quarantines["n1"].status.marks.missing)


@pytest.mark.parametrize(("removed", "names"), REMOVALS.values(), ids=REMOVALS)
async def test_a_mark_removed_by_hand_is_told_within_a_second_and_set_again_after_the_grace(
    removed: Callable[[Node], Node], names: set[str]
) -> None:
    world = World()
    replica = await drained(world)
    first = world.quarantines["n1"]
    world.set_node(removed(world.nodes["n1"]))
    began = loop_time()
    await until(lambda: missing(world) == names)
    assert loop_time() - began < 1.0
    node_summary = replica.fleet.node_summaries["n1"]
    assert set(node_summary.quarantine_view.missing) == names
    assert replica.notes.kinds("n1").count("quarantine.marks_missing") == 1
    await until(lambda: loop_time() - began > RULES.restore_after - 1)
    assert not is_whole(world)
    await until(lambda: is_whole(world))
    assert loop_time() - began < RULES.restore_after + 10
    await until(lambda: not missing(world))
    now = world.quarantines["n1"]
    assert now.uid == first.uid
    assert now.status.phase is Phase.DRAINED
    assert now.status.applied == first.status.applied
    assert now.status.marks.restored == 1
    assert not node_summary.quarantine_view.missing
    assert replica.notes.kinds("n1").count("quarantine.marks_restored") == 1
    assert world.evicted == []
    replica.agent("n1", WELL)
    await asyncio.sleep(700)
    await until(lambda: not world.quarantines)
    node = world.nodes["n1"]
    assert [t for t in node.taints if t == OURS] == []
    assert LABEL not in node.labels
    assert not node.unschedulable


async def test_it_is_restored_a_few_times_with_a_growing_grace_and_then_only_told() -> None:
    world = World()
    replica = await drained(world)
    graces = []
    for _ in range(RULES.restore_times):
        world.set_node(without(world.nodes["n1"], TAINT))
        began = loop_time()
        await until(lambda: is_whole(world), within=3600)
        graces.append(loop_time() - began)
    assert graces == sorted(graces)
    assert graces[-1] > 4 * graces[0]
    world.set_node(without(world.nodes["n1"], TAINT))
    await until(lambda: missing(world) == {"taint"})
    writes, told = len(world.writes), len(replica.notes.transitions)
    assert "not set again" in replica.notes.transitions[-1].summary
    await asyncio.sleep(6 * 3600)
    assert not is_whole(world)
    assert "patch n1" not in world.writes[writes:]
    assert len(replica.notes.transitions) == told  # nor is it reported again and again
    # The person's own release ends it as always.
    world.person_deletes("n1")
    await until(lambda: not world.quarantines)
    assert not world.nodes["n1"].unschedulable


@pytest.mark.parametrize("error", [Unreachable("no answer"), Conflict("changed")])
async def test_a_restore_whose_report_fails_counts_all_the_same(error: ClusterError) -> None:
    world, loses, patched = World(), False, False

    def fails(call: str) -> ClusterError | None:
        nonlocal patched
        lost = loses and patched and call == "write_quarantine_status"
        patched = call == "patch_node" or (patched and not lost)
        return error if lost else None

    replica = await drained(world, fails=fails)
    loses, patched = True, False
    for _ in range(RULES.restore_times):
        world.set_node(without(world.nodes["n1"], TAINT))
        await until(lambda: is_whole(world) and not missing(world), within=3600)
    kind = "quarantine.marks_restored"
    told = [one.summary for one in replica.notes.transitions if one.kind == kind]
    assert ["set again, " in text for text in told] == [True] * RULES.restore_times
    world.set_node(without(world.nodes["n1"], TAINT))
    await asyncio.sleep(6 * 3600)
    assert not is_whole(world)


async def test_each_loss_is_reported_also_after_a_report_without_an_answer() -> None:
    world, answered = World(), False

    def loses(call: str) -> ClusterError | None:
        nonlocal answered
        if answered or call != "write_quarantine_status" or not missing(world):
            return None
        answered = True
        return Unreachable("no answer")

    replica = await drained(world, cluster=MemoryCluster(world, loses=loses))
    for times in (1, 2):
        world.set_node(without(world.nodes["n1"], TAINT))
        await until(lambda: bool(missing(world)))
        await until(lambda: is_whole(world) and not missing(world), within=3600)
        assert replica.notes.kinds("n1").count("quarantine.marks_missing") == times


async def test_missing_marks_are_reported_although_no_status_can_be_written() -> None:
    world, refused = World(), set[str]()
    replica = await drained(
        world, fails=lambda call: Refused("denied") if call in refused else None
    )
    refused.add("write_quarantine_status")
    world.set_node(without(world.nodes["n1"], TAINT))
    await asyncio.sleep(300)
    assert replica.notes.kinds("n1").count("quarantine.marks_missing") == 1
    assert not missing(world)
    refused.clear()
    await until(lambda: missing(world) == {"taint"})
    assert replica.notes.kinds("n1").count("quarantine.marks_missing") == 1


async def test_marks_that_somebody_set_again_are_told_and_count_for_nothing() -> None:
    world = World()
    replica = await drained(world)
    before = world.nodes["n1"]
    world.set_node(without(before, TAINT))
    await until(lambda: missing(world) == {"taint"})
    world.set_node(before)
    await until(lambda: not missing(world), within=10)
    assert replica.notes.kinds("n1").count("quarantine.marks_restored") == 1
    assert world.quarantines["n1"].status.marks.restored == 0


async def test_a_tool_that_removes_and_adds_marks_ten_times_a_second_costs_few_requests() -> None:
    world = World()
    replica = await drained(world)
    before, calls = world.nodes["n1"], replica.cluster.calls
    for _ in range(300):
        world.set_node(without(before, TAINT))
        await asyncio.sleep(0.05)
        world.set_node(before)
        await asyncio.sleep(0.05)
    assert replica.cluster.calls - calls < 150
    world.set_node(without(before, TAINT))
    await until(lambda: missing(world) == {"taint"}, within=10)


@pytest.mark.parametrize("how", ["stopped", "observe", "exempt", "maintained"])
async def test_a_restore_is_an_act_and_waits_for_leave_to_act(how: str) -> None:
    world = World()
    replica = await drained(world)
    if how == "observe":
        await replica.stop()
        settings = replace(SETTINGS, mode=Action.OBSERVE)
        replica = Replica(world, clock=Running(), settings=settings)
        replica.agent("n1", ILL)
        await until(lambda: not replica.fleet.view_lost)
    node = without(world.nodes["n1"], TAINT)
    if how == "stopped":
        world.person_stops("drill")
        await until(lambda: replica.fleet.stop)
    elif how == "exempt":
        more = {"sickbay.dev/exempt": "until 2999-01-01T00:00:00Z a test"}
        node = replace(node, annotations={**node.annotations, **more})
    elif how == "maintained":
        busy = Taint("karpenter.sh/disrupted", "", "NoSchedule")
        node = replace(node, taints=(*node.taints, busy))
    world.set_node(node)
    await until(lambda: missing(world) == {"taint"})
    await asyncio.sleep(RULES.restore_after * 5)
    assert OURS not in world.nodes["n1"].taints
    assert missing(world) == {"taint"}
    if how == "stopped":
        world.person_stops("")
        await until(lambda: is_whole(world))


async def test_the_next_replica_learns_of_it_and_keeps_the_grace_and_the_count() -> None:
    world = World()
    replica = await drained(world)
    await replica.stop()
    world.set_node(without(world.nodes["n1"], TAINT))  # no replica is there to see it
    replica = Replica(world, clock=Running())
    await until(lambda: missing(world) == {"taint"}, within=5)
    noticed = loop_time()
    await asyncio.sleep(RULES.restore_after / 2)
    await replica.stop()
    replica = await Replica(world, clock=Running()).ready()
    assert missing(world) == {"taint"}
    assert replica.fleet.node_summaries["n1"].quarantine_view.missing == ("taint",)
    await until(lambda: is_whole(world))
    assert RULES.restore_after <= loop_time() - noticed < RULES.restore_after + 10
    await until(lambda: not missing(world))
    await replica.stop()
    again = await Replica(world, clock=Running()).ready()
    marks = world.quarantines["n1"].status.marks
    assert marks.restored == 1
    await again.stop()


@pytest.mark.parametrize("key", [LABEL, APPLIED])
async def test_the_list_of_nodes_tells_of_a_label_or_annotation_where_the_watch_did_not(
    key: str,
) -> None:
    world = World()
    await drained(world)
    world.nodes["n1"] = without(world.nodes["n1"], key)  # without a word
    await until(lambda: missing(world), within=REFRESH + 10)


async def test_an_uncordon_is_a_release_also_where_marks_are_missing() -> None:
    world = World()
    await drained(world)
    world.set_node(without(world.nodes["n1"], TAINT, LABEL, APPLIED))
    await until(lambda: missing(world) != set())
    world.person_uncordons("n1")
    await until(lambda: not world.quarantines)
    assert not world.nodes["n1"].unschedulable


def test_the_grace_grows_fourfold_and_its_count_is_forgotten_after_a_day() -> None:
    marks = MarksStatus(("taint",), since=1000.0)
    assert restore_at(marks, RULES) == 1060.0
    assert restore_at(replace(marks, restored=1, restored_at=900.0), RULES) == 1240.0
    assert restore_at(replace(marks, restored=2, restored_at=900.0), RULES) == 1960.0
    counted = replace(marks, restored=1, restored_at=1060.0)
    assert restore_at(counted, RULES) == 1060.0, "it is not known to be made"
    assert restore_at(replace(marks, restored=3, restored_at=900.0), RULES) is None
    long_ago = replace(marks, restored=3, restored_at=1000.0 - 86400.0)
    assert restore_at(long_ago, RULES) == 1060.0
    assert restore_at(marks, RestoreRules(restore_times=0)) is None
    assert restore_at(replace(marks, missing=()), RULES) is None
