"""The durations of the stages: which moments count, and how often."""

from dataclasses import replace

from aggregator.cluster.port import (
    Action,
    EvidenceItem,
    QuarantineSpec,
    QuarantineStatus,
    RepairAttempt,
    RepairState,
    RepairStatus,
)
from aggregator.quarantine.state.stage_times import MANUAL, MAX_CAUSES, OTHER, StageTimes
from aggregator.runtime.histogram import Histogram
from tests.support.replica import fault


def spec(*evidence: tuple[str, str]) -> QuarantineSpec:
    items = (EvidenceItem(code, "GPU-1", "b", "", rule, "i") for rule, code in evidence)
    return QuarantineSpec(Action.DRAIN, "gpu", "x", evidence=tuple(items))


def test_a_histogram_counts_an_observation_at_a_bound_below_it_and_one_above_all_as_infinity() -> (
    None
):
    made = Histogram((1.0, 5.0))
    for value in (-3.0, 1.0, 4.0, 9.0):
        made.observe(value)
    assert made.cumulative() == [(1.0, 2), (5.0, 3), (float("inf"), 4)]
    assert (made.count, made.total) == (4, 14.0)


def test_only_faults_of_this_boots_kernel_log_have_a_line_to_measure_from() -> None:
    stages = StageTimes()
    line = fault(last_at=990.0)
    told = [line, replace(line, source="nvml-ecc:GPU-1"), replace(line, historical=True)]
    stages.note_faults(told, 990.02)
    assert stages.kernel_to_ingest.count == 1
    assert abs(stages.kernel_to_ingest.total - 0.02) < 1e-9


def test_a_decision_counts_once_for_as_long_as_it_stands() -> None:
    stages = StageTimes()
    stages.note_decision("n1", 10.0, acts=True, arrived=9.5)
    stages.note_decision("n1", 11.0, acts=True, arrived=10.9)
    assert (stages.ingest_to_decision.count, stages.ingest_to_decision.total) == (1, 0.5)
    stages.note_decision("n1", 12.0, acts=False)
    stages.note_decision("n1", 13.0, acts=True, arrived=12.0)
    assert (stages.ingest_to_decision.count, stages.ingest_to_decision.total) == (2, 1.5)


def test_a_decision_that_a_rule_delayed_has_no_arrival_and_its_taint_counts_all_the_same() -> None:
    stages = StageTimes()
    stages.note_decision("n1", 10.0, acts=True)
    stages.note_taint("n1", 10.25)
    stages.note_taint("n1", 99.0)
    assert stages.ingest_to_decision.count == 0
    found = stages.decision_to_taint[False]
    assert (found.count, found.total) == (1, 0.25)


def test_a_taint_after_a_hold_counts_apart() -> None:
    stages = StageTimes()
    stages.note_hold("n1")
    stages.note_decision("n1", 10.0, acts=True)
    stages.note_hold("n1")
    stages.note_taint("n1", 70.0)
    assert stages.decision_to_taint[False].count == 0
    assert stages.decision_to_taint[True].total == 60.0


def test_a_quarantine_that_never_marked_its_node_has_no_duration() -> None:
    stages = StageTimes()
    stages.note_drained(0.0, 500.0)
    stages.note_release(0.0, 500.0)
    assert stages.taint_to_drained.count == stages.quarantine_to_release.count == 0


def test_each_rule_and_code_of_a_quarantine_counts_once_and_pairs_are_bounded() -> None:
    stages = StageTimes()
    stages.note_causes(spec(("fatal", "xid:79"), ("fatal", "xid:79"), ("fatal", "xid:48")))
    stages.note_causes(spec())
    assert stages.causes == {("fatal", "xid:79"): 1, ("fatal", "xid:48"): 1, (MANUAL, MANUAL): 1}
    for number in range(MAX_CAUSES):
        stages.note_causes(spec(("own", f"code-{number}")))
    stages.note_causes(spec(("fatal", "xid:79")))
    assert len(stages.causes) == MAX_CAUSES + 1
    assert stages.causes[OTHER, OTHER] == 3
    assert stages.causes["fatal", "xid:79"] == 2


REBOOT = RepairAttempt("o", "reboot", RepairState.SUCCEEDED, began_at=100.0, ended_at=340.0)


def test_an_attempt_counts_by_its_kind_and_outcome_and_has_a_duration_whatever_that_is() -> None:
    stages = StageTimes()
    stages.note_repair(REBOOT)
    stages.note_repair(replace(REBOOT, state=RepairState.FAILED, ended_at=1900.0))
    assert stages.repair_attempts == {("reboot", "Succeeded"): 1, ("reboot", "Failed"): 1}
    assert (stages.repair_durations["reboot"].count, stages.repair_durations["reboot"].total) == (
        (2, 240.0 + 1800.0)
    )


def test_a_nodes_return_counts_only_after_a_repair_of_it() -> None:
    stages = StageTimes()
    status = QuarantineStatus(cordoned_at=50.0)
    stages.note_return(status, 650.0)
    ticket = RepairStatus((replace(REBOOT, repair="ticket"),))
    stages.note_return(replace(status, repair=ticket), 650.0)
    stages.note_return(replace(status, repair=RepairStatus(held="why")), 650.0)
    assert stages.node_return.count == 0
    stages.note_return(replace(status, repair=RepairStatus((REBOOT,))), 650.0)
    assert (stages.node_return.count, stages.node_return.total) == (1, 600.0)


def test_a_hostile_code_is_one_short_line_of_printable_text() -> None:
    stages = StageTimes()
    stages.note_causes(spec(("full", "disk:\x1b[31m\u202e<b>\n" + "x" * 1_000_000)))
    [(rule, code)] = stages.causes
    assert rule == "full"
    assert code.startswith("disk:?[31m?<b> x")
    assert code.isprintable()
    assert len(code) <= 100
