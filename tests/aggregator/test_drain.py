"""Drains over time: waits, deadlines, gangs, hooks, other maintainers. Virtual time, no network.

The aggregator may die anywhere: what a drain waits for stands on the Quarantine.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from aggregator.health.model import Cleared
from aggregator.quarantine.cluster import (
    Action,
    HookState,
    NodeUncordoned,
    Phase,
    QuarantineSpec,
    Taint,
)
from aggregator.quarantine.decide.drainplan import DrainRules, Leave, NamespaceRule
from aggregator.quarantine.decide.gangs import Gangs
from aggregator.quarantine.decide.marks import OFF_BALANCERS, is_marked
from aggregator.quarantine.decide.record import parse_record
from aggregator.quarantine.hooking import HookAnswer, HookRules, Said
from aggregator.quarantine.settings import Settings
from tests.support import virtualtime
from tests.support.memorycluster import World, phase_of
from tests.support.replica import SETTINGS, Replica, fault, snapshot
from tests.support.running import Running
from tests.support.waiting import until

HOUR = 3600.0
ILL = snapshot(fault())
WELL = snapshot(cleared=(Cleared("xid:79", "GPU-1", "operator"),))
BY_HAND = QuarantineSpec(Action.DRAIN, "manual", "smells of smoke", requester="alice")


def rules(**changes: Any) -> Settings:
    return replace(SETTINGS, drain=DrainRules(**changes))


def world_with(*names: str, **changes: object) -> World:
    world = World()
    world.add_node("n1")
    for name in names:
        world.add_pod("n1", name, **changes)
    return world


async def begun(world: World, settings: Settings, **arguments: Any) -> Replica:
    """An aggregator that knows its cluster, and the node's fault."""
    replica = Replica(world, clock=Running(), settings=settings, **arguments)
    await until(lambda: not replica.fleet.view_lost)
    replica.agent("n1", ILL)
    return replica


async def drained(world: World, *, within: float = 60) -> None:
    def settled() -> bool:
        world.kubelets_finish()
        return phase_of(world, "n1") is Phase.DRAINED

    await until(settled, within=within)


def status(world: World) -> Any:
    return world.quarantines["n1"].status


# -- namespaces, deadlines ---------------------------------------------------------------


def test_a_namespaces_pods_may_complete_for_their_time_and_are_evicted_then() -> None:
    async def scenario() -> None:
        world = world_with("a", "b")
        waits = NamespaceRule("jobs", Leave.WAIT, wait=2 * HOUR)
        replica = await begun(world, rules(namespaces=(waits,)))
        await asyncio.sleep(HOUR)
        assert world.evicted == []
        assert "may complete, for 2h at most" in status(world).blockers[0].reason
        world.pods["n1/a"] = replace(world.pods["n1/a"], phase="Succeeded")
        await asyncio.sleep(60)
        assert world.evicted == ["uid-a"]  # what has finished goes
        await replica.stop()
        replica = await begun(world, rules(namespaces=(waits,)))  # the time goes on
        await asyncio.sleep(HOUR)
        assert world.evicted == ["uid-a", "uid-b"]
        await drained(world)
        await replica.stop()

    virtualtime.run(scenario())


def test_a_pod_behind_a_budget_is_deleted_in_its_time_where_its_namespace_allows_it() -> None:
    async def scenario() -> None:
        world = world_with("a", grace=0.0)  # which its kubelet is never told
        world.add_pod("n1", "other", namespace="other")
        world.budget_blocks |= {"uid-a", "uid-other"}
        forces = NamespaceRule("jobs", Leave.FORCE, force_after=2 * HOUR)
        settings = replace(rules(namespaces=(forces,)), drain_deadline=3 * HOUR)
        replica = await begun(world, settings)
        await asyncio.sleep(HOUR)
        assert world.forced == []
        await replica.stop()
        replica = await begun(world, settings)
        await asyncio.sleep(HOUR + 60)
        assert world.forced == ["uid-a"]
        assert replica.notes.kinds("n1").count("pod.forced") == 1
        world.kubelets_finish()
        await asyncio.sleep(3 * HOUR)
        assert world.forced == ["uid-a"]  # the other's namespace allows nothing
        assert phase_of(world, "n1") is Phase.DRAINING
        world.budget_blocks.clear()
        await drained(world)
        await replica.stop()

    virtualtime.run(scenario())


def test_a_drain_past_its_deadline_says_so_once_and_forces_nothing() -> None:
    async def scenario() -> None:
        world = world_with("a")
        world.budget_blocks.add("uid-a")
        settings = replace(SETTINGS, drain_deadline=HOUR)
        first = await begun(world, settings)
        await asyncio.sleep(HOUR / 2)
        deadline = status(world).deadline_at
        since = status(world).blockers[0].since
        await first.stop()
        # Another configuration, and another life: what stands on the Quarantine counts.
        settings = replace(SETTINGS, drain_deadline=100 * HOUR)
        second = await begun(world, settings)
        await asyncio.sleep(HOUR)
        told = status(world)
        assert (told.deadline_at, told.blockers[0].since) == (deadline, since)
        assert told.overdue_at >= deadline
        assert "past its deadline: 1 pods have not left in 1h, nothing is forced" in told.message
        await second.stop()
        third = await begun(world, settings)
        world.add_pod("n1", "late", phase="Pending")
        world.budget_blocks.add("uid-late")
        await asyncio.sleep(HOUR)
        assert "past its deadline: 2 pods" in status(world).message
        notes = [*first.notes.transitions, *second.notes.transitions, *third.notes.transitions]
        kinds = [one.kind.value for one in notes]
        assert kinds.count("quarantine.overdue") == 1
        assert kinds.count("pod.blocked") == 2  # each of the two, once
        [said] = [one.summary for one in notes if one.kind.value == "quarantine.overdue"]
        assert "jobs/a: the budget of jobs/j needs it" in said
        assert (world.forced, world.evicted) == ([], [])
        world.budget_blocks.clear()
        await drained(world)  # it has gone on asking
        await third.stop()

    virtualtime.run(scenario())


def test_a_pod_stuck_in_terminating_ends_no_drain_for_ever() -> None:
    async def scenario() -> None:
        now = asyncio.get_running_loop().time()
        world = world_with("a", deleting=True, deletion_at=now + 30)
        replica = await begun(world, rules(stuck_after=600))
        await asyncio.sleep(500)
        assert phase_of(world, "n1") is Phase.DRAINING
        await until(lambda: phase_of(world, "n1") is Phase.DRAINED, within=300)
        assert "stuck in Terminating, and not waited for: jobs/a" in status(world).message
        assert status(world).blockers[0].pod == "jobs/a"
        await replica.stop()

    virtualtime.run(scenario())


def test_a_pod_that_is_kept_by_rule_is_named_and_told_once() -> None:
    async def scenario() -> None:
        world = world_with("a", owner_kind="")
        replica = await begun(world, SETTINGS)
        await asyncio.sleep(60)
        assert "no controller" in status(world).blockers[0].reason
        await replica.stop()
        again = await begun(world, SETTINGS)
        await asyncio.sleep(60)
        kinds = replica.notes.kinds("n1") + again.notes.kinds("n1")
        assert kinds.count("pod.blocked") == 1
        await again.stop()

    virtualtime.run(scenario())


def test_a_pod_made_anew_under_its_name_is_another_and_goes_too() -> None:
    async def scenario() -> None:
        world = world_with("a")
        world.budget_blocks.add("uid-a")
        replica = await begun(world, SETTINGS)
        await until(lambda: "n1" in world.quarantines and status(world).blockers, within=60)
        world.add_pod("n1", "a", uid="uid-a2")  # in its place
        await until(lambda: world.evicted, within=60)
        assert world.evicted == ["uid-a2"]
        await drained(world)
        await replica.stop()

    virtualtime.run(scenario())


# -- gangs ---------------------------------------------------------------------------------

GANG = {"jobset.sigs.k8s.io/jobset-name": "train"}


def test_a_gang_of_which_one_may_not_go_stays_whole_until_all_of_it_may() -> None:
    async def scenario() -> None:
        world = world_with("a", "b", "c", labels=GANG)
        world.add_pod("n1", "single")
        world.budget_blocks.add("uid-b")
        replica = await begun(world, SETTINGS)
        await until(lambda: world.evicted, within=60)
        await asyncio.sleep(120)
        assert world.evicted == ["uid-single"]
        reasons = {one.pod: one.reason for one in status(world).blockers}
        assert reasons["jobs/b"] == "the budget of jobs/j needs it"
        assert reasons["jobs/a"].startswith("goes together with its gang: jobs/b: the budget")
        world.budget_blocks.clear()
        await drained(world)
        assert sorted(world.evicted) == ["uid-a", "uid-b", "uid-c", "uid-single"]
        await replica.stop()

    virtualtime.run(scenario())


@pytest.mark.parametrize(
    ("gangs", "most", "gone"),
    [
        (Gangs.NODE, 256, ["uid-a"]),
        (Gangs.WHOLE, 256, ["uid-far", "uid-a"]),  # those elsewhere first
        (Gangs.WHOLE, 1, ["uid-a"]),  # it is too large
    ],
)
def test_the_rest_of_a_gang_goes_with_it_only_where_that_is_asked_for(
    gangs: Gangs, most: int, gone: list[str]
) -> None:
    async def scenario() -> None:
        world = world_with("a", labels=GANG)
        world.add_node("n2")
        world.add_pod("n2", "far", labels=GANG)
        world.add_pod("n2", "anew", labels=GANG, created_at=1e9)  # after the quarantine
        world.add_pod("n2", "another", labels={"jobset.sigs.k8s.io/jobset-name": "other"})
        replica = await begun(world, rules(gangs=gangs, gang_pods=most))
        await drained(world)
        assert world.evicted == gone
        await replica.stop()

    virtualtime.run(scenario())


def test_a_gang_is_not_taken_whole_while_a_pod_elsewhere_may_not_go() -> None:
    async def scenario() -> None:
        world = world_with("a", labels=GANG)
        world.add_node("n2")
        world.add_pod("n2", "far", labels=GANG, empty_dir=True)
        replica = await begun(world, rules(gangs=Gangs.WHOLE))
        await until(lambda: "n1" in world.quarantines and status(world).blockers, within=60)
        assert "gang: jobs/far: has emptyDir data" in status(world).blockers[0].reason
        assert world.evicted == []
        await replica.stop()

    virtualtime.run(scenario())


# -- somebody else's node --------------------------------------------------------------------

REMOVING = Taint("ToBeDeletedByClusterAutoscaler", "1700000000", "NoSchedule")


def test_a_node_that_the_autoscaler_removes_is_left_alone_and_looked_at_again() -> None:
    async def scenario() -> None:
        world = world_with("a")
        world.nodes["n1"] = replace(world.nodes["n1"], taints=(REMOVING,))
        replica = await begun(world, SETTINGS)
        patient = replica.fleet.patients["n1"]
        await until(lambda: patient.hold is not None)
        await asyncio.sleep(300)
        assert patient.hold is not None
        assert patient.hold.limit == "maintenance"
        assert "ToBeDeletedByClusterAutoscaler" in patient.hold.reason
        assert parse_record(world.record.text).entries == {}  # not counted as ours
        assert {one.split()[0] for one in world.writes} == {"record"}
        assert replica.notes.kinds("n1").count("quarantine.held") == 1
        world.set_node(replace(world.nodes["n1"], taints=()))
        await drained(world)
        assert world.evicted == ["uid-a"]
        await replica.stop()

    virtualtime.run(scenario())


def test_evictions_stop_while_somebody_else_is_at_work_and_go_on_after() -> None:
    async def scenario() -> None:
        world = world_with("a")
        world.budget_blocks.add("uid-a")
        replica = await begun(world, SETTINGS)
        await until(lambda: phase_of(world, "n1") is Phase.DRAINING)
        node = world.nodes["n1"]
        world.set_node(replace(node, taints=(*node.taints, REMOVING)))
        await until(lambda: "left alone" in status(world).message, within=60)
        world.budget_blocks.clear()
        await asyncio.sleep(300)
        assert world.evicted == []
        world.set_node(replace(world.nodes["n1"], taints=node.taints))
        await drained(world)
        await replica.stop()

    virtualtime.run(scenario())


def test_a_quarantine_by_hand_goes_on_beside_them_and_their_marks_stay() -> None:
    async def scenario() -> None:
        world = world_with("a")
        keeps = {"cluster-autoscaler.kubernetes.io/scale-down-disabled": "true"}
        world.nodes["n1"] = replace(world.nodes["n1"], taints=(REMOVING,), annotations=keeps)
        replica = Replica(world, clock=Running())
        await until(lambda: not replica.fleet.view_lost)
        world.person_creates("n1", BY_HAND)
        await drained(world)
        world.person_deletes("n1")
        await until(lambda: not world.quarantines)
        assert world.nodes["n1"].taints == (REMOVING,)
        assert keeps.items() <= world.nodes["n1"].annotations.items()
        await replica.stop()

    virtualtime.run(scenario())


def test_a_node_deleted_in_the_middle_of_its_drain_is_told_and_drains_no_more() -> None:
    async def scenario() -> None:
        world = world_with("a")
        world.budget_blocks.add("uid-a")
        replica = await begun(world, SETTINGS)
        await until(lambda: phase_of(world, "n1") is Phase.DRAINING)
        del world.nodes["n1"]
        world.tell(NodeUncordoned("n1"))
        await until(lambda: "the node is gone" in status(world).message, within=60)
        assert (status(world).pods_remaining, status(world).blockers) == (0, ())
        world.budget_blocks.clear()
        await asyncio.sleep(300)
        assert world.evicted == []
        await replica.stop()

    virtualtime.run(scenario())


# -- load balancers --------------------------------------------------------------------------


def recovers(replica: Replica) -> None:
    replica.agent("n1", WELL)


async def released(replica: Replica, world: World) -> None:
    recovers(replica)
    await asyncio.sleep(700)
    replica.agent("n1", WELL)
    await until(lambda: not world.quarantines, within=60)
    assert not is_marked(world.nodes["n1"])


@pytest.mark.parametrize("theirs", [False, True])
def test_a_drained_node_is_off_the_load_balancers_and_only_ours_is_undone(*, theirs: bool) -> None:
    async def scenario() -> None:
        world = world_with("a")
        if theirs:
            world.nodes["n1"] = replace(world.nodes["n1"], labels={OFF_BALANCERS: "true"})
        replica = await begun(world, SETTINGS)
        await drained(world)
        assert world.nodes["n1"].labels[OFF_BALANCERS] == ("true" if theirs else "")
        await released(replica, world)
        assert (OFF_BALANCERS in world.nodes["n1"].labels) == theirs
        await replica.stop()

    virtualtime.run(scenario())


def test_a_cordon_leaves_a_node_on_its_load_balancers() -> None:
    async def scenario() -> None:
        world = world_with("a")
        replica = await begun(world, replace(SETTINGS, mode=Action.CORDON))
        await until(lambda: phase_of(world, "n1") is Phase.CORDONED)
        await asyncio.sleep(60)
        assert OFF_BALANCERS not in world.nodes["n1"].labels
        await replica.stop()

    virtualtime.run(scenario())


# -- the site's hooks --------------------------------------------------------------------------


@dataclass
class PlayedHook:
    """Answers in turn, the last for ever; each attempt takes a while. ``asked``: what it saw."""

    world: World
    answers: list[HookAnswer]
    takes: float = 5.0
    asked: list[tuple[str, str]] = field(default_factory=list)
    ended: int = 0
    at_once: int = 0
    most_at_once: int = 0

    async def ask(self, values: Mapping[str, str], *, limit: float) -> HookAnswer:
        assert limit > 0
        node = values["node"]
        self.asked.append((values["hook"], node))
        if values["hook"] == "pre_evict":
            assert is_marked(self.world.nodes[node])  # after the taint
            assert self.world.evicted == []  # and before the first eviction
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            await asyncio.sleep(self.takes)
        finally:
            self.at_once -= 1
        self.ended += 1
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


DONE, LATER = HookAnswer(Said.DONE, "drained"), HookAnswer(Said.LATER, "3 jobs run")
FAILED = HookAnswer(Said.FAILED, "slurmctld is away")


def hooked(hook: PlayedHook, **changes: Any) -> Settings:
    return replace(SETTINGS, hooks=HookRules(pre_evict=hook, **changes))


def test_the_hook_is_asked_after_the_taint_until_it_is_done_and_then_pods_go() -> None:
    async def scenario() -> None:
        world = world_with("a", "b")
        hook = PlayedHook(world, [LATER, FAILED, DONE])
        replica = await begun(world, hooked(hook))
        await until(lambda: "n1" in world.quarantines and status(world).pre_evict is not None)
        assert status(world).phase is Phase.DRAINING
        assert status(world).pre_evict.state is HookState.ASKING
        await drained(world)
        assert len(hook.asked) == 3
        assert status(world).pre_evict.state is HookState.DONE
        assert status(world).pre_evict.message == "drained"
        assert sorted(world.evicted) == ["uid-a", "uid-b"]
        await replica.stop()
        again = await begun(world, hooked(hook))
        await asyncio.sleep(60)
        assert len(hook.asked) == 3  # what is done is not done again
        await again.stop()

    virtualtime.run(scenario())


def test_a_hook_that_does_not_succeed_holds_the_evictions_and_says_so_once() -> None:
    async def scenario() -> None:
        world = world_with("a")
        hook = PlayedHook(world, [FAILED])
        settings = hooked(hook, pre_evict_timeout=600)
        replica = await begun(world, settings)
        await asyncio.sleep(500)
        asked_at = status(world).pre_evict.asked_at
        await replica.stop()
        again = await begun(world, settings)
        await asyncio.sleep(HOUR)
        assert world.evicted == []
        told = status(world)
        assert told.pre_evict.asked_at == asked_at
        assert told.pre_evict.ended_at < asked_at + 700  # restarts don't prolong its time
        assert "was not done in 600 s; nothing is evicted" in told.message
        assert "slurmctld is away" in told.pre_evict.message
        await again.stop()
        third = await begun(world, settings)
        await asyncio.sleep(HOUR)
        kinds = [k for r in (replica, again, third) for k in r.notes.kinds("n1")]
        assert kinds.count("quarantine.hook_failed") == 1
        hook.answers = [DONE]
        await drained(world, within=120)
        await third.stop()

    virtualtime.run(scenario())


def test_a_drain_goes_on_without_its_hook_where_that_is_configured() -> None:
    async def scenario() -> None:
        world = world_with("a")
        hook = PlayedHook(world, [LATER])
        replica = await begun(world, hooked(hook, pre_evict_timeout=100, go_on=True))
        await asyncio.sleep(90)
        assert world.evicted == []
        await drained(world)
        assert status(world).pre_evict.state is HookState.GIVEN_UP
        assert replica.notes.kinds("n1").count("quarantine.hook_failed") == 1
        await replica.stop()

    virtualtime.run(scenario())


def test_a_hook_ends_with_its_drain_and_a_release_waits_for_none() -> None:
    async def scenario() -> None:
        world = world_with("a")
        hook = PlayedHook(world, [DONE], takes=100_000.0)
        replica = await begun(world, hooked(hook, pre_evict_timeout=1e6))
        await until(lambda: hook.at_once == 1)
        world.person_deletes("n1")
        await until(lambda: not world.quarantines, within=30)
        assert (hook.at_once, hook.ended, world.evicted) == (0, 0, [])
        await replica.stop()

    virtualtime.run(scenario())


def test_hooks_run_beside_each_other_only_up_to_their_limit() -> None:
    async def scenario() -> None:
        world = World()
        names = [f"n{number}" for number in range(6)]
        for name in names:
            world.add_node(name)
        hook = PlayedHook(world, [DONE])
        replica = Replica(world, clock=Running(), settings=hooked(hook, at_once=2))
        await until(lambda: not replica.fleet.view_lost)
        for name in names:
            replica.agent(name, ILL)
        await until(lambda: all(phase_of(world, n) is Phase.DRAINED for n in names), within=120)
        assert hook.most_at_once == 2
        assert sorted(node for _, node in hook.asked) == names
        await replica.stop()

    virtualtime.run(scenario())


@pytest.mark.parametrize("answer", [DONE, FAILED])
def test_the_hook_after_a_release_is_asked_once_the_node_is_given_back(answer: HookAnswer) -> None:
    async def scenario() -> None:
        world = world_with("a")
        before, after = PlayedHook(world, [DONE]), PlayedHook(world, [answer])
        replica = await begun(world, hooked(before, post_release=after))
        await drained(world)
        world.person_deletes("n1")
        await until(lambda: after.asked)
        assert not is_marked(world.nodes["n1"])
        assert parse_record(world.record.text).entries == {}
        await until(lambda: not world.quarantines, within=120)  # done, or given up
        failed = replica.notes.kinds("n1").count("quarantine.hook_failed")
        assert failed == (answer is FAILED)
        await replica.stop()

    virtualtime.run(scenario())


def test_what_was_never_drained_has_no_hook_after_its_release() -> None:
    async def scenario() -> None:
        world = world_with("a")
        hook = PlayedHook(world, [DONE])
        settings = replace(SETTINGS, mode=Action.CORDON, hooks=HookRules(hook, post_release=hook))
        replica = await begun(world, settings)
        await until(lambda: phase_of(world, "n1") is Phase.CORDONED)
        world.person_deletes("n1")
        await until(lambda: not world.quarantines)
        assert hook.asked == []
        await replica.stop()

    virtualtime.run(scenario())


def test_death_at_any_call_of_a_drain_with_hooks_is_finished_by_the_next() -> None:
    async def run(at: int | None, *, after: bool) -> int:
        world = world_with("a", "b", labels=GANG)
        hook = PlayedHook(world, [LATER, DONE], takes=0.5)
        settings = hooked(hook, post_release=hook)
        first = Replica(world, clock=Running(), settings=settings, crash_at=at, after=after)

        async def to_its_end(replica: Replica) -> None:
            await until(lambda: not replica.fleet.view_lost)
            if "n1" not in world.quarantines and not world.evicted:
                replica.agent("n1", ILL)
            if phase_of(world, "n1") is not Phase.RELEASING and not let_go():
                replica.agent("n1", ILL)
                await drained(world)
                world.person_deletes("n1")
            await until(let_go, within=60)

        def let_go() -> bool:
            return bool(world.evicted) and not world.quarantines

        going = asyncio.create_task(to_its_end(first))
        died = asyncio.create_task(first.cluster.crashed.wait())
        await asyncio.wait({going, died}, return_when=asyncio.FIRST_COMPLETED)
        for task in (going, died):
            task.cancel()
        await asyncio.gather(going, died, return_exceptions=True)
        await first.stop()
        if at is not None:
            second = Replica(world, clock=Running(), settings=settings)
            await to_its_end(second)
            await second.stop()
        assert sorted(world.evicted) == ["uid-a", "uid-b"]
        assert ("pre_evict", "n1") in hook.asked
        assert hook.asked[-1] == ("post_release", "n1")
        node = world.nodes["n1"]
        assert not is_marked(node)
        assert OFF_BALANCERS not in node.labels
        assert not node.unschedulable
        return first.cluster.calls

    async def scenario() -> None:
        calls = await run(None, after=False)
        assert calls > 15
        for at in range(1, calls + 1):
            for after in (False, True):
                await run(at, after=after)

    virtualtime.run(scenario())
