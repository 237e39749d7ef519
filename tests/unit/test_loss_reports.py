"""Reports of lost evidence: each source of a node is reported once a minute."""

from aggregator.health.model import Lost
from aggregator.quarantine.state.loss_reports import EVERY, LossReports


def test_a_recent_report_is_remembered_although_an_older_one_of_the_node_has_expired() -> None:
    reports = LossReports()
    journal, kernel = Lost("journal", 1, "full"), Lost("kernel", 1, "full")
    assert reports.due("n1", [journal], 10.0) == [journal]
    assert reports.due("n1", [kernel], 10.0 + EVERY / 2) == [kernel]
    other = reports.due("n2", [journal], 10.0 + EVERY)  # removes what has expired
    assert other == [journal]
    assert reports.due("n1", [kernel], 11.0 + EVERY) == []


def test_a_source_is_reported_again_after_a_minute() -> None:
    reports, lost = LossReports(), Lost("journal", 1, "full")
    assert reports.due("n1", [lost], 10.0) == [lost]
    assert reports.due("n1", [lost], 9.0 + EVERY) == []
    assert reports.due("n1", [lost], 10.0 + EVERY) == [lost]
