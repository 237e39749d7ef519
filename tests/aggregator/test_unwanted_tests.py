"""Tests of nodes that are under way when repairs are turned off, by the whole controller, in
virtual time.
"""

from dataclasses import dataclass, replace
from typing import TypeVar

import pytest

from aggregator.cluster.port import Unreachable
from aggregator.quarantine.decide.admission_record import parse_record
from aggregator.quarantine.decide.repair import RepairMode
from aggregator.quarantine.repair.protocol import (
    AnswerState,
    RepairAnswer,
    RepairOrder,
    RepairSettings,
)
from tests.support.idle_node_tests import HOUR, IdleNodes, dying_before_the_order
from tests.support.memory_cluster import MemoryCluster
from tests.support.new_node_tests import GOING, KEY, PASSED, POOL, TIMEOUT, UNTESTED, NewNodes
from tests.support.present import present
from tests.support.virtual_replica import later
from tests.support.virtual_time import in_virtual_time

pytestmark = pytest.mark.decorated(by=in_virtual_time)

#: More calls than a process makes from its start until the end of the test is told.
STEPS = 30
OFF = "repairs are off (repair.mode: off)"


@dataclass
class Job:
    """The order of a test leaves it in the cluster; its state is there, deleted or gone."""

    state: str = "there"
    #: How often its pod is still there when that is asked.
    pod_ends_after: int = 2

    async def clean_up(self, _order: RepairOrder) -> RepairAnswer:
        if self.state == "there":
            self.state = "deleted"
        if self.pod_ends_after > 0:
            self.pod_ends_after -= 1
            return RepairAnswer(AnswerState.NOT_SENT, "its pod has not ended")
        self.state = "gone"
        return RepairAnswer(AnswerState.DONE)


class WithJob(IdleNodes):
    """Nodes whose tests are Jobs."""

    job: Job | None = None

    def repair(self, cluster: MemoryCluster) -> RepairSettings:
        found = super().repair(cluster)
        if self.job is None:
            return found
        entry = replace(found.repairers["test"], clean_up=self.job.clean_up, by_agent=False)
        return replace(found, repairers={"test": entry})


S = TypeVar("S", bound=NewNodes)


class WithoutAgent(NewNodes):
    """Nodes whose tests are a site's command or endpoint, which tell no end after `cancel`."""

    def repair(self, cluster: MemoryCluster) -> RepairSettings:
        found = super().repair(cluster)
        entry = replace(found.repairers["test"], by_agent=False)
        return replace(found, repairers={"test": entry})


def site_with_a_test(kind: str) -> NewNodes:
    """A site whose node is about to be tested: as an idle one, as a new one, or by hand."""
    if kind == "new":
        return NewNodes(verdicts=(GOING,))
    site = WithJob(verdicts=(GOING,))
    if kind == "by hand":
        site.idle = None
        site.world.operations.person_requests("n1", "test", "r1")
    return site


async def ordered(site: S) -> S:
    """The site, with its test under way."""
    await site.runs_until(lambda: site.last_test().get("state") == "Ordered")
    return site


async def turned_off(site: NewNodes, cluster: MemoryCluster | None = None) -> None:
    await site.replica.stop()
    site.mode, site.rules = RepairMode.OFF, {}
    if isinstance(site, IdleNodes):
        site.idle = None
    site.start(cluster)


@pytest.mark.parametrize("kind", ["idle", "new", "by hand"])
async def test_a_test_under_way_is_cancelled_when_repairs_are_turned_off(kind: str) -> None:
    site = await ordered(site_with_a_test(kind))
    taints = site.taints()
    await turned_off(site)
    await site.settles(lambda: site.last_test()["state"] == "Cancelled", within=60.0)
    last = site.last_test()
    assert last["message"] == OFF
    assert last["ended_at"] >= last["began_at"]
    assert site.program.cancelled == site.program.operations == [last["operation"]]
    assert site.program.ended == [last["operation"]]
    assert (site.program.cancelled_reason == "a new node") is (kind == "new")
    assert parse_record(site.world.record.text).node_tests == {}
    assert site.taints() == taints
    assert site.kinds()[-1] == "repair.ended"
    assert site.replica.notes.transitions[-1].summary.endswith(f"was ended: {OFF}")
    shown = present(site.replica.fleet.test_of("n1"))
    assert shown.test is not None
    writes = len(site.world.writes)
    await later(10 * HOUR)
    assert len(site.world.writes) == writes
    site.check()


async def test_its_job_and_its_pod_are_gone_before_the_node_says_that_it_has_ended() -> None:
    site = WithJob(verdicts=(GOING,))
    job = site.job = Job()
    await ordered(site)
    await turned_off(site)
    await site.settles(lambda: job.state == "deleted", within=60.0)
    assert site.last_test()["state"] == "Ordered"
    held = "its pod has not ended"
    await site.settles(lambda: site.replica.fleet.node_tests["n1"].held == held, within=4.0)
    await site.settles(lambda: site.last_test()["state"] == "Cancelled", within=60.0)
    assert job.state == "gone"


async def test_the_condition_of_a_new_node_does_not_say_that_a_test_is_under_way() -> None:
    site = site_with_a_test("new")
    await site.runs_until(lambda: site.condition() == ("Unknown", "TestUnderWay"))
    await turned_off(site)
    await site.settles(lambda: site.condition() == ("Unknown", "NoVerdict"), within=60.0)
    assert OFF in site.world.test_conditions["n1"].message
    assert site.taints() == (POOL, UNTESTED)


async def test_a_process_that_dies_before_the_condition_leaves_that_to_the_next_one() -> None:
    site = site_with_a_test("new")
    await site.runs_until(lambda: site.condition() == ("Unknown", "TestUnderWay"))
    cluster = MemoryCluster(site.world)
    refused = Unreachable("the process is dead")
    cluster._fails = lambda name: refused if name == "write_test_condition" else None
    await turned_off(site, cluster)
    await site.settles(lambda: site.last_test()["state"] == "Cancelled", within=60.0)
    assert site.condition() == ("Unknown", "TestUnderWay")
    await site.replica.stop()
    await site.runs_until(lambda: site.condition() == ("Unknown", "NoVerdict"), within=60.0)


async def test_a_verdict_that_comes_with_repairs_off_removes_no_taint() -> None:
    site = await ordered(site_with_a_test("new"))
    site.program.verdicts = [PASSED]
    await turned_off(site)
    await later(HOUR)
    assert site.last_test()["state"] == "Cancelled"
    assert site.taints() == (POOL, UNTESTED)


async def test_an_order_that_was_not_sent_is_not_sent_with_repairs_off() -> None:
    site = site_with_a_test("idle")
    cluster = dying_before_the_order(site.world)
    site.start(cluster)
    await site.settles(cluster.crashed.is_set)
    assert site.last_test()["state"] == "Ordering"
    await turned_off(site)
    await site.settles(lambda: site.last_test()["state"] == "Cancelled", within=60.0)
    assert site.program.orders == []


async def test_the_agent_is_awaited_that_has_to_end_the_test() -> None:
    site = await ordered(site_with_a_test("new"))
    names, site.names = site.names, ()
    await turned_off(site)
    await later(TIMEOUT / 4)
    assert (site.last_test()["state"], site.program.cancelled) == ("Ordered", [])
    assert "its agent is awaited" in site.replica.fleet.node_tests["n1"].held
    site.report(*names)
    await site.settles(lambda: site.last_test()["state"] == "Cancelled", within=60.0)
    assert site.program.cancelled == site.program.operations


async def test_an_agent_that_never_comes_back_is_awaited_until_the_deadline_of_the_test() -> None:
    site = await ordered(site_with_a_test("new"))
    site.names = ()
    await turned_off(site)
    await site.settles(lambda: site.last_test()["state"] == "Cancelled", within=2 * TIMEOUT)
    assert parse_record(site.world.record.text).node_tests == {}


@pytest.mark.parametrize("kind", ["idle", "new"])
async def test_a_test_whose_agent_does_not_confirm_its_end_stays_ordered_and_is_asked_again(
    kind: str,
) -> None:
    site = await ordered(site_with_a_test(kind))
    site.program.confirms = False
    await turned_off(site)
    await later(TIMEOUT / 2)
    assert site.last_test()["state"] == "Ordered"
    assert "n1" in parse_record(site.world.record.text).node_tests
    assert "has not confirmed the end" in site.replica.fleet.node_tests["n1"].held
    assert 3 <= len(site.program.cancelled) <= 6
    site.program.confirms = True
    await site.settles(lambda: site.last_test()["state"] == "Cancelled", within=TIMEOUT / 2)
    assert parse_record(site.world.record.text).node_tests == {}


async def test_an_end_that_is_never_confirmed_is_awaited_until_the_deadline_of_the_test() -> None:
    site = await ordered(site_with_a_test("new"))
    deadline, site.program.confirms = site.last_test()["deadline_at"], False
    await turned_off(site)
    await site.settles(lambda: site.last_test()["state"] == "Cancelled", within=2 * TIMEOUT)
    assert site.last_test()["ended_at"] >= deadline
    assert parse_record(site.world.record.text).node_tests == {}


async def test_a_test_that_has_ended_before_it_is_cancelled_is_not_awaited() -> None:
    site = await ordered(site_with_a_test("new"))
    site.program.verdicts, site.program.confirms = [PASSED], False
    await turned_off(site)
    await site.settles(lambda: site.last_test()["state"] == "Cancelled", within=60.0)


async def test_a_test_of_an_earlier_boot_has_ended_without_the_word_of_its_agent() -> None:
    site = await ordered(site_with_a_test("new"))
    site.program.confirms = False
    await site.replica.stop()
    site.names = ()
    site.mode, site.rules = RepairMode.OFF, {}
    node = site.world.nodes["n1"]
    site.world.set_node(replace(node, boot_id="another"))
    await site.runs_until(lambda: site.last_test()["state"] == "Inconclusive", within=60.0)


async def test_a_repairer_that_tells_no_end_of_a_cancelled_test_is_not_waited_for() -> None:
    site = await ordered(WithoutAgent(verdicts=(GOING,)))
    site.program.confirms = False
    site.names = ()
    await turned_off(site)
    await site.settles(lambda: site.last_test()["state"] == "Cancelled", within=60.0)


async def test_agents_that_answer_late_are_asked_at_the_same_time_and_few_at_once() -> None:
    site = NewNodes(*(f"n{number}" for number in range(12)), verdicts=(GOING,))
    site.rules["concurrent"] = site.program.concurrent = 12
    await site.runs_until(
        lambda: all(site.last_test(n).get("state") == "Ordered" for n in site.names)
    )
    site.program.cancel_takes = 14.0
    await turned_off(site)
    await site.settles(
        lambda: all(site.last_test(n)["state"] == "Cancelled" for n in site.names), within=60.0
    )
    assert site.program.most_cancelling == 8
    site.check()


async def test_no_end_of_a_test_is_awaited_beyond_the_end_of_the_process() -> None:
    site = await ordered(site_with_a_test("new"))
    site.program.cancel_takes = TIMEOUT
    await turned_off(site)
    await site.settles(lambda: site.program.cancelling == 1, within=60.0)
    await site.replica.stop()
    await later(1.0)
    assert site.program.cancelling == 0


async def test_a_refusal_of_the_cluster_is_shown_until_it_is_over() -> None:
    site = await ordered(site_with_a_test("new"))
    cluster = MemoryCluster(site.world)
    refused = Unreachable("the API server is away")
    cluster._fails = lambda name: refused if name == "read_node" else None
    site.program.confirms = False
    await turned_off(site, cluster)
    await later(30.0)
    assert site.replica.fleet.node_tests["n1"].held == "the API server is away"
    cluster._fails = lambda _: None
    await later(60.0)
    assert "has not confirmed the end" in site.replica.fleet.node_tests["n1"].held


async def test_a_condition_that_can_not_be_written_is_tried_with_growing_pauses_and_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    site = site_with_a_test("new")
    await site.runs_until(lambda: site.condition() == ("Unknown", "TestUnderWay"))
    cluster = MemoryCluster(site.world)
    refused = Unreachable("nodes/status is forbidden")
    cluster._fails = lambda name: refused if name == "write_test_condition" else None
    await turned_off(site, cluster)
    await later(HOUR)
    assert 10 <= cluster.asked["read_node"] <= 25
    told = [one for one in caplog.records if getattr(one, "event", "") == "node.test_unfinished"]
    assert len(told) == 1
    cluster._fails = lambda _: None
    await site.settles(lambda: site.condition() == ("Unknown", "NoVerdict"), within=400.0)


async def test_with_repairs_off_and_no_test_under_way_no_node_is_read_or_written() -> None:
    site = site_with_a_test("idle")
    site.program.verdicts = [RepairAnswer(AnswerState.FAILED, "too slow")]
    await site.runs_until(lambda: site.last_test().get("state") == "Failed")
    cluster, writes = MemoryCluster(site.world), len(site.world.writes)
    await turned_off(site, cluster)
    await later(10 * HOUR)
    assert (cluster.asked["list_node_tests"], cluster.asked["read_node"]) == (0, 0)
    assert len(site.world.writes) == writes


async def test_a_test_that_can_not_be_read_is_left_to_a_person() -> None:
    site = site_with_a_test("idle")
    unread = site.break_test()
    site.mode = RepairMode.OFF
    site.start()
    await later(HOUR)
    assert site.world.operations.by_name == {unread.name: unread}
    assert site.program.cancelled == []


async def test_a_test_that_can_not_be_read_keeps_its_reservation(
    caplog: pytest.LogCaptureFixture,
) -> None:
    site = await ordered(site_with_a_test("idle"))
    await site.replica.stop()
    unread = site.break_test()
    cluster = MemoryCluster(site.world)
    await turned_off(site, cluster)
    await later(HOUR)
    assert "n1" in parse_record(site.world.record.text).node_tests
    assert cluster.asked["read_node"] <= 25
    told = [one for one in caplog.records if getattr(one, "event", "") == "node.test_unfinished"]
    assert len(told) == 1
    site.world.operations.remove(unread)
    await later(400.0)
    assert parse_record(site.world.record.text).node_tests == {}


async def test_a_test_is_ended_too_where_the_configuration_has_no_tests_any_more() -> None:
    site = await ordered(site_with_a_test("idle"))
    await site.replica.stop()
    assert isinstance(site, IdleNodes)
    site.idle, site.gives_way = None, False
    await site.runs_until(lambda: site.last_test()["state"] == "Cancelled", within=60.0)
    assert site.last_test()["message"] == "the configuration has no tests of nodes any more"
    assert KEY not in [one.key for one in site.taints()]


@pytest.mark.slow
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("kind", ["idle", "new"])
def test_a_process_that_dies_anywhere_while_it_ends_a_test_leaves_that_to_the_next_one(
    kind: str,
    after: bool,  # noqa: FBT001
) -> None:
    @in_virtual_time
    async def one(number: int) -> bool:
        site = site_with_a_test(kind)
        await site.runs_until(lambda: site.last_test().get("state") == "Ordered")
        cluster = MemoryCluster(site.world)
        cluster.crash_at_change(number, after=after)
        await turned_off(site, cluster)
        await later(60.0)
        died = cluster.crashed.is_set()
        site.replica.task.cancel()
        await site.runs_until(lambda: site.last_test()["state"] == "Cancelled", within=60.0)
        if kind == "new":
            await site.settles(lambda: site.condition() == ("Unknown", "NoVerdict"), within=60.0)
        await later(TIMEOUT)
        assert site.last_test()["number"] == 1
        assert parse_record(site.world.record.text).node_tests == {}
        await site.replica.stop()
        return died

    assert not all(one(number) for number in range(1, STEPS))
