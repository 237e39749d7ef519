"""Old operations are removed, those that have lost their quarantine end, and requests report."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from aggregator.clock import Clocks
from aggregator.cluster.operations import unknown_outcome, with_attempts
from aggregator.cluster.port import (
    Action,
    Conflict,
    NodeTestStatus,
    Operation,
    OperationRequest,
    OperationSpec,
    OperationStatus,
    Phase,
    Quarantine,
    QuarantineSpec,
    QuarantineStatus,
    Refused,
    RepairState,
    RepairStatus,
)
from aggregator.quarantine.actions.open_attempts import are_attempts_known
from aggregator.quarantine.decide.node_tests import NodeTest
from aggregator.quarantine.decide.repair import RepairMode, RepairRules
from aggregator.quarantine.decide.repair_plan import RepairPlan
from aggregator.quarantine.repair.operation_requests import OperationRequests
from aggregator.quarantine.repair.operation_retention import PER_NODE, OperationRetention
from aggregator.quarantine.state.fleet import FleetState, NodeSummary, NodeTestView
from tests.support.memory_cluster import MemoryCluster, World
from tests.support.present import present

WEEK = 7 * 86400.0
NOW = 8 * WEEK
STANDING = Quarantine(
    "n1", "stands", "1", QuarantineSpec(Action.DRAIN, "gpu", "x"), QuarantineStatus()
)


def put(world: World, name: str, quarantine: str, phase: RepairState, at: float) -> Operation:
    spec = OperationSpec("n1", "reboot", quarantine)
    begun = phase is not RepairState.PENDING
    status = OperationStatus(
        phase, "why", quarantine=quarantine if begun else "", began_at=at, ended_at=at
    )
    return world.operations.store(Operation(name, f"uid-{name}", "0", spec, status, created_at=at))


def always() -> bool:
    return True


async def retain(
    cluster: MemoryCluster,
    fleet: FleetState | None = None,
    may_act: Callable[[], bool] = always,
) -> None:
    """One round of the retention of these operations."""
    retention = OperationRetention(
        cluster=cluster,
        fleet=fleet or FleetState(),
        clocks=Clocks(lambda: 0.0, lambda: NOW),
        window=WEEK,
        may_act=may_act,
    )
    await retention.go_round()


async def go_round(
    world: World,
    *,
    view_lost: str = "",
    may_act: Callable[[], bool] = always,
    tests: Mapping[str, NodeTestView] | None = None,
) -> dict[str, RepairState]:
    """The phases after one round."""
    summary = NodeSummary("n1")
    summary.quarantine_view.write(STANDING)
    fleet = FleetState({"n1": summary}, view_lost=view_lost, node_tests=dict(tests or {}))
    await retain(MemoryCluster(world), fleet, may_act)
    return {name: one.status.phase for name, one in world.operations.by_name.items()}


async def test_none_of_a_quarantine_that_stands_is_touched() -> None:
    world = World()
    for number, phase in enumerate(RepairState):
        put(world, f"o{number}", "stands", phase, at=0.0)
    put(world, "deleted", "stands", RepairState.FAILED, at=0.0)
    world.operations.person_deletes("deleted")
    before = {name: one.status.phase for name, one in world.operations.by_name.items()}
    assert await go_round(world) == before


async def test_a_process_that_lost_its_place_during_the_list_changes_nothing() -> None:
    """Its quarantines may be those of before a pause, and the operation one of a newer."""
    world, places = World(), iter([True])
    put(world, "open", "newer", RepairState.ORDERED, at=0.0)
    put(world, "old", "gone", RepairState.FAILED, at=0.0)
    phases = await go_round(world, may_act=lambda: next(places, False))
    assert phases == {"open": RepairState.ORDERED, "old": RepairState.FAILED}


async def test_an_open_one_without_its_quarantine_ends_once_that_is_certain() -> None:
    world = World()
    put(world, "pending", "gone", RepairState.PENDING, at=NOW - 3600)
    put(world, "ordered", "gone", RepairState.ORDERED, at=NOW - 3600)
    put(world, "new", "not seen yet", RepairState.ORDERED, at=NOW - 60)
    before = {name: one.status.phase for name, one in world.operations.by_name.items()}
    assert await go_round(world, view_lost="no answer") == before
    found = await go_round(world)
    ends = {"pending": RepairState.CANCELLED, "ordered": RepairState.UNKNOWN}
    assert found == {**ends, "new": RepairState.ORDERED}
    status = world.operations.by_name["ordered"].status
    assert (status.message, status.ended_at) == ("its quarantine is gone", NOW)


async def test_those_that_a_person_has_deleted_and_old_ones_are_removed() -> None:
    world = World()
    for number in range(PER_NODE + 2):
        put(world, f"old-{number:02}", "gone", RepairState.FAILED, at=float(number))
    put(world, "young", "gone", RepairState.FAILED, at=NOW - 3600)
    put(world, "deleted", "gone", RepairState.FAILED, at=NOW - 3600)
    world.operations.person_deletes("deleted")
    left = set(await go_round(world))
    assert "young" in left
    assert "deleted" not in left
    assert {name for name in left if name.startswith("old")} == {
        f"old-{number:02}" for number in range(3, PER_NODE + 2)
    }


def put_test(world: World, name: str, node: str, at: float, **status: object) -> Operation:
    """A test of a node in no quarantine."""
    spec = OperationSpec(node, "test", profile="quick", requester="sickbay")
    found = OperationStatus(
        RepairState.SUCCEEDED, number=1, began_at=at, ended_at=at, node_test=NodeTestStatus()
    )
    found = replace(found, **status)  # type: ignore[arg-type]  # a test's words
    return world.operations.store(Operation(name, f"uid-{name}", "0", spec, found, created_at=at))


async def test_the_newest_test_of_each_node_is_kept_and_goes_with_the_node() -> None:
    world = World()
    for number in range(PER_NODE + 2):
        put_test(world, f"n1-{number:02}", "n1", at=float(number))
        put(world, f"repair-{number:02}", "gone", RepairState.FAILED, at=100.0 + number)
    for number in range(PER_NODE + 2):
        put_test(world, f"n2-{number:02}", "n2", at=float(number))
    left = await go_round(world)
    assert [name for name in left if name.startswith("n1-")] == [f"n1-{PER_NODE + 1:02}"]
    assert f"n2-{PER_NODE + 1:02}" in left
    world.operations.by_name.clear()
    put_test(world, "of a node that is there", "n1", at=0.0)
    for number in range(PER_NODE + 1):
        put_test(world, f"n2-{number:02}", "n2", at=1.0)
    found = await go_round(world)
    assert "of a node that is there" in found
    assert len(found) == PER_NODE + 1


async def test_the_newest_test_is_kept_while_its_node_is_not_listed_and_goes_with_the_node() -> (
    None
):
    """A list that fails shows no node: only a read of the Node itself is its absence."""
    world = World.of("unlisted")
    spec = OperationSpec("unlisted", "test", requester="sickbay")
    status = OperationStatus(RepairState.FAILED, ended_at=1.0, node_test=NodeTestStatus())
    world.operations.store(Operation("failed", "uid-f", "0", spec, status))
    world.operations.person_deletes("failed")
    assert await go_round(world) == {"failed": RepairState.FAILED}
    del world.nodes["unlisted"]
    assert await go_round(world) == {}


async def test_the_newest_test_is_kept_though_a_person_has_deleted_it() -> None:
    """Without a pass the failure before it would be open again."""
    world = World()
    idle = {"node_test": NodeTestStatus(reason="idle")}
    put_test(world, "failed", "n1", at=NOW - 7200, phase=RepairState.FAILED, **idle)
    put_test(world, "passed", "n1", at=NOW - 3600, number=2, **idle)
    for name in ("failed", "passed"):
        world.operations.person_deletes(name)
    assert await go_round(world) == {"passed": RepairState.SUCCEEDED}
    put_test(world, "next", "n1", at=NOW - 60, number=3, **idle)
    assert await go_round(world) == {"next": RepairState.SUCCEEDED}


async def test_a_test_that_can_not_be_read_goes_when_a_person_deletes_it() -> None:
    """Its name is that of the next one."""
    world = World()
    put_test(world, "fine", "n1", at=NOW - 7200)
    broken = unknown_outcome(
        "broken", OperationSpec("n1", "test"), OperationStatus(began_at=NOW - 3600), ValueError("x")
    )
    world.operations.store(
        replace(world.operations.by_name["fine"], name="broken", uid="u", status=broken)
    )
    both = {"fine": RepairState.SUCCEEDED, "broken": RepairState.UNKNOWN}
    world.operations.person_deletes("fine")
    assert await go_round(world) == both
    world.operations.person_deletes("broken")
    assert await go_round(world) == {"fine": RepairState.SUCCEEDED}


async def test_our_own_test_that_was_held_before_it_began_is_removed() -> None:
    """Its name is that of the next one: an ended object of it would let none begin."""
    world = World()
    pending = {"phase": RepairState.PENDING, "node_test": None, "ended_at": 0.0, "began_at": 0.0}
    put_test(world, "old", "n1", at=NOW - 3600, **pending)
    put_test(world, "young", "n1", at=NOW - 60, **pending)
    assert await go_round(world) == {"young": RepairState.PENDING}


async def test_one_that_can_not_be_removed_keeps_none_of_the_others() -> None:
    world = World()
    for name in ("first", "second", "third"):
        put(world, name, "gone", RepairState.FAILED, at=NOW - 3600)
        world.operations.person_deletes(name)
    cluster = MemoryCluster(world)
    drop = cluster.operations.drop

    async def refusing(operation: Operation) -> None:
        if operation.name == "first":
            raise Refused("admission webhook denied the request")
        if operation.name == "second":
            raise Conflict("it was changed meanwhile")
        await drop(operation)

    cluster.operations.drop = refusing  # type: ignore[method-assign]
    await retain(cluster)
    assert set(world.operations.by_name) == {"first", "second"}


async def test_an_operation_that_another_has_changed_meanwhile_waits_for_the_next_round() -> None:
    world = World()
    stale = put(world, "ordered", "gone", RepairState.ORDERED, at=NOW - 3600)
    cluster = MemoryCluster(world)
    listed = cluster.operations.all

    async def late() -> list[Operation]:
        found = await listed()
        world.operations.store(replace(stale, status=replace(stale.status, message="changed")))
        return found

    cluster.operations.all = late  # type: ignore[method-assign]
    await retain(cluster)
    status = world.operations.by_name["ordered"].status
    assert (status.phase, status.message) == (RepairState.ORDERED, "changed")


def ask(world: World, name: str, *, node: str = "n1", kind: str = "reboot", uid: str = "") -> None:
    world.operations.person_requests(node, kind, name, quarantine=uid)


def messages(world: World) -> dict[str, str]:
    return {name: one.status.message for name, one in world.operations.by_name.items()}


NONE = RepairStatus()


async def reported(world: World, fleet: FleetState) -> dict[str, str]:
    """The messages after one round."""
    clocks = Clocks(lambda: 0.0, lambda: NOW)
    await OperationRequests(MemoryCluster(world), fleet, clocks, always).go_round()
    return messages(world)


def fleet_of(repair: RepairStatus = NONE, *kinds: str) -> FleetState:
    summary = NodeSummary("n1")
    status = QuarantineStatus(Phase.DRAINED, repair=repair)
    summary.quarantine_view.write(replace(STANDING, status=status))
    fleet = FleetState({"n1": summary, "n2": NodeSummary("n2")})
    fleet.repairs = RepairPlan(RepairRules(RepairMode.REPAIR), frozenset(kinds))
    return fleet


async def test_a_request_reports_why_it_does_not_begin_and_that_it_may() -> None:
    world = World()
    ask(world, "a")
    ask(world, "b")
    ask(world, "elsewhere", node="n2")
    ask(world, "misspelt", node="n22")
    ask(world, "of-another", uid="q-of-before")
    ask(world, "test-of-service", node="n2", kind="test")
    waiting = (OperationRequest("a", "reboot"), OperationRequest("b", "reboot"))
    full = RepairStatus(requests=waiting, held="the rack is full")
    no_reboot = "'reboot' was requested by hand, and the configuration has no such repairer"
    assert await reported(world, fleet_of(full)) == {
        "a": no_reboot,
        "b": no_reboot,
        "elsewhere": "its node is in no quarantine, and no other node is repaired",
        "misspelt": "neither the cluster nor an agent has a node n22",
        "of-another": "its quarantine is no longer in force",
        "test-of-service": "its node is in no quarantine, and no repairer tests nodes in service",
    }
    room = await reported(world, fleet_of(full, "reboot"))
    assert (room["a"], room["b"]) == ("the rack is full", "operation a is before it")
    written = len(world.writes)
    await reported(world, fleet_of(full, "reboot"))
    assert len(world.writes) == written, "only what has changed"
    now = await reported(world, fleet_of(RepairStatus(requests=waiting), "reboot"))
    assert now["a"] == ""
    off = fleet_of(full, "reboot")
    off.repairs = RepairPlan()
    assert (await reported(world, off))["a"] == "repair.mode is off"


async def test_a_request_that_can_not_be_written_keeps_none_of_the_others() -> None:
    world = World()
    ask(world, "first", node="n2")
    ask(world, "second", node="n2")
    cluster = MemoryCluster(world)
    write = cluster.operations.write_status

    async def refusing(operation: Operation, status: OperationStatus) -> Operation:
        if operation.name == "first":
            raise Refused("admission webhook denied the request")
        return await write(operation, status)

    cluster.operations.write_status = refusing  # type: ignore[method-assign]
    clocks = Clocks(lambda: 0.0, lambda: NOW)
    await OperationRequests(cluster, fleet_of(), clocks, always).go_round()
    assert messages(world)["second"].startswith("its node is in no quarantine")


async def test_twenty_requests_that_are_always_refused_hold_up_no_deletion() -> None:
    world, cluster = World(), None
    for number in range(20):
        ask(world, f"refused-{number:02}", node="n2")
    tested = OperationSpec("n2", "test", requester="sickbay")
    for number in (1, 2):
        status = OperationStatus(
            RepairState.SUCCEEDED, number=number, ended_at=NOW, node_test=NodeTestStatus()
        )
        world.operations.store(Operation(f"t{number}", f"uid-t{number}", "0", tested, status))
    world.operations.person_deletes("t1")
    cluster = MemoryCluster(
        world, fails=lambda name: Refused("denied") if name == "write_operation" else None
    )
    requests = OperationRequests(cluster, fleet_of(), Clocks(lambda: 0.0, lambda: NOW), always)
    await requests.go_round()
    assert "t1" in world.operations.by_name
    await requests.go_round()
    assert "t1" not in world.operations.by_name


async def test_a_request_that_no_node_in_quarantine_answers_ends_in_time() -> None:
    world = World()
    ask(world, "elsewhere", node="n2")
    ask(world, "of-another", uid="q-of-before")
    ask(world, "waits")
    for one in list(world.operations.by_name.values()):
        world.operations.by_name[one.name] = replace(one, created_at=NOW - 3600)
    ask(world, "young", node="n2")
    world.operations.by_name["young"] = replace(
        world.operations.by_name["young"], created_at=NOW - 60
    )
    assert await go_round(world) == {
        "elsewhere": RepairState.CANCELLED,
        "of-another": RepairState.CANCELLED,
        "waits": RepairState.PENDING,
        "young": RepairState.PENDING,
    }
    assert messages(world)["elsewhere"] == "its node is in no quarantine"


async def test_a_test_of_a_node_in_service_keeps_its_operation_for_its_time() -> None:
    world = World()
    ask(world, "test", node="n2", kind="test")
    there = world.operations.by_name["test"]
    busy = OperationStatus(
        RepairState.ORDERED,
        began_at=NOW - 7200,
        deadline_at=NOW - 3600,
        node_test=NodeTestStatus(),
    )
    world.operations.by_name["test"] = replace(there, created_at=NOW - 7200, status=busy, held=True)
    assert await go_round(world) == {"test": RepairState.ORDERED}, "its verdict may be unwritten"
    endless = replace(busy, deadline_at=0.0)
    world.operations.by_name["test"] = replace(world.operations.by_name["test"], status=endless)
    assert await go_round(world) == {"test": RepairState.UNKNOWN}


async def test_a_request_waits_for_the_first_test_of_its_node_and_while_none_is_watched() -> None:
    world = World()
    ask(world, "new", node="n2", kind="test")
    ask(world, "in-service", node="n1", kind="test", uid="")
    ask(world, "misspelt", node="m1", kind="test")
    for one in list(world.operations.by_name.values()):
        world.operations.by_name[one.name] = replace(one, created_at=NOW - 3600)
    tainted = {"n2": NodeTestView(None, tainted=True, held="its agent has not reported")}
    fleet = FleetState(
        {"n1": NodeSummary("n1")},
        node_tests=tainted,
        repairs=RepairPlan(tests_in_service=True),
    )
    await retain(MemoryCluster(world), fleet)
    assert {name: one.status.phase for name, one in world.operations.by_name.items()} == {
        "new": RepairState.PENDING,
        "in-service": RepairState.PENDING,
        "misspelt": RepairState.CANCELLED,
    }


async def test_a_request_that_a_person_deletes_after_its_adoption_ends_at_once() -> None:
    """Our finalizer keeps it from that on, and nothing of it has begun."""
    world = World()
    ask(world, "a", uid="stands")
    world.operations.store(replace(world.operations.by_name["a"], held=True))
    world.operations.person_deletes("a")
    await reported(world, fleet_of(RepairStatus(), "reboot"))
    assert (world.operations.by_name, world.writes) == ({}, ["operation n1 Cancelled"])


async def test_one_that_ended_before_it_began_is_removed_though_its_quarantine_stands() -> None:
    """The process died between the end and the removal."""
    world = World()
    ask(world, "a", uid="stands")
    cancelled = OperationStatus(RepairState.CANCELLED, ended_at=NOW)
    world.operations.store(
        replace(world.operations.by_name["a"], held=True, deleting=True, status=cancelled)
    )
    assert await go_round(world) == {}


async def test_a_test_that_was_requested_before_the_quarantine_ends_with_it() -> None:
    """As one that had begun does. One of the same moment is about the quarantine."""
    world, fleet = World(), fleet_of(RepairStatus(), "test")
    quarantine = present(fleet.node_summaries["n1"].quarantine)
    quarantine = replace(quarantine, created_at=NOW - 60)
    fleet.node_summaries["n1"].quarantine_view.write(quarantine)
    before = ("a-test", "test", NOW - 61), ("a-reboot", "reboot", NOW - 61), ("b", "test", NOW - 60)
    for name, kind, at in before:
        ask(world, name, kind=kind)
        made = replace(world.operations.by_name[name], created_at=at)
        made = replace(made, spec=replace(made.spec, profile="quick"))
        world.operations.by_name[name] = made
    shown = present(with_attempts(quarantine, world.operations.by_name.values()).status.repair)
    assert [one.name for one in shown.requests] == ["a-reboot", "b"]
    await reported(world, fleet)
    ended = world.operations.by_name["a-test"].status
    assert ended.phase is RepairState.CANCELLED
    assert ended.message.startswith("its node came into quarantine before the test began: ")
    assert [world.operations.by_name[name].is_open for name in ("a-reboot", "b")] == [True, True]


async def test_another_installation_reports_on_the_requests_of_its_own_quarantine() -> None:
    """Else each would write its own reason every 3 s."""
    world, fleet = World(), fleet_of(RepairStatus(), "test")
    quarantine = present(fleet.node_summaries["n1"].quarantine)
    ask(world, "a", kind="reboot")
    theirs = replace(quarantine, foreign="staging")
    fleet.node_summaries["n1"].quarantine_view.write(theirs)
    before = world.operations.by_name["a"].version
    await reported(world, fleet)
    assert world.operations.by_name["a"].version == before
    fleet.node_summaries["n1"].quarantine_view.write(quarantine)
    await reported(world, fleet)
    assert world.operations.by_name["a"].version != before


async def test_a_request_in_service_is_left_to_the_installation_that_tests_its_node() -> None:
    """It names none, and the other one would report its own reason, and end it after 600 s."""
    world = World()
    ask(world, "a", node="n2", kind="test")
    made = world.operations.by_name["a"]
    world.operations.by_name["a"] = replace(made, created_at=NOW - 3600)
    tests, tests_none = fleet_of(), fleet_of()
    tests.repairs = RepairPlan(tests_in_service=True)
    tests.node_tests = {"n2": NodeTestView(None, tainted=False, requested="a", held="no room")}
    clocks = Clocks(lambda: 0.0, lambda: NOW)
    theirs = MemoryCluster(world, installation="staging")
    other = OperationRequests(theirs, tests_none, clocks, always)
    await other.go_round()
    assert messages(world)["a"].endswith("no repairer tests nodes in service")
    assert await reported(world, tests) == {"a": "no room"}
    written = len(world.writes)
    for _ in range(3):
        await other.go_round()
        await reported(world, tests)
    assert len(world.writes) == written, "they do not write in turns"
    await retain(theirs, tests_none)
    assert world.operations.by_name["a"].status.phase is RepairState.PENDING


async def test_an_installation_that_stops_testing_leaves_requests_to_the_others() -> None:
    world = World()
    ask(world, "a", node="n2", kind="test")
    ours, theirs = fleet_of(), fleet_of()
    ours.repairs = theirs.repairs = RepairPlan(tests_in_service=True)
    staging = MemoryCluster(world, installation="staging")
    other = OperationRequests(staging, theirs, Clocks(lambda: 0.0, lambda: NOW), always)
    ours.node_tests = {"n2": NodeTestView(None, tainted=False, requested="a", held="no room")}
    await reported(world, ours)
    assert staging.operations.known.requests == []
    ours.repairs, ours.node_tests = RepairPlan(), {}
    await reported(world, ours)
    theirs.node_tests = {"n2": NodeTestView(None, tainted=False, requested="a", held="stopped")}
    await other.go_round()
    claimed = world.operations.by_name["a"].status
    assert (claimed.installation, claimed.message) == ("staging", "stopped")
    written = len(world.writes)
    await reported(world, ours)
    await other.go_round()
    assert len(world.writes) == written


async def test_a_claimed_request_ends_with_a_quarantine_of_another_installation() -> None:
    world = World()
    ask(world, "a", node="n2", kind="test")
    made = world.operations.by_name["a"]
    world.operations.by_name["a"] = replace(made, created_at=NOW - 3600)
    fleet = fleet_of()
    fleet.repairs = RepairPlan(tests_in_service=True)
    fleet.node_tests = {"n2": NodeTestView(None, tainted=False, requested="a", held="no room")}
    await reported(world, fleet)
    foreign = replace(STANDING, node="n2", foreign="staging", created_at=NOW)
    fleet.node_summaries["n2"].quarantine_view.write(foreign)
    await reported(world, fleet)
    ended = world.operations.by_name["a"].status
    assert (ended.phase, ended.message.split(":")[0]) == (
        RepairState.CANCELLED,
        "its node came into quarantine before the test began",
    )


async def test_a_second_request_for_a_test_waits_for_the_first_and_reports_that() -> None:
    world = World()
    for name in ("r1", "r2", "r3"):
        ask(world, name, node="n2", kind="test")
        made = world.operations.by_name[name]
        world.operations.by_name[name] = replace(made, created_at=NOW - 3600)
    fleet = fleet_of()
    fleet.node_tests = {"n2": NodeTestView(None, tainted=False, requested="r1", held="no room")}
    assert await reported(world, fleet) == {
        "r1": "no room",
        "r2": "operation r1 is before it",
        "r3": "operation r1 is before it",
    }
    assert set((await go_round(world, tests=fleet.node_tests)).values()) == {RepairState.PENDING}
    going = NodeTest(
        number=1,
        operation="o-1",
        profile="quick",
        state=RepairState.ORDERED,
        boot_id="b",
        request="r1",
    )
    fleet.node_tests = {"n2": NodeTestView(going, tainted=False)}
    begun = OperationStatus(RepairState.ORDERED, began_at=NOW, deadline_at=NOW + 60)
    world.operations.by_name["r1"] = replace(world.operations.by_name["r1"], status=begun)
    told = await reported(world, fleet)
    assert (told["r2"], told["r3"]) == ("test o-1 is under way", "operation r2 is before it")
    assert (await go_round(world, tests=fleet.node_tests))["r3"] is RepairState.PENDING
    assert (await go_round(world))["r3"] is RepairState.CANCELLED
    assert messages(world)["r3"] == "operation r2 is before it", "the last reason stays"


async def test_a_request_that_a_release_ends_is_no_attempt_that_it_has_to_learn_of() -> None:
    """The release goes on with this look."""
    world, wrote = World(), list[Quarantine]()
    ask(world, "a")
    node: Any = SimpleNamespace(node="n1", wrote=wrote.append)
    assert await are_attempts_known(MemoryCluster(world), node, STANDING, NOW)
    ended = world.operations.by_name["a"].status
    assert (ended.phase, ended.message) == (RepairState.CANCELLED, "its node is released")
    put(world, "b", "stands", RepairState.ORDERED, at=NOW)
    assert not await are_attempts_known(MemoryCluster(world), node, STANDING, NOW)
    assert len(wrote) == 1
