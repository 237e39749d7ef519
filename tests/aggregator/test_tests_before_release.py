"""The test before a release, by the whole controller in virtual time, and every interruption."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from aggregator.cluster.port import (
    Action,
    ClusterError,
    Phase,
    Refused,
    RepairState,
    Unreachable,
)
from aggregator.health.model import Cleared, Delta, Status
from aggregator.quarantine.decide.admission_record import parse_record
from aggregator.quarantine.decide.operator_requests import EXEMPT
from aggregator.quarantine.decide.repair import RepairMode
from aggregator.quarantine.repair.protocol import AnswerState, RepairAnswer
from tests.aggregator.repair_site import Site
from tests.support.memory_cluster import MemoryCluster
from tests.support.repair_shop import TIMEOUT
from tests.support.replica import component, fault, shipped_policy, snapshot
from tests.support.virtual_replica import later
from tests.support.virtual_time import in_virtual_time, loop_time

pytestmark = pytest.mark.decorated(by=in_virtual_time)

PASSED = RepairAnswer(AnswerState.DONE, "passed", {"measurements": '[["m","",1.5,"GB/s"]]'})
FAILED = RepairAnswer(AnswerState.FAILED, "threshold: fio: too slow")
NOTHING = RepairAnswer(AnswerState.INCONCLUSIVE, "missing-tool: there is no dcgmi")
GOING = RepairAnswer(AnswerState.TAKEN)
S = RepairState


def site_that_tests(
    *nodes: str, verdicts: tuple[RepairAnswer, ...] = (PASSED,), **rules: Any
) -> Site:
    """A site that tests: of a rule with a reboot, then a ticket."""
    site = Site(*nodes, kinds=("reboot", "ticket", "test"))
    site.rules = {"verify": "standard", "test_pause": 60.0, **rules}
    site.shop.verdicts = list(verdicts)
    return site


async def test_a_repaired_node_is_released_after_it_has_passed_its_test() -> None:
    site = site_that_tests()
    await site.runs_until(site.is_released)
    site.check()
    assert site.repaired == ["reboot", "test"]
    test = site.shop.orders[-1]
    assert (test.profile, test.boot_id) == ("standard", "boot-1x")
    record = parse_record(site.world.record.text)
    assert record.repairs == {}
    assert [one.repair for one in record.past_repairs["n1"]] == ["reboot"]
    ended = [one for one in site.replica.notes.transitions if one.kind == "repair.ended"]
    assert ended[-1].details["measurements"] == PASSED.details["measurements"]
    assert ended[-1].details["profile"] == "standard"
    assert "test standard succeeded: passed" in ended[-1].summary


async def test_a_test_whose_operation_is_gone_is_left_to_a_person_who_is_told_once() -> None:
    site = site_that_tests(verdicts=(GOING,))
    site.world.operations.person_requests("n2", "reboot", "anothers")
    await site.runs_until(lambda: site.attempts()[1:] == [("test", RepairState.ORDERED)])
    operation = site.shop.orders[-1].operation
    site.world.operations.remove(site.world.operations.by_name[operation])
    await site.settles(site.is_exhausted)
    await later(600)
    assert site.repaired == ["reboot", "test"]
    assert site.replica.notes.kinds("n1").count("repair.exhausted") == 1
    site.seen = True
    site.world.person_deletes("n1")
    await site.settles(site.is_released, within=30)


@pytest.mark.parametrize("field", ["evidence_at", "exhausted_at"])
async def test_a_test_is_later_than_a_time_that_another_clock_wrote_ahead(field: str) -> None:
    site = site_that_tests()
    site.shop.boots = False
    await site.runs_until(lambda: site.attempts() == [("reboot", RepairState.ORDERED)])
    found = site.quarantine()
    repair = found.status.repair
    at: dict[str, Any] = {field: repair.attempts[0].began_at + 6 * 3600.0}
    ahead = replace(repair, exhausted="a person ended the repairs", **at)
    site.world.put_quarantine(replace(found, status=replace(found.status, repair=ahead)))
    site.shop._boot("n1")
    await site.settles(lambda: site.repaired == ["reboot", "test"])
    written = site.quarantine().status.repair
    assert written.attempts[-1].began_at > at[field]
    await site.settles(site.is_released)
    assert site.repaired == ["reboot", "test"]
    site.check()


@pytest.mark.parametrize("phase", [0.0, 5.0, 10.0])
async def test_a_test_begins_as_soon_as_the_node_has_recovered(phase: float) -> None:
    site = site_that_tests()
    site.shop.boots = False
    await site.runs_until(lambda: site.repaired == ["reboot"])
    await later(60.0 + phase)
    site.shop._boot("n1")
    await site.settles(lambda: site.repaired == ["reboot", "test"])
    told = {one.kind.value: one.at for one in site.replica.notes.transitions if one.node == "n1"}
    assert told["repair.ordered"] - told["incident.closed"] < 1.0


async def test_a_node_that_recovers_again_and_again_is_not_looked_at_each_time() -> None:
    """By a rule without a healthy time an agent may tell of ten recoveries a second."""
    site = site_that_tests(verdicts=(GOING,))
    flapping = "{name: flapping, kind: disk, check: own, status: failed, action: cordon, "
    site.policy = shipped_policy(
        "rules:\n  - {name: gpu-gone, repair: [reboot, ticket]}\n"
        f"  - {flapping}for: 0s, healthyFor: 0s}}\n"
    )
    await site.runs_until(lambda: site.repaired == ["reboot", "test"])
    await later(20.0)
    before = site.replica.cluster.asked["read_node"]
    for _ in range(300):
        for status in (Status.FAILED, Status.OK):
            site.replica.agent("n1", Delta((component("own", "", status),)))
            await later(0.05)
    assert site.replica.cluster.asked["read_node"] - before <= 6


async def test_a_test_that_fails_is_followed_by_the_next_rung_and_another_test() -> None:
    site = site_that_tests(verdicts=(FAILED, PASSED))
    site.kinds = ("gpu-reset", "reboot", "ticket", "test")
    policy = shipped_policy("rules:\n  - {name: gpu-gone, repair: [gpu-reset, reboot, ticket]}\n")
    site.policy = policy
    site.shop.answer = RepairAnswer(AnswerState.DONE, "reset")
    await site.runs_until(lambda: site.repaired == ["gpu-reset"])
    site.ill["n1"] = snapshot(cleared=(Cleared("xid:79", "GPU-1", "reset"),))
    site.report("n1")
    site.shop.answer = RepairAnswer(AnswerState.TAKEN)
    await site.ends_well(site.is_released)
    assert site.repaired == ["gpu-reset", "test", "reboot", "test"]


async def test_a_node_that_fails_its_test_on_the_last_rung_is_a_persons() -> None:
    site = site_that_tests(verdicts=(FAILED,))
    site.kinds = ("reboot", "test")
    await site.runs_until(site.is_exhausted)
    await later(3600)
    site.check()
    assert site.attempts() == [("reboot", S.SUCCEEDED), ("test", S.FAILED)]
    repair = site.quarantine().status.repair
    assert "test standard failed" in repair.exhausted
    assert "fio: too slow" in repair.exhausted
    assert site.replica.notes.kinds("n1").count("repair.exhausted") == 1
    site.world.person_deletes("n1")
    await site.settles(site.is_released)


async def test_tests_without_a_verdict_are_bounded_and_apart() -> None:
    site = site_that_tests(verdicts=(NOTHING,))
    await site.runs_until(site.is_exhausted)
    await later(3600)
    tests = [one for one in site.quarantine().status.repair.attempts if one.repair == "test"]
    assert [one.state for one in tests] == [S.INCONCLUSIVE] * 3
    for before, after in pairwise(tests):
        assert after.began_at >= before.ended_at + 60.0
    assert "3 tests gave no verdict" in site.quarantine().status.repair.exhausted
    assert site.replica.notes.kinds("n1").count("repair.exhausted") == 1


async def test_a_test_without_an_end_is_cancelled_at_its_deadline_and_tried_again() -> None:
    site = site_that_tests(verdicts=(GOING, PASSED))
    await site.runs_until(lambda: len(site.repaired) == 2)
    await later(TIMEOUT - 30)
    assert site.attempts()[-1] == ("test", S.ORDERED)
    await site.ends_well(site.is_released)
    assert site.shop.cancelled == [site.shop.orders[1].operation]
    assert site.repaired == ["reboot", "test", "test"]


async def test_a_pass_does_not_count_where_evidence_came_during_the_test() -> None:
    site = site_that_tests(verdicts=(GOING,))
    await site.runs_until(lambda: len(site.repaired) == 2)
    boot = site.world.nodes["n1"].boot_id
    site.replica.agent("n1", snapshot(fault(boot_id=boot)), boot_id=boot)
    await later(60)
    assert site.attempts()[-1] == ("test", S.ORDERED)
    site.shop.verdicts = [PASSED]
    await later(60)
    assert site.attempts()[1] == ("test", S.SUCCEEDED)
    assert not site.is_released()
    well = snapshot(cleared=(Cleared("xid:79", "GPU-1", "reset"),))
    site.replica.agent("n1", well, boot_id=boot)
    await site.ends_well(site.is_released)
    assert site.repaired.count("test") == 2


async def test_a_stop_holds_the_test_and_a_node_that_waits_too_long_is_a_persons() -> None:
    site = site_that_tests(verify_within=1800.0)
    await site.runs_until(lambda: site.attempts()[:1] == [("reboot", S.ORDERED)])
    site.world.person_stops("a look")
    await later(900)
    assert site.attempts() == [("reboot", S.SUCCEEDED)]
    repair = site.quarantine().status.repair
    assert "a look" in repair.held
    await site.settles(site.is_exhausted)
    assert "within 30m" in site.quarantine().status.repair.exhausted
    await later(7200)
    assert site.replica.notes.kinds("n1").count("repair.exhausted") == 1
    site.world.person_deletes("n1")
    await site.settles(site.is_released)
    assert site.repaired == ["reboot"]


@pytest.mark.parametrize("call", ["create_operation", "write_operation"])
async def test_a_test_whose_operation_is_refused_for_too_long_leaves_the_node_to_a_person(
    call: str,
) -> None:
    site, refused = site_that_tests(verify_within=1800.0), set[str]()
    site.start(fails=lambda name: Refused("exceeded quota") if name in refused else None)
    await site.settles(lambda: site.attempts()[:1] == [("reboot", S.SUCCEEDED)])
    refused.add(call)
    await later(2400)
    assert site.repaired == ["reboot"]
    assert "exceeded quota" in site.quarantine().status.repair.exhausted
    assert site.replica.notes.kinds("n1").count("repair.exhausted") == 1


async def test_a_person_tests_a_node_that_was_left_to_them_and_it_returns() -> None:
    site = site_that_tests(verdicts=(FAILED, PASSED))
    site.kinds = ("reboot", "test")
    await site.runs_until(site.is_exhausted)
    site.world.operations.person_requests("n1", "test", "by-hand", profile="standard")
    await site.ends_well(site.is_released)
    assert site.shop.orders[-1].profile == "standard"


async def test_another_profile_by_hand_is_no_pass_of_the_one_that_is_asked_for() -> None:
    site = site_that_tests(verdicts=(FAILED, PASSED, GOING))
    site.kinds = ("reboot", "test")
    await site.runs_until(site.is_exhausted)
    site.world.operations.person_requests("n1", "test", "by-hand", profile="quick")
    await site.settles(lambda: len(site.repaired) == 4)
    assert [one.profile for one in site.shop.orders] == ["", "standard", "quick", "standard"]
    assert not site.is_released()


async def test_a_persons_exemption_ends_the_wait_for_a_test() -> None:
    site = site_that_tests(verdicts=(GOING,))
    await site.runs_until(lambda: len(site.repaired) == 2)
    until = "until 2100-01-01T00:00:00Z ours"
    site.world.person_annotates("n1", EXEMPT, until)
    await site.settles(site.is_released, within=120)


@pytest.mark.parametrize("mode", [RepairMode.OBSERVE, RepairMode.OFF])
async def test_in_no_other_mode_a_test_holds_a_release(mode: RepairMode) -> None:
    site = site_that_tests()
    site.mode = mode
    await site.runs_until(lambda: site.world.quarantines and site.quarantine().status.drained_at)
    site.world.set_node(replace(site.world.nodes["n1"], boot_id="boot-2"))
    site.report("n1")
    await site.settles(site.is_released)
    assert site.repaired == []
    told = [
        one.summary for one in site.replica.notes.transitions if one.kind == "repair.suppressed"
    ]
    would = "test standard would come before its release (repair.mode is observe)"
    assert any(would in text for text in told) == (mode is RepairMode.OBSERVE)


async def test_a_cordoned_node_with_work_is_released_without_a_test_and_says_so() -> None:
    site = site_that_tests()
    policy = shipped_policy("rules:\n  - {name: gpu-gone, action: cordon, repair: [reboot]}\n")
    site.policy = policy
    await site.runs_until(
        lambda: site.world.quarantines and site.quarantine().status.phase is Phase.CORDONED
    )
    assert site.quarantine().spec.action is Action.CORDON
    site.world.set_node(replace(site.world.nodes["n1"], boot_id="boot-2"))
    site.report("n1")
    await site.settles(site.is_released)
    assert site.repaired == []
    told = [
        one.summary for one in site.replica.notes.transitions if one.kind == "repair.suppressed"
    ]
    assert any("released without the test standard: work is still on" in text for text in told)


async def test_two_nodes_of_a_rack_are_tested_one_after_the_other() -> None:
    site = site_that_tests("n1", "n2", concurrent_percent=100.0)
    for name in ("n1", "n2"):
        node = site.world.nodes[name]
        site.world.set_node(replace(node, labels={**node.labels, "rack": "7"}))
    await site.runs_until(site.is_released, within=8 * TIMEOUT)
    site.check()
    assert site.repaired.count("test") == 2


@pytest.mark.parametrize("after", [True, False])
def test_death_at_any_call_of_a_test_is_finished_by_the_next_process(*, after: bool) -> None:
    """A test may be ordered twice; the node is released by a pass alone, and no limit is passed."""

    @in_virtual_time
    async def rebooted() -> tuple[Site, float]:
        site = site_that_tests()
        site.twice, site.kinds = True, ("reboot", "test")
        site.shop.verdicts = [GOING]
        await site.runs_until(lambda: len(site.repaired) == 2)
        await site.stop()
        repair = site.quarantine().status.repair
        fresh = replace(repair, attempts=repair.attempts[:1])
        site.world.put_quarantine(
            replace(site.quarantine(), status=replace(site.quarantine().status, repair=fresh))
        )
        site.shop.verdicts, site.shop.orders = [PASSED], site.shop.orders[:1]
        return site, loop_time()

    begin, at = rebooted()

    @in_virtual_time
    async def dies(calls: int) -> bool:
        await later(at - loop_time())
        site = begin.copy()
        first = site.start(crash_at=calls, after=after)
        await site.settles(lambda: first.cluster.crashed.is_set() or site.is_released())
        died = first.cluster.crashed.is_set()
        await first.stop()
        if not died:
            return False
        second = site.start()
        await site.settles(site.is_released)
        assert site.shop.wrong == [], calls
        assert set(site.repaired) == {"reboot", "test"}, calls
        await later(400)
        assert parse_record(site.world.record.text).repairs == {}, calls
        await second.stop()
        return True

    assert not all(dies(calls) for calls in range(1, 60))


@pytest.mark.parametrize("lost", ["write_quarantine_status", "write_record", "read_node", "repair"])
async def test_lost_answers_of_the_cluster_release_no_node_without_its_pass(lost: str) -> None:
    site = site_that_tests()
    site.twice = True
    left = [3]

    def loses(name: str) -> ClusterError | None:
        if name == lost and len(site.repaired) >= 1 and left[0]:
            left[0] -= 1
            return Unreachable("the answer was lost")
        return None

    site.start(MemoryCluster(site.world, loses=loses))
    await site.ends_well(site.is_released)
    assert "test" in site.repaired


async def test_a_restart_during_a_test_makes_no_second_one() -> None:
    """The next process waits anew for the evidence to stay away, and nothing is in force."""
    site = site_that_tests(verdicts=(GOING,))
    site.twice = True
    await site.runs_until(lambda: len(site.repaired) == 2)
    await site.replica.stop()
    site.shop.verdicts = [PASSED]
    await site.runs_until(site.is_released)
    site.check()
    assert site.repaired == ["reboot", "test"]
