"""Periodic tests of idle nodes by the whole controller, in virtual time, and every interruption."""

import asyncio
from dataclasses import replace
from itertools import pairwise

import pytest

from aggregator.cluster.port import (
    Guard,
    Operation,
    Phase,
    RepairState,
    Unreachable,
)
from aggregator.quarantine.actions.act_guard import MOST_AGE
from aggregator.quarantine.decide.admission_record import parse_record
from aggregator.quarantine.decide.repair import RepairMode
from aggregator.quarantine.repair.protocol import (
    AnswerState,
    RepairAnswer,
    RepairOrder,
    RepairSettings,
)
from aggregator.repairers.gpu_use import GpuUse
from tests.support.gpu_reports import GpuReports
from tests.support.idle_node_tests import HOUR, RACK, IdleNodes, prevent
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
    ProgramRepairer,
    own_test,
)
from tests.support.node_test_interruptions import die_anywhere
from tests.support.replica import fault, shipped_policy
from tests.support.virtual_replica import later
from tests.support.virtual_time import in_virtual_time

pytestmark = pytest.mark.decorated(by=in_virtual_time)

CORDONS = shipped_policy("rules:\n  - {name: active-test-failed, action: cordon}\n")


async def test_an_idle_node_is_tested_and_again_when_its_verdict_is_old() -> None:
    site = IdleNodes()
    await site.runs_until(lambda: site.condition() == ("True", "TestPassed"))
    [order] = site.program.orders
    assert (order.idle_class, order.tolerates, order.profile) == ("sickbay-idle-test", "", "quick")
    assert site.kinds() == ["repair.ordered", "repair.ended"]
    summaries = [one.summary for one in site.replica.notes.transitions]
    assert "test quick of the idle node is ordered" in summaries[0]
    assert site.replica.notes.transitions[1].details["reason"] == "idle"
    assert site.replica.fleet.stages.tests == {("idle", "Succeeded"): 1}
    assert parse_record(site.world.record.text).node_tests == {}
    await later(5 * HOUR)
    assert len(site.program.orders) == 1
    await later(2 * HOUR)
    site.check()
    assert site.program.operations == [own_test(1), own_test(2)]
    assert site.taints() == (POOL,)
    assert site.world.quarantines == {}


async def test_a_node_in_use_is_not_tested_until_its_work_is_gone() -> None:
    site = IdleNodes()
    site.world.add_pod("n1", "work")
    site.world.add_pod("n1", "driver", owner_kind="DaemonSet")
    site.world.add_pod("n1", "etcd", mirror=True, owner_kind="Node")
    site.start()
    await later(HOUR)
    assert site.program.orders == []
    assert site.world.writes == []
    del site.world.pods["n1/work"]
    del site.world.pods["n1/etcd"]  # the program's check knows of no mirror pods
    await site.settles(lambda: site.condition() == ("True", "TestPassed"))
    site.check()


class SlowRepairer(ProgramRepairer):
    """One whose connection takes longer than a read of the node counts."""

    async def order(self, order: RepairOrder, guard: Guard) -> RepairAnswer:
        await asyncio.sleep(MOST_AGE + 1)
        await guard()
        return await super().order(order, guard)


class SlowIdleNodes(IdleNodes):
    def repair(self, cluster: MemoryCluster) -> RepairSettings:
        settings = super().repair(cluster)
        entry = settings.repairers["test"]
        slow = replace(entry, repairer=SlowRepairer(self.program, cluster))
        kinds = ("AdvancedDaemonSet",)
        return replace(settings, repairers={"test": slow}, node_owner_kinds=kinds)


async def test_a_process_outside_of_the_cluster_keeps_a_test_away() -> None:
    site, agent = IdleNodes(), GpuReports("slurmstepd (pid 7) has /dev/nvidia0 open")
    site.gpu_use = agent.requests
    await site.runs_until(lambda: site.last_test().get("state") == "Inconclusive")
    text = "a GPU of the node is in use: slurmstepd (pid 7) has /dev/nvidia0 open"
    assert site.last_test()["message"] == text
    assert site.program.orders == []
    assert parse_record(site.world.record.text).node_tests == {}
    agent.use = GpuUse()
    await site.settles(lambda: site.condition() == ("True", "TestPassed"))
    site.check()


async def test_a_pod_of_a_sites_own_node_owners_is_no_work_at_any_check() -> None:
    site = SlowIdleNodes()
    site.world.add_pod("n1", "driver", owner_kind="AdvancedDaemonSet")
    await site.runs_until(lambda: site.condition() == ("True", "TestPassed"))


async def test_two_replicas_that_both_take_all_nodes_for_theirs_keep_the_limits() -> None:
    """Each has the agents of one half, and so has nodes of its own to choose from."""
    names = tuple(f"n{number}" for number in range(6))
    site = IdleNodes(*names, racks={name: f"r{number % 3}" for number, name in enumerate(names)})
    site.program.verdicts = [GOING]
    site.names = names[:3]
    site.start()
    site.names = names[3:]
    site.start()
    await later(TIMEOUT / 2)
    assert len(parse_record(site.world.record.text).node_tests) == 2
    site.program.verdicts = [PASSED]
    await site.settles(
        lambda: all(site.condition(name)[0] == "True" for name in names), within=2 * HOUR
    )
    site.check()
    assert len(site.program.operations) == len(names)
    assert parse_record(site.world.record.text).node_tests == {}


async def test_the_last_of_many_failure_domains_counts_too() -> None:
    """Its clique, which comes after all labels of places."""
    site = IdleNodes("n1", "n2", racks={"n1": "one", "n2": "one"}, verdicts=(GOING,))
    site.domain_labels = (*(f"example.test/level-{number}" for number in range(30)), "", RACK)
    for name in site.names:
        node = site.world.nodes[name]
        levels = dict.fromkeys(site.domain_labels[:30], f"of-{name}")
        site.world.nodes[name] = replace(node, labels={**node.labels, **levels})
    site.start()
    await later(TIMEOUT / 2)
    assert len(parse_record(site.world.record.text).node_tests) == 1


async def test_a_test_without_a_verdict_keeps_the_standing_and_is_tried_after_growing_pauses() -> (
    None
):
    site = IdleNodes(verdicts=(PASSED, NOTHING))
    site.pause = 900.0
    await site.runs_until(lambda: site.condition() == ("True", "TestPassed"))
    before = site.world.test_conditions["n1"]
    await later(6 * HOUR)
    await site.settles(lambda: site.last_test().get("inconclusive", 0) == 2, within=3 * HOUR)
    site.check()
    assert site.world.test_conditions["n1"] == before
    assert set(site.kinds()) == {"repair.ordered", "repair.ended"}
    assert site.evidence() == []
    begun = [one.at for one in site.replica.notes.transitions if one.kind == "repair.ordered"]
    gaps = [after - one for one, after in pairwise(begun[1:])]
    assert gaps[0] == pytest.approx(900, rel=0.2)
    assert gaps[1] == pytest.approx(1800, rel=0.2)
    site.program.verdicts = [PASSED]
    await site.settles(lambda: site.last_test()["state"] == "Succeeded", within=7 * HOUR)


async def test_a_pod_that_waits_behind_work_is_taken_back() -> None:
    waits = RepairAnswer(AnswerState.TAKEN, "Unschedulable: Insufficient nvidia.com/gpu")
    site = IdleNodes(verdicts=(waits,))
    site.timeout = 4 * HOUR
    await site.runs_until(lambda: site.last_test().get("state") == "Inconclusive", within=HOUR)
    assert "Insufficient nvidia.com/gpu" in site.last_test()["message"]
    assert site.program.cancelled == site.program.operations
    assert parse_record(site.world.record.text).node_tests == {}
    assert site.condition() == ("", "")


@pytest.mark.parametrize("died", [False, True])
async def test_a_failed_test_that_a_person_deletes_is_gone_at_once_and_its_failure_is_known(
    died: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    """``died``: the process that went before had made what comes in its place, and no more."""
    site = IdleNodes(verdicts=(FAILED, PASSED))
    await site.runs_until(lambda: site.evidence() == ["active-test:failed"])
    before, shelf = site.last_test(), site.world.operations
    for number in (2, 3):
        name = site.last_test()["operation"]
        if died:
            spec = replace(shelf.by_name[name].spec, reason="of before")
            shelf.store(Operation(own_test(number), f"o-{number}", "0", spec))
        shelf.person_deletes(name)
        await site.replica.answer_requests()
        assert list(shelf.by_name) == [own_test(number)]
        after = site.last_test()
        changed = {"number": number, "operation": own_test(number)}
        assert after == before | changed
    await later(HOUR)
    assert site.evidence() == ["active-test:failed"]
    assert len(site.program.operations) == 1
    await site.settles(lambda: site.evidence() == [], within=8 * HOUR)
    assert site.last_test()["number"] == 4
    site.check()


async def test_a_failure_is_not_forgotten_while_the_nodes_can_not_be_listed() -> None:
    site = IdleNodes(verdicts=(FAILED,))
    await site.runs_until(lambda: site.evidence() == ["active-test:failed"])
    await site.replica.stop()
    site.names = ()  # no agent has attached yet

    def fails(name: str) -> Unreachable | None:
        return Unreachable("no answer") if name == "list_nodes" else None

    site.start(MemoryCluster(site.world, fails=fails))
    await later(10)
    assert not site.replica.fleet.view_lost
    site.world.operations.person_deletes(own_test(1))
    await site.replica.answer_requests()
    assert site.last_test()["state"] == "Failed"


async def test_an_earlier_test_that_a_person_deletes_is_gone_at_once() -> None:
    site = IdleNodes()
    await site.runs_until(lambda: site.last_test().get("number") == 2, within=9 * HOUR)
    await later(60)
    site.world.operations.person_deletes(own_test(1))
    await site.replica.answer_requests()
    assert list(site.world.operations.by_name) == [own_test(2)]


async def test_two_installations_count_their_own_tests_of_a_node() -> None:
    """Each has its own operations, verdict and numbers, and leaves those of the other."""
    site = IdleNodes(verdicts=(FAILED, PASSED))
    site.start(MemoryCluster(site.world, installation="staging"))
    await site.settles(lambda: site.evidence() == ["active-test:failed"])
    await site.replica.stop()
    await site.runs_until(lambda: len(site.program.operations) == 2)
    await site.settles(lambda: site.condition() == ("True", "TestPassed"))
    theirs, ours = site.world.operations.by_name.values()
    assert (theirs.spec.installation, ours.spec.installation) == ("staging", "sickbay")
    assert (theirs.status.number, ours.status.number) == (1, 1)
    assert theirs.status.phase is RepairState.FAILED
    assert site.evidence() == []
    site.world.operations.person_deletes(theirs.name)
    await site.replica.answer_requests()
    assert theirs.name in site.world.operations.by_name


async def test_a_failed_test_is_evidence_until_a_later_pass() -> None:
    site = IdleNodes(verdicts=(FAILED, NOTHING, PASSED))
    await site.runs_until(lambda: site.evidence() == ["active-test:failed"])
    assert site.condition() == ("False", "TestFailed")
    await later(5 * HOUR)
    assert len(site.program.operations) == 1
    assert site.world.quarantines == {}
    await site.settles(lambda: site.last_test()["state"] == "Inconclusive", within=2 * HOUR)
    assert site.evidence() == ["active-test:failed"]
    assert site.condition() == ("False", "TestFailed")
    await site.settles(lambda: site.evidence() == [], within=HOUR)
    site.check()
    assert site.condition() == ("True", "TestPassed")


async def test_the_evidence_outlives_a_restart_and_ends_with_another_boot() -> None:
    site = IdleNodes(verdicts=(FAILED,))
    await site.runs_until(lambda: site.evidence() == ["active-test:failed"])
    await site.replica.stop()
    await site.runs_until(lambda: site.evidence() == ["active-test:failed"])
    site.reboot()
    await site.settles(lambda: site.evidence() == [])
    site.check()


async def test_a_site_may_quarantine_such_nodes_and_a_pass_by_hand_ends_it_for_good() -> None:
    site = IdleNodes(verdicts=(FAILED, PASSED))
    site.policy = CORDONS
    await site.runs_until(lambda: phase_of(site.world, "n1") is Phase.CORDONED)
    await later(HOUR)
    assert len(site.program.operations) == 1
    site.world.operations.person_requests("n1", "test", "r1", profile="quick")
    await site.settles(lambda: site.world.quarantines == {}, within=4 * HOUR)
    assert site.last_test()["state"] == "Succeeded"
    await later(HOUR)
    assert site.world.quarantines == {}
    assert site.evidence() == []
    assert site.condition() == ("True", "TestPassed")
    site.check()


async def test_a_person_who_releases_such_a_node_is_believed_until_the_next_test() -> None:
    site = IdleNodes(verdicts=(FAILED, NOTHING))
    site.policy = CORDONS
    await site.runs_until(lambda: phase_of(site.world, "n1") is Phase.CORDONED)
    await site.settles(lambda: bool(site.last_test().get("quarantined")))
    site.world.person_deletes("n1")
    await site.settles(lambda: site.world.quarantines == {})
    await site.settles(lambda: site.evidence() == [])
    await site.replica.stop()
    site.start()  # another process believes it too
    await site.settles(lambda: site.is_at(2), within=8 * HOUR)
    await later(HOUR)
    assert site.world.quarantines == {}
    assert site.evidence() == []
    assert site.condition() == ("False", "TestFailed")
    site.check()


async def test_a_quarantine_ends_the_test_of_an_idle_node() -> None:
    site = IdleNodes(verdicts=(GOING,))
    await site.runs_until(lambda: site.last_test().get("state") == "Ordered")
    site.report("n1", fault("xid:79"))
    await site.settles(lambda: site.last_test()["state"] == "Cancelled")
    assert site.program.cancelled == site.program.operations
    site.check()


async def test_a_startup_taint_ends_the_idle_test_and_only_the_new_nodes_test_removes_it() -> None:
    site = IdleNodes(verdicts=(GOING,))
    site.rules = {"taint": KEY, "profile": "standard"}
    await site.runs_until(lambda: site.last_test().get("state") == "Ordered")
    site.set_taints(POOL, UNTESTED)
    site.program.verdicts = [PASSED]
    await site.settles(site.is_open)
    profiles = {one.operation: one.profile for one in site.program.orders}
    assert list(profiles.values()) == ["quick", "standard"]
    assert site.last_test()["profile"] == "standard"
    assert [one for one in site.program.wrong if "limit" in one] == []


async def test_the_pass_of_an_idle_test_removes_no_startup_taint_that_came_meanwhile() -> None:
    site = IdleNodes(verdicts=(PASSED, GOING))
    site.rules = {"taint": KEY, "profile": "standard"}

    def is_tainted() -> None:
        site.program.on_verdict = lambda: None
        site.set_taints(POOL, UNTESTED)

    site.program.on_verdict = is_tainted
    await site.runs_until(lambda: site.is_at(2))
    assert site.taints() == (POOL, UNTESTED)
    assert site.condition() == ("Unknown", "TestUnderWay")
    site.program.verdicts = [PASSED]
    await site.settles(site.is_open)
    assert site.program.orders[-1].profile == "standard"


async def test_in_mode_observe_no_idle_node_is_tested() -> None:
    site = IdleNodes("n1", "n2")
    site.mode = RepairMode.OBSERVE
    site.start()
    await later(3 * HOUR)
    assert site.kinds("n1") + site.kinds("n2") == []
    assert site.program.orders == []
    assert site.world.writes == []


@pytest.mark.parametrize("against", ["stop", "exempt", "observe", "evidence", "cordon", "silent"])
async def test_what_speaks_against_the_test_of_an_idle_node(against: str) -> None:
    site = IdleNodes()
    prevent(site, against)
    site.start()
    if against == "evidence":
        site.report("n1", fault("xid:79"))
    await later(HOUR)
    assert site.program.orders == []
    assert site.world.operations.by_name == {}


async def test_without_the_section_no_node_is_listed() -> None:
    site = IdleNodes()
    site.idle = None
    cluster = MemoryCluster(site.world)
    site.start(cluster)
    await later(HOUR)
    assert cluster.asked["list_node_tests"] == 0
    assert site.world.writes == []


async def test_an_idle_test_holds_no_new_node_and_none_of_those_it() -> None:
    site = IdleNodes("n1", "n2", "n3", verdicts=(GOING,))
    assert site.idle is not None
    site.idle["concurrent"] = 1
    site.rules = {"taint": KEY, "profile": "standard", "concurrent": 1}
    await site.runs_until(lambda: len(site.program.orders) == 1)
    [tested] = {one.node for one in site.program.orders}
    new = min({"n1", "n2", "n3"} - {tested})
    site.set_taints(POOL, UNTESTED, name=new)
    await later(TIMEOUT / 2)
    running = parse_record(site.world.record.text).node_tests
    assert sorted(one.kind for one in running.values()) == ["idle-test", "new-node-test"]
    assert running[new].kind == "new-node-test"
    site.check()


# -- interruptions ---------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("verdict", [PASSED, FAILED, NOTHING], ids=["passed", "failed", "none"])
def test_a_process_that_dies_anywhere_leaves_no_second_test_and_the_same_end(
    verdict: RepairAnswer,
    after: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    ends = {
        PASSED.text: ("Succeeded", ("True", "TestPassed")),
        FAILED.text: ("Failed", ("False", "TestFailed")),
        NOTHING.text: ("Inconclusive", ("", "")),
    }

    def made() -> IdleNodes:
        site = IdleNodes(verdicts=(verdict,))
        site.pause = 3 * HOUR
        return site

    def is_over(site: IdleNodes) -> bool:
        return (site.last_test().get("state"), site.condition()) == ends[verdict.text]

    def check(site: IdleNodes) -> None:
        assert len(site.program.operations) == 1
        assert site.evidence() == (["active-test:failed"] if verdict is FAILED else [])

    die_anywhere(made, is_over, check, after=after)
