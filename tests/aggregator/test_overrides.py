"""A person's override of evidence: the events that end it, and those that do not."""

import asyncio
import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggregator.cluster.node_names import OVERRULED, TAINT, is_marked
from aggregator.cluster.port import (
    Action,
    ClusterError,
    Phase,
    Quarantine,
    QuarantineStatus,
    Taint,
    Unreachable,
)
from aggregator.health.model import Cleared, ClearedBy, Delta, Snapshot, Status
from aggregator.health.node import NodeHealth
from aggregator.quarantine.decide.node_marks import (
    OFF_BALANCERS,
    cordon_change,
    foreign_hands,
    marked_evidence,
    read_applied,
    read_overruled,
    undo_change,
    write_overruled,
)
from aggregator.quarantine.decide.overrides import Override, ended_by, may_be_open
from aggregator.quarantine.state.cluster_view import ClusterView, OthersMarks
from tests.aggregator.test_planner import ITEM, SPEC
from tests.support import virtual_time
from tests.support.memory_cluster import World, phase_of
from tests.support.present import of_type, present
from tests.support.replica import Replica, Turned, component, fault, hello, snapshot
from tests.support.virtual_replica import later
from tests.support.virtual_time import in_virtual_time
from tests.support.waiting import until

pytestmark = pytest.mark.decorated(by=in_virtual_time)

WORD = Override("xid:79", "GPU-1", "boot-1", "reboot")
ILL = snapshot(fault())
CLEARED = (Cleared("xid:79", "GPU-1", "operator"),)


def health_of(*told: Snapshot | Delta, boot_id: str = "boot-1") -> NodeHealth:
    health = NodeHealth(hello("n1", boot_id))
    for one in told:
        if isinstance(one, Snapshot):
            health.snapshot(one)
        else:
            health.delta(one)
    return health


# -- what ends a word ------------------------------------------------------------------------------


def test_a_word_outlives_a_fault_that_its_agent_lost() -> None:
    assert may_be_open(WORD, health_of(ILL))
    assert may_be_open(WORD, health_of(ILL, snapshot()))  # missing
    assert may_be_open(WORD, health_of(snapshot()))  # never heard of by this process


def test_another_boot_ends_what_a_boot_ends_and_nothing_else() -> None:
    assert not may_be_open(WORD, health_of(snapshot(), boot_id="boot-2"))
    assert may_be_open(
        replace(WORD, cleared_by="operator"), health_of(snapshot(), boot_id="boot-2")
    )
    # An override of evidence that a newer version named is ended by a person alone.
    assert may_be_open(
        replace(WORD, cleared_by="moonlight"), health_of(snapshot(), boot_id="boot-2")
    )


def test_a_sign_that_was_heard_ends_a_word_that_is_learned_of_later() -> None:
    assert not may_be_open(WORD, health_of(snapshot(cleared=CLEARED)))
    assert not may_be_open(WORD, health_of(ILL, Delta(cleared=CLEARED)))
    ended_less = (Cleared("", "GPU-1", "gpu-reset"),)
    assert may_be_open(WORD, health_of(snapshot(cleared=ended_less)))  # it wants a reboot
    # A fault that was cleared and came again is another fault: an override of that one stands.
    assert may_be_open(WORD, health_of(snapshot(cleared=CLEARED), Delta(faults=(fault(),))))
    assert may_be_open(WORD, health_of(snapshot(cleared=CLEARED), ILL))


def test_the_drivers_word_that_nothing_is_due_ends_a_word() -> None:
    assert not may_be_open(WORD, health_of(snapshot(fault(details={"verdict": "none"}))))


@pytest.mark.parametrize(
    ("status", "standing"),
    [(Status.OK, False), (Status.DEGRADED, False), (Status.FAILED, True), (Status.UNKNOWN, True)],
)
def test_a_word_about_level_evidence_ends_when_the_check_is_well(
    status: Status, *, standing: bool
) -> None:
    word = Override("disk-space:bytes", "/", "boot-1", "")
    assert may_be_open(word, health_of(snapshot(component("disk-space", "/", status)))) is standing
    assert may_be_open(word, health_of(snapshot()))  # not looked at yet
    assert not may_be_open(word, health_of(snapshot(), Delta(gone=(("disk-space", "/"),))))


@pytest.mark.parametrize(
    ("sign", "cleared_by", "ended"),
    [
        (Cleared("xid:79", "GPU-1", "gpu-reset"), "reboot", True),
        (Cleared("", "GPU-1", "gpu-reset"), "reboot", False),
        (Cleared("", "GPU-1", "gpu-reset"), "gpu_reset", True),
        (Cleared("", "GPU-1", "replaced"), "operator", True),
        (Cleared("", "GPU-2", "replaced"), "operator", False),
        (Cleared("xid:48", "GPU-1", "operator"), "reboot", False),
        (Cleared("", "GPU-1", "replaced"), "", False),  # level evidence: its check must be well
    ],
)
def test_a_sign_ends_the_word_about_what_it_ends(
    sign: Cleared, cleared_by: str, *, ended: bool
) -> None:
    assert ended_by(replace(WORD, cleared_by=cleared_by), [sign]) is ended


texts = st.text(max_size=12)
words = st.builds(Override, texts, texts, texts, st.sampled_from(["", *ClearedBy, "moonlight"]))


@given(st.frozensets(words, max_size=8))
def test_a_node_remembers_words_as_they_were_said(some: frozenset[Override]) -> None:
    assert read_overruled({OVERRULED: write_overruled(some)}) == some


@given(st.one_of(st.text(), st.recursive(st.integers(), st.lists).map(json.dumps)))
def test_an_annotation_that_somebody_edited_overrules_nothing(text: str) -> None:
    assert read_overruled({OVERRULED: text}) == frozenset()
    read_overruled({OVERRULED: f'{{"evidence": {text}}}'})  # no text of it raises an error
    assert read_overruled({OVERRULED: "[" * 100_000}) == frozenset()


def test_the_marks_remember_what_they_were_made_for_but_what_is_over() -> None:
    world = World.of("n1")
    over = replace(ITEM, code="xid:48", cleared="reboot")
    quarantine = Quarantine(
        "n1", "q", "1", replace(SPEC, evidence=(ITEM, over)), QuarantineStatus()
    )
    node = world.nodes["n1"]
    change = cordon_change(node, quarantine)
    marked = replace(node, annotations={k: v for k, v in change.annotations.items() if v})
    assert marked_evidence(marked) == {Override("xid:79", "GPU-1", "boot-1", "reboot")}


@pytest.mark.parametrize("action", [Action.CORDON, Action.DRAIN])
@pytest.mark.parametrize("theirs", [False, True])
def test_a_drain_takes_the_node_off_the_balancers_with_its_taint_and_undoes_only_that(
    action: Action, *, theirs: bool
) -> None:
    world = World.of("n1", labels={OFF_BALANCERS: "theirs"} if theirs else {})
    node = world.nodes["n1"]
    quarantine = Quarantine("n1", "q", "1", replace(SPEC, action=action), QuarantineStatus())
    change = cordon_change(node, quarantine, off_balancers=True)
    ours = action is Action.DRAIN and not theirs
    assert (OFF_BALANCERS in change.labels) is ours
    assert OFF_BALANCERS not in cordon_change(node, quarantine).labels
    marked = replace(
        node,
        labels={**node.labels, **{k: v for k, v in change.labels.items() if v is not None}},
        annotations={k: v for k, v in change.annotations.items() if v},
    )
    assert (OFF_BALANCERS in undo_change(marked, "q", read_applied(marked)).labels) is ours


# -- on the real controller ------------------------------------------------------------------------


async def overruled(world: World, clock: Turned) -> Replica:
    """An unhealthy node that a person has released."""
    world.add_node("n1")
    replica = Replica(world, clock=clock)
    await replica.agent_brings("n1", ILL, Phase.DRAINED)
    world.person_deletes("n1")
    await until(lambda: not world.quarantines)
    return replica


async def test_an_agent_that_lost_its_memory_does_not_undo_a_persons_word() -> None:
    world, clock = World(), Turned()
    first = await overruled(world, clock)
    await first.stop()
    replica = await Replica(world, clock=clock).ready()
    replica.agent("n1", snapshot())  # it has lost its memory
    await later(600)
    assert WORD in read_overruled(world.nodes["n1"].annotations)
    replica.agent("n1", ILL)  # and then reads the kernel's ring again
    await later(600)
    assert world.quarantines == {}


async def test_the_end_of_a_word_is_acknowledged_when_the_node_has_forgotten_it() -> None:
    world, clock = World(), Turned()
    first = await overruled(world, clock)
    await first.stop()
    down = True

    def fails(call: str) -> ClusterError | None:
        return Unreachable("down") if down and call == "patch_node" else None

    replica = await Replica(world, clock=clock, fails=fails).ready()
    await until(lambda: replica.fleet.node_summaries["n1"].cluster.overruled)
    replica.agent("n1", ILL)
    safe = of_type(replica.agent("n1", Delta(cleared=CLEARED)), asyncio.Future)
    await later(600)
    assert not safe.done()
    down = False
    await asyncio.wait_for(safe, 20)
    assert OVERRULED not in world.nodes["n1"].annotations


@pytest.mark.asyncio
async def test_a_sign_that_comes_before_the_cluster_is_seen_ends_the_word_too() -> None:
    world, clock = World(), Turned()
    first = await overruled(world, clock)
    await first.stop()
    replica = Replica(world, clock=clock)
    safe = replica.agent("n1", snapshot(cleared=CLEARED))  # there is no view yet
    assert isinstance(safe, asyncio.Future)
    await asyncio.wait_for(safe, 20)
    assert OVERRULED not in world.nodes["n1"].annotations
    replica.agent("n1", snapshot(fault(source_seq=9)))  # once more: another fault
    await until(lambda: phase_of(world, "n1") is Phase.DRAINED)


@pytest.mark.asyncio
async def test_a_sign_that_comes_while_the_node_is_read_ends_the_word_that_is_read() -> None:
    world, clock = World(), Turned()
    first = await overruled(world, clock)
    await first.stop()
    down = True

    def fails(call: str) -> ClusterError | None:
        return Unreachable("down") if down and call == "read_node" else None

    replica = Replica(world, clock=clock, fails=fails)
    await until(lambda: not replica.fleet.view_lost)  # the list has told of a word, and a read
    await until(
        lambda: "down" in replica.fleet.node_summaries["n1"].work.last_error
    )  # is to tell which
    safe = of_type(replica.agent("n1", snapshot(cleared=CLEARED)), asyncio.Future)
    assert not safe.done()
    down = False
    await asyncio.wait_for(safe, 20)
    assert OVERRULED not in world.nodes["n1"].annotations


async def test_a_quarantine_removed_by_force_is_a_word_about_what_the_marks_remember() -> None:
    world, clock = World.of("n1"), Turned()
    first = Replica(world, clock=clock)
    await first.agent_brings("n1", ILL, Phase.DRAINED)
    await first.stop()
    replica = await Replica(world, clock=clock).ready()
    world.person_removes_by_force("n1")  # before the agent has spoken to this process
    await until(lambda: not is_marked(world.nodes["n1"]))
    assert read_overruled(world.nodes["n1"].annotations) == {WORD}
    assert replica.notes.kinds("n1").count("quarantine.overruled") == 1
    replica.agent("n1", ILL)
    await later(600)
    assert world.quarantines == {}


async def test_what_was_over_before_the_force_is_not_overruled_and_does_not_begin_anew() -> None:
    world, clock = World.of("n1"), Turned()
    replica = Replica(world, clock=clock)
    read_only = component("disk-readonly", "/", Status.FAILED, "read-only")
    await replica.agent_brings("n1", snapshot(fault(), read_only), Phase.DRAINED)
    replica.agent("n1", Delta(cleared=CLEARED))  # recovering; the disk is not
    await until(lambda: world.quarantines["n1"].spec.evidence[0].cleared)
    world.person_removes_by_force("n1")
    await until(lambda: not is_marked(world.nodes["n1"]))
    await later(600)
    assert {word.code for word in read_overruled(world.nodes["n1"].annotations)} == {
        "disk-readonly:read-only"
    }
    assert world.quarantines == {}


async def test_an_orderly_release_is_not_told_as_a_persons_whatever_comes_first() -> None:
    world, clock = World.of("n1"), Turned()
    replica = Replica(world, clock=clock)
    await replica.agent_brings("n1", ILL, Phase.DRAINED)
    replica.cluster.answers_late = True  # the event of an object's end comes before the answer
    replica.agent("n1", snapshot(cleared=CLEARED))
    replica.evaluate_due()
    clock.time += 700
    replica.agent("n1", snapshot())
    await until(lambda: not world.quarantines)
    await later(600)
    assert "quarantine.overruled" not in replica.notes.kinds("n1")
    assert replica.notes.kinds("n1").count("quarantine.released") == 1


@pytest.mark.asyncio
async def test_whoever_else_keeps_work_off_the_node_is_shown_until_they_let_go() -> None:
    world, clock = World.of("n1", unschedulable=True), Turned()
    replica = Replica(world, clock=clock)
    await replica.agent_brings("n1", ILL, Phase.DRAINED)
    assert "cordoned before" in replica.fleet.node_summaries["n1"].cluster.foreign
    world.person_deletes("n1")
    await until(lambda: not world.quarantines)
    assert replica.fleet.node_summaries["n1"].cluster.foreign
    assert world.nodes["n1"].unschedulable
    world.person_uncordons("n1")
    await until(lambda: not replica.fleet.node_summaries["n1"].cluster.foreign)


def test_those_who_take_the_node_away_are_named() -> None:
    world = World.of("n1", taints=(Taint("karpenter.sh/disrupted", "", "NoSchedule"),))
    view = ClusterView()
    view.take_node(world.nodes["n1"], None, 0.0, OthersMarks())
    assert view.foreign.startswith("Karpenter is removing it")
    world.add_node("n2", taints=(Taint(TAINT, "gpu", "NoSchedule"),))
    assert foreign_hands(world.nodes["n2"]) == ""


async def the_nodes_could_not_be_counted() -> None:
    world, clock = World.of("n1"), Turned()
    down = True

    def fails(call: str) -> ClusterError | None:
        return Unreachable("down") if down and call == "list_nodes" else None

    replica = Replica(world, clock=clock, fails=fails)
    replica.agent("n1", ILL)
    await until(
        lambda: (
            "n1" in replica.fleet.node_summaries
            and replica.fleet.node_summaries["n1"].decision.hold
        )
    )
    hold = present(replica.fleet.node_summaries["n1"].decision.hold)
    assert "could not be counted" in hold.reason
    assert world.writes == []
    down = False
    await until(lambda: phase_of(world, "n1") is not None)
    await replica.stop()


def test_nothing_is_admitted_while_the_nodes_could_not_be_counted() -> None:
    virtual_time.run(the_nodes_could_not_be_counted())
