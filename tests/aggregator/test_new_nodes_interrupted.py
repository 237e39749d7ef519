"""Tests of new nodes that are interrupted at each of their calls, in virtual time."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import pytest

from aggregator.cluster.node_names import OVERRULED, is_marked
from aggregator.cluster.port import (
    UNGUARDED,
    AdmissionRefused,
    Guard,
    Node,
    NodeChange,
    Phase,
    RepairState,
)
from aggregator.health.model import Cleared
from aggregator.quarantine.decide.admission_record import parse_record
from aggregator.quarantine.decide.node_marks import write_overruled
from aggregator.quarantine.decide.overrides import Override
from aggregator.quarantine.drain.hooks import HookAnswer, HookResult, HookRules
from aggregator.quarantine.reconcile.operations import OperationReconciler
from aggregator.quarantine.repair.protocol import AnswerState, RepairAnswer
from tests.support.idle_node_tests import RACK, IdleNodes, dying_before_the_order
from tests.support.memory_cluster import MemoryCluster, phase_of
from tests.support.new_node_tests import (
    FAILED,
    GOING,
    NOTHING,
    PASSED,
    POOL,
    TIMEOUT,
    UNTESTED,
    NewNodes,
    own_test,
)
from tests.support.node_test_interruptions import die_anywhere, fail_anywhere
from tests.support.present import present
from tests.support.replica import FakeLine, fault, reconciler_of, snapshot
from tests.support.virtual_replica import later
from tests.support.virtual_time import in_virtual_time

pytestmark = pytest.mark.decorated(by=in_virtual_time)


@pytest.mark.slow
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("verdict", [PASSED, FAILED, NOTHING], ids=["passed", "failed", "none"])
def test_a_process_that_dies_anywhere_leaves_no_second_test_and_the_same_end(
    verdict: RepairAnswer,
    after: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    most = 3 if verdict is NOTHING else 1
    ends = {
        PASSED.text: ("True", "TestPassed"),
        FAILED.text: ("False", "TestFailed"),
        NOTHING.text: ("Unknown", "NoVerdict"),
    }

    def is_over(site: NewNodes) -> bool:
        return site.condition() == ends[verdict.text] and site.is_at(most)

    def check(site: NewNodes) -> None:
        assert site.is_open() is (verdict is PASSED)
        assert len(site.program.operations) == most

    die_anywhere(lambda: NewNodes(verdicts=(verdict,)), is_over, check, after=after)


@pytest.mark.slow
@pytest.mark.parametrize("site", [NewNodes, IdleNodes])
def test_a_request_that_fails_anywhere_changes_nothing_of_the_end(site: type[NewNodes]) -> None:
    fail_anywhere(site)


@pytest.mark.parametrize("site", [NewNodes, IdleNodes])
async def test_a_test_that_can_not_be_sent_twice_ends_with_the_process_that_began_it(
    site: type[NewNodes],
) -> None:
    """It may have been sent, or not: another one follows, and does not wait for its deadline."""
    nodes = site()
    nodes.twice = False
    cluster = dying_before_the_order(nodes.world)
    nodes.start(cluster)
    await nodes.settles(cluster.crashed.is_set)
    begun = nodes.last_test()
    assert (begun["state"], nodes.program.orders) == ("Ordering", [])
    nodes.replica.task.cancel()
    await nodes.runs_until(lambda: nodes.last_test()["state"] == "Inconclusive", within=60.0)
    assert nodes.program.cancelled == [begun["operation"]]
    assert parse_record(nodes.world.record.text).node_tests == {}
    await nodes.settles(lambda: nodes.last_test()["state"] == "Succeeded", within=TIMEOUT)
    nodes.check()


def start_and_stop(nodes: NewNodes) -> None:
    """Start a process; a person stops all as it first writes an operation."""
    stops = 0

    def stopped(name: str) -> None:
        nonlocal stops
        if name == "write_operation" and not stops:
            stops += 1
            nodes.world.person_stops("maintenance")

    nodes.start(MemoryCluster(nodes.world, fails=stopped))


@pytest.mark.parametrize("site", [NewNodes, IdleNodes])
async def test_a_test_that_this_process_has_not_sent_is_sent_after_the_stop(
    site: type[NewNodes],
) -> None:
    nodes = site()
    nodes.twice = False
    start_and_stop(nodes)
    await later(TIMEOUT / 2)
    assert (nodes.last_test()["state"], nodes.program.orders) == ("Ordering", [])
    nodes.world.person_stops("")
    await nodes.settles(lambda: nodes.last_test()["state"] == "Succeeded", within=60.0)
    nodes.check()


async def test_work_that_comes_during_a_stop_holds_the_order_of_a_test_that_has_begun() -> None:
    nodes = NewNodes()
    start_and_stop(nodes)
    await later(TIMEOUT / 4)
    assert (nodes.last_test()["state"], nodes.program.orders) == ("Ordering", [])
    pod = nodes.world.add_pod("n1", "bound by hand")
    nodes.world.person_stops("")
    await later(TIMEOUT / 4)
    assert (nodes.last_test()["state"], nodes.program.orders) == ("Ordering", [])
    assert "bound by hand" in nodes.replica.fleet.node_tests["n1"].held
    del nodes.world.pods[f"n1/{pod.name}"]
    await nodes.ends_well(nodes.is_open)


async def test_nothing_is_remembered_of_a_test_that_was_not_sent_and_whose_node_is_gone() -> None:
    nodes = NewNodes()
    start_and_stop(nodes)
    await later(TIMEOUT / 4)
    engine = reconciler_of(nodes.replica, OperationReconciler)._repairs._of.engine
    begun = nodes.last_test()["operation"]
    assert engine._sent == {begun: False}
    del nodes.world.nodes["n1"]
    ended = nodes.world.operations.by_name
    await nodes.settles(lambda: ended[begun].status.phase is RepairState.INCONCLUSIVE)
    assert engine._sent == {}


async def test_a_test_that_waited_until_its_deadline_ends_with_the_reason() -> None:
    site = NewNodes()
    site.program.answer = RepairAnswer(AnswerState.NOT_SENT, "its agent has no stream")
    await site.runs_until(lambda: site.last_test().get("state") == "Inconclusive")
    assert site.last_test()["message"] == "test waits: its agent has no stream"


async def test_the_reservation_of_a_new_node_names_no_failure_domain() -> None:
    """New nodes of one rack are tested at the same time: they have no work."""
    site = NewNodes("n1", "n2", verdicts=(GOING,))
    for name in site.names:
        site.set_label(RACK, "r7", name)
    site.domain_labels = (RACK,)
    await site.runs_until(lambda: len(site.program.operations) == 2)
    site.check()
    reserved = parse_record(site.world.record.text).node_tests
    assert {name: one.domains for name, one in reserved.items()} == {"n1": (), "n2": ()}


T = TypeVar("T")


class SlowVerdicts(MemoryCluster):
    """The program's answer takes a minute each time."""

    asked_for = 0

    async def _call(self, name: str, effect: Callable[[], T], guard: Guard = UNGUARDED) -> T:
        if name == "verdict":
            self.asked_for += 1
            await asyncio.sleep(60)
        return await super()._call(name, effect, guard)


async def during_a_step(site: NewNodes) -> SlowVerdicts:
    """A step of the test of n1 is under way, and waits."""
    cluster = SlowVerdicts(site.world)
    site.start(cluster)
    await site.settles(lambda: cluster.asked_for)
    return cluster


async def test_a_quarantine_begins_although_a_step_of_the_test_waits() -> None:
    site = NewNodes(verdicts=(GOING,))
    await during_a_step(site)
    site.report("n1", fault("xid:79"))
    await site.settles(lambda: phase_of(site.world, "n1") is not None, within=2)
    await site.settles(lambda: site.program.cancelled, within=60)
    await site.settles(lambda: phase_of(site.world, "n1") is Phase.DRAINED, within=60)
    site.check()


@pytest.mark.parametrize("by", ["a person", "a limit", "the stop"])
async def test_a_held_quarantine_begins_although_a_step_of_the_test_waits(by: str) -> None:
    site = NewNodes(verdicts=(GOING,))
    limits = replace(site.settings.limits, quorum_percent=100 if by != "the stop" else 0)
    site.settings = replace(site.settings, limits=limits)
    cluster = await during_a_step(site)
    if by == "the stop":
        site.world.person_stops("maintenance")
        await site.settles(lambda: site.replica.fleet.stop)
    else:
        site.world.add_node("silent")
        await site.replica.controller.parts.cluster_events.refresh_nodes()
    site.report("n1", fault("xid:79"))
    node_state = site.replica.controller.parts.registry.known("n1")
    await site.settles(lambda: node_state is not None and node_state.decision.hold)
    steps = cluster.asked_for
    await site.settles(lambda: cluster.asked_for > steps)
    await later(1)
    assert phase_of(site.world, "n1") is None
    match by:
        case "a person":
            site.world.person_annotates("n1", "sickbay.dev/force", "drain fan 3")
            await site.replica.controller.parts.cluster_events.refresh_nodes()
        case "a limit":
            site.report("silent")
        case _:
            site.world.person_stops("")
    await site.settles(lambda: phase_of(site.world, "n1") is not None, within=30)
    site.check()


async def test_the_marks_of_a_deleted_quarantine_go_although_a_step_of_the_test_waits() -> None:
    site, line = NewNodes(verdicts=(GOING,)), FakeLine()
    site.start()
    site.replica.agent("n1", snapshot(), line=line)
    await site.settles(lambda: site.last_test().get("state") == "Ordered")
    site.program.confirms = False
    site.world.person_annotates("n1", "sickbay.dev/force", "cordon fan 3")
    await site.replica.controller.parts.cluster_events.refresh_nodes()
    await site.settles(lambda: phase_of(site.world, "n1") is Phase.CORDONED)
    site.world.person_stops("maintenance")
    site.world.person_annotates("n1", "sickbay.dev/force", "drain fan 3")
    await site.replica.controller.parts.cluster_events.refresh_nodes()
    await later(1)
    await site.settles(lambda: not site.program.cancelling)
    site.program.cancel_takes = 3600.0
    await site.settles(lambda: site.program.cancelling)
    site.replica.controller.on_disconnect("n1", line, "gone")
    site.world.person_removes_by_force("n1")
    await site.settles(lambda: not is_marked(site.world.nodes["n1"]), within=10)
    site.check()


class SlowNode(MemoryCluster):
    """The step of the test of n1 raises an error or takes an hour, until the server answers."""

    raises = False
    answers = False
    steps = 0
    most_steps = 0

    async def read_node(self, name: str, **more: Any) -> Node | None:
        if name == "n1" and more.get("background") and not self.answers:
            if self.raises:
                raise RuntimeError("a bug")
            self.steps += 1
            self.most_steps = max(self.steps, self.most_steps)
            try:
                await asyncio.sleep(3600)
            finally:
                self.steps -= 1
        return await super().read_node(name, **more)


async def unknown_node(*, raises: bool = False) -> tuple[NewNodes, SlowNode]:
    """No process knows n1 any more, whose test is not over."""
    site = NewNodes(verdicts=(GOING, PASSED))
    await site.runs_until(lambda: site.last_test().get("state") == "Ordered")
    site.world.delete_node("n1")
    await site.replica.stop()
    cluster, site.names = SlowNode(site.world), ()
    cluster.raises = raises
    site.start(cluster)
    return site, cluster


@pytest.mark.parametrize("raises", [True, False])
async def test_the_test_of_an_unknown_node_holds_up_no_other_one(
    caplog: pytest.LogCaptureFixture,
    raises: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    site, cluster = await unknown_node(raises=raises)
    await site.settles(lambda: cluster.steps or "unexpected error" in caplog.text, within=60)
    site.world.add_node("n2", taints=(POOL, UNTESTED))
    site.report("n2")
    await site.settles(lambda: site.is_open("n2"))
    await later(1800)
    assert not site.replica.task.done()
    assert caplog.text.count("unexpected error") in (range(2, 12) if raises else [0])
    site.check()
    cluster.raises = False
    await site.settles(
        lambda: site.world.operations.by_name[own_test(1)].status.message == "its Node is gone",
        within=2 * 3600,
    )


@pytest.mark.parametrize("raises", [True, False])
async def test_a_slow_read_of_a_new_node_holds_up_no_other_one(
    caplog: pytest.LogCaptureFixture,
    raises: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    """Its agent has come since the last list of nodes, which does not show its taint."""
    site = NewNodes("n2")
    cluster = SlowNode(site.world)
    cluster.raises = raises
    site.start(cluster)
    await site.settles(lambda: site.is_open("n2"))
    for name in ("n1", "n3"):
        site.world.add_node(name, taints=(POOL, UNTESTED))
        site.report(name)
    await site.settles(lambda: cluster.steps or "unexpected error" in caplog.text, within=120)
    await site.settles(lambda: site.is_open("n3"), within=120)
    assert not site.replica.task.done()
    cluster.answers = True
    await site.settles(lambda: site.is_open("n1"), within=2 * 3600)
    site.check()


async def test_a_node_that_becomes_known_during_a_step_of_its_test_has_one_step_at_once() -> None:
    site, cluster = await unknown_node()
    await site.settles(lambda: cluster.steps)
    site.world.add_node("n1", uid="uid-new", taints=(POOL, UNTESTED))
    site.world.person_annotates("n1", "sickbay.dev/force", "drain fan 3")
    await site.replica.controller.parts.cluster_events.refresh_nodes()
    await site.settles(lambda: phase_of(site.world, "n1") is not None)
    await later(60)
    assert cluster.most_steps == 1


async def test_a_sign_without_a_step_is_acknowledged_although_a_step_of_the_test_waits() -> None:
    site = NewNodes(verdicts=(GOING,))
    cluster = await during_a_step(site)
    cleared = Cleared("xid:79", "GPU-1", "reboot")
    acknowledged = present(site.replica.agent("n1", snapshot(cleared=(cleared,))))
    async with asyncio.timeout(2):
        await acknowledged
    assert cluster.asked_for == 1, "and the step goes on"
    await site.settles(lambda: cluster.asked_for > 1)
    site.check()


async def test_an_override_that_has_ended_is_forgotten_although_a_step_of_the_test_waits() -> None:
    site, word = NewNodes(verdicts=(GOING,)), Override("xid:79", "GPU-1", "boot-1", "reboot")
    site.world.person_annotates("n1", OVERRULED, write_overruled(frozenset({word})))
    await during_a_step(site)
    site.replica.agent("n1", snapshot(cleared=(Cleared("xid:79", "GPU-1", "operator"),)))
    await site.settles(lambda: OVERRULED not in site.world.nodes["n1"].annotations, within=10)
    site.check()


async def test_the_pods_of_a_drained_node_are_read_once_a_long_call_of_the_test_has_ended() -> None:
    """A call that ended for each read of the pods would never be answered."""
    site = NewNodes(verdicts=(GOING,))
    cluster = site.start().cluster
    await site.settles(lambda: site.last_test().get("state") == "Ordered")
    site.program.confirms = False
    site.world.person_annotates("n1", "sickbay.dev/force", "drain fan 3")
    await site.replica.controller.parts.cluster_events.refresh_nodes()
    await site.settles(lambda: phase_of(site.world, "n1") is Phase.DRAINED)
    site.program.cancel_takes = 3000.0
    await site.settles(lambda: site.program.cancelling)
    reads, ended = cluster.asked["pods_on"], len(site.program.cancelled)
    await site.settles(lambda: len(site.program.cancelled) > ended, within=3100)
    await site.settles(lambda: cluster.asked["pods_on"] > reads, within=60)
    site.check()


async def test_a_drain_is_not_interrupted_while_an_agent_is_awaited_that_has_to_end_a_test() -> (
    None
):
    site, line = NewNodes(verdicts=(GOING,)), FakeLine()
    site.start()
    site.replica.agent("n1", snapshot(), line=line)
    await site.settles(lambda: site.last_test().get("state") == "Ordered")
    site.replica.controller.on_disconnect("n1", line, "gone")
    site.world.budget_blocks.add(site.world.add_pod("n1", "work").uid)
    site.world.person_annotates("n1", "sickbay.dev/force", "drain fan 3")
    await site.replica.controller.parts.cluster_events.refresh_nodes()
    await site.settles(lambda: phase_of(site.world, "n1") is Phase.DRAINING)
    rounds, shown = site.replica.controller.parts.node_tests, site.replica.fleet
    await site.settles(lambda: "agent is awaited" in shown.node_tests["n1"].held)
    steps, advance = list[str](), rounds.reconciler.advance

    async def counted(name: str) -> None:
        steps.append(name)
        await advance(name)

    rounds.reconciler.advance = counted  # type: ignore[method-assign]
    await later(TIMEOUT / 4)
    assert (steps, site.program.cancelled) == ([], [])
    site.report("n1")
    await site.settles(lambda: site.last_test()["state"] == "Cancelled", within=30)
    await site.settles(lambda: shown.node_tests["n1"].held == "it is in quarantine", within=30)
    steps.clear()
    await later(TIMEOUT / 4)
    assert steps == [], "nothing is left to do for the test in this quarantine"
    assert phase_of(site.world, "n1") is Phase.DRAINING
    site.check()


@dataclass
class SlowHook:
    """Takes longer than any pause between two steps of a test."""

    calls: int = 0
    ended: int = 0

    async def call(self, values: Mapping[str, str], *, limit: float, guard: Guard) -> HookAnswer:
        del values, limit, guard
        self.calls += 1
        await asyncio.sleep(TIMEOUT / 2)
        self.ended += 1
        return HookAnswer(HookResult.DONE)


async def test_an_agent_that_does_not_confirm_the_end_of_its_test_ends_a_hook_only_once() -> None:
    site, hook = NewNodes(verdicts=(GOING,)), SlowHook()
    site.settings = replace(site.settings, hooks=HookRules(pre_evict=hook))
    await site.runs_until(lambda: site.last_test().get("state") == "Ordered")
    site.program.confirms, site.program.cancel_takes = False, 15.0
    site.world.budget_blocks.add(site.world.add_pod("n1", "work").uid)
    site.report("n1", fault("xid:79"))
    await site.settles(lambda: hook.ended, within=TIMEOUT / 2 + 30)
    assert (hook.calls, len(site.program.cancelled)) == (2, 1)
    site.program.confirms = True
    await site.settles(lambda: site.last_test()["state"] == "Cancelled", within=30)
    site.check()


def last_error(site: NewNodes, name: str) -> str:
    node_state = site.replica.controller.parts.registry.known(name)
    return node_state.work.last_error if node_state is not None else ""


async def test_nodes_whose_own_steps_fail_take_no_place_of_another_new_node() -> None:
    site = NewNodes(*(f"n{number}" for number in range(10)))

    def fails(name: str) -> AdmissionRefused | None:
        return AdmissionRefused("denied") if name == "create_quarantine" else None

    site.start(MemoryCluster(site.world, fails=fails))
    for name in site.names:
        site.report(name, fault("xid:79"))
    shown = site.replica.fleet
    await site.settles(lambda: all(last_error(site, name) for name in site.names))
    await site.settles(lambda: shown.node_tests.keys() == set(site.names))
    site.world.add_node("late", taints=(POOL, UNTESTED))
    site.report("late")
    await site.settles(lambda: site.is_open("late"))
    assert site.program.operations == [site.last_test("late")["operation"]]
    site.check()


async def test_new_nodes_that_wait_for_their_agents_keep_no_other_one_from_its_turn() -> None:
    site = NewNodes(*(f"n{number}" for number in range(80)))
    site.names = ()
    await site.runs_until(lambda: len(site.replica.fleet.node_tests) == 80)
    site.world.add_node("late", taints=(POOL, UNTESTED))
    site.report("late")
    await site.settles(lambda: site.is_open("late"))
    site.check()


class KeepsNotes(MemoryCluster):
    """An admission policy that refuses each change of n1."""

    async def patch_node(self, node: Node, change: NodeChange, **more: Any) -> Node:
        if node.name == "n1":
            raise AdmissionRefused("denied")
        return await super().patch_node(node, change, **more)


async def test_an_idle_node_whose_own_step_fails_takes_no_place_of_another_one() -> None:
    site = IdleNodes("n1", "n2", "n3")
    assert site.idle is not None
    site.idle["concurrent"] = 1
    n1, word = site.world.nodes["n1"], Override("xid:79", "GPU-1", "boot-1", "reboot")
    notes = {OVERRULED: write_overruled(frozenset({word}))}
    site.world.set_node(replace(n1, annotations={**n1.annotations, **notes}))
    site.start(KeepsNotes(site.world))
    over = snapshot(cleared=(Cleared("xid:79", "GPU-1", "operator"),))
    site.replica.agent("n1", over, boot_id=n1.boot_id)
    await site.settles(lambda: site.last_test("n2") and site.last_test("n3"))
    assert (last_error(site, "n1"), site.last_test("n1")) == ("denied", {})
    site.check()
