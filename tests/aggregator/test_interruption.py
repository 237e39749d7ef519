"""Every interruption of a quarantine, replayed.

The aggregator dies before or after any of its calls; another takes over with an empty memory; the
end is the same.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from aggregator.cluster.node_names import (
    APPLIED,
    OVERRULED,
    TAINT,
    is_marked,
)
from aggregator.cluster.port import (
    AppliedChanges,
    ClusterError,
    Phase,
    RecordText,
    Taint,
    Unreachable,
)
from aggregator.health.model import Cleared, Snapshot
from aggregator.quarantine.decide.admission_record import parse_record
from aggregator.quarantine.decide.operator_requests import FORCE
from aggregator.quarantine.reconcile.rounds import REFRESH
from tests.support.invariants import Watch
from tests.support.memory_cluster import MemoryCluster, World, phase_of
from tests.support.present import of_type
from tests.support.replica import OPEN, SETTINGS, FakeLine, Replica, Turned, fault, snapshot
from tests.support.virtual_replica import Running, later
from tests.support.virtual_time import in_virtual_time, loop_time
from tests.support.waiting import until

pytestmark = pytest.mark.decorated(by=in_virtual_time)

FOREIGN = Taint("example.com/theirs", "1", "NoSchedule")
REMOVED = "example.com/removed"
ILL = snapshot(fault())
WELL = snapshot(cleared=(Cleared("xid:79", "GPU-1", "operator"),))


def world_with_jobs() -> World:
    world = World.of("n1", taints=(FOREIGN,))
    for name in ("a", "b", "c"):
        world.add_pod("n1", name)
    world.add_pod("n1", "daemon", owner_kind="DaemonSet")
    world.add_pod("n1", "mirror", mirror=True)
    return world


def entries(world: World) -> set[str]:
    return set(parse_record(world.record.text).entries)


async def drained(world: World) -> None:
    def settled() -> bool:
        world.kubelets_finish()
        return phase_of(world, "n1") is Phase.DRAINED

    await until(settled)


def check_quarantined(world: World) -> None:
    node = world.nodes["n1"]
    assert is_marked(node)
    assert FOREIGN in node.taints
    assert node.unschedulable
    assert entries(world) == {"n1"}
    assert sorted(world.evicted) == ["uid-a", "uid-b", "uid-c"]
    assert set(world.pods) == {"n1/daemon", "n1/mirror"}


def check_released(world: World) -> None:
    node = world.nodes["n1"]
    assert not is_marked(node)
    assert node.taints == (FOREIGN,)
    assert not node.unschedulable
    assert entries(world) == set()
    assert world.quarantines == {}
    assert not [key for key in node.annotations if key in (APPLIED, APPLIED)]


async def quarantined(world: World, clock: Turned) -> None:
    """Bring the world to a drained node, with an undisturbed replica."""
    replica = Replica(world, clock=clock)
    replica.agent("n1", ILL)
    await drained(world)
    await replica.stop()


async def world_in_quarantine() -> tuple[World, Turned]:
    world, clock = world_with_jobs(), Turned()
    await quarantined(world, clock)
    return world, clock


LISTINGS: set["asyncio.Future[bool]"] = set()  # kept: the loop itself holds them weakly

Act = Callable[[Replica, World], None]


def falls_ill(replica: Replica, world: World) -> None:
    replica.agent("n1", ILL)


def recovers(replica: Replica, world: World) -> None:
    replica.agent("n1", WELL)
    replica.evaluate_due()
    replica.clock.time += 700
    replica.agent("n1", WELL)


def is_deleted(replica: Replica, world: World) -> None:
    replica.agent("n1", ILL)
    if "n1" in world.quarantines and not world.quarantines["n1"].deleting:
        world.person_deletes("n1")


def is_uncordoned(replica: Replica, world: World) -> None:
    replica.agent("n1", ILL)
    if "n1" in world.quarantines and world.nodes["n1"].unschedulable:
        world.person_uncordons("n1")


def is_forced(replica: Replica, world: World) -> None:
    node = world.nodes["n1"]
    if FORCE not in node.annotations:
        world.set_node(replace(node, annotations={**node.annotations, FORCE: "drain fan 3"}))
    listing = (
        replica.controller.parts.cluster_events.refresh_nodes()
    )  # the listing of every three minutes
    LISTINGS.add(asyncio.ensure_future(listing))


def is_deleted_while_the_record_is_unreadable(replica: Replica, world: World) -> None:
    if "n1" in world.quarantines and is_marked(world.nodes["n1"]):
        world.person_garbles_the_record()
    is_deleted(replica, world)


def is_reinstalled(replica: Replica, world: World) -> None:
    """The definition and the record are made anew, and its agent says what it said before."""
    if world.definition == World.definition:
        world.person_removes_definition()
        world.record = RecordText("", world.tick())
        world.person_applies_definition()
    replica.agent("n1", ILL)


async def undone_then_released(world: World) -> None:
    """The node is undone at once; then a person empties the record, as the message asks."""
    await until(lambda: not is_marked(world.nodes["n1"]))
    if world.record.text == "not JSON":
        world.person_garbles_the_record("")
    await reaches_released(world)


def is_recreated(replica: Replica, world: World) -> None:
    """The Node is deleted and created again in the same boot, with a pod that came at once."""
    if world.nodes["n1"].uid == "uid-n1":
        world.delete_node("n1")
        for key in [key for key in world.pods if key.startswith("n1/")]:
            del world.pods[key]
        world.add_node("n1", uid="uid-2", taints=(FOREIGN,))
        world.add_pod("n1", "d")
    replica.agent("n1", ILL)


async def marked_again(world: World) -> None:
    def settled() -> bool:
        world.kubelets_finish()
        status = world.quarantines["n1"].status
        return status.phase is Phase.DRAINED and status.node_uid == "uid-2"

    await until(settled)


def check_marked_again(world: World) -> None:
    node = world.nodes["n1"]
    assert is_marked(node)
    assert node.unschedulable
    assert {FOREIGN, Taint(TAINT, "gpu", "NoSchedule")} == set(node.taints)
    assert entries(world) == {"n1"}
    assert sorted(world.evicted) == ["uid-a", "uid-b", "uid-c", "uid-d"]
    applied = AppliedChanges(cordoned=True, value="gpu", off_balancers=True)
    assert world.quarantines["n1"].status.applied == applied


def loses_its_marks(replica: Replica, world: World) -> None:
    """A person removes all our marks except the cordon; its grace passes once that is reported."""
    node = world.nodes["n1"]
    if REMOVED not in node.annotations:
        world.set_node(replace(node, taints=(FOREIGN,), labels={}, annotations={REMOVED: "x"}))
    replica.agent("n1", ILL)
    LISTINGS.add(asyncio.ensure_future(_grace_passes(replica, world)))


async def _grace_passes(replica: Replica, world: World) -> bool:
    def shows_missing_marks() -> bool:
        return bool(world.quarantines["n1"].status.marks.missing)

    with contextlib.suppress(AssertionError):  # the process that died had set them again already
        await until(shows_missing_marks)
    replica.clock.time += 100
    return True


async def has_its_marks_again(world: World) -> None:
    def settled() -> bool:
        node, marks = world.nodes["n1"], world.quarantines["n1"].status.marks
        whole = REMOVED in node.annotations and is_marked(node)
        return whole and not marks.missing

    await until(settled)


async def reaches_released(world: World) -> None:
    await until(lambda: not world.quarantines and not entries(world))


@pytest.mark.asyncio
async def test_a_drain_goes_on_when_the_node_hangs_right_after_its_fault() -> None:
    """The common case after an Xid 79. Its earlier evidence stands, even for a new process."""
    world, line = world_with_jobs(), FakeLine()
    replica = Replica(world, clock=Turned())
    replica.agent("n1", ILL, line=line)
    replica.controller.on_disconnect("n1", line, "its connection broke")
    await drained(world)
    check_quarantined(world)


CASES = [
    pytest.param(False, falls_ill, drained, check_quarantined, id="quarantine"),
    pytest.param(False, is_forced, drained, check_quarantined, id="force"),
    pytest.param(True, recovers, reaches_released, check_released, id="recovery"),
    pytest.param(True, is_deleted, reaches_released, check_released, id="deletion"),
    pytest.param(True, is_recreated, marked_again, check_marked_again, id="recreated"),
    pytest.param(True, loses_its_marks, has_its_marks_again, check_quarantined, id="marks"),
    pytest.param(True, is_uncordoned, reaches_released, check_released, id="uncordon"),
    pytest.param(
        True,
        is_deleted_while_the_record_is_unreadable,
        undone_then_released,
        check_released,
        id="deletion-unreadable-record",
    ),
    pytest.param(True, is_reinstalled, drained, check_quarantined, id="reinstall"),
]


@pytest.mark.parametrize(("begin_drained", "act", "reaches", "check"), CASES)
async def test_death_at_any_call_is_finished_by_the_next(
    *,
    begin_drained: bool,
    act: Act,
    reaches: Callable[[World], Awaitable[None]],
    check: Callable[[World], None],
) -> None:
    async def whole() -> int:
        """An undisturbed run: how many changes there are to die at."""
        world, clock = world_with_jobs(), Turned()
        if begin_drained:
            await quarantined(world, clock)
        replica = await Replica(world, clock=clock).ready()
        act(replica, world)
        await reaches(world)
        check(world)
        await replica.stop()
        return replica.cluster.changes

    async def interrupted(at: int, *, after: bool) -> None:
        world, clock = world_with_jobs(), Turned()
        watch = Watch(world, asyncio.get_running_loop().time)
        if begin_drained:
            await quarantined(world, clock)
        first = Replica(world, clock=clock, crash_at=at, after=after)
        act_when_seen = asyncio.create_task(_act(first, world, act))
        finished = asyncio.create_task(_ends(world, reaches))
        died = asyncio.create_task(first.cluster.crashed.wait())
        await asyncio.wait({finished, died}, return_when=asyncio.FIRST_COMPLETED)
        for task in (act_when_seen, finished, died):
            task.cancel()
        await first.stop()
        second = await Replica(world, clock=clock).ready()
        act(second, world)
        await reaches(world)
        # A late write must not have been made twice.
        await later(600)
        check(world)
        assert watch.wrong == []
        await second.stop()

    changes = await whole()
    assert changes >= 5
    async with asyncio.timeout(7200):
        await asyncio.gather(
            *(
                interrupted(at, after=after)
                for at in range(1, changes + 1)
                for after in (False, True)
            )
        )


async def _act(replica: Replica, world: World, act: Act) -> None:
    await until(lambda: not replica.fleet.view_lost)
    act(replica, world)


async def _ends(world: World, reaches: Callable[[World], Awaitable[None]]) -> None:
    await reaches(world)


@pytest.mark.asyncio
async def test_the_persons_word_ends_with_the_fault_that_it_was_about() -> None:
    world, clock = await world_in_quarantine()
    replica = await Replica(world, clock=clock).ready()
    replica.agent("n1", ILL)
    world.person_deletes("n1")
    await reaches_released(world)
    replica.agent("n1", WELL)
    await until(lambda: OVERRULED not in world.nodes["n1"].annotations)
    clock.time += 700
    replica.agent("n1", WELL)
    replica.agent("n1", snapshot(fault(source_seq=99)))
    await until(lambda: "n1" in world.quarantines)


@pytest.mark.parametrize(("first", "second"), [(ILL, snapshot()), (snapshot(), ILL)])
async def test_a_wait_for_agents_is_over_soon_after_enough_have_reported(
    first: Snapshot, second: Snapshot
) -> None:
    """People too would otherwise read of the wait beside the events that followed its end."""
    world = World.of("n1", "n2")
    settings = replace(SETTINGS, limits=replace(OPEN, quorum_percent=100))
    replica = await Replica(world, clock=Running(), settings=settings).ready()
    replica.agent("n1", first)
    await asyncio.sleep(1)
    assert replica.fleet.waiting_for_quorum.startswith("1 of 2 nodes have reported")
    replica.agent("n2", second)
    began = loop_time()
    await until(lambda: world.quarantines and not replica.fleet.waiting_for_quorum)
    assert loop_time() - began <= 1.0


async def test_agents_of_nodes_that_the_cluster_does_not_have_make_no_quorum() -> None:
    """Another cluster's fleet that was sent here, say. One that joins counts from the next list."""
    world = World.of("n1", "n2")
    settings = replace(SETTINGS, limits=replace(OPEN, quorum_percent=100))
    replica = Replica(world, clock=Running(), settings=settings)
    for number in range(10):  # some come before the list is known
        replica.agent(f"staging-{number}", snapshot())
    await until(lambda: not replica.fleet.view_lost)
    for number in range(10, 20):
        replica.agent(f"staging-{number}", snapshot())
    replica.agent("n1", ILL)
    await asyncio.sleep(30)
    assert replica.fleet.waiting_for_quorum.startswith("1 of 2 nodes have reported")
    assert world.quarantines == {}
    world.add_node("n3")
    replica.agent("n3", snapshot())
    await asyncio.sleep(REFRESH + 10)
    assert replica.fleet.waiting_for_quorum.startswith("2 of 3 nodes have reported")
    replica.agent("n2", snapshot())
    await until(lambda: world.quarantines)


@pytest.mark.asyncio
async def test_the_stop_switch_holds_admission_and_evictions_and_never_a_release() -> None:
    world, clock = await world_in_quarantine()
    world.add_node("n2")
    replica = await Replica(world, clock=clock).ready()
    world.person_stops("drill")
    await until(lambda: replica.fleet.stop)
    replica.agent("n2", ILL)
    await until(lambda: replica.fleet.node_summaries["n2"].decision.hold is not None)
    assert replica.fleet.node_summaries["n2"].decision.hold.limit == "stop"  # type: ignore[union-attr]
    recovers(replica, world)
    await until(lambda: "n1" not in world.quarantines)
    assert world.nodes["n2"].unschedulable is False
    world.person_stops("")
    await until(lambda: phase_of(world, "n2") is Phase.DRAINED)


async def test_nothing_is_released_for_an_agent_that_has_not_spoken_since_the_start() -> None:
    world, clock = await world_in_quarantine()
    replica = await Replica(world, clock=clock).ready()
    clock.time += 10_000
    await later(600)
    assert is_marked(world.nodes["n1"])
    replica.agent("n1", snapshot())  # the fault is missing, and no positive sign has cleared it
    replica.evaluate_due()
    clock.time += 10_000
    replica.agent("n1", snapshot())
    await later(600)
    assert is_marked(world.nodes["n1"])
    world.set_node(replace(world.nodes["n1"], boot_id="boot-2"))  # the kubelet reports it too
    replica.agent("n1", snapshot(), boot_id="boot-2")
    replica.evaluate_due()
    clock.time += 700
    replica.agent("n1", snapshot(), boot_id="boot-2")
    await reaches_released(world)


@pytest.mark.asyncio
async def test_a_sign_that_comes_during_a_stop_is_durable_before_it_is_acknowledged() -> None:
    world, clock = await world_in_quarantine()
    world.person_stops("drill")
    replica = await Replica(world, clock=clock).ready()
    replica.agent("n1", ILL)
    safe = of_type(replica.agent("n1", WELL), asyncio.Future)
    await asyncio.wait_for(safe, 20)
    await replica.stop()
    # Its agent does not repeat the sign; the next aggregator knows of it nevertheless.
    another = await Replica(world, clock=clock).ready()
    another.agent("n1", snapshot())
    another.evaluate_due()
    clock.time += 700
    another.agent("n1", snapshot())
    await reaches_released(world)


async def test_a_sign_that_comes_during_a_conflict_waits_for_its_end() -> None:
    world, clock = await world_in_quarantine()
    replica = await Replica(world, clock=clock).ready()
    replica.agent("n1", ILL)
    replica.controller.on_conflict("n1", "a and b")
    safe = of_type(replica.agent("n1", WELL), asyncio.Future)
    await later(600)
    assert not safe.done()
    replica.controller.on_conflict("n1", "")
    await asyncio.wait_for(safe, 20)
    assert world.quarantines["n1"].spec.evidence[0].cleared == "operator"


async def test_a_release_whose_last_answer_is_lost_is_told_and_not_undone() -> None:
    world, clock = await world_in_quarantine()
    lost = [Unreachable("the answer was lost")]

    def loses(call: str) -> ClusterError | None:
        return lost.pop() if lost and call == "drop_quarantine" else None

    replica = await Replica(world, clock=clock, cluster=MemoryCluster(world, loses=loses)).ready()
    replica.agent("n1", ILL)
    world.person_deletes("n1")
    await reaches_released(world)
    await later(600)
    assert not lost
    assert world.quarantines == {}
    check_released(world)
    assert replica.notes.kinds("n1").count("quarantine.released") == 1


@pytest.mark.asyncio
async def test_a_cordon_after_the_uncordon_that_released_a_node_is_a_persons_and_stays() -> None:
    world, clock = await world_in_quarantine()
    held = True

    def fails(call: str) -> ClusterError | None:
        return Unreachable("down") if held and call == "patch_node" else None

    replica = await Replica(world, clock=clock, fails=fails).ready()
    replica.agent("n1", ILL)
    world.person_uncordons("n1")
    await until(lambda: phase_of(world, "n1") is Phase.RELEASING)
    world.person_cordons("n1")
    held = False
    await reaches_released(world)
    assert world.nodes["n1"].unschedulable
    assert not is_marked(world.nodes["n1"])


async def test_a_cause_that_has_gone_quarantines_nobody_once_there_is_room_again() -> None:
    world, clock = world_with_jobs(), Turned()
    world.add_node("n2")
    settings = replace(SETTINGS, limits=replace(OPEN, concurrent=1))
    replica = await Replica(world, clock=clock, settings=settings).ready()
    replica.agent("n1", ILL)
    await drained(world)
    replica.agent("n2", ILL)
    await until(lambda: replica.fleet.node_summaries["n2"].decision.hold)
    replica.agent("n2", WELL)  # recovering, and still held
    world.person_deletes("n1")
    await until(lambda: "n1" not in world.quarantines)
    clock.time += 20
    replica.agent("n2", WELL)
    await later(600)
    assert "n2" not in world.quarantines
    assert replica.fleet.node_summaries["n2"].decision.hold is None
