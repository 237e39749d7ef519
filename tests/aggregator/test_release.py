"""The release of a recovered node: its time, the holds on it, and false signs of recovery.

In virtual time: the real controller, with all its rounds.
"""

import json
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import pytest

from aggregator.cluster.node_names import is_marked
from aggregator.cluster.operations import begun_status, name_of, spec_of
from aggregator.cluster.port import (
    Action,
    ClusterError,
    EvidenceItem,
    Node,
    Operation,
    Phase,
    Quarantine,
    QuarantineSpec,
    QuarantineStatus,
    RepairAttempt,
    RepairState,
    RepairStatus,
    Unreachable,
)
from aggregator.health.model import Cleared, ClearedBy, Component, Delta, Status
from aggregator.quarantine.actions.release import CHECK_AGAIN
from aggregator.quarantine.decide.admission import Limits
from aggregator.quarantine.decide.admission_record import parse_record
from aggregator.quarantine.decide.intent import OURS
from aggregator.quarantine.decide.operator_requests import PIN, OperatorRequests
from aggregator.quarantine.decide.release_checks import (
    RELEASE_HISTORY,
    release_hold,
    remember,
)
from tests.support import virtual_time
from tests.support.memory_cluster import MemoryCluster, World, phase_of
from tests.support.replica import (
    SETTINGS,
    FakeLine,
    Replica,
    component,
    fault,
    hello,
    shipped_policy,
    snapshot,
)
from tests.support.virtual_replica import Running, later, soon

pytestmark = pytest.mark.decorated(by=virtual_time.in_virtual_time)

ILL = snapshot(fault())
CLEARED = (Cleared("xid:79", "GPU-1", "operator"),)
DAY = 86400.0
Main = Coroutine[Any, Any, None]


def change(world: World, **changes: Any) -> None:
    world.set_node(replace(world.nodes["n1"], **changes))


async def drained(world: World) -> None:
    def settled() -> bool:
        world.kubelets_finish()
        return phase_of(world, "n1") is Phase.DRAINED

    await soon(settled)


async def gone(world: World) -> None:
    await soon(lambda: not world.quarantines and not parse_record(world.record.text).entries)
    assert not is_marked(world.nodes["n1"])
    assert not world.nodes["n1"].unschedulable


def why_held(world: World) -> str:
    quarantine = world.quarantines.get("n1")
    return quarantine.status.release_held if quarantine is not None else ""


async def held(world: World, text: str) -> None:
    await soon(lambda: text in why_held(world))
    await later(300)  # and it stays so
    assert text in why_held(world)
    assert is_marked(world.nodes["n1"])


async def falls_ill(world: World, **arguments: Any) -> Replica:
    replica = Replica(world, clock=arguments.pop("clock", Running()), **arguments)
    replica.agent("n1", ILL)
    await drained(world)
    return replica


def recovers(replica: Replica, *also: Component, boot_id: str = "boot-1") -> None:
    replica.agent("n1", snapshot(*also, cleared=CLEARED), boot_id=boot_id)


# -- what speaks against a release --------------------------------------------------------------


def attempt(repair: str, state: RepairState, number: int = 1) -> RepairAttempt:
    return RepairAttempt(
        f"q-{number}", repair, state, boot_id="boot-1", node_uid="uid-n1", began_at=float(number)
    )


UNKNOWN = attempt("reboot", RepairState.UNKNOWN)


def with_attempts(world: World, *attempts: RepairAttempt) -> None:
    found = world.quarantines["n1"]
    status = replace(found.status, repair=RepairStatus(attempts))
    world.put_quarantine(replace(found, status=status))


async def test_an_order_with_an_unknown_outcome_holds_the_release_until_there_is_proof() -> None:
    for proof in (
        lambda world: with_attempts(world, UNKNOWN, attempt("test", RepairState.SUCCEEDED, 2)),
        lambda world: change(world, boot_id="boot-2"),
        lambda world: world.person_deletes("n1"),
    ):
        world = World.of("n1")
        replica = Replica(world, clock=Running())
        disk = component("disk-readonly", "/data", Status.FAILED, "read-only")
        replica.agent("n1", snapshot(disk))
        await drained(world)
        with_attempts(world, UNKNOWN)
        replica.agent("n1", snapshot(replace(disk, status=Status.OK)))
        await held(world, "it is not known whether its reboot was carried out")
        proof(world)
        await gone(world)
        await replica.stop()


async def test_an_operation_that_no_watch_has_shown_holds_a_release_until_it_has_ended() -> None:
    """Another process, which was the controller until now, has made it."""
    world = World.of("n1")
    replica = Replica(world, clock=Running())
    disk = component("disk-readonly", "/data", Status.FAILED, "read-only")
    replica.agent("n1", snapshot(disk))
    await drained(world)
    found = world.quarantines["n1"]
    shelf, listed = world.operations, replica.cluster.operations.all

    async def made_meanwhile() -> list[Operation]:
        for number, phase in enumerate((RepairState.ORDERED, RepairState.PENDING), 1):
            one = replace(attempt("reboot", phase, number), deadline_at=1e9)
            name, spec = name_of(found.uid, number, "reboot"), spec_of(found, one)
            shelf.by_name[name] = Operation(name, name, "1", spec, begun_status(found, one, number))
        replica.cluster.operations.all = listed  # type: ignore[method-assign]
        return await listed()

    replica.cluster.operations.all = made_meanwhile  # type: ignore[method-assign]
    replica.agent("n1", snapshot(replace(disk, status=Status.OK)))
    await later(1200)
    assert phase_of(world, "n1") is Phase.DRAINED
    [there] = shelf.by_name.values()  # the one that has not begun does not begin any more
    assert there.name == name_of(found.uid, 1, "reboot")
    shelf.store(replace(there, status=replace(there.status, phase=RepairState.SUCCEEDED)))
    await gone(world)


@pytest.mark.parametrize(
    ("attempts", "cleared", "holds"),
    [
        ((UNKNOWN,), "reboot", True),
        ((UNKNOWN,), "operator", False),
        ((UNKNOWN, attempt("replace", RepairState.FAILED, 2)), "reboot", True),
        ((UNKNOWN, attempt("test", RepairState.FAILED, 2)), "reboot", True),
        ((UNKNOWN, attempt("test", RepairState.SUCCEEDED, 2)), "reboot", False),
        ((UNKNOWN, attempt("ticket", RepairState.SUCCEEDED, 2)), "reboot", True),
        ((attempt("test", RepairState.SUCCEEDED), replace(UNKNOWN, began_at=2.0)), "reboot", True),
        ((attempt("test", RepairState.UNKNOWN),), "reboot", False),
        ((replace(UNKNOWN, node_uid="uid-of-another"),), "reboot", False),
        ((replace(UNKNOWN, boot_id="boot-0"),), "reboot", False),
        ((attempt("reboot", RepairState.FAILED),), "reboot", False),
    ],
)
def test_what_proves_that_no_order_may_still_come(
    attempts: tuple[RepairAttempt, ...], cleared: str, *, holds: bool
) -> None:
    item = EvidenceItem("xid:79", "GPU-1", "boot-1", "reboot", "gpu-gone", "i", cleared=cleared)
    quarantine = Quarantine(
        node="n1",
        uid="q",
        version="1",
        created_at=0.0,
        spec=QuarantineSpec(
            action=Action.DRAIN, kind="disk", reason="", requester=OURS, evidence=(item,)
        ),
        status=QuarantineStatus(repair=RepairStatus(attempts)),
    )
    hold = release_hold(
        quarantine,
        node=replace(World.of("n1").nodes["n1"], uid="uid-n1", boot_id="boot-1"),
        health=None,
        policy=shipped_policy(),
        requests=OperatorRequests(),
    )
    assert ("not known" in hold) is holds


async def test_the_same_fault_soon_after_a_release_wants_a_person() -> None:
    clock = Running()
    world = World.of("n1")
    replica = await falls_ill(world, clock=clock)
    recovers(replica)
    await later(700)
    await gone(world)
    clock.time += 6 * DAY
    replica.agent("n1", Delta(faults=(fault(source_seq=8),)))
    await drained(world)
    replica.agent("n1", Delta(cleared=CLEARED))
    await held(world, "xid:79 on GPU-1 came again 6 days after a release")
    world.person_deletes("n1")  # theirs is not held
    await gone(world)
    clock.time += 8 * DAY
    replica.agent("n1", Delta(faults=(fault(source_seq=9),)))
    await drained(world)
    replica.agent("n1", Delta(cleared=CLEARED))
    await later(700)
    await gone(world)


async def test_a_rule_that_wants_a_person_is_released_by_one_alone_whatever_restarts() -> None:
    policy = shipped_policy("rules: [{name: gpu-gone, release: manual}]")
    world = World.of("n1")
    replica = await falls_ill(world, policy=policy)
    recovers(replica)
    await held(world, "rule gpu-gone a person alone")
    await replica.stop()
    after = Replica(world, clock=Running(), policy=policy)
    recovers(after)
    await later(2000)
    await held(world, "rule gpu-gone a person alone")
    assert "quarantine.release_held" not in after.notes.kinds("n1")  # it was said before
    world.person_uncordons("n1")
    await gone(world)


async def test_a_pin_keeps_a_node_in_until_it_is_gone_and_not_against_a_person() -> None:
    world = World.of("n1")
    replica = await falls_ill(world)
    world.person_annotates(
        "n1", PIN, "RMA 12345"
    )  # after the last list: the read at the release sees it
    recovers(replica)
    await later(610)
    await held(world, "pinned by a person (RMA 12345)")
    world.person_annotates("n1", PIN, None)
    await gone(world)

    world = World.of("n1", annotations={PIN: ""})
    replica = await falls_ill(world)
    recovers(replica)
    await held(world, "pinned by a person (no reason given)")
    world.person_deletes("n1")
    await gone(world)
    assert PIN in world.nodes["n1"].annotations  # theirs, and it stays


async def test_a_person_who_releases_what_has_recovered_overrules_nothing() -> None:
    clock = Running()
    world = World.of("n1", annotations={PIN: "wait"})
    replica = await falls_ill(world, clock=clock)
    recovers(replica)
    clock.time += 700  # before its sign could be written down
    recovers(replica)
    await held(world, "pinned")
    world.person_deletes("n1")
    await gone(world)
    replica.agent("n1", Delta(faults=(fault(source_seq=8),)))
    await drained(world)


async def test_what_falls_ill_again_while_it_is_held_is_drained_again_and_not_before() -> None:
    world = World.of("n1", annotations={PIN: "wait"})
    replica = await falls_ill(world)
    late = world.add_pod("n1", "late")
    recovers(replica)
    await held(world, "pinned")
    assert late.uid not in world.evicted
    replica.agent("n1", Delta(faults=(fault(source_seq=8),)))
    await soon(lambda: not why_held(world))
    await later(1000)
    assert is_marked(world.nodes["n1"])


async def test_a_held_release_is_checked_at_once_when_the_results_about_its_gpus_change() -> None:
    """And not at the next check, up to 30 s later."""
    world = World.of("n1")
    replica = await falls_ill(world)
    gpu = component("gpu-inventory", "GPU-1", Status.UNKNOWN, "timeout")
    recovers(replica, gpu)
    await held(world, "gpu-inventory GPU-1 is unknown")
    view = replica.controller.parts.registry.node_state("n1").quarantine_view
    last = view.release_polled
    await soon(lambda: view.release_polled > last)
    replica.agent("n1", Delta((replace(gpu, status=Status.OK, reason=""),)))
    await soon(lambda: not world.quarantines, within=CHECK_AGAIN / 2)


async def test_an_agent_that_falls_silent_while_its_release_is_held_evicts_nobody() -> None:
    world = World.of("n1", annotations={PIN: "wait"})
    pod = world.add_pod("n1", "a")
    world.budget_blocks.add(pod.uid)
    line = FakeLine()
    replica = Replica(world, clock=Running())
    disk = component("disk-readonly", "/data", Status.FAILED, "read-only")
    replica.agent("n1", snapshot(disk), line=line)
    await soon(lambda: phase_of(world, "n1") is Phase.DRAINING)
    replica.agent("n1", Delta((replace(disk, status=Status.OK),)))
    await later(700)
    await held(world, "pinned")
    replica.controller.on_disconnect("n1", line, "gone")
    world.budget_blocks.clear()
    await later(1000)
    assert world.evicted == []


# -- what looks like recovery and is not ----------------------------------------------------------

Trick = Callable[[World, Replica], Replica]


def the_agent_restarts(world: World, replica: Replica) -> Replica:
    replica.agent("n1", snapshot(fault()))  # the same epoch: it has kept its latch
    return replica


def the_agent_lost_its_spool(world: World, replica: Replica) -> Replica:
    replica.controller.on_connect(replace(hello("n1"), spool_epoch="another"), FakeLine())
    replica.controller.on_evidence("n1", snapshot(), replica.clock())
    return replica


def the_snapshot_is_missing(world: World, replica: Replica) -> Replica:
    replica.controller.on_connect(hello("n1"), FakeLine())
    return replica


def the_fault_is_missing_from_the_snapshot(world: World, replica: Replica) -> Replica:
    replica.agent("n1", snapshot())
    return replica


def the_aggregator_restarts(world: World, replica: Replica) -> Replica:
    replica.task.cancel()
    replica.cluster.crashed.set()
    return Replica(world, clock=Running())


def the_aggregator_restarts_and_the_agent_forgot(world: World, replica: Replica) -> Replica:
    after = the_aggregator_restarts(world, replica)
    after.agent("n1", snapshot())
    return after


def a_late_stream_of_the_boot_before(world: World, replica: Replica) -> Replica:
    replica.agent("n1", snapshot(), boot_id="boot-0")
    return replica


def the_clearing_is_of_another_component(world: World, replica: Replica) -> Replica:
    replica.agent("n1", snapshot(cleared=(Cleared("xid:79", "GPU-2", "gpu-reset"),)))
    return replica


@pytest.mark.parametrize(
    "trick",
    [
        the_agent_restarts,
        the_agent_lost_its_spool,
        the_snapshot_is_missing,
        the_fault_is_missing_from_the_snapshot,
        the_aggregator_restarts,
        the_aggregator_restarts_and_the_agent_forgot,
        a_late_stream_of_the_boot_before,
        the_clearing_is_of_another_component,
    ],
)
async def test_what_looks_like_recovery_releases_nobody(trick: Trick) -> None:
    world = World.of("n1")
    replica = trick(world, await falls_ill(world))
    await later(3 * 3600)
    assert is_marked(world.nodes["n1"])
    assert phase_of(world, "n1") is not Phase.RELEASING
    # The real thing is known when it comes: the machine is in another boot, and says so.
    change(world, boot_id="boot-2")
    replica.agent("n1", snapshot(), boot_id="boot-2")
    await later(700)
    await gone(world)


async def test_a_reimaged_node_is_not_released_from_what_only_a_person_ends() -> None:
    world = World.of("n1")
    replica = Replica(world, clock=Running())
    replica.agent("n1", snapshot(fault("xid:64", cleared_by=ClearedBy.OPERATOR)))
    await soon(lambda: phase_of(world, "n1") in (Phase.CORDONED, Phase.DRAINED))
    change(world, boot_id="boot-2")
    told = replace(hello("n1", "boot-2"), spool_epoch="new", instance="new")
    replica.controller.on_connect(told, FakeLine())
    replica.controller.on_evidence("n1", snapshot(), replica.clock())
    await later(3600)
    assert is_marked(world.nodes["n1"])


async def test_a_gpu_goes_back_only_when_the_node_has_all_of_them_to_give() -> None:
    world = World.of("n1", devices={"nvidia.com/gpu": ("8", "7")})
    recovers(await falls_ill(world))
    await held(world, "nvidia.com/gpu is 7 of 8")
    change(world, devices={"nvidia.com/gpu": ("8", "8")})
    await gone(world)


async def test_a_late_stream_of_the_boot_before_is_held_by_what_the_kubelet_says() -> None:
    world = World.of("n1")
    replica = await falls_ill(world)
    replica.agent("n1", snapshot(), boot_id="boot-0")
    await held(world, "still in the boot of xid:79")
    replica.agent("n1", ILL)  # the living agent is back
    await soon(lambda: not why_held(world))
    [item] = world.quarantines["n1"].spec.evidence
    assert item.cleared == ""


# -- a person's release is held by nothing ---------------------------------------------------------


@pytest.mark.parametrize("word", [World.person_deletes, World.person_uncordons])
async def test_a_persons_release_is_held_by_nothing_at_all(
    word: Callable[[World, str], None],
) -> None:
    world = World.of("n1", annotations={PIN: "not yet"}, devices={"nvidia.com/gpu": ("8", "0")})
    first = await falls_ill(world)
    await first.stop()
    world.person_stops("everything")
    failed: dict[str, int] = {}

    def fails(name: str) -> ClusterError | None:
        failed[name] = failed.get(name, 0) + 1
        return Unreachable("busy") if failed[name] < 4 else None

    settings = replace(
        SETTINGS,
        mode=Action.OBSERVE,
        limits=Limits(concurrent=0, concurrent_percent=0, quorum_percent=100),
    )
    policy = shipped_policy("rules: [{name: gpu-gone, release: manual}]")
    replica = Replica(world, clock=Running(), settings=settings, policy=policy, fails=fails)
    world.add_node("never-heard")
    word(world, "n1")
    await gone(world)
    assert failed["patch_node"] >= 4
    assert "quarantine.released" in replica.notes.kinds("n1")


# -- what the node remembers ----------------------------------------------------------------------

NODE = Node("n1", "u", "1", False, (), {}, {})


def items(*names: str) -> list[EvidenceItem]:
    return [EvidenceItem(name, "GPU-1", "b", "reboot", "r", "i") for name in names]


@pytest.mark.parametrize("text", ["", "x", "{}", "[1]", '[["a"]]', '[["a","b","c"]]', "[" * 9999])
def test_an_edited_memory_of_releases_is_no_memory(text: str) -> None:
    node = replace(NODE, annotations={RELEASE_HISTORY: text})
    assert remember(node, items("xid:79"), earliest=7.0, latest=7.0) == '[["xid:79", "GPU-1", 7]]'


def test_level_evidence_is_no_fault_that_could_come_again() -> None:
    assert (
        remember(
            NODE,
            [EvidenceItem("disk-space:bytes", "/", "b", "", "r", "i")],
            earliest=7.0,
            latest=7.0,
        )
        == "[]"
    )


# -- made by hand ---------------------------------------------------------------------------------


async def test_quarantine_of_no_node_says_so_takes_no_place_and_is_carried_out_once_there_is() -> (
    None
):
    world = World.of("n1")
    Replica(world, clock=Running())
    world.person_creates("typo", QuarantineSpec(Action.DRAIN, "manual", "smoke", "alice"))
    await soon(lambda: phase_of(world, "typo") is Phase.INVALID)
    assert "no node of this name" in world.quarantines["typo"].status.message
    await later(600)
    assert parse_record(world.record.text).entries == {}
    world.add_node("typo")
    await soon(lambda: phase_of(world, "typo") is Phase.DRAINED)
    assert world.nodes["typo"].unschedulable
    world.person_deletes("typo")
    await soon(lambda: "typo" not in world.quarantines)
    assert not is_marked(world.nodes["typo"])


async def test_one_of_no_node_can_be_deleted_again_and_its_name_is_shown_no_more() -> None:
    world, clock = World.of("n1"), Running()
    replica = Replica(world, clock=clock, cluster=MemoryCluster(world))
    smoke = QuarantineSpec(Action.CORDON, "manual", "smoke", "alice")
    await later(30)  # the nodes were listed just now
    world.person_creates("typo", smoke)
    await soon(lambda: phase_of(world, "typo") is Phase.INVALID)
    assert "typo" in replica.fleet.node_summaries
    began = clock()
    world.person_deletes("typo")
    await soon(lambda: not world.quarantines)
    await soon(lambda: "typo" not in replica.fleet.node_summaries)
    assert clock() - began < 60, "at once, not when the nodes are next listed"
    # One that an agent speaks for stays: the list of nodes may be older than it.
    replica.agent("new", snapshot())
    world.person_creates("new", smoke)
    await soon(lambda: phase_of(world, "new") is Phase.INVALID)
    world.person_deletes("new")
    await soon(lambda: not world.quarantines)
    await later(1)
    assert "new" in replica.fleet.node_summaries


@pytest.mark.parametrize(
    ("ahead", "waits"),
    [(-86400.0, True), (60.0, True), (400 * 86400.0, False)],
    ids=["a day ago", "clocks a minute apart", "more than a year ahead"],
)
async def test_a_release_that_is_remembered_in_the_future_holds_no_later_one(
    ahead: float, *, waits: bool
) -> None:
    """The wall clock was a year ahead at that release, and is right again."""
    clock = Running()
    at = clock() + 1_000_000 + ahead
    world = World.of("n1", annotations={RELEASE_HISTORY: json.dumps([["xid:79", "GPU-1", at]])})
    replica = await falls_ill(world, clock=clock, wall=lambda: clock() + 1_000_000)
    recovers(replica)
    if waits:
        await held(world, "came again")
    else:
        await soon(lambda: not world.quarantines)
        [[_, _, remembered]] = json.loads(world.nodes["n1"].annotations[RELEASE_HISTORY])
        assert remembered <= clock() + 1_000_000
