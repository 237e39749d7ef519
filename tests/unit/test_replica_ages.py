"""The times in messages between replicas become ages, and ages become times."""

from dataclasses import replace

from aggregator.health.model import Status
from aggregator.policy.network.verdict import Finding, NetworkVerdict
from aggregator.quarantine.decide.cause_search import CommonCause
from aggregator.quarantine.decide.replica_messages import (
    FleetFindings,
    LeaderFindings,
    NodeReport,
    ReportBatch,
    rebase_batch_ages,
    rebase_findings_ages,
    rebase_outlook_ages,
    rebase_report_ages,
)
from aggregator.quarantine.decide.symptoms import Symptom

SIGN = Symptom("check:a", "x", 30.0, acting=True)
REPORT = NodeReport("n1", reported=True, address="10.0.0.1", signs=frozenset({SIGN}))
CAUSE = CommonCause("c", "check", "", "l", "", "", 1, 1, (), since=30.0)
VERDICT = NetworkVerdict("domain", "r1", "lost", 40.0, 2, 3, ("n1",))
FINDING = Finding(Status.FAILED, "unreachable", "no observer", 60.0)


def test_a_reports_symptoms_alone_have_times() -> None:
    turned = rebase_report_ages(REPORT, 100.0)
    assert turned == replace(REPORT, signs=frozenset({SIGN._replace(since=70.0)}))
    without = replace(REPORT, signs=frozenset())
    assert rebase_report_ages(without, 100.0) is without


def test_a_batch_keeps_all_else_that_it_says() -> None:
    batch = ReportBatch((REPORT, NodeReport("n2")), gone=("n3",), complete=True)
    turned = rebase_batch_ages(batch, 100.0)
    assert turned.reports == (rebase_report_ages(REPORT, 100.0), NodeReport("n2"))
    assert (turned.gone, turned.complete) == (("n3",), True)


def test_causes_verdicts_and_findings_are_turned_by_the_same_clock() -> None:
    fading = replace(CAUSE, id="d", faded=90.0)
    outlook = rebase_outlook_ages(FleetFindings((CAUSE, fading), (VERDICT,), reported=7), 100.0)
    assert outlook.causes == (
        replace(CAUSE, since=70.0),
        replace(fading, since=70.0, faded=10.0),
    )
    assert outlook.network == (replace(VERDICT, since=60.0),)
    assert outlook.reported == 7
    found = rebase_findings_ages(LeaderFindings({"n1": FINDING}), 100.0)
    assert found.findings == {"n1": replace(FINDING, since=40.0)}


def test_a_cause_that_began_to_fade_at_the_first_moment_still_fades() -> None:
    (cause,) = rebase_outlook_ages(FleetFindings((replace(CAUSE, faded=0.0),)), 5.0).causes
    assert cause.faded == 5.0
