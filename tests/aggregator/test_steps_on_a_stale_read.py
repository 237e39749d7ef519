"""A step that meets another picture than it was decided on: it does nothing, or what fits that one.

The steps are called directly: between decision and step nothing else in the process may run, so no
order of events would show each of these in time.
"""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from aggregator.cluster.node_names import APPLIED, LABEL, is_marked
from aggregator.cluster.port import (
    Action,
    MarksStatus,
    Node,
    Phase,
    Quarantine,
    QuarantineSpec,
    QuarantineStatus,
)
from aggregator.health.model import Cleared, Delta, Status
from aggregator.quarantine.actions.adoption import UNKNOWN
from aggregator.quarantine.decide.admission_record import parse_record
from aggregator.quarantine.decide.intent import OURS
from aggregator.quarantine.decide.plans.release import ReleaseStep
from aggregator.quarantine.decide.plans.step import NextStep
from aggregator.quarantine.reconcile.admission import AdmissionReconciler
from aggregator.quarantine.reconcile.poller import waits_for_its_node
from aggregator.quarantine.reconcile.quarantine import QuarantineReconciler
from aggregator.quarantine.state.node import NodeState
from tests.support.memory_cluster import World, phase_of
from tests.support.node_states import state_of
from tests.support.present import of_type, present
from tests.support.replica import (
    FakeLine,
    Replica,
    component,
    fault,
    reconciler_of,
    snapshot,
)
from tests.support.virtual_replica import Running, later, soon
from tests.support.virtual_time import in_virtual_time

pytestmark = pytest.mark.decorated(by=in_virtual_time)

ILL = snapshot(fault())
CLEARED = (Cleared("xid:79", "GPU-1", "operator"),)
RECOVERED = NextStep(ReleaseStep.RELEASE, because="its cause is over")


async def drained(world: World, line: FakeLine | None = None) -> tuple[Replica, NodeState]:
    world.add_node("n1")
    replica = Replica(world, clock=Running())
    replica.agent("n1", ILL, line=line)
    await soon(lambda: phase_of(world, "n1") is Phase.DRAINED)
    node_state = replica.controller.parts.registry.node_state("n1")
    await soon(lambda: not node_state.work.is_queued and node_state.quarantine is not None)
    await later(1)
    return replica, node_state


def standing(node_state: NodeState) -> Quarantine:
    assert node_state.quarantine is not None
    return node_state.quarantine


def entries(world: World) -> set[str]:
    return set(parse_record(world.record.text).entries)


# -- release --------------------------------------------------------------------------------------


def it_falls_silent(replica: Replica, line: FakeLine) -> None:
    replica.controller.on_disconnect("n1", line, "its connection broke")


def it_falls_ill(replica: Replica, _: FakeLine) -> None:
    replica.agent("n1", Delta(faults=(fault("xid:95", source_seq=9),)))


def nothing_happens(_: Replica, __: FakeLine) -> None:
    """The positive control."""


@pytest.mark.parametrize(
    ("happens", "released"),
    [(it_falls_silent, False), (it_falls_ill, False), (nothing_happens, True)],
)
async def test_a_node_that_falls_silent_or_ill_while_its_release_is_looked_at_stays(
    happens: Callable[[Replica, FakeLine], None], monkeypatch: pytest.MonkeyPatch, *, released: bool
) -> None:
    world, line = World(), FakeLine()
    replica, node_state = await drained(world, line)
    release_actions = replica.controller.parts.worker._reads._release_actions
    replica.agent("n1", snapshot(cleared=CLEARED), line=line)
    replica.evaluate_due()
    node_state.decision.incidents = {}  # it has been well for long enough

    read_node = replica.cluster.read_node

    async def while_we_look(*args: Any, **how: Any) -> Node | None:
        node = await read_node(*args, **how)
        happens(replica, line)
        return node

    monkeypatch.setattr(replica.cluster, "read_node", while_we_look)
    await release_actions.release(node_state, standing(node_state), RECOVERED)
    assert (phase_of(world, "n1") is Phase.RELEASING) == released


async def test_only_a_quarantine_that_is_being_released_is_undone() -> None:
    world = World()
    replica, node_state = await drained(world)
    release_actions, before = (
        replica.controller.parts.worker._reads._release_actions,
        len(world.writes),
    )
    await release_actions.undo(node_state)
    assert world.writes[before:] == []
    assert is_marked(world.nodes["n1"])
    assert entries(world) == {"n1"}
    assert phase_of(world, "n1") is Phase.DRAINED


async def test_a_quarantine_made_without_leave_is_void_unless_the_record_has_its_entry() -> None:
    world = World()
    replica, node_state = await drained(world)
    objects = reconciler_of(replica, QuarantineReconciler)._objects
    await replica.stop()  # nobody else acts on it
    replica.cluster.crashed.clear()
    await objects.void(node_state, standing(node_state))
    assert phase_of(world, "n1") is Phase.DRAINED
    await replica.controller.parts.record_writer.forget_entry(
        await replica.controller.parts.record_writer.entry("n1")
    )
    await objects.void(node_state, standing(node_state))
    status = world.quarantines["n1"].status
    assert status.phase is Phase.RELEASING
    assert status.released_because == status.message
    assert status.message == "made late, when its admission was over"


# -- the intent -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("action", "before", "after"),
    [
        (Action.CORDON, Phase.DRAINING, Phase.CORDONED),
        (Action.CORDON, Phase.DRAINED, Phase.DRAINED),
        (Action.DRAIN, Phase.DRAINING, Phase.DRAINING),
        (Action.OBSERVE, Phase.DRAINING, Phase.CORDONED),
    ],
)
async def test_a_drain_that_is_no_longer_wanted_is_a_cordon_again_and_nothing_else_is(
    action: Action, before: Phase, after: Phase
) -> None:
    world = World()
    replica, node_state = await drained(world)
    await replica.stop()  # nobody else acts on it
    acts = reconciler_of(replica, QuarantineReconciler)._objects
    known = world.quarantines["n1"]
    spec = replace(known.spec, action=action)
    known = replace(known, status=replace(known.status, phase=before), spec=spec)
    world.quarantines["n1"] = known
    replica.cluster.crashed.clear()
    await acts.show_override(node_state, known)
    assert phase_of(world, "n1") is after
    await asyncio.sleep(0)


# -- marks that are set again ---------------------------------------------------------------------


def nothing_else(_: World, __: NodeState) -> None:
    """The positive control."""


def the_node_is_gone(world: World, _: NodeState) -> None:
    del world.nodes["n1"]


def the_quarantine_is_gone(world: World, _: NodeState) -> None:
    del world.quarantines["n1"]


def it_is_being_released(world: World, _: NodeState) -> None:
    known = world.quarantines["n1"]
    status = replace(known.status, phase=Phase.RELEASING)
    world.quarantines["n1"] = replace(known, status=status)


def it_is_another_node(world: World, _: NodeState) -> None:
    world.nodes["n1"] = replace(world.nodes["n1"], uid="another")


def it_is_uncordoned(world: World, _: NodeState) -> None:
    world.nodes["n1"] = replace(world.nodes["n1"], unschedulable=False)


def it_is_maintained(world: World, _: NodeState) -> None:
    node = world.nodes["n1"]
    labels = {**node.labels, "nvidia.com/gpu-driver-upgrade-state": "drain-required"}
    world.nodes["n1"] = replace(node, labels=labels)


def it_is_exempt(world: World, _: NodeState) -> None:
    node = world.nodes["n1"]
    notes = {**node.annotations, "sickbay.dev/exempt": "until 2100-01-01T00:00:00Z x"}
    world.nodes["n1"] = replace(node, annotations=notes)


@pytest.mark.parametrize(
    ("happens", "restored"),
    [
        (nothing_else, True),
        (the_node_is_gone, False),
        (the_quarantine_is_gone, False),
        (it_is_being_released, False),
        (it_is_another_node, False),
        (it_is_uncordoned, False),
        (it_is_maintained, False),
        (it_is_exempt, False),
    ],
)
async def test_a_mark_is_set_again_only_while_its_quarantine_is_on_that_node(
    happens: Callable[[World, NodeState], None], *, restored: bool
) -> None:
    world = World()
    replica, node_state = await drained(world)
    await replica.stop()
    replica.cluster.crashed.clear()
    node = world.nodes["n1"]
    labels = {key: text for key, text in node.labels.items() if key != LABEL}
    world.nodes["n1"] = replace(node, labels=labels)
    happens(world, node_state)
    before = len(world.writes)
    await reconciler_of(replica, QuarantineReconciler)._restorer.restore(node_state)
    assert ("patch n1" in world.writes[before:]) == restored
    assert (LABEL in world.nodes["n1"].labels if "n1" in world.nodes else False) == restored
    if restored:
        marks = of_type(world.quarantines["n1"].status.marks, MarksStatus)
        assert marks.restored == 1


# -- an adoption ----------------------------------------------------------------------------------


async def test_marks_that_cant_be_read_are_adopted_as_a_cordon_that_a_person_ends() -> None:
    world = World.of("n1")
    replica = await Replica(world, clock=Running()).ready()
    node_state = replica.controller.parts.registry.node_state("n1")
    node = replace(world.nodes["n1"], annotations={APPLIED: "nonsense"}, labels={LABEL: "x"})
    found = present(replica.controller.parts.worker._reads._adopter._spec(node_state, node))
    assert (found.action, found.kind, found.requester) == (Action.CORDON, "manual", UNKNOWN)
    assert "can't be read" in found.reason


# -- admission ------------------------------------------------------------------------------------


async def test_a_node_back_when_it_is_proposed_is_quarantined_and_one_that_is_not_is_held() -> None:
    world = World.of("n1")
    replica = await Replica(world, clock=Running()).ready()
    world.person_stops("a drill")
    replica.agent("n1", ILL)
    node_state = replica.controller.parts.registry.node_state("n1")
    await soon(
        lambda: node_state.decision.wanted is not None and node_state.decision.hold is not None
    )
    await replica.stop()
    replica.cluster.crashed.clear()
    assert node_state.decision.wanted is not None
    acts = reconciler_of(replica, AdmissionReconciler)
    node = world.nodes.pop("n1")
    node_state.cluster.node_gone = True
    assert await acts.propose(node_state, node_state.decision.wanted) is False
    assert node_state.decision.hold is not None
    assert node_state.decision.hold.limit == "no-node"
    world.nodes["n1"] = node
    await acts.propose(node_state, node_state.decision.wanted)
    assert not node_state.cluster.node_gone
    assert node_state.decision.hold.limit == "stop"


# -- who waits for what ---------------------------------------------------------------------------


def quarantine(phase: Phase, requester: str = OURS, *, deleting: bool = False) -> Quarantine:
    spec = QuarantineSpec(Action.DRAIN, "gpu", "x", requester)
    return Quarantine("n1", "q", "1", spec, QuarantineStatus(phase=phase), deleting=deleting)


@pytest.mark.parametrize(
    ("found", "maintained", "waits"),
    [
        (quarantine(Phase.CORDONED), "kured", True),
        (quarantine(Phase.ADMITTED), "kured", True),
        (quarantine(Phase.DRAINING), "kured", True),
        (quarantine(Phase.DRAINED), "kured", False),
        (quarantine(Phase.RELEASING), "kured", False),
        (quarantine(Phase.CORDONED), "", False),
        (quarantine(Phase.CORDONED, "alice"), "kured", False),
        (quarantine(Phase.CORDONED, deleting=True), "kured", False),
        (None, "kured", False),
        (None, "", False),
    ],
)
def test_a_quarantine_waits_for_others_work_on_its_node_until_it_is_drained(
    found: Quarantine | None, maintained: str, *, waits: bool
) -> None:
    node_state = state_of("n1", lambda: 1.0, quarantine=found, maintained=maintained)
    assert waits_for_its_node(node_state) == waits
    node_state.quarantine_view.release_held = "its GPU is missing"
    assert not waits_for_its_node(node_state)


# -- what is forgotten ----------------------------------------------------------------------------


async def test_a_stream_that_is_shut_out_leaves_nothing_behind() -> None:
    world, line = World.of("n1"), FakeLine()
    replica = await Replica(world, clock=Running()).ready()
    replica.agent("n1", snapshot(component("xid", "", Status.OK)), line=line)
    agent_events = replica.controller.parts.agent_events
    assert "n1" in agent_events._hellos
    assert "n1" in agent_events._lines
    agent_events.reject(replica.controller.parts.registry.node_state("n1"))
    assert "n1" not in agent_events._hellos
    assert "n1" not in agent_events._lines
    assert "which is gone" in line.closed
    assert replica.notes.kinds("n1").count("agent.conflict") == 1


async def test_a_quarantine_that_is_gone_is_absent_no_more() -> None:
    world = World()
    replica, node_state = await drained(world)
    node_registry = replica.controller.parts.registry
    node_registry.note_absence("n1", absent=True)
    assert node_registry.absent == {"n1"}
    uid = standing(node_state).uid
    cluster_events: Any = replica.controller.parts.cluster_events
    cluster_events._quarantine_gone(node_state, uid, with_definition=False)
    assert node_registry.absent == set()
    assert node_state.quarantine is None
