"""Tests by hand of nodes in service by the whole controller, in virtual time, and every
interruption.
"""

import asyncio
from collections.abc import Collection, Coroutine
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import pytest

from aggregator.cluster.port import (
    Action,
    ListedNodeTest,
    NodeMeta,
    Phase,
    Unreachable,
)
from aggregator.quarantine.decide.admission_record import parse_record
from aggregator.quarantine.decide.repair import RepairMode
from aggregator.quarantine.repair.protocol import AnswerState, RepairAnswer
from tests.support.idle_node_tests import HOUR, IdleNodes, dying_before_the_order, prevent
from tests.support.memory_cluster import MemoryCluster, phase_of
from tests.support.memory_operations import MemoryOperations
from tests.support.new_node_tests import (
    FAILED,
    GOING,
    KEY,
    NOTHING,
    PASSED,
    POOL,
    TIMEOUT,
    UNTESTED,
)
from tests.support.node_test_interruptions import die_anywhere, fail_anywhere
from tests.support.replica import FakeLine, fault, shipped_policy, snapshot
from tests.support.virtual_replica import later
from tests.support.virtual_time import in_virtual_time

pytestmark = pytest.mark.decorated(by=in_virtual_time)

T = TypeVar("T")
CORDONS = shipped_policy("rules:\n  - {name: active-test-failed, action: cordon}\n")


def in_service(*names: str, **more: object) -> IdleNodes:
    """Nodes in service, of which none is tested by itself."""
    site = IdleNodes(*names, **more)  # type: ignore[arg-type]
    site.idle = None
    return site


def ask(site: IdleNodes, name: str = "n1", profile: str = "", ident: str = "r1") -> None:
    ident = ident if name == "n1" else f"{ident}-{name}"
    site.world.operations.person_requests(name, "test", ident, profile=profile)


def ended_as(site: IdleNodes, ident: str = "r1") -> str:
    return site.world.operations.by_name[ident].status.phase.value


async def test_a_person_has_a_node_in_service_tested_without_a_quarantine() -> None:
    site = in_service()
    ask(site)
    await site.runs_until(lambda: site.condition() == ("True", "TestPassed"))
    site.check()
    [order] = site.program.orders
    assert (order.idle_class, order.tolerates, order.quarantine) == ("sickbay-idle-test", "", "")
    assert (order.profile, order.reason) == ("quick", "the node in service")
    last = site.last_test()
    assert (last["state"], last["request"], last["reason"]) == ("Succeeded", "r1", "idle")
    await site.settles(lambda: ended_as(site) == "Succeeded")
    asked = site.world.operations.by_name["r1"]
    assert (asked.held, asked.status.operation) == (True, last["operation"])
    assert site.kinds() == ["repair.ordered", "repair.ended"]
    [begun, ended] = site.replica.notes.transitions
    assert begun.summary.endswith("test quick of the node in service is ordered: requested by hand")
    assert ended.details["outcome"] == "Succeeded"
    assert site.replica.fleet.stages.tests == {("by-hand", "Succeeded"): 1}
    assert parse_record(site.world.record.text).node_tests == {}
    assert (site.taints(), site.world.quarantines) == ((POOL,), {})
    await later(10 * HOUR)
    assert len(site.program.orders) == 1


async def test_a_request_that_comes_later_begins_its_test() -> None:
    site = in_service()
    site.start()
    await later(HOUR)
    assert site.world.writes == []
    ask(site, profile="standard")
    await site.settles(lambda: site.condition() == ("True", "TestPassed"))
    site.check()
    assert [one.profile for one in site.program.orders] == ["standard"]


async def test_a_node_with_work_is_refused_once_and_for_good_and_keeps_its_pods() -> None:
    site = in_service()
    for number in range(5):
        site.world.add_pod("n1", f"work-{number}")
    site.world.add_pod("n1", "driver", owner_kind="DaemonSet")
    ask(site)
    await site.runs_until(lambda: site.last_test().get("state") == "Cancelled")
    last = site.last_test()
    assert last["request"] == "r1"
    assert last["message"] == (
        "refused: the node has work, and a test evicts none. First: sickbay quarantine n1 "
        '--action drain --reason "for its test". '
        "Pods on the node: jobs/work-0, jobs/work-1, jobs/work-2 and 2 others"
    )
    assert len(site.world.pods) == 6
    site.world.pods.clear()
    await later(10 * HOUR)
    assert site.program.orders == []
    assert site.kinds() == ["repair.ended"]
    assert site.condition() == ("", "")
    assert parse_record(site.world.record.text).node_tests == {}
    assert site.world.writes == ["operation n1 Cancelled"]
    assert site.world.operations.by_name["r1"].status.message == last["message"]
    ask(site, ident="r2")
    await site.settles(lambda: site.condition() == ("True", "TestPassed"))


async def test_a_profile_that_there_is_not_is_refused() -> None:
    site = in_service()
    ask(site, profile="thorough")
    await site.runs_until(lambda: site.last_test().get("state") == "Cancelled")
    text = "refused: there is no profile thorough; expected one of quick, standard"
    assert site.last_test()["message"] == text
    assert site.program.orders == []


async def test_a_refused_test_changes_nothing_of_what_is_known_of_the_node() -> None:
    site = in_service(verdicts=(FAILED, PASSED))
    ask(site)
    await site.runs_until(lambda: site.evidence() == ["active-test:failed"])
    site.world.add_pod("n1", "work")
    ask(site, ident="r2")
    await site.settles(lambda: site.last_test().get("request") == "r2")
    await later(HOUR)
    assert site.evidence() == ["active-test:failed"]
    assert site.condition() == ("False", "TestFailed")
    site.world.pods.clear()
    ask(site, ident="r3")
    await site.settles(lambda: site.condition() == ("True", "TestPassed"))
    await site.settles(lambda: site.evidence() == [])
    site.check()


async def test_a_failure_is_evidence_over_a_restart_until_another_boot() -> None:
    site = in_service(verdicts=(FAILED,))
    ask(site)
    await site.runs_until(lambda: site.evidence() == ["active-test:failed"])
    assert site.world.quarantines == {}
    await site.replica.stop()
    await site.runs_until(lambda: site.evidence() == ["active-test:failed"])
    site.reboot()
    await site.settles(lambda: site.evidence() == [])
    assert len(site.program.orders) == 1


async def test_a_site_may_quarantine_a_node_that_fails_by_hand() -> None:
    site = in_service(verdicts=(FAILED,))
    site.policy = CORDONS
    ask(site)
    await site.runs_until(lambda: phase_of(site.world, "n1") is Phase.CORDONED)
    await later(HOUR)
    assert len(site.program.orders) == 1
    site.check()


async def test_nodes_of_one_rack_are_tested_one_after_the_other() -> None:
    site = in_service("n1", "n2", verdicts=(GOING,), racks={"n1": "r1", "n2": "r1"})
    for name in site.names:
        ask(site, name)
    for number in range(40):  # so that two nodes are 5 % of the fleet
        site.world.add_node(f"other-{number}")
    site.start()
    await later(TIMEOUT / 2)
    assert len(site.program.operations) == 1
    held = [one.held for one in site.replica.fleet.node_tests.values() if one.held]
    assert len(held) == 1
    assert "is being tested, which has example.com/rack=r1 too" in held[0]
    site.program.verdicts = [PASSED]
    await site.settles(
        lambda: all(site.condition(name)[0] == "True" for name in site.names), within=HOUR
    )
    site.check()


async def test_tests_by_hand_and_periodic_ones_have_one_limit() -> None:
    site = IdleNodes(*(f"n{number}" for number in range(6)), verdicts=(GOING,))
    site.start()
    await later(TIMEOUT / 2)
    tested = {one.node for one in site.program.orders}
    assert len(tested) == 2
    [name, *_] = sorted(set(site.names) - tested)
    ask(site, name)
    await later(TIMEOUT / 3)
    assert site.replica.fleet.node_tests[name].held == (
        "held by repair.idle_nodes.concurrent = 2: 2 idle nodes are being tested"
    )
    site.program.verdicts = [PASSED]
    await site.settles(lambda: site.last_test(name).get("state") == "Succeeded", within=HOUR)
    assert site.last_test(name)["request"] == "r1"
    site.check()


async def test_two_replicas_that_both_take_all_nodes_for_theirs_keep_the_limits() -> None:
    names = tuple(f"n{number}" for number in range(6))
    site = in_service(*names, racks={name: f"r{number % 3}" for number, name in enumerate(names)})
    site.program.verdicts = [GOING]
    for name in names:
        ask(site, name)
    site.start()
    site.start()
    await later(TIMEOUT / 2)
    assert len(parse_record(site.world.record.text).node_tests) == 1  # 5 % of the fleet
    site.program.verdicts = [PASSED]
    await site.settles(
        lambda: all(site.condition(name)[0] == "True" for name in names), within=2 * HOUR
    )
    site.check()
    assert len(site.program.operations) == len(names)
    assert parse_record(site.world.record.text).node_tests == {}


async def test_work_that_comes_before_the_pod_begins_ends_the_test_without_a_verdict() -> None:
    waits = RepairAnswer(AnswerState.TAKEN, "Unschedulable: Insufficient nvidia.com/gpu")
    site = in_service(verdicts=(waits,))
    site.timeout = 4 * HOUR
    ask(site)
    await site.runs_until(lambda: site.last_test().get("state") == "Inconclusive", within=HOUR)
    assert site.program.cancelled == site.program.operations
    assert parse_record(site.world.record.text).node_tests == {}
    await later(10 * HOUR)
    assert len(site.program.operations) == 1


async def test_a_startup_taint_ends_the_test_and_a_quarantine_does() -> None:
    for ends in ("taint", "quarantine"):
        site = in_service(verdicts=(GOING,))
        site.rules = {"taint": KEY, "profile": "standard"}
        ask(site)
        await site.runs_until(lambda: site.last_test().get("state") == "Ordered")  # noqa: B023
        if ends == "taint":
            site.set_taints(POOL, UNTESTED)
        else:
            site.report("n1", fault("xid:79"))
        await site.settles(lambda: bool(site.program.cancelled))  # noqa: B023
        assert site.program.cancelled == site.program.operations
        await site.replica.stop()


async def test_a_request_on_a_new_node_whose_taint_goes_is_followed_as_of_one_in_service() -> None:
    site = in_service()
    site.rules = {"taint": KEY, "profile": "standard"}
    site.set_taints(POOL, UNTESTED)
    site.world.person_cordons("n1")
    ask(site)
    site.start()
    await later(HOUR)
    assert site.program.orders == []
    site.set_taints(POOL)
    site.world.set_node(replace(site.world.nodes["n1"], unschedulable=False))
    await site.settles(lambda: site.condition() == ("True", "TestPassed"))
    [order] = site.program.orders
    assert (order.profile, order.tolerates) == ("quick", "")
    site.check()


async def test_a_request_that_is_taken_back_while_it_waits_begins_no_test() -> None:
    site = in_service()
    site.world.person_stops("maintenance")
    ask(site)
    await site.runs_until(lambda: bool(site.replica.fleet.node_tests.get("n1")))
    shown = site.replica.fleet.node_tests["n1"]
    assert (shown.test, shown.tainted, shown.requested) == (None, False, "r1")
    await site.settles(lambda: "maintenance" in site.replica.fleet.node_tests["n1"].held)
    site.world.operations.person_cancels("n1")
    await site.settles(lambda: not site.replica.fleet.node_tests)
    site.world.person_stops("")
    await later(HOUR)
    assert site.program.orders == []


async def test_a_person_deletes_the_operation_of_a_test_under_way() -> None:
    site = in_service(verdicts=(GOING,))
    ask(site)
    await site.runs_until(lambda: site.last_test().get("state") == "Ordered")
    await site.settles(lambda: ended_as(site) == "Ordered", within=60)
    site.world.operations.person_cancels("n1")
    await site.settles(lambda: site.last_test().get("state") == "Cancelled", within=60)
    assert site.last_test()["message"] == "a person deleted its operation"
    await site.settles(lambda: ended_as(site) == "Cancelled")
    await later(HOUR)
    assert len(site.program.orders) == 1


async def test_a_request_that_names_a_quarantine_is_not_about_a_node_in_service() -> None:
    site = in_service()
    site.world.operations.person_requests(
        "n1", "test", "r1", profile="quick", quarantine="q-of-before"
    )
    site.start()
    await later(HOUR)
    assert (site.program.orders, site.world.writes) == ([], [])


@pytest.mark.parametrize("why", ["no job", "off", "observe"])
async def test_nothing_is_written_where_no_test_of_a_node_in_service_may_begin(why: str) -> None:
    site = in_service()
    site.gives_way = why != "no job"
    site.mode = {"off": RepairMode.OFF, "observe": RepairMode.OBSERVE}.get(why, site.mode)
    ask(site)
    site.start()
    await later(HOUR)
    assert (site.program.orders, site.world.writes) == ([], [])


@pytest.mark.parametrize("against", ["stop", "exempt", "observe", "evidence", "cordon", "silent"])
async def test_what_speaks_against_the_test_of_an_idle_node_holds_one_by_hand(against: str) -> None:
    site = in_service()
    prevent(site, against)
    ask(site)
    site.start()
    if against == "evidence":
        site.report("n1", fault("xid:79"))
    await later(HOUR)
    assert site.program.orders == []
    assert list(site.world.operations.by_name) == ["r1"]


async def test_without_a_test_on_any_node_the_nodes_are_not_listed_in_full() -> None:
    site = in_service()
    cluster = MemoryCluster(site.world)
    site.start(cluster)
    await later(HOUR)
    assert cluster.asked["list_node_tests"] == 0
    assert cluster.asked["read_node"] <= 1
    ask(site)
    await site.settles(lambda: site.condition() == ("True", "TestPassed"))
    reads = cluster.asked["read_node"]
    await later(HOUR)
    assert cluster.asked["read_node"] <= reads + 2  # the list with the request is three minutes old


class SlowLists(MemoryCluster):
    """The answers to its lists of nodes are late: they come once this is set."""

    late: asyncio.Event | None = None

    async def list_nodes(self) -> list[NodeMeta]:
        return await self._late(super().list_nodes())

    async def list_node_tests(
        self, taint: str, tested: Collection[str] = ()
    ) -> list[ListedNodeTest]:
        return await self._late(super().list_node_tests(taint, tested))

    async def _late(self, listing: Coroutine[Any, Any, T]) -> T:
        listed = await listing
        if self.late is not None:
            await self.late.wait()
        return listed


async def test_an_api_server_that_gives_no_list_delays_neither_tests_nor_the_fleets_rounds() -> (
    None
):
    site = in_service("n1", "n2")
    cluster = SlowLists(site.world)
    ask(site)
    site.start(cluster)
    await site.settles(lambda: ended_as(site) == "Succeeded")
    cluster.late = asyncio.Event()
    await later(HOUR)
    ask(site, "n2")
    await site.settles(lambda: ended_as(site, "r1-n2") == "Succeeded")
    site.replica.agent("n1", snapshot(), line=(line := FakeLine()))
    site.replica.controller.on_disconnect("n1", line, "rebooting")
    await site.settles(lambda: site.replica.fleet.node_summaries["n1"].agent.silent)


async def test_a_late_list_ends_no_evidence_of_a_test_that_has_failed_meanwhile() -> None:
    site = in_service("n1", "n2", verdicts=(PASSED, FAILED))
    site.policy = CORDONS
    cluster = SlowLists(site.world)
    ask(site, "n2")
    site.start(cluster)
    await site.settles(lambda: ended_as(site, "r1-n2") == "Succeeded")
    cluster.late = asyncio.Event()
    await later(HOUR)
    ask(site)
    await site.settles(lambda: phase_of(site.world, "n1") is Phase.CORDONED)
    cluster.late.set()
    await later(60)
    assert site.evidence() != []
    assert phase_of(site.world, "n1") is Phase.CORDONED


async def dies_before_the_order(site: IdleNodes) -> None:
    """The test is in the annotation, and its order was not sent."""
    cluster = dying_before_the_order(site.world)
    first = site.start(cluster)
    await site.settles(cluster.crashed.is_set)
    first.task.cancel()
    assert (site.last_test()["state"], site.program.orders) == ("Ordering", [])


@pytest.mark.parametrize("now", ["observe", "observe nodes", "cordon", "reboot", "work", "no job"])
async def test_an_order_that_was_not_sent_is_sent_only_where_the_test_may_still_begin(
    now: str,
) -> None:
    site = in_service()
    ask(site)
    await dies_before_the_order(site)
    match now:
        case "observe":
            site.mode = RepairMode.OBSERVE
        case "observe nodes":
            site.settings = replace(site.settings, mode=Action.OBSERVE)
        case "cordon":
            site.world.person_cordons("n1")
        case "reboot":
            site.world.person_annotates("n1", "weave.works/kured-reboot-in-progress", "x")
        case "work":
            site.world.add_pod("n1", "work-without-a-gpu")
        case _:
            site.gives_way, site.rules = False, {"taint": KEY, "profile": "standard"}
    site.start()
    await later(TIMEOUT / 2)
    assert site.program.orders == []
    ends = now in ("work", "no job")
    assert site.last_test()["state"] == ("Cancelled" if ends else "Ordering")
    await later(TIMEOUT)
    assert site.program.orders == []
    assert site.last_test()["state"] == ("Cancelled" if ends else "Inconclusive")
    assert parse_record(site.world.record.text).node_tests == {}


async def test_a_request_that_is_listed_during_the_last_step_of_the_test_before_is_followed() -> (
    None
):
    site = in_service()
    ask(site)
    cluster = MemoryCluster(site.world)
    slow = True
    call = cluster._call

    async def waits(name: str, *arguments: object, **more: object) -> object:
        nonlocal slow
        if name == "write_test_condition" and slow:
            slow = False
            ask(site, ident="r2")
            await later(400)  # longer than from one list of nodes to the next
        return await call(name, *arguments, **more)  # type: ignore[arg-type]

    cluster._call = waits  # type: ignore[method-assign, assignment]
    site.start(cluster)
    await site.settles(lambda: site.last_test().get("request") == "r2", within=HOUR)


async def test_a_refused_test_leaves_no_reservation_behind() -> None:
    site = in_service()
    ask(site)

    async def comes(name: str) -> None:
        if name == "write_record" and not site.world.pods:
            site.world.add_pod("n1", "work")

    site.start(MemoryCluster(site.world, in_queue=comes))
    await site.settles(lambda: site.last_test().get("state") == "Cancelled")
    await later(1)
    assert parse_record(site.world.record.text).node_tests == {}


async def test_a_request_of_the_same_name_as_one_that_was_removed_is_another_one() -> None:
    site = in_service()
    ask(site)
    await site.runs_until(lambda: ended_as(site) == "Succeeded")
    site.world.operations.remove(site.world.operations.by_name["r1"])
    ask(site)
    await site.settles(lambda: len(site.program.operations) == 2)
    await site.settles(lambda: ended_as(site) == "Succeeded")
    site.check()


async def test_a_test_whose_operation_is_deleted_while_its_order_waits_is_not_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No watch has reported that."""
    site = in_service()
    cluster = MemoryCluster(site.world)
    call = cluster._call

    async def waits(name: str, *arguments: object, **more: object) -> object:
        if name == "test":
            seen = cluster.operations.known
            site.world.operations.person_cancels("n1")
            with monkeypatch.context() as patch:
                patch.setattr(MemoryOperations, "known", seen)
                await later(8)
                return await call(name, *arguments, **more)  # type: ignore[arg-type]
        return await call(name, *arguments, **more)  # type: ignore[arg-type]

    cluster._call = waits  # type: ignore[method-assign, assignment]
    ask(site)
    site.start(cluster)
    await site.settles(lambda: site.last_test().get("state") == "Cancelled", within=HOUR)
    assert site.program.orders == []


async def test_a_test_whose_operation_can_not_be_written_is_not_tried_every_round() -> None:
    site = in_service()
    ask(site)
    cluster = MemoryCluster(
        site.world,
        fails=lambda name: Unreachable("no route") if name == "adopt_operation" else None,
    )
    site.start(cluster)
    await site.settles(lambda: cluster.asked["adopt_operation"])
    before = cluster.asked["read_node"]
    await later(300)
    assert site.program.orders == []
    assert cluster.asked["read_node"] - before <= 300 / 15 + 1


async def test_a_quarantine_ends_the_request_for_a_test_that_has_not_begun() -> None:
    """The node is tested in its quarantine only where a person requests that of it."""
    site = in_service()
    site.world.person_stops("maintenance")
    ask(site)
    asked = site.world.operations.by_name["r1"]
    site.world.operations.store(replace(asked, created_at=-60.0))
    site.start()
    await later(60)
    site.report("n1", fault("xid:79"))
    site.world.person_stops("")
    await site.settles(lambda: phase_of(site.world, "n1") is Phase.DRAINED, within=HOUR)
    await site.replica.answer_requests()
    assert ended_as(site) == "Cancelled"
    message = site.world.operations.by_name["r1"].status.message
    assert message.startswith("its node came into quarantine before the test began")
    await later(HOUR)
    assert site.program.orders == []


# -- interruptions ---------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("end", ["passed", "failed", "none", "refused"])
def test_a_process_that_dies_anywhere_leaves_no_second_test_and_the_same_end(
    end: str,
    after: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    verdict = {"failed": FAILED, "none": NOTHING}.get(end, PASSED)
    ends = {
        "passed": ("Succeeded", ("True", "TestPassed")),
        "failed": ("Failed", ("False", "TestFailed")),
        "none": ("Inconclusive", ("", "")),
        "refused": ("Cancelled", ("", "")),
    }

    def made() -> IdleNodes:
        site = in_service(verdicts=(verdict,))
        if end == "refused":
            site.world.add_pod("n1", "work")
        ask(site)
        return site

    def is_over(site: IdleNodes) -> bool:
        return (site.last_test().get("state"), site.condition()) == ends[end]

    def check(site: IdleNodes) -> None:
        assert len(site.program.operations) == (end != "refused")
        assert site.last_test()["number"] == 1
        assert site.evidence() == (["active-test:failed"] if end == "failed" else [])

    die_anywhere(made, is_over, check, after=after, within=2 * HOUR)


@pytest.mark.slow
def test_a_request_to_the_cluster_that_fails_anywhere_changes_nothing_of_the_end() -> None:
    def made() -> IdleNodes:
        site = in_service()
        ask(site)
        return site

    fail_anywhere(made)


async def test_work_that_comes_between_two_looks_is_seen_before_the_order() -> None:
    """A request that the limit holds reads the pods anew at each look."""
    site = in_service("n1", "n2", verdicts=(GOING,), racks={"n1": "r1", "n2": "r1"})
    for name in site.names:
        ask(site, name)
    await site.runs_until(lambda: len(site.program.orders) == 1)
    [first] = [one.node for one in site.program.orders]
    other = "n2" if first == "n1" else "n1"
    await site.settles(partial(lambda: site.replica.fleet.node_tests[other].held))
    site.world.add_pod(other, "work")
    site.program.verdicts = [PASSED]
    await site.settles(lambda: site.last_test(other).get("state") == "Cancelled", within=HOUR)
    assert len(site.program.operations) == 1
    site.check()
