"""Repairs on the page, in the API and in the metrics: the ladder, the attempts, the next step."""

from dataclasses import replace

from aggregator.cli.render_nodes import new_node
from aggregator.cluster.port import OperationRequest, RepairAttempt, RepairState
from aggregator.quarantine.decide.new_nodes import NewNodeRules
from aggregator.quarantine.decide.node_tests import NodeTest
from aggregator.quarantine.decide.repair import RepairMode, RepairRules
from aggregator.quarantine.state.fleet import FleetState, NodeTestView
from aggregator.web import models, node_view
from aggregator.web.node_view import ViewMoment
from aggregator.web.repair_view import NEW_NODE_STATES
from tests.support.fleet_views import view_fleet
from tests.support.present import present
from tests.web.support import (
    REPAIRS,
    Hands,
    quarantine_of,
    reboot_of,
    repaired,
    serving,
    small_fleet,
)
from tests.web.test_metrics import labels, scrape

HANDS = Hands()
NOW = ViewMoment(HANDS.now, HANDS.wall)
ORDERED = reboot_of("node-2", HANDS.wall, RepairState.ORDERED, message="asked the BMC")
DONE = replace(ORDERED, state=RepairState.SUCCEEDED, ended_at=HANDS.wall - 60, message="it booted")


def fleet_with_repair(**changes: object) -> FleetState:
    fleet = small_fleet(HANDS)
    fleet.repairs, fleet.repairing = REPAIRS, 1
    repaired(fleet.node_summaries["node-2"], ORDERED, **changes)
    return fleet


def test_a_site_without_repairs_is_shown_no_repair_and_no_limit_of_them() -> None:
    found = view_fleet(small_fleet(HANDS), NOW)
    assert {one.repair for one in found.quarantines} == {None}
    assert not [one.name for one in found.limits if one.name.startswith("repair.")]


def test_attempts_of_a_time_before_the_mode_was_off_are_still_shown() -> None:
    fleet = fleet_with_repair()
    fleet.repairs = replace(REPAIRS, rules=RepairRules(RepairMode.OFF))
    summary = fleet.node_summaries["node-2"]
    assert summary.quarantine is not None
    shown = node_view.quarantine(fleet, summary, summary.quarantine, NOW)
    assert shown.repair is not None
    assert [one.state for one in shown.repair.attempts] == ["Ordered"]
    assert shown.repair.waits == "repair.mode is off"


async def test_the_api_has_the_ladder_the_attempts_and_what_is_waited_for() -> None:
    async with serving(fleet_with_repair(), HANDS.clocks()) as served:
        node = await served.json("/api/v1/nodes/node-2")
        listed = await served.json("/api/v1/quarantines")
        fleet = await served.json("/api/v1/fleet")
    repair = node["quarantine"]["repair"]
    assert repair in [one["repair"] for one in listed["items"]]
    assert repair["mode"] == "repair"
    assert repair["ladder"] == ["reboot", "replace", "ticket"]
    assert repair["repairers"] == ["reboot", "ticket"]
    assert repair["waits"].startswith("reboot is under way, until ")
    [attempt] = repair["attempts"]
    assert (attempt["repair"], attempt["state"]) == ("reboot", "Ordered")
    assert attempt["operation"] == "q-node-2-1-reboot"
    assert attempt["message"] == "asked the BMC"
    assert attempt["ended_at"] is None
    assert attempt["began_at"] == "2026-03-14T03:12:07Z"
    [running] = fleet["repairs"]
    assert (running["node"], running["repair"], running["state"]) == ("node-2", "reboot", "Ordered")
    limits = {one["name"]: one for one in fleet["limits"]}
    concurrent = limits["repair.concurrent"]
    assert (concurrent["used"], concurrent["most"], concurrent["full"]) == (1, 1, True)
    assert limits["repair.concurrent_percent"]["most"] == 1  # 5 % of 8 nodes
    assert limits["repair.pool_concurrent"]["most"] is None


async def test_the_nodes_page_shows_attempts_and_a_hostile_message_as_text() -> None:
    fleet = fleet_with_repair()
    hostile = replace(DONE, message="<script>x</script>")
    repaired(fleet.node_summaries["node-2"], hostile, held="the <rack> is full")
    async with serving(fleet, HANDS.clocks()) as served:
        page = await served.text("/nodes/node-2")
        assert "&lt;script&gt;x&lt;/script&gt;" in page
        assert "<script>x" not in page
        assert "its evidence has until 2026-03-14T03:28:07Z to clear after reboot" in page
        failed = replace(hostile, state=RepairState.FAILED)
        repaired(fleet.node_summaries["node-2"], failed, held="the <rack> is full")
        assert "The next repair waits: the &lt;rack&gt; is full" in await served.text(
            "/nodes/node-2"
        )


def advice(*attempts: RepairAttempt, **changes: object) -> str:
    fleet = small_fleet(HANDS)
    repaired(fleet.node_summaries["node-2"], *attempts, **changes)
    [found] = [one for one in view_fleet(fleet, NOW).quarantines if one.node == "node-2"]
    return found.advice


def test_a_person_is_not_told_to_reboot_a_node_that_is_being_rebooted() -> None:
    assert advice(ORDERED) == (
        "No step is needed yet: reboot is under way. To take it back: "
        "sickbay repair node-2 --cancel"
    )
    assert advice(DONE).startswith("Reboot the node; ")
    over = advice(DONE, exhausted="no further repair is on its ladder")
    assert over.startswith("sickbay repairs it no further (sickbay repair node-2). Reboot the node")


def test_a_node_that_its_tests_leave_to_a_person_is_not_said_to_be_released() -> None:
    failed = replace(DONE, repair="test", state=RepairState.FAILED, profile="standard")
    fleet = small_fleet(HANDS)
    summary = fleet.node_summaries["node-2"]
    for attempts, said in (((failed,), "A person decides on it"), ((DONE,), "No step is needed")):
        repaired(summary, *attempts, exhausted="no rung is left")
        assert summary.quarantine is not None
        over = replace(summary.quarantine.spec, evidence=())
        summary.quarantine_view.quarantine = replace(summary.quarantine, spec=over)
        [found] = [one for one in view_fleet(fleet, NOW).quarantines if one.node == "node-2"]
        assert found.advice.startswith(said)
        assert found.repair is not None
        assert found.repair.attempts[0].profile == attempts[0].profile


def test_a_request_is_shown_until_an_attempt_answers_it() -> None:
    fleet = small_fleet(HANDS)
    fleet.repairs = REPAIRS
    summary = fleet.node_summaries["node-2"]
    repaired(summary, DONE, exhausted="no further repair is on its ladder")

    def shown() -> models.Repair:
        assert summary.quarantine is not None
        made = node_view.quarantine(fleet, summary, summary.quarantine, NOW)
        assert made.repair is not None
        return made.repair

    assert (shown().requested, shown().waits[:17]) == ("", "no further repair")
    asked = (OperationRequest("a1", "ticket"),)
    repaired(summary, DONE, exhausted="over", requests=asked)
    assert (shown().requested, shown().waits) == ("ticket (a1)", "")
    answer = replace(DONE, operation="q-node-2-2-ticket", repair="ticket", request="a1")
    repaired(summary, DONE, answer)
    assert shown().requested == ""


def test_an_agent_that_has_not_reported_is_waited_for_only_for_a_time() -> None:
    fleet = small_fleet(HANDS)
    summary = fleet.node_summaries["node-6"]
    quarantine_of(summary, HANDS.wall)
    repaired(summary)
    assert summary.quarantine is not None
    assert node_view.agent(summary) == "never"
    for until, said in ((HANDS.now + 1, "its agent has not reported"), (HANDS.now, "")):
        fleet.repairs = replace(REPAIRS, agents_awaited_until=until)
        made = present(node_view.quarantine(fleet, summary, summary.quarantine, NOW).repair)
        assert made.waits.startswith(said) if said else made.waits == ""


async def test_metrics_count_what_runs_and_what_ended() -> None:
    fleet = fleet_with_repair()
    fleet.stages.note_repair(DONE)
    fleet.stages.note_repair(replace(DONE, state=RepairState.FAILED))
    repaired(fleet.node_summaries["node-7"], DONE, exhausted="a ticket needs a person")
    async with serving(fleet, HANDS.clocks()) as served:
        found = await scrape(served)
    assert found["sickbay_repairs_running", labels(repair="reboot")] == 1
    assert found["sickbay_repairs_running", labels(repair="gpu-reset")] == 0
    assert found["sickbay_quarantines_repair_exhausted", labels()] == 1
    total = "sickbay_repair_attempts_total"
    assert found[total, labels(repair="reboot", outcome="Succeeded")] == 1
    assert found[total, labels(repair="reboot", outcome="Failed")] == 1
    assert found["sickbay_repair_duration_seconds_count", labels(repair="reboot")] == 2
    assert found["sickbay_node_return_duration_seconds_count", labels()] == 0
    assert found["sickbay_limit_used_nodes", labels(limit="repair.concurrent")] == 1


# -- new nodes ------------------------------------------------------------------------------

NEW = replace(
    REPAIRS,
    rules=RepairRules(RepairMode.REPAIR, new_nodes=NewNodeRules("sickbay.dev/untested", "quick")),
)
TESTED = NodeTest(
    number=2,
    operation="uid-b-2-test",
    profile="quick",
    state=RepairState.FAILED,
    boot_id="b",
    began_at=HANDS.wall,
    deadline_at=HANDS.wall + 9,
    ended_at=HANDS.wall + 3,
    message="fio: too slow",
)


def fleet_with_new_nodes() -> FleetState:
    fleet = small_fleet(HANDS)
    fleet.repairs = NEW
    fleet.node_tests = {
        "node-1": NodeTestView(
            TESTED, tainted=True, held="it failed test quick", needs_person=True
        ),
        "node-3": NodeTestView(None, tainted=True, held="its agent has not reported"),
        "node-4": NodeTestView(replace(TESTED, state=RepairState.ORDERED), tainted=True),
        "node-5": NodeTestView(replace(TESTED, state=RepairState.SUCCEEDED), tainted=False),
    }
    return fleet


async def test_the_page_and_the_api_tell_of_the_test_of_a_new_node() -> None:
    async with serving(fleet_with_new_nodes(), HANDS.clocks()) as served:
        failed = await served.json("/api/v1/nodes/node-1")
        waits = await served.json("/api/v1/nodes/node-3")
        other = await served.json("/api/v1/nodes/node-7")
        page = await served.text("/nodes/node-1")
    assert failed["new_node"]["taint"] == "sickbay.dev/untested"
    assert failed["new_node"]["needs_person"]
    assert failed["new_node"]["test"]["state"] == "Failed"
    assert failed["new_node"]["test"]["profile"] == "quick"
    assert (waits["new_node"]["waits"], waits["new_node"]["test"]) == (
        "its agent has not reported",
        None,
    )
    assert other["new_node"] is None
    assert "kubectl taint nodes node-1 sickbay.dev/untested-" in page
    assert "fio: too slow" in page


async def test_a_taint_that_another_controller_removes_is_not_promised_to_go_by_the_pass() -> None:
    fleet = fleet_with_new_nodes()
    rules = replace(NEW.rules.new_nodes, remove_taint=False)
    fleet.repairs = replace(NEW, rules=replace(NEW.rules, new_nodes=rules))
    passed = replace(TESTED, state=RepairState.SUCCEEDED)
    fleet.node_tests = dict(fleet.node_tests) | {
        "node-5": NodeTestView(passed, tainted=True, held="it has passed its test", passed=True)
    }
    async with serving(fleet, HANDS.clocks()) as served:
        found = (await served.json("/api/v1/nodes/node-5"))["new_node"]
        done = await served.text("/nodes/node-5")
        failed = await served.text("/nodes/node-1")
    assert (found["passed"], found["removes_taint"], found["waits"]) == (True, False, "")
    assert "It has passed its test. Its startup taint" in done
    assert "until it has passed" not in done
    assert "another controller removes it then, by the condition" in failed
    assert "the controller that removes it by the condition may set it again" in failed


async def test_the_page_the_api_and_the_command_tell_of_the_periodic_test_of_an_idle_node() -> None:
    fleet = fleet_with_new_nodes()
    told = replace(TESTED, operation="uid-6-b-2-test", reason="idle")
    fleet.node_tests = {"node-6": NodeTestView(told, tainted=False)}
    async with serving(fleet, HANDS.clocks()) as served:
        answer = await served.json("/api/v1/nodes/node-6")
        page = await served.text("/nodes/node-6")
        metrics = await scrape(served)
    found = answer["new_node"]
    assert (found["reason"], found["tainted"], found["needs_person"]) == ("idle", False, False)
    assert "Periodic test" in page
    assert "fio: too slow" in page
    assert "kubectl taint" not in page
    lines = list(new_node("node-6", found))
    assert "IDLE NODE: its last periodic test" in lines[0]
    assert "test quick Failed: fio: too slow" in lines[1]
    assert sum(metrics["sickbay_new_nodes", labels(state=one)] for one in NEW_NODE_STATES) == 0


async def test_a_node_that_was_tested_long_ago_is_shown_by_its_last_test() -> None:
    fleet = fleet_with_new_nodes()
    fleet.last_test = {"node-7": replace(TESTED, operation="uid-7-b-2-test")}.get
    async with serving(fleet, HANDS.clocks()) as served:
        shown = (await served.json("/api/v1/nodes/node-7"))["new_node"]
        other = (await served.json("/api/v1/nodes/node-8"))["new_node"]
    assert (shown["tainted"], shown["test"]["state"]) == (False, "Failed")
    assert other is None


async def test_metrics_count_new_nodes_by_state_and_tests_by_reason() -> None:
    fleet = fleet_with_new_nodes()
    fleet.stages.note_test("new-node", "Succeeded")
    fleet.stages.note_repair(replace(DONE, repair="test", request="r1"))
    fleet.stages.note_repair(replace(DONE, repair="test", state=RepairState.INCONCLUSIVE))
    async with serving(fleet, HANDS.clocks()) as served:
        found = await scrape(served)
    assert found["sickbay_new_nodes", labels(state="waiting")] == 1
    assert found["sickbay_new_nodes", labels(state="testing")] == 1
    assert found["sickbay_new_nodes", labels(state="needs_person")] == 1
    total = "sickbay_tests_total"
    assert found[total, labels(reason="new-node", outcome="Succeeded")] == 1
    assert found[total, labels(reason="by-hand", outcome="Succeeded")] == 1
    assert found[total, labels(reason="before-release", outcome="Inconclusive")] == 1
