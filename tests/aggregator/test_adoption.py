"""Marks without their Quarantine are adopted: a reinstall or a new definition frees no node.

The same tests on a real API server are in tests/kube/test_reinstall.py.
"""

import asyncio
import json
from dataclasses import replace

import pytest

from aggregator.cluster.node_names import APPLIED, is_marked
from aggregator.cluster.port import (
    Action,
    ClusterError,
    Phase,
    Quarantine,
    QuarantineGone,
    QuarantineSpec,
    QuarantineStatus,
    RecordText,
    Unreachable,
)
from aggregator.health.model import Cleared
from aggregator.quarantine.actions.adoption import UNKNOWN
from aggregator.quarantine.decide.intent import OURS
from aggregator.quarantine.decide.node_marks import marked_by, read_overruled
from aggregator.quarantine.state.fleet import QuarantineSummary
from tests.aggregator.test_interruption import (
    ILL,
    WELL,
    check_quarantined,
    check_released,
    drained,
    entries,
    reaches_released,
    world_in_quarantine,
    world_with_jobs,
)
from tests.support.memory_cluster import MemoryCluster, World, phase_of
from tests.support.replica import OPEN, SETTINGS, Replica, Turned, fault, snapshot
from tests.support.waiting import until

SMOKE = QuarantineSpec(Action.DRAIN, "node", "smells of smoke", "hall-2")


def uninstall(world: World) -> None:
    """The uninstall of docs/install.md that leaves nodes: the definition goes, then the record."""
    world.person_removes_definition()
    world.record = RecordText("", world.tick())


async def uninstalled() -> tuple[World, Turned]:
    """A cluster with a node in quarantine, after the uninstall."""
    world, clock = await world_in_quarantine()
    uninstall(world)
    return world, clock


async def seen(replica: Replica) -> None:
    await until(lambda: not replica.fleet.view_lost)


async def test_a_reinstall_keeps_every_marked_node_in_quarantine() -> None:
    world, clock = World(), Turned()
    names = [f"gpu-{number}" for number in range(12)]
    for name in names:
        world.add_node(name)
    first = Replica(world, clock=clock)
    first.agents(names, ILL)
    await until(lambda: all(phase_of(world, name) is Phase.DRAINED for name in names))
    await first.stop()
    uninstall(world)
    world.person_applies_definition()
    # Neither a limit nor the stop switch keeps them out of the record.
    world.person_stops("drill")
    settings = replace(SETTINGS, limits=replace(OPEN, concurrent=1, quorum_percent=100))
    second = Replica(world, clock=clock, settings=settings)
    await until(lambda: entries(world) == set(names))
    await until(lambda: all(phase_of(world, name) is Phase.CORDONED for name in names))
    clock.time += 10_000
    for name in names:
        second.agent(name, snapshot())  # the fault is missing, and no positive sign has cleared it
    second.evaluate_due()
    clock.time += 10_000
    second.agents(names, ILL)
    await until(lambda: all(second.notes.kinds(name) for name in names))
    for name in names:
        node, quarantine = world.nodes[name], world.quarantines[name]
        assert node.unschedulable
        assert is_marked(node)
        assert not read_overruled(node.annotations)
        assert quarantine.spec.requester == OURS
        assert [item.code for item in quarantine.spec.evidence] == ["xid:79"]
        assert quarantine.spec.evidence[0].rule == "gpu-gone"
        assert "quarantine.adopted" in second.notes.kinds(name)
    # By the usual rules they are released once their cause is over.
    world.person_stops("")
    second.agents(names, WELL)
    second.evaluate_due()
    clock.time += 700
    second.agents(names, WELL)
    await until(lambda: not world.quarantines and not entries(world))
    assert not any(is_marked(node) or node.unschedulable for node in world.nodes.values())


async def test_nothing_adopted_is_released_before_the_agent_has_spoken() -> None:
    world, clock = await uninstalled()
    world.person_applies_definition()
    replica = Replica(world, clock=clock)
    await until(lambda: phase_of(world, "n1") is Phase.CORDONED)
    evicted = list(world.evicted)
    world.add_pod("n1", "late")
    clock.time += 100_000
    replica.controller.parts.queue.add(replica.controller.parts.registry.node_state("n1"))
    await until(lambda: not replica.controller.parts.registry.node_state("n1").work.is_queued)
    assert world.nodes["n1"].unschedulable
    assert world.evicted == evicted, "an adoption evicts nobody by itself"
    replica.agent("n1", ILL)  # its agent's evidence does
    await drained(world)
    assert world.evicted == [*evicted, "uid-late"]


async def test_mode_observe_shows_the_marks_and_writes_nothing() -> None:
    world, clock = await uninstalled()
    world.person_applies_definition()
    before, node = len(world.writes), world.nodes["n1"]
    replica = Replica(world, clock=clock, settings=replace(SETTINGS, mode=Action.OBSERVE))
    await until(lambda: "n1" in replica.fleet.node_summaries)
    node_summary = replica.fleet.node_summaries["n1"]
    await until(lambda: node_summary.quarantine_view.unclaimed)
    assert node_summary.state() is QuarantineSummary.QUARANTINED
    replica.agent("n1", WELL)
    replica.evaluate_due()
    clock.time += 10_000
    replica.agent("n1", WELL)
    await until(lambda: not replica.controller.parts.registry.node_state("n1").work.is_queued)
    assert world.writes[before:] == []
    assert world.nodes["n1"] == node
    # A person who undoes it by hand, as docs/install.md says, is seen at the next list.
    kept = {key: text for key, text in node.annotations.items() if key != APPLIED}
    world.set_node(replace(node, annotations=kept))
    await replica.controller.parts.cluster_events.refresh_nodes()
    await until(lambda: not node_summary.quarantine_view.unclaimed)


@pytest.mark.parametrize("restarted", [False, True])
async def test_a_definition_made_anew_brings_back_ours_and_those_made_by_hand(
    *, restarted: bool
) -> None:
    world, clock = world_with_jobs(), Turned()
    world.add_node("n2")
    world.add_node("n3")
    replica = Replica(world, clock=clock)
    await seen(replica)
    world.person_creates("n2", SMOKE)
    world.person_creates("misspelt", SMOKE)
    await until(lambda: phase_of(world, "n2") is Phase.DRAINED)
    await until(lambda: phase_of(world, "misspelt") is Phase.INVALID)
    replica.agent("n1", ILL)
    await drained(world)
    world.person_stops("drill")  # the third is entered and not begun
    await until(lambda: replica.fleet.stop)
    world.person_creates("n3", replace(SMOKE, reason="fan 3"))
    await until(lambda: "n3" in entries(world))
    if restarted:
        await replica.stop()
    uids = {name: one.uid for name, one in world.quarantines.items()}
    world.person_removes_definition()
    await asyncio.sleep(0)
    world.person_applies_definition()
    if restarted:
        replica = Replica(world, clock=clock)
    wanted = {"n1", "n2"} if restarted else {"n1", "n2", "n3"}
    await until(lambda: wanted <= set(world.quarantines))
    await until(lambda: restarted or "misspelt" in world.quarantines)
    world.person_stops("")
    replica.agent("n1", ILL)
    replica.agent("n2", snapshot())
    replica.agent("n3", snapshot())
    await until(lambda: phase_of(world, "n1") is Phase.DRAINED)
    await until(lambda: phase_of(world, "n2") is Phase.DRAINED)
    spec = world.quarantines["n2"].spec
    assert (spec.action, spec.kind, spec.reason, spec.requester) == (
        Action.DRAIN,
        "node",
        "smells of smoke",
        "hall-2",
    )
    assert all(uids[name] != world.quarantines[name].uid for name in wanted)
    if restarted:  # no step was taken for it: a process that did not see it only reports it
        await until(lambda: "n3" not in entries(world))
        assert "quarantine.released" in replica.notes.kinds("n3")
    else:
        await until(lambda: phase_of(world, "n3") is Phase.DRAINED)
        assert world.quarantines["n3"].spec.reason == "fan 3"
    assert entries(world) == wanted
    # Those by hand stay until a person ends them.
    world.person_deletes("n2")
    await until(lambda: "n2" not in world.quarantines)
    assert not is_marked(world.nodes["n2"])


@pytest.mark.parametrize("did", ["", "nonsense", "[1]", '{"evidence": [["xid:79"]]}'])
async def test_marks_that_cant_be_read_are_kept_until_a_person_decides(did: str) -> None:
    world, clock = await uninstalled()
    world.person_annotates("n1", APPLIED, did)
    world.person_applies_definition()
    replica = Replica(world, clock=clock)
    await until(lambda: phase_of(world, "n1") is Phase.CORDONED)
    assert world.quarantines["n1"].spec.requester == UNKNOWN
    replica.agent("n1", WELL)
    replica.evaluate_due()
    clock.time += 10_000
    replica.agent("n1", WELL)
    await until(lambda: not replica.controller.parts.registry.node_state("n1").work.is_queued)
    assert world.nodes["n1"].unschedulable
    world.person_deletes("n1")
    await until(lambda: not world.quarantines and not is_marked(world.nodes["n1"]))
    # The record of who had cordoned it is lost, so the cordon is left for a person.
    assert world.nodes["n1"].unschedulable


async def test_a_node_that_was_uncordoned_meanwhile_is_released() -> None:
    world, clock = await uninstalled()
    world.person_uncordons("n1")
    world.person_applies_definition()
    replica = Replica(world, clock=clock)
    await until(lambda: not is_marked(world.nodes["n1"]))
    replica.agent("n1", ILL)
    await reaches_released(world)
    check_released(world)
    assert read_overruled(world.nodes["n1"].annotations)


async def test_a_quarantine_taken_away_by_force_while_we_watch_is_a_persons_word() -> None:
    world, clock = await world_in_quarantine()
    replica = Replica(world, clock=clock)
    await seen(replica)
    replica.agent("n1", ILL)
    world.person_removes_by_force("n1")
    await until(lambda: not is_marked(world.nodes["n1"]) and not entries(world))
    check_released(world)
    assert read_overruled(world.nodes["n1"].annotations)


async def test_a_stripped_quarantine_that_a_read_misses_before_the_news_is_not_made_again() -> None:
    """The reread after a conflict comes sooner than the watch."""
    world, clock = await world_in_quarantine()
    replica = Replica(world, clock=clock)
    await seen(replica)
    replica.agent("n1", ILL)
    node_state = replica.controller.parts.registry.node_state("n1")
    await until(
        lambda: (
            not node_state.work.is_queued
            and node_state.work.task is not None
            and node_state.work.task.done()
        )
    )
    listeners, world.listeners = world.listeners, []  # the watch is late
    uid = world.quarantines["n1"].uid
    world.person_removes_by_force("n1")
    await replica.controller.parts.worker._reads.acts.reread(node_state)
    replica.controller.parts.queue.add(node_state)
    await until(lambda: node_state.work.task is not None and node_state.work.task.done())
    assert "n1" not in world.quarantines, "it was made again from its entry"
    world.listeners = listeners
    world.emit(QuarantineGone("n1", uid))
    await until(lambda: not is_marked(world.nodes["n1"]) and not entries(world))
    check_released(world)
    assert read_overruled(world.nodes["n1"].annotations)


async def test_a_quarantine_made_anew_while_the_old_one_s_marks_are_swept_keeps_them() -> None:
    """A person takes it away by force and makes another: the sweep reads the node before that."""
    world, clock = await world_in_quarantine()

    def made_anew(call: str) -> ClusterError | None:
        if call == "read_quarantine" and removed and "n1" not in world.quarantines:
            world.person_creates("n1", SMOKE)
        if not is_marked(world.nodes["n1"]):
            unmarked.append(call)
        return None

    removed: list[str] = []
    unmarked: list[str] = []
    replica = Replica(world, clock=clock, fails=made_anew)
    await seen(replica)
    replica.agent("n1", ILL)
    removed.append(world.quarantines["n1"].uid)
    world.person_removes_by_force("n1")
    await until(lambda: phase_of(world, "n1") is Phase.DRAINED)
    assert world.quarantines["n1"].spec == SMOKE
    assert world.nodes["n1"].unschedulable
    assert is_marked(world.nodes["n1"])
    assert not unmarked, "its marks were undone although a quarantine stands there again"
    assert marked_by(world.nodes["n1"]) == world.quarantines["n1"].uid


async def test_marks_that_go_while_they_are_adopted_leave_nothing_behind() -> None:
    """A person undid them after our read: objects that were made from it are taken back."""
    world, clock = await uninstalled()
    world.person_applies_definition()

    def undone(call: str) -> ClusterError | None:
        if call == "create_quarantine" and is_marked(world.nodes["n1"]):
            node = world.nodes["n1"]
            kept = {key: text for key, text in node.annotations.items() if key != APPLIED}
            world.set_node(
                replace(node, annotations=kept, labels={}, taints=(), unschedulable=False)
            )
        return None

    before = len(world.writes)
    Replica(world, clock=clock, fails=undone)
    await until(lambda: "drop n1" in world.writes[before:])
    assert "create n1" in world.writes[before:]
    assert not world.nodes["n1"].unschedulable
    assert not world.nodes["n1"].taints
    await until(lambda: not entries(world))


async def test_an_adoption_waits_for_a_record_that_fails() -> None:
    world, clock = await uninstalled()
    world.person_applies_definition()
    failing = True

    def fails(call: str) -> ClusterError | None:
        return Unreachable("503") if failing and call == "write_record" else None

    replica = Replica(world, clock=clock, fails=fails)
    await seen(replica)
    await until(lambda: "503" in replica.fleet.node_summaries["n1"].work.last_error)
    assert world.nodes["n1"].unschedulable
    failing = False
    replica.agent("n1", ILL)
    await drained(world)
    check_quarantined(world)


async def test_the_marks_of_an_older_version_are_adopted_too() -> None:
    """Their marks have evidence without rules, and name no requester."""
    world, clock = await uninstalled()
    data = json.loads(world.nodes["n1"].annotations[APPLIED])
    kept = {key: data[key] for key in ("quarantine", "incident", "unschedulable", "evidence")}
    world.person_annotates("n1", APPLIED, json.dumps(kept))
    world.person_applies_definition()
    replica = Replica(world, clock=clock)
    await until(lambda: phase_of(world, "n1") is Phase.CORDONED)
    spec = world.quarantines["n1"].spec
    assert (spec.requester, spec.kind) == (OURS, "gpu")
    assert [item.code for item in spec.evidence] == ["xid:79"]
    replica.agent("n1", ILL)
    await drained(world)
    check_quarantined(world)


async def test_what_has_cleared_before_an_uninstall_is_not_in_force_after_it() -> None:
    """Its agent does not repeat an acknowledged sign: the node remembers it when we let go."""
    world, clock = world_with_jobs(), Turned()
    two = snapshot(fault(), fault("xid:48", "GPU-2"))
    first = Replica(world, clock=clock)
    first.agent("n1", snapshot(fault()))
    await drained(world)
    first.agent("n1", two)
    await until(lambda: len(world.quarantines["n1"].spec.evidence) == 2)
    signed = Cleared("xid:79", "GPU-1", "operator")
    first.agent("n1", snapshot(fault("xid:48", "GPU-2"), cleared=(signed,)))
    await until(lambda: world.quarantines["n1"].spec.evidence[0].cleared)
    world.definition_going = True
    world.person_deletes("n1")
    await until(lambda: not world.quarantines)
    await first.stop()
    uninstall(world)
    world.person_applies_definition()
    Replica(world, clock=clock)
    await until(lambda: phase_of(world, "n1") is Phase.CORDONED)
    found = [(item.code, item.component) for item in world.quarantines["n1"].spec.evidence]
    assert found == [("xid:48", "GPU-2")]


class LateAnswers(MemoryCluster):
    """Writes of a Quarantine's status, whose answers come later than the watch's events."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.answers = asyncio.Event()

    async def write_quarantine_status(
        self, quarantine: Quarantine, status: QuarantineStatus
    ) -> Quarantine:
        written = await super().write_quarantine_status(quarantine, status)
        await self.answers.wait()
        return written


async def test_a_deletion_seen_before_the_answer_to_our_own_write_releases_the_node() -> None:
    world, clock = await uninstalled()
    world.person_applies_definition()
    cluster = LateAnswers(world)
    replica = Replica(world, clock=clock, cluster=cluster)
    await until(lambda: phase_of(world, "n1") is Phase.CORDONED)
    world.person_deletes("n1")
    node_summary = replica.fleet.node_summaries["n1"]
    await until(lambda: node_summary.quarantine is not None and node_summary.quarantine.deleting)
    cluster.answers.set()
    await until(lambda: not world.quarantines and not entries(world))
    assert not is_marked(world.nodes["n1"])
