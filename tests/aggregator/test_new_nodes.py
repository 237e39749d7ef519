"""Tests of new nodes by the whole controller, in virtual time."""

from dataclasses import replace
from functools import partial

import pytest

from aggregator.cluster.port import (
    Action,
    AdmissionRefused,
    Operation,
    OperationSpec,
    OperationStatus,
    Phase,
    QuarantineSpec,
    RepairState,
    StopText,
    Taint,
    Toleration,
    Unreachable,
)
from aggregator.quarantine.decide.admission_record import parse_record
from aggregator.quarantine.decide.operator_requests import EXEMPT
from aggregator.quarantine.decide.repair import RepairMode
from aggregator.quarantine.repair.protocol import AnswerState, RepairAnswer
from tests.support.memory_cluster import MemoryCluster, phase_of
from tests.support.new_node_tests import (
    FAILED,
    GOING,
    KEY,
    NOTHING,
    PASSED,
    POOL,
    TIMEOUT,
    UNTESTED,
    NewNodes,
    own_test,
)
from tests.support.replica import fault, shipped_policy
from tests.support.virtual_replica import later
from tests.support.virtual_time import in_virtual_time

pytestmark = pytest.mark.decorated(by=in_virtual_time)

OTHER = Taint("example.com/storage-missing", "", "NoExecute")


async def orders_nothing(site: NewNodes) -> None:
    site.start()
    await later(5 * TIMEOUT)
    assert site.program.orders == []


async def test_a_new_node_that_passes_loses_its_startup_taint_and_no_other() -> None:
    site = NewNodes()
    await site.runs_until(lambda: site.condition() == ("True", "TestPassed"))
    site.check()
    assert site.taints() == (POOL,)
    assert site.program.operations == [own_test(1)]
    [order] = site.program.orders
    assert (order.profile, order.tolerates, order.quarantine) == ("quick", KEY, "")
    assert site.program.ended == site.program.operations
    assert parse_record(site.world.record.text).node_tests == {}
    assert [one[1:] for one in site.world.told_tests] == [
        ("Unknown", "TestUnderWay"),
        ("True", "TestPassed"),
    ]
    message = site.world.test_conditions["n1"].message
    assert f"test quick passed (operation {own_test(1)}, boot boot-1)" in message
    assert site.kinds() == ["repair.ordered", "repair.ended"]
    [ended] = [one for one in site.replica.notes.transitions if one.kind == "repair.ended"]
    assert ended.details["outcome"] == "Succeeded"
    assert ended.details["measurements"] == PASSED.details["measurements"]
    assert site.replica.fleet.stages.tests == {("new-node", "Succeeded"): 1}
    await later(3 * TIMEOUT)
    assert len(site.program.orders) == 1
    assert site.world.quarantines == {}


async def test_a_taint_that_another_party_sets_during_the_write_survives_it() -> None:
    site = NewNodes()
    cluster = MemoryCluster(site.world)
    site.start(cluster)

    async def meanwhile(name: str) -> None:
        ends = name == "patch_node" and site.last_test().get("state") == "Ordered"
        if ends and OTHER not in site.taints():
            site.set_taints(*site.taints(), OTHER)

    cluster.in_queue = meanwhile
    await site.ends_well(site.is_open)
    assert site.taints() == (POOL, OTHER)


async def test_a_new_node_that_fails_keeps_its_taint_and_is_not_tested_again() -> None:
    site = NewNodes(verdicts=(FAILED,))
    await site.runs_until(lambda: site.condition() == ("False", "TestFailed"))
    await later(20 * TIMEOUT)
    site.check()
    assert site.taints() == (POOL, UNTESTED)
    assert len(site.program.orders) == 1
    told = ["repair.ordered", "repair.ended", "node.test_exhausted"]
    assert [one for one in site.kinds() if one != "incident.opened"] == told
    [text] = [
        one.summary for one in site.replica.notes.transitions if one.kind == "node.test_exhausted"
    ]
    assert "fio: too slow" in text
    assert f"kubectl taint nodes n1 {KEY}-" in text
    assert site.replica.fleet.node_tests["n1"].needs_person


async def test_as_soon_as_a_person_is_needed_the_page_tells_why() -> None:
    site = NewNodes(verdicts=(FAILED,))
    site.start()

    def needs_person() -> bool:
        shown = site.replica.fleet.node_tests.get("n1")
        return shown is not None and shown.needs_person

    await site.settles(needs_person)
    assert "fio: too slow" in site.replica.fleet.node_tests["n1"].held


async def test_a_new_node_says_why_it_is_not_tested_until_its_taint_is_gone() -> None:
    site = NewNodes(verdicts=(GOING, PASSED))
    site.world.person_stops("maintenance")
    site.start()
    cluster = site.replica.fleet.node_summaries["n1"].cluster
    await site.settles(lambda: "new node, awaits its test: " in cluster.untested)
    assert "maintenance" in cluster.untested
    site.world.person_stops("")
    await site.settles(lambda: cluster.untested == "new node, test quick is under way")
    site.program.verdicts = [FAILED]
    await site.settles(lambda: "no test begins by itself any more" in cluster.untested)
    assert "fio: too slow" in cluster.untested
    site.program.verdicts = [FAILED, PASSED]
    site.reboot()
    await site.settles(site.is_open)
    await site.settles(lambda: cluster.untested == "")


async def test_a_failed_node_is_tested_again_in_another_boot() -> None:
    site = NewNodes(verdicts=(FAILED, PASSED))
    await site.runs_until(lambda: site.condition() == ("False", "TestFailed"))
    site.reboot()
    await site.ends_well(site.is_open)
    assert site.program.operations == [own_test(1), own_test(2, "boot-1x")]
    await site.settles(lambda: site.condition() == ("True", "TestPassed"))


async def test_tests_without_a_verdict_end_and_leave_the_taint() -> None:
    site = NewNodes(verdicts=(NOTHING,))
    await site.runs_until(lambda: "node.test_exhausted" in site.kinds())
    await later(20 * TIMEOUT)
    site.check()
    assert len(site.program.orders) == 3
    assert site.taints() == (POOL, UNTESTED)
    assert site.condition() == ("Unknown", "NoVerdict")
    assert "there is no dcgmi" in site.world.test_conditions["n1"].message
    assert site.kinds().count("node.test_exhausted") == 1


async def test_a_test_that_never_ends_has_no_verdict_and_is_ended() -> None:
    site = NewNodes(verdicts=(GOING, PASSED))
    await site.runs_until(site.is_open)
    site.check()
    assert site.program.cancelled == [own_test(1)]
    assert site.program.operations == [own_test(1), own_test(2)]


async def test_a_node_that_a_test_reboots_is_not_tested_without_end() -> None:
    site = NewNodes(verdicts=(GOING,))
    site.start()
    for number in range(1, 4):
        await site.settles(partial(site.is_at, number))
        await site.settles(lambda: site.last_test().get("state") == "Ordered")
        site.reboot()
    await site.settles(lambda: "node.test_exhausted" in site.kinds())
    await later(20 * TIMEOUT)
    site.check()
    assert len(site.program.operations) == 3
    assert not site.is_open()


async def test_the_fleet_has_so_many_tests_at_once_and_each_node_its_turn() -> None:
    names = tuple(f"n{number}" for number in range(7))
    site = NewNodes(*names)
    site.program.verdicts = [GOING] * 2 + [PASSED]
    site.start()
    await later(60)
    assert len(site.program.operations) == 2
    assert len(parse_record(site.world.record.text).node_tests) == 2
    held = [one.held for one in site.replica.fleet.node_tests.values() if one.held]
    assert len(held) == 5
    assert "repair.new_nodes.concurrent = 2" in held[0]
    site.program.verdicts = [PASSED]
    await site.settles(lambda: all(site.is_open(name) for name in names))
    site.check()


async def test_in_mode_observe_the_page_shows_that_no_test_begins() -> None:
    site = NewNodes()
    site.mode = RepairMode.OBSERVE
    site.start()
    await later(10 * TIMEOUT)
    assert site.kinds() == []
    assert site.program.orders == []
    assert site.world.writes == []
    assert site.world.test_conditions == {}
    assert "repair.mode is observe" in site.replica.fleet.node_tests["n1"].held


async def test_a_node_in_mode_observe_is_left_with_its_taint() -> None:
    site = NewNodes()
    site.settings = replace(site.settings, mode=Action.OBSERVE)
    site.start()
    await later(10 * TIMEOUT)
    assert site.program.orders == []
    assert not site.is_open()
    assert "observe" in site.replica.fleet.node_tests["n1"].held


async def test_an_exempt_node_is_left_with_its_taint_until_the_exemption_ends() -> None:
    site = NewNodes()
    site.world.person_annotates("n1", EXEMPT, "until 2026-12-01T00:00:00Z we set it up")
    await orders_nothing(site)
    site.world.person_annotates("n1", EXEMPT, None)
    await site.ends_well(site.is_open)


async def test_a_node_without_a_reporting_agent_is_not_tested() -> None:
    """Nothing is done on silence."""
    site = NewNodes()
    site.start()
    site.replica.controller.on_disconnect("n1", object(), "lost")  # type: ignore[arg-type]
    names, site.names = site.names, ()
    await site.replica.stop()
    await orders_nothing(site)
    assert not site.is_open()
    assert site.condition() == ("Unknown", "NotTested")
    site.names = names
    site.report("n1")
    await site.ends_well(site.is_open)


async def test_a_pass_does_not_count_for_a_node_whose_evidence_came_meanwhile() -> None:
    site = NewNodes(verdicts=(GOING,))
    await site.runs_until(lambda: site.last_test().get("state") == "Ordered")
    site.report("n1", fault("xid:79"))
    site.program.verdicts = [PASSED]
    await site.settles(lambda: bool(site.world.quarantines))
    await later(TIMEOUT)
    site.check()
    assert not site.is_open()
    assert site.last_test()["state"] == "Cancelled"
    assert site.condition() == ("Unknown", "NoVerdict")


async def test_a_pass_does_not_count_while_evidence_is_held_from_a_quarantine() -> None:
    site = NewNodes(verdicts=(GOING,))
    await site.runs_until(lambda: site.last_test().get("state") == "Ordered")
    site.world.person_stops("no new quarantine")
    site.report("n1", fault("xid:79"))
    site.program.verdicts = [PASSED]
    await site.settles(lambda: site.last_test()["state"] == "Cancelled")
    await later(5 * TIMEOUT)
    site.check()
    assert site.world.quarantines == {}
    assert not site.is_open()
    message = site.last_test()["message"]
    assert "it passed, and does not count: evidence against it is in force" in message


async def test_a_pass_of_the_boot_before_does_not_open_the_node() -> None:
    site = NewNodes(verdicts=(GOING, PASSED))
    await site.runs_until(lambda: site.last_test().get("state") == "Ordered")

    def reboots_meanwhile() -> None:
        site.program.on_verdict = lambda: None
        site.reboot()

    site.program.verdicts = [PASSED]
    site.program.on_verdict = reboots_meanwhile
    await site.settles(lambda: site.last_test()["state"] == "Inconclusive")
    assert not site.is_open()
    await site.ends_well(site.is_open)
    assert site.last_test()["boot_id"] == "boot-1x"


async def test_a_node_is_tested_anew_after_its_quarantine() -> None:
    site = NewNodes()
    site.start(MemoryCluster(site.world))
    site.report("n1", fault("xid:79"))
    await site.settles(lambda: bool(site.world.quarantines))
    await later(TIMEOUT)
    assert not site.is_open()
    site.reboot()
    await site.settles(site.is_open, within=8 * 3600)
    site.check()
    assert site.world.quarantines == {}


@pytest.mark.parametrize(
    "verdicts", [(FAILED, PASSED), (NOTHING, NOTHING, NOTHING, PASSED)], ids=["failed", "none"]
)
async def test_a_node_without_a_pass_is_tested_anew_after_a_quarantine_in_the_same_boot(
    verdicts: tuple[RepairAnswer, ...],
) -> None:
    site = NewNodes(verdicts=verdicts)
    site.start(MemoryCluster(site.world))
    await site.settles(lambda: "node.test_exhausted" in site.kinds(), within=2 * 3600)
    site.world.person_creates("n1", QuarantineSpec(Action.CORDON, "manual", "fan 3"))
    await later(TIMEOUT)
    assert site.last_test()["quarantined"] is True
    assert len(site.program.operations) == len(verdicts) - 1
    site.world.person_deletes("n1")
    await site.settles(site.is_open, within=2 * 3600)
    site.check()
    assert len(site.program.operations) == len(verdicts)
    assert "quarantined" not in site.last_test()


async def test_a_node_in_use_that_gets_the_taint_is_not_tested_before_it_is_drained() -> None:
    site = NewNodes()
    pod = site.world.add_pod("n1", "busy")
    site.world.add_pod("n1", "agent", owner_kind="DaemonSet")
    site.world.add_pod("n1", "everywhere", tolerations=(Toleration(operator="Exists"),))
    await orders_nothing(site)
    held = site.replica.fleet.node_tests["n1"].held
    assert held == f"pods that do not tolerate {KEY} are on the node: jobs/busy; drain it"
    del site.world.pods[f"n1/{pod.name}"]
    await site.ends_well(site.is_open)


async def test_a_person_who_removes_the_taint_ends_the_test() -> None:
    site = NewNodes(verdicts=(GOING,))
    await site.runs_until(lambda: site.last_test().get("state") == "Ordered")
    site.set_taints(POOL)
    await site.settles(lambda: site.last_test().get("state") == "Cancelled")
    site.check()
    assert site.program.cancelled == site.program.operations
    assert parse_record(site.world.record.text).node_tests == {}
    assert site.condition() == ("Unknown", "NoVerdict")
    await later(10 * TIMEOUT)
    assert len(site.program.orders) == 1


async def test_the_stop_switch_holds_the_beginning_and_not_the_removal() -> None:
    site = NewNodes()
    site.world.person_stops("maintenance")
    site.start()
    await later(3 * TIMEOUT)
    assert site.program.orders == []
    site.world.person_stops("")
    site.program.verdicts = [GOING]
    await site.settles(lambda: site.last_test().get("state") == "Ordered")
    site.world.person_stops("again")
    site.program.verdicts = [PASSED]
    await site.ends_well(site.is_open)


async def test_a_person_deletes_the_operation_of_our_own_test_under_way() -> None:
    site = NewNodes(verdicts=(GOING, PASSED))
    await site.runs_until(lambda: site.last_test().get("state") == "Ordered")
    site.world.operations.person_cancels("n1")
    await site.settles(lambda: site.last_test().get("state") == "Cancelled", within=60.0)
    assert site.last_test()["message"] == "a person deleted its operation"
    assert site.program.cancelled == site.program.operations
    await site.settles(site.is_open)  # it is tested again after the pause
    assert site.last_test()["number"] == 2
    site.check()


async def test_a_person_deletes_the_operation_of_our_own_test_before_it_begins() -> None:
    """A process made it, and died before it began."""
    site, name = NewNodes(), own_test(1)
    spec = OperationSpec("n1", "test", profile="quick", requester="sickbay")
    site.world.operations.store(Operation(name, "o", "0", spec, deleting=True))
    await site.runs_until(lambda: site.last_test().get("state") == "Cancelled", within=60.0)
    assert (site.last_test()["number"], site.program.orders) == (1, [])
    await site.settles(site.is_open)  # it is tested after the pause
    assert site.last_test()["number"] == 2
    site.check()


async def test_a_pass_whose_taint_could_not_be_removed_is_finished_by_the_next_process() -> None:
    site = NewNodes()
    refused = Unreachable("no route")
    cluster = MemoryCluster(site.world)
    cluster._fails = lambda name: refused if name == "patch_node" else None
    site.start(cluster)
    await site.settles(lambda: site.last_test().get("ends_as") == "Succeeded")
    assert (site.last_test()["state"], site.is_open()) == ("Ordered", False)
    await site.replica.stop()
    site.program.verdicts = [FAILED]  # nothing is asked again
    site.world.check = lambda _before, _after: None
    await site.runs_until(site.is_open)
    await site.settles(lambda: site.last_test()["state"] == "Succeeded")
    assert len(site.program.orders) == 1


async def test_a_pass_whose_taint_is_gone_ends_so_whatever_has_come_since() -> None:
    """The process died between the removal and the end of the Operation."""
    site = NewNodes()
    cluster = MemoryCluster(site.world)
    refused = Unreachable("no route")
    cluster._fails = lambda name: refused if name == "write_operation" and site.is_open() else None
    site.start(cluster)
    await site.settles(site.is_open)
    await later(30.0)
    assert site.last_test()["state"] == "Ordered"
    await site.replica.stop()
    site.start()
    site.report("n1", fault("xid:79"))
    await site.settles(lambda: site.last_test()["state"] == "Succeeded")
    site.check()


@pytest.mark.parametrize("call", ["write_record", "create_operation"])
async def test_a_test_does_not_begin_on_a_node_that_changed_after_it_was_decided_on(
    call: str,
) -> None:
    """Its object may have been made; it begins with the next look that finds nothing."""
    site, times = NewNodes(), 0

    def cordoned(name: str) -> None:
        nonlocal times
        if name == call and not times:
            times += 1
            site.world.person_cordons("n1")

    site.start(MemoryCluster(site.world, fails=cordoned))
    await later(TIMEOUT)
    assert (site.program.orders, site.last_test(), times) == ([], {}, 1)
    made = [one.status.phase for one in site.world.operations.by_name.values()]
    assert made == [RepairState.PENDING] * (call == "create_operation")
    assert parse_record(site.world.record.text).node_tests == {}
    site.world.set_node(replace(site.world.nodes["n1"], unschedulable=False))
    await site.settles(site.is_open)
    assert len(site.world.operations.by_name) == 1
    site.check()


@pytest.mark.parametrize("phase", ["Pending", "Ordering"])
async def test_no_test_begins_in_a_quarantine_that_comes_with_the_last_wait(phase: str) -> None:
    """The guard waits for the stop switch last, and the watch reports the quarantine meanwhile."""
    site, came = NewNodes(), False
    cluster = MemoryCluster(site.world)
    shelf, read_stop = cluster.operations, cluster.read_stop
    create, write_status = shelf.create, shelf.write_status

    async def slow_create(name: str, spec: OperationSpec) -> Operation:
        made = await create(name, spec)
        await later(1.0)  # the switch is read anew after that
        return made

    async def slow_write(operation: Operation, status: OperationStatus) -> Operation:
        written = await write_status(operation, status)
        await later(1.0)
        return written

    async def slow_read() -> StopText:
        nonlocal came
        found = await read_stop()
        tests = site.world.operations.by_name.values()
        if not came and any(one.status.phase.value == phase for one in tests):
            came = True
            site.world.person_creates("n1", QuarantineSpec(Action.CORDON, "n1", "ann", "mine"))
            await later(1.0)
        return found

    shelf.create, shelf.write_status = slow_create, slow_write  # type: ignore[method-assign]
    cluster.read_stop = slow_read  # type: ignore[method-assign]
    site.start(cluster)
    await site.settles(lambda: phase_of(site.world, "n1") is Phase.CORDONED)
    await later(TIMEOUT)
    assert came
    assert site.program.orders == []
    assert site.last_test().get("state") == {"Ordering": "Cancelled"}.get(phase)
    site.check()


async def test_a_test_that_is_ended_counts_until_its_agent_has_confirmed_that() -> None:
    site = NewNodes(verdicts=(GOING,))
    await site.runs_until(lambda: site.last_test().get("state") == "Ordered")
    site.program.confirms = False
    site.set_taints(POOL)
    await site.settles(lambda: len(site.program.cancelled) > 1, within=120.0)
    assert site.last_test()["state"] == "Ordered"
    assert "n1" in parse_record(site.world.record.text).node_tests
    assert "has not confirmed the end" in site.replica.fleet.node_tests["n1"].held
    site.program.confirms = True
    await site.settles(lambda: site.last_test()["state"] == "Cancelled", within=300.0)
    assert parse_record(site.world.record.text).node_tests == {}


async def test_a_person_has_an_exhausted_node_tested_again() -> None:
    site = NewNodes(verdicts=(FAILED, PASSED))
    await site.runs_until(lambda: "node.test_exhausted" in site.kinds())
    site.world.operations.person_requests(
        "n1", "test", "r0", profile="standard", quarantine="some-uid"
    )
    await later(TIMEOUT)
    assert not site.is_open()
    site.world.operations.person_requests("n1", "test", "r1", profile="standard")
    await site.ends_well(site.is_open)
    assert [one.profile for one in site.program.orders] == ["quick", "standard"]
    assert site.last_test()["request"] == "r1"
    await site.settles(lambda: not site.world.operations.by_name["r1"].is_open)
    assert site.replica.fleet.stages.tests["by-hand", "Succeeded"] == 1


@pytest.mark.parametrize(
    "key",
    [
        "node.kubernetes.io/network-unavailable",
        "node.cloudprovider.kubernetes.io/uninitialized",
        "karpenter.sh/unregistered",
        "node.cilium.io/agent-not-ready",
    ],
)
async def test_a_node_that_is_not_ready_for_pods_is_not_tested_yet(key: str) -> None:
    site = NewNodes()
    starting = Taint(key, "", "NoSchedule")
    site.set_taints(POOL, UNTESTED, starting)
    await orders_nothing(site)
    site.set_taints(POOL, UNTESTED)
    await site.ends_well(site.is_open)


async def test_a_new_node_that_another_party_works_on_is_tested_when_that_is_over() -> None:
    site = NewNodes()
    site.set_label("nvidia.com/gpu-driver-upgrade-state", "drain-required")
    await orders_nothing(site)
    site.set_label("nvidia.com/gpu-driver-upgrade-state", "upgrade-done")
    await site.settles(site.is_open)


async def test_a_new_node_of_a_pool_whose_nodes_are_not_to_be_disrupted_is_tested() -> None:
    site = NewNodes()
    site.world.person_annotates("n1", "karpenter.sh/do-not-disrupt", "true")
    await site.runs_until(site.is_open)
    site.check()


async def test_a_site_may_leave_the_removal_to_another_controller() -> None:
    site = NewNodes()
    site.rules["remove_taint"] = False
    await site.runs_until(lambda: site.condition() == ("True", "TestPassed"))
    await later(10 * TIMEOUT)
    site.check()
    assert site.taints() == (POOL, UNTESTED)
    assert len(site.program.orders) == 1
    shown = site.replica.fleet.node_tests["n1"]
    assert (shown.passed, shown.needs_person) == (True, False)
    assert site.replica.fleet.node_summaries["n1"].cluster.untested == ""
    site.program.verdicts = [PASSED, FAILED]
    site.reboot()
    await site.settles(lambda: site.condition() == ("False", "TestFailed"))
    await site.settles(lambda: not site.replica.fleet.node_tests["n1"].passed)
    [text] = [
        one.summary for one in site.replica.notes.transitions if one.kind == "node.test_exhausted"
    ]
    assert text.endswith("(the controller that removes it by the condition may set it again)")


async def test_beside_a_test_that_cannot_be_read_none_begins() -> None:
    site = NewNodes()
    unread = site.break_test()
    await orders_nothing(site)
    assert not site.is_open()
    assert "can't be read" in site.replica.fleet.node_tests["n1"].held
    site.world.operations.remove(unread)
    await site.settles(site.is_open)


async def test_an_order_without_an_answer_is_sent_again_only_where_it_is_harmless() -> None:
    site = NewNodes()
    site.twice = False
    site.program.answer = RepairAnswer(AnswerState.UNSURE, "no answer")
    await site.runs_until(lambda: site.last_test().get("state") == "Inconclusive")
    site.check()
    assert len(site.program.orders) == 1


async def test_without_the_section_no_node_is_listed_and_nothing_is_written() -> None:
    site = NewNodes()
    site.mode = RepairMode.OFF
    cluster = MemoryCluster(site.world)
    site.start(cluster)
    await later(10 * TIMEOUT)
    assert cluster.asked["list_node_tests"] == 0
    assert site.world.writes == []


async def test_a_node_that_is_deleted_under_test_gives_its_place_back() -> None:
    site = NewNodes("n1", "n2", "n3", verdicts=(GOING,))
    await site.runs_until(lambda: len(parse_record(site.world.record.text).node_tests) == 2)
    for name in list(parse_record(site.world.record.text).node_tests):
        site.world.delete_node(name)
    site.names = tuple(site.world.nodes)
    await site.replica.stop()
    site.start()  # no process remembers them
    await site.settles(
        lambda: parse_record(site.world.record.text).node_tests.keys() == site.world.nodes.keys(),
        within=TIMEOUT / 2,
    )
    there = site.world.operations.by_name.values()
    gone = [one.status for one in there if one.spec.node not in site.world.nodes]
    assert {one.message for one in gone} == {"its Node is gone"}
    assert {one.phase for one in gone} == {RepairState.INCONCLUSIVE}
    site.check()


async def test_a_failed_test_is_evidence_that_the_shipped_rule_only_observes() -> None:
    site = NewNodes(verdicts=(FAILED, PASSED))
    await site.runs_until(lambda: site.evidence() == ["active-test:failed"])
    await later(10 * TIMEOUT)
    assert site.world.quarantines == {}
    opened = [one for one in site.replica.notes.transitions if one.kind == "incident.opened"]
    assert len(opened) == 1
    [incident] = site.replica.fleet.node_summaries["n1"].decision.incidents.values()
    assert "fio: too slow" in incident.evidence[0].message
    site.reboot()
    await site.settles(site.is_open)
    await site.settles(lambda: site.evidence() == [])
    site.check()


async def test_the_evidence_ends_where_a_person_takes_the_node_as_it_is() -> None:
    site = NewNodes(verdicts=(FAILED,))
    await site.runs_until(lambda: site.evidence() == ["active-test:failed"])
    site.set_taints(POOL)
    await site.settles(lambda: site.evidence() == [])
    site.check()


CORDONS = shipped_policy("rules:\n  - {name: active-test-failed, action: cordon}\n")


@pytest.mark.parametrize("restarts", [False, True])
async def test_a_site_may_quarantine_nodes_that_fail_and_they_return_after_another_boot(
    *, restarts: bool
) -> None:
    site = NewNodes(verdicts=(FAILED, PASSED))
    site.policy = CORDONS
    await site.runs_until(lambda: phase_of(site.world, "n1") is Phase.CORDONED)
    await later(10 * TIMEOUT)
    assert len(site.program.operations) == 1
    if restarts:
        await site.replica.stop()
        site.start()
        await later(10 * TIMEOUT)
        assert phase_of(site.world, "n1") is Phase.CORDONED
    site.reboot()
    await site.ends_well(site.is_open)
    assert site.world.quarantines == {}
    assert site.taints() == (POOL,)


async def test_a_failed_node_that_a_limit_keeps_from_its_quarantine_is_tested_again_by_hand() -> (
    None
):
    """Its own evidence does not hold the test that could end it."""
    site = NewNodes(verdicts=(FAILED, PASSED))
    site.policy = CORDONS
    site.settings = replace(site.settings, limits=replace(site.settings.limits, quorum_percent=100))
    site.world.add_node("silent")
    await site.runs_until(lambda: site.evidence() == ["active-test:failed"])
    await later(TIMEOUT)
    assert site.world.quarantines == {}
    site.world.operations.person_requests("n1", "test", "r1", profile="quick")
    await site.settles(site.is_open)
    await site.settles(lambda: site.evidence() == [])
    site.check()


async def test_a_refusal_of_the_cluster_is_shown_and_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The admission policy of a site that has not named the taint there, say."""
    site = NewNodes()
    refuses = True

    def fails(name: str) -> AdmissionRefused | None:
        ends = name == "patch_node" and site.last_test().get("state") == "Ordered"
        return AdmissionRefused("denied: ownTaints") if refuses and ends else None

    site.start(MemoryCluster(site.world, fails=fails))
    await later(TIMEOUT / 2)
    assert not site.is_open()
    assert site.replica.fleet.node_tests["n1"].held == "denied: ownTaints"
    said = [one for one in caplog.records if "can't go on now" in one.message]
    assert len(said) == 1
    refuses = False
    await site.ends_well(site.is_open)
    assert len(site.program.orders) == 1
