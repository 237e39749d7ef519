"""The reason why the next repair of a node does not begin now, in words."""

from dataclasses import replace
from typing import Any

import pytest

from aggregator.cluster.port import (
    Action,
    EvidenceItem,
    Phase,
    Quarantine,
    QuarantineSpec,
    QuarantineStatus,
    RepairAttempt,
    RepairState,
    RepairStatus,
)
from aggregator.quarantine.decide.repair import RepairMode, RepairRules
from aggregator.quarantine.decide.repair_plan import RepairPlan
from tests.support.replica import shipped_policy

POLICY = shipped_policy("rules:\n  - {name: gpu-gone, repair: [reboot, replace, ticket]}\n")
PLAN = RepairPlan(RepairRules(RepairMode.REPAIR), frozenset({"reboot"}), POLICY)
EVIDENCE = EvidenceItem("xid:79", "GPU-1", "boot", "reboot", "gpu-gone", "i")
SPEC = QuarantineSpec(Action.DRAIN, "gpu", "why", "sickbay", evidence=(EVIDENCE,))
DRAINED = Quarantine("n1", "uid", "1", SPEC, QuarantineStatus(Phase.DRAINED))
DONE = RepairAttempt("uid-1-reboot", "reboot", RepairState.SUCCEEDED, ended_at=1000.0)


def with_repair(*attempts: RepairAttempt, **changes: Any) -> Quarantine:
    repair = RepairStatus(attempts, **changes)
    return replace(DRAINED, status=replace(DRAINED.status, repair=repair))


def mode(value: RepairMode) -> RepairPlan:
    return replace(PLAN, rules=RepairRules(value))


def test_a_repair_that_is_due_waits_for_no_reason() -> None:
    assert PLAN.ladder(SPEC) == ("reboot", "replace", "ticket")
    assert PLAN.waits(DRAINED, 1000.0) == ""


@pytest.mark.parametrize(
    ("plan", "quarantine", "why"),
    [
        (mode(RepairMode.OFF), DRAINED, "repair.mode is off"),
        (mode(RepairMode.OBSERVE), DRAINED, "repair.mode is observe: no repair is ordered"),
        (
            replace(PLAN, kinds=frozenset({"gpu-reset"})),
            DRAINED,
            "no repairer is configured for reboot, replace, ticket",
        ),
        (
            PLAN,
            replace(DRAINED, spec=replace(SPEC, requester="ann")),
            "a quarantine that a person made is repaired by hand alone",
        ),
        (
            PLAN,
            replace(DRAINED, spec=replace(SPEC, evidence=(replace(EVIDENCE, rule="gone"),))),
            "a rule of its evidence has no repair: a person decides",
        ),
        (
            PLAN,
            replace(DRAINED, spec=replace(SPEC, evidence=(replace(EVIDENCE, cleared="reboot"),))),
            "its evidence is over",
        ),
        (
            PLAN,
            replace(DRAINED, status=QuarantineStatus(Phase.DRAINING)),
            "the node is not drained",
        ),
        (PLAN, with_repair(held="the rack is full"), "the rack is full"),
        (PLAN, with_repair(exhausted="why"), "no further repair begins by itself: why"),
        (
            PLAN,
            with_repair(replace(DONE, state=RepairState.ORDERED, deadline_at=3600.0)),
            "reboot is under way, until 1970-01-01T01:00:00Z at the latest",
        ),
        (
            PLAN,
            with_repair(DONE),
            "its evidence has until 1970-01-01T00:31:40Z to clear after reboot",
        ),
    ],
)
def test_each_reason_against_a_repair_is_said(
    plan: RepairPlan, quarantine: Quarantine, why: str
) -> None:
    assert plan.waits(quarantine, 1000.0) == why


def test_a_cordoned_node_is_ready_only_where_no_drain_is_to_come() -> None:
    cordoned = replace(DRAINED, status=QuarantineStatus(Phase.CORDONED))
    assert PLAN.waits(cordoned, 0.0) == "the node is not drained"
    assert PLAN.waits(replace(cordoned, spec=replace(SPEC, action=Action.CORDON)), 0.0) == ""


def test_after_its_time_of_verification_a_success_holds_the_next_rung_no_more() -> None:
    assert PLAN.waits(with_repair(DONE), 1000.0 + PLAN.rules.clear_within) == ""
    assert PLAN.waits(with_repair(replace(DONE, state=RepairState.FAILED)), 1000.0) == ""


def test_a_persons_request_waits_for_the_node_alone_and_not_for_a_ladder() -> None:
    by_hand = replace(DRAINED, spec=replace(SPEC, requester="ann"))
    assert PLAN.waits(by_hand, 0.0, requested=True) == ""
    assert PLAN.waits(with_repair(exhausted="why"), 0.0, requested=True) == ""
    assert PLAN.waits(with_repair(held="full"), 0.0, requested=True) == "full"
    draining = replace(DRAINED, status=QuarantineStatus(Phase.DRAINING))
    assert PLAN.waits(draining, 0.0, requested=True) == "the node is not drained"
    assert "its agent has not reported" in PLAN.waits(by_hand, 0.0, requested=True, awaited=True)
    assert "its agent has not reported" in PLAN.waits(DRAINED, 0.0, awaited=True)


def test_without_a_policy_there_is_no_ladder() -> None:
    assert replace(PLAN, policy=None).ladder(SPEC) == ()
