"""Drains over time: waits, deadlines, gangs, other maintainers. Virtual time, no network.

The aggregator may die anywhere: the pods that a drain waits for stand on the Quarantine.
"""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from aggregator.cluster.port import Action, Node, Phase, QuarantineSpec, Taint
from aggregator.jobs.gangs import Gangs
from aggregator.quarantine.decide.drain_plan import DrainRules, Leave, NamespaceRule
from aggregator.quarantine.settings import Settings
from tests.support import virtual_time
from tests.support.drains import GANG, begun, drained, status, world_with
from tests.support.memory_cluster import World, phase_of
from tests.support.replica import SETTINGS, Replica
from tests.support.virtual_replica import Running
from tests.support.waiting import until

pytestmark = pytest.mark.decorated(by=virtual_time.in_virtual_time)

HOUR = 3600.0
BY_HAND = QuarantineSpec(Action.DRAIN, "manual", "smells of smoke", requester="alice")


def rules(**changes: Any) -> Settings:
    return replace(SETTINGS, drain=DrainRules(**changes))


# -- namespaces, deadlines ---------------------------------------------------------------


async def test_a_namespaces_pods_may_complete_for_their_time_and_are_evicted_then() -> None:
    world = world_with("a", "b")
    waits = NamespaceRule("jobs", Leave.WAIT, wait=2 * HOUR)
    replica = await begun(world, rules(namespaces=(waits,)))
    await asyncio.sleep(HOUR)
    assert world.evicted == []
    assert "may complete, for 2h at most" in status(world).blockers[0].reason
    world.pods["n1/a"] = replace(world.pods["n1/a"], phase="Succeeded")
    await asyncio.sleep(60)
    assert world.evicted == []  # a pod that has ended runs nothing
    assert [one.pod for one in status(world).blockers] == ["jobs/b"]
    await replica.stop()
    replica = await begun(world, rules(namespaces=(waits,)))  # the time goes on
    await asyncio.sleep(HOUR)
    assert world.evicted == ["uid-b"]
    await drained(world)


async def test_a_pod_behind_a_budget_is_deleted_in_its_time_where_its_namespace_allows_it() -> None:
    world = world_with("a", grace=0.0)  # which its kubelet is never told
    world.add_pod("n1", "other", namespace="other")
    world.budget_blocks |= {"uid-a", "uid-other"}
    forces = NamespaceRule("jobs", Leave.FORCE, force_after=2 * HOUR)
    settings = rules(namespaces=(forces,), deadline=3 * HOUR)
    replica = await begun(world, settings)
    await asyncio.sleep(HOUR)
    assert world.forced == []
    await replica.stop()
    replica = await begun(world, settings)
    await asyncio.sleep(HOUR + 60)
    assert world.forced == ["uid-a"]
    assert replica.notes.kinds("n1").count("work.forced") == 1
    world.kubelets_finish()
    await asyncio.sleep(3 * HOUR)
    assert world.forced == ["uid-a"]  # the other pod's namespace allows no force
    assert phase_of(world, "n1") is Phase.DRAINING
    world.budget_blocks.clear()
    await drained(world)


async def test_a_drain_past_its_deadline_says_so_once_and_forces_nothing() -> None:
    world = world_with("a")
    world.budget_blocks.add("uid-a")
    settings = replace(SETTINGS, drain=DrainRules(deadline=HOUR))
    first = await begun(world, settings)
    await asyncio.sleep(HOUR / 2)
    deadline = status(world).deadline_at
    since = status(world).blockers[0].since
    await first.stop()
    # Another configuration, and another life: the deadline on the Quarantine counts.
    settings = replace(SETTINGS, drain=DrainRules(deadline=100 * HOUR))
    second = await begun(world, settings)
    await asyncio.sleep(HOUR)
    told = status(world)
    assert (told.deadline_at, told.blockers[0].since) == (deadline, since)
    assert told.overdue_at >= deadline
    assert (
        "past its deadline: 1 pod still there after 1h, no pod is deleted by force" in told.message
    )
    await second.stop()
    third = await begun(world, settings)
    world.add_pod("n1", "late", phase="Pending")
    world.budget_blocks.add("uid-late")
    await asyncio.sleep(HOUR)
    assert "past its deadline: 2 pods" in status(world).message
    notes = [*first.notes.transitions, *second.notes.transitions, *third.notes.transitions]
    kinds = [one.kind.value for one in notes]
    assert kinds.count("quarantine.overdue") == 1
    assert kinds.count("work.blocked") == 2  # each of the two, once
    [said] = [one.summary for one in notes if one.kind.value == "quarantine.overdue"]
    assert "jobs/a: the budget of jobs/j needs it" in said
    assert (world.forced, world.evicted) == ([], [])
    world.budget_blocks.clear()
    await drained(world)  # it has gone on asking


async def test_a_kubelet_that_goes_while_its_pod_ends_is_seen() -> None:
    world = world_with("a", grace=7 * 24 * HOUR)
    await begun(world, SETTINGS)
    await until(lambda: world.evicted, within=30)
    await asyncio.sleep(60)
    assert status(world).blockers == ()
    now = asyncio.get_running_loop().time()
    world.set_node(replace(world.nodes["n1"], ready=None, ready_since=now))
    await until(lambda: status(world).blockers, within=120)
    await until(lambda: phase_of(world, "n1") is Phase.DRAINED, within=400)


async def test_a_pod_made_anew_under_its_name_is_another_and_goes_too() -> None:
    world = world_with("a")
    world.budget_blocks.add("uid-a")
    await begun(world, SETTINGS)
    await until(lambda: "n1" in world.quarantines and status(world).blockers, within=60)
    world.add_pod("n1", "a", uid="uid-a2")  # in its place
    await until(lambda: world.evicted, within=60)
    assert world.evicted == ["uid-a2"]
    await drained(world)


# -- gangs ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gangs", "most", "gone"),
    [
        (Gangs.NODE, 256, ["uid-a"]),
        (Gangs.WHOLE, 256, ["uid-far", "uid-a"]),  # those elsewhere first
        (Gangs.WHOLE, 1, ["uid-a"]),  # it is too large
    ],
)
async def test_the_rest_of_a_gang_goes_with_it_only_where_that_is_asked_for(
    gangs: Gangs, most: int, gone: list[str]
) -> None:
    world = world_with("a", labels=GANG)
    world.add_node("n2")
    world.add_pod("n2", "far", labels=GANG)
    world.add_pod("n2", "anew", labels=GANG, created_at=1e9)  # after the quarantine
    world.add_pod("n2", "another", labels={"jobset.sigs.k8s.io/jobset-name": "other"})
    await begun(world, rules(gangs=gangs, gang_pods=most))
    await drained(world)
    assert world.evicted == gone


async def test_a_gang_is_not_taken_whole_while_a_pod_elsewhere_may_not_go() -> None:
    world = world_with("a", labels=GANG)
    world.add_node("n2")
    world.add_pod("n2", "far", labels=GANG, empty_dirs=("scratch",))
    await begun(world, rules(gangs=Gangs.WHOLE))
    await until(lambda: "n1" in world.quarantines and status(world).blockers, within=60)
    assert "gang: jobs/far: has emptyDir data" in status(world).blockers[0].reason
    assert world.evicted == []


@pytest.mark.parametrize(
    ("mark", "says"),
    [
        (
            {"sickbay.dev/exempt": "until 2100-01-01T00:00:00Z the benchmark must end"},
            "exempt until 2100-01-01T00:00:00Z: the benchmark must end",
        ),
        ({"sickbay.dev/exempt": "please"}, "sickbay.dev/exempt: 'please' makes no sense"),
        ({"karpenter.sh/do-not-disrupt": "true"}, "it is not to be disrupted (annotation karpe"),
    ],
)
async def test_a_gang_stays_whole_while_a_pod_of_it_is_on_a_node_that_is_left_alone(
    mark: dict[str, str], says: str
) -> None:
    world = world_with("a", labels=GANG)
    world.add_node("n2")
    world.set_node(replace(world.nodes["n2"], annotations=mark))
    world.add_pod("n2", "far", labels=GANG)
    await begun(world, rules(gangs=Gangs.WHOLE))
    await until(lambda: "n1" in world.quarantines and status(world).blockers, within=60)
    await asyncio.sleep(120)
    (blocker,) = status(world).blockers
    mine = "goes together with its gang: jobs/far is on n2, which is left alone: "
    assert blocker.reason.startswith(mine + says)
    assert world.evicted == []
    world.set_node(replace(world.nodes["n2"], annotations={}))
    await drained(world)
    assert world.evicted == ["uid-far", "uid-a"]


# -- somebody else's node --------------------------------------------------------------------

REMOVING = Taint("ToBeDeletedByClusterAutoscaler", "1700000000", "NoSchedule")


async def left_alone_while_it_drained(mark: Callable[[Node], Node]) -> tuple[World, Node]:
    """A cluster whose node got another's mark during its drain, and the node before that."""
    world = world_with("a")
    world.budget_blocks.add("uid-a")
    await begun(world, SETTINGS)
    await until(lambda: phase_of(world, "n1") is Phase.DRAINING)
    await until(lambda: status(world).blockers, within=60)
    node = world.nodes["n1"]
    world.set_node(mark(node))
    await until(lambda: "left alone" in status(world).message, within=60)
    world.budget_blocks.clear()
    await asyncio.sleep(300)
    assert world.evicted == []
    return world, node


async def test_evictions_stop_while_somebody_else_is_at_work_and_go_on_after() -> None:
    world, node = await left_alone_while_it_drained(
        lambda node: replace(node, taints=(*node.taints, REMOVING))
    )
    world.set_node(replace(world.nodes["n1"], taints=node.taints))
    await drained(world, within=120)


async def test_a_mark_that_forbids_evictions_stops_a_drain_under_way_and_no_persons() -> None:
    # Ours, set with the cordon, is no mark of another; this one replaces its record.
    theirs = {"karpenter.sh/do-not-disrupt": "true", "sickbay.dev/kept": ""}
    world, _ = await left_alone_while_it_drained(
        lambda node: replace(node, annotations={**node.annotations, **theirs})
    )
    world.person_edits_spec("n1", requester="alice")
    await drained(world, within=120)


async def test_a_quarantine_by_hand_goes_on_beside_them_and_their_marks_stay() -> None:
    world = world_with("a")
    keeps = {"cluster-autoscaler.kubernetes.io/scale-down-disabled": "true"}
    world.nodes["n1"] = replace(world.nodes["n1"], taints=(REMOVING,), annotations=keeps)
    await Replica(world, clock=Running()).ready()
    world.person_creates("n1", BY_HAND)
    await drained(world)
    world.person_deletes("n1")
    await until(lambda: not world.quarantines)
    assert world.nodes["n1"].taints == (REMOVING,)
    assert keeps.items() <= world.nodes["n1"].annotations.items()


async def test_the_memory_of_a_drain_goes_with_the_release_of_its_node() -> None:
    world = world_with("a")
    world.budget_blocks.add("uid-a")
    replica = await begun(world, SETTINGS)
    memories = replica.controller.parts.worker._reads._drain._memories
    await until(lambda: "n1" in memories and phase_of(world, "n1") is Phase.DRAINING)
    world.person_deletes("n1")
    await until(lambda: not world.quarantines)
    assert memories == {}


# -- load balancers --------------------------------------------------------------------------
