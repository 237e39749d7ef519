"""A rising error counter becomes evidence that is observed, and that no rule may drain for."""

from types import SimpleNamespace
from typing import Any

import pytest

from aggregator.configfile.yaml_source import ConfigError
from aggregator.health.model import Cleared, Component, MeasuredSeries, Measurements, Status
from aggregator.quarantine.correlation.precursors import PrecursorTracker
from aggregator.quarantine.state.fleet import FleetState
from tests.support.replica import shipped_policy

MINUTE, DAY = 60.0, 86400.0


class Fleet:
    def __init__(self) -> None:
        self.reported: list[tuple[str, Component]] = []
        self.state = FleetState()
        self.tracker = PrecursorTracker(self.state, SimpleNamespace(record=self._take))
        for number in range(1000):
            series = (MeasuredSeries("nvlink-recoveries", f"GPU-{number}", "H200"),)
            self.tracker.on_connect(f"n{number}")
            self.tracker.on_measurements(f"n{number}", Measurements(0, series, ((0, 0),), ()), 0.0)

    def _take(self, node: str, found: Component) -> bool:
        self.reported.append((node, found))
        return True

    def count(self, node: str, value: int, at: float) -> None:
        self.tracker.on_measurements(node, Measurements(1, (), ((0, value),), ()), at)


def test_the_evidence_names_the_rise_the_fleets_rate_and_what_follows() -> None:
    fleet = Fleet()
    for minute in (0, 9, 21):
        fleet.count("n5", minute + 1, DAY + minute * MINUTE)
    node, found = fleet.reported[-1]
    assert node == "n5"
    assert (found.check, found.status, found.reason) == (
        "fleet-precursor",
        Status.FAILED,
        "nvlink-recoveries",
    )
    assert found.component == "nvlink-recoveries GPU-5"
    assert "NVLink recoveries of GPU-5: 22 more within 21 min, 22 in all" in found.message
    assert "the 999 others of its kind" in found.message
    assert "failed five days later" in found.message


def test_a_storm_that_passed_the_counters_modulus_has_no_false_total() -> None:
    fleet = Fleet()
    for step in range(12):
        fleet.count("n5", (2**31 - 20_000_000 + 5_300_000 * step) % 2**31, DAY + step * 5 * MINUTE)
    _, found = fleet.reported[-1]
    assert " more within 55 min; the 999 others" in found.message
    assert "in all" not in found.message


def test_a_replaced_gpu_and_a_week_without_a_rise_end_the_finding() -> None:
    for ends in ("replaced", "week"):
        fleet = Fleet()
        for minute in (0, 9, 21):
            fleet.count("n5", minute + 1, DAY + minute * MINUTE)
        if ends == "replaced":
            sign = Cleared(code="", component="GPU-5", how="replaced")
            fleet.tracker.on_cleared("n5", (sign,), DAY + 3600)
        else:
            fleet.count("n5", 22, 9 * DAY)
        assert fleet.reported[-1][1].status is Status.OK


def test_a_finding_of_a_part_whose_model_has_another_name_now_ends_by_a_persons_word() -> None:
    fleet = Fleet()
    for minute in (0, 9, 21):
        fleet.count("n5", minute + 1, DAY + minute * MINUTE)
    fleet.state.node_summaries["n5"] = in_quarantine("nvlink-recoveries GPU-5")
    fleet.tracker.on_connect("n5")
    series = (MeasuredSeries("nvlink-recoveries", "GPU-5", "NVIDIA H200"),)
    fleet.tracker.on_measurements("n5", Measurements(0, series, ((0, 22),), ()), 2 * DAY)
    sign = Cleared(code="", component="GPU-5", how="operator")
    fleet.tracker.on_cleared("n5", (sign,), 2 * DAY)
    assert [one.status for _, one in fleet.reported[-1:]] == [Status.OK]


def test_a_message_without_news_of_a_node_without_findings_ends_at_once() -> None:
    class NoNews(list[Any]):
        def __iter__(self) -> Any:
            raise AssertionError("the findings of a node without any are gone through")

    PrecursorTracker(FleetState(), SimpleNamespace(record=None)).report("n1", NoNews(), 0.0)


def test_a_node_that_was_forgotten_begins_anew() -> None:
    fleet = Fleet()
    fleet.tracker.forget_node("n5")
    fleet.count("n5", 100, DAY)
    assert fleet.reported == []


def test_a_rule_that_drains_for_a_precursor_is_refused() -> None:
    text = "rules:\n  - {name: a, kind: gpu, check: fleet-precursor, action: %s}\n"
    with pytest.raises(ConfigError, match="expected cordon or observe for a precursor"):
        shipped_policy(text % "drain")
    shipped_policy(text % "cordon")


def in_quarantine(*components: str) -> Any:
    """The fleet's entry of a node whose quarantine rests on these findings."""
    evidence = [
        SimpleNamespace(code="fleet-precursor:nvlink-recoveries", component=one, cleared=False)
        for one in components
    ]
    return SimpleNamespace(quarantine=SimpleNamespace(spec=SimpleNamespace(evidence=evidence)))


def test_another_process_keeps_the_finding_of_a_quarantine_and_ends_it_after_a_week() -> None:
    fleet = Fleet()
    fleet.state.node_summaries["n5"] = in_quarantine("nvlink-recoveries GPU-5")
    fleet.tracker.on_connect("n5")
    series = (MeasuredSeries("nvlink-recoveries", "GPU-5", "H200"),)
    fleet.tracker.on_measurements("n5", Measurements(0, series, ((0, 22),), ()), DAY)
    statuses = [fleet.reported[-1][1].status]
    for day in range(2, 8):
        fleet.count("n5", 22, day * DAY)
        statuses.append(fleet.reported[-1][1].status)
    assert set(statuses) == {Status.FAILED}
    fleet.count("n5", 22, 8.1 * DAY)
    assert [one.status for _, one in fleet.reported[-1:]] == [Status.OK]
    fleet.reported.clear()
    fleet.count("n5", 22, 8.2 * DAY)
    assert fleet.reported == []
