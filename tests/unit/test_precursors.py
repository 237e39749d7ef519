"""Error counters that rise on one part of a fleet: published cases, and a healthy fleet's month."""

import random
from collections.abc import Iterable, Mapping

import pytest

from aggregator.health.model import MeasuredSeries
from aggregator.policy.precursors import statistic
from aggregator.policy.precursors.fleet import FleetCounters, Precursor, PrecursorChange

MINUTE, HOUR, DAY = 60.0, 3600.0, 86400.0


class Played:
    """A fleet whose nodes have ``gpus`` GPUs each, all with this counter at zero."""

    def __init__(
        self,
        nodes: int,
        gpus: int,
        measure: str,
        before: Mapping[tuple[str, int], int] | None = None,
    ) -> None:
        self.counters = FleetCounters()
        self.gpus = gpus
        self.measure = measure
        self.values: dict[tuple[str, int], int] = dict(before or {})
        self.found: list[tuple[float, str, Precursor]] = []
        self.open: set[str] = set()
        for number in range(nodes):
            self.connect(f"n{number}", at=0.0)

    def connect(self, node: str, *, at: float) -> None:
        self.counters.begin(node)
        names = [MeasuredSeries(self.measure, f"{node}-gpu{n}", "GB200") for n in range(self.gpus)]
        self.counters.add_series(node, names, at)
        self.counters.update(
            node, [(n, self.values.get((node, n), 0)) for n in range(self.gpus)], at
        )

    def set_value(self, node: str, gpu: int, value: int, *, at: float) -> None:
        self.values[node, gpu] = value
        for change in self.counters.update(node, [(gpu, value)], at):
            assert change.finding is not None
            self.open.add(change.series.component)
            self.found.append((at, node, change.finding))

    def end(self, changes: Iterable[PrecursorChange]) -> None:
        for change in changes:
            assert change.finding is None
            self.open.remove(change.series.component)

    def rise(self, node: str, gpu: int, *, at: float, by: int = 1) -> None:
        self.set_value(node, gpu, self.values.get((node, gpu), 0) + by, at=at)

    @property
    def nodes_found(self) -> set[str]:
        return {node for _, node, _ in self.found}


def test_the_one_link_with_recoveries_is_found_within_six_hours() -> None:
    """marin-community/marin#9086: 505 in its life, 3 more within 21 minutes; all others at 0."""
    fleet = Played(80, 4, "nvlink-recoveries", {("n7", 2): 505})
    begin = 2 * HOUR
    for after in (0, 9 * MINUTE, 21 * MINUTE):
        fleet.rise("n7", 2, at=begin + after)
    [(at, node, finding), *_] = fleet.found
    assert node == "n7"
    assert at - begin <= 6 * HOUR
    assert finding.series.component == "n7-gpu2"
    last = fleet.found[-1][2]
    assert (last.value, last.rises, last.others) == (508, 3, 319)


def test_a_storm_of_corrected_errors_is_found_within_fifteen_minutes() -> None:
    """NVIDIA/NVSentinel#1748: 17,700 a second under load on one GPU of 2,304, the others at 0."""
    fleet = Played(576, 4, "ecc-corrected")
    begin = DAY
    for minute in range(20):
        fleet.rise("n100", 1, at=begin + minute * MINUTE, by=17_700 * 60)
    assert fleet.nodes_found == {"n100"}
    assert fleet.found[0][0] - begin <= 15 * MINUTE


def test_errors_that_most_nodes_count_at_one_moment_are_no_precursor() -> None:
    """NVIDIA/NVSentinel#1701: planned reboots of 214 of 288 nodes, and each link came back."""
    fleet = Played(288, 8, "nvlink-recoveries")
    for round_ in range(6):
        for number in range(214):
            fleet.rise(f"n{number}", number % 8, at=DAY + round_ * 7 * MINUTE + number * 0.2)
    assert fleet.found == []


def test_nothing_is_found_for_twenty_minutes_after_a_counter_began_anew() -> None:
    fleet = Played(100, 8, "ecc-corrected")
    fleet.rise("n1", 0, at=HOUR, by=50)
    fleet.set_value("n1", 0, 0, at=DAY)
    for minute in range(1, 19):
        fleet.rise("n1", 0, at=DAY + minute * MINUTE)
    assert fleet.found == []
    for minute in range(21, 40):
        fleet.rise("n1", 0, at=DAY + minute * MINUTE)
    assert fleet.nodes_found == {"n1"}


def test_one_rise_among_many_parts_is_no_finding() -> None:
    fleet = Played(1000, 8, "nvlink-recoveries")
    fleet.rise("n1", 0, at=DAY)
    assert fleet.found == []


def test_rises_of_an_earlier_stream_count_on() -> None:
    fleet = Played(1000, 8, "nvlink-recoveries")
    fleet.rise("n1", 0, at=DAY)
    fleet.connect("n1", at=DAY + 10 * MINUTE)
    assert fleet.found == []
    fleet.rise("n1", 0, at=DAY + 20 * MINUTE)
    assert fleet.nodes_found == {"n1"}
    assert fleet.open == {"n1-gpu0"}


def test_a_finding_ends_a_week_after_its_last_rise_or_when_its_part_is_replaced() -> None:
    fleet = Played(1000, 8, "nvlink-recoveries")
    for node in ("n1", "n2"):
        for minute in (0, 20, 40):
            fleet.rise(node, 0, at=DAY + minute * MINUTE)
    assert fleet.counters.expire("n1", 7 * DAY) == []
    fleet.end(fleet.counters.expire("n1", 9 * DAY))
    assert fleet.open == {"n2-gpu0"}
    fleet.end(fleet.counters.dismiss("n2", "n2-gpu0"))
    assert not fleet.open
    assert fleet.counters.expire("n1", 9 * DAY) == fleet.counters.dismiss("n2", "n2-gpu0") == []


def test_where_many_nodes_have_rises_they_are_a_kind_of_their_own() -> None:
    fleet = Played(400, 8, "pcie-errors")
    for hour in range(24):
        for number in range(0, 400, 4):
            fleet.rise(f"n{number}", 0, at=DAY + hour * HOUR + number * 9.0)
    assert len(fleet.nodes_found) <= 400 * 5 // 1000


@pytest.mark.slow
def test_a_part_of_the_fleet_that_is_steadily_noisy_has_few_findings() -> None:
    """1 % of the parts have a rise every three days: that is what noise is like in this fleet."""
    rng = random.Random(5)
    fleet = Played(500, 8, "ib-symbol-errors")
    noisy = rng.sample([(f"n{node}", gpu) for node in range(500) for gpu in range(8)], 40)
    rises = [(rng.uniform(HOUR, 30 * DAY), *rng.choice(noisy)) for _ in range(40 * 10)]
    for at, node, gpu in sorted(rises):
        fleet.rise(node, gpu, at=at)
    assert len(fleet.nodes_found) <= 2


def healthy_month(rng: random.Random, nodes: int, gpus: int) -> Iterable[tuple[float, str, int]]:
    """Rises of a fleet by published base rates: links at 1e-4 a day, 0.1 % of them at 1e-2."""
    links = 18
    quiet, noisy = links * 1e-4, 1e-2
    parts = [(f"n{node}", gpu) for node in range(nodes) for gpu in range(gpus)]
    for parts_of, rate in (
        (parts, quiet),
        (rng.sample(parts, round(len(parts) * links * 1e-3)), noisy),
    ):
        expected = len(parts_of) * rate * 30
        for _ in range(round(rng.gauss(expected, expected**0.5))):
            node, gpu = rng.choice(parts_of)
            yield rng.uniform(HOUR, 30 * DAY), node, gpu


@pytest.mark.slow
def test_a_healthy_fleet_of_10000_nodes_has_no_finding_in_a_month() -> None:
    fleet = Played(10_000, 8, "nvlink-recoveries")
    for at, node, gpu in sorted(healthy_month(random.Random(1), 10_000, 8)):
        fleet.rise(node, gpu, at=at)
    assert fleet.found == []


@pytest.mark.slow
@pytest.mark.parametrize(("nodes", "gpus"), [(1, 8), (8, 8), (40, 4)])
def test_where_all_parts_of_a_small_fleet_count_none_is_a_precursor(nodes: int, gpus: int) -> None:
    """A platform that counts PCIe errors on every GPU, four times a day; an early finding ends."""
    fleet, dice = Played(nodes, gpus, "pcie-errors"), random.Random(3)
    for slot in range(14 * 288):
        for node in range(nodes):
            for gpu in range(gpus):
                if dice.random() < 4 / 288:
                    fleet.rise(f"n{node}", gpu, at=slot * 5 * MINUTE)
        for node in range(nodes):
            fleet.end(fleet.counters.expire(f"n{node}", slot * 5 * MINUTE))
    assert all(at < 2 * DAY for at, _, _ in fleet.found)
    assert not fleet.open


@pytest.mark.parametrize("nodes", [1, 8])
def test_the_one_part_of_a_small_fleet_that_counts_is_a_precursor(nodes: int) -> None:
    fleet = Played(nodes, 8, "nvlink-recoveries")
    for time in range(4):
        fleet.rise("n0", 3, at=DAY + time * 6 * HOUR)
    assert {finding.series.component for _, _, finding in fleet.found} == {"n0-gpu3"}


@pytest.mark.parametrize("nodes", [2, 3, 4, 5])
def test_the_one_node_of_a_small_fleet_whose_parts_all_count_is_a_precursor(nodes: int) -> None:
    """Its parts are more than a fifth of all parts in a fleet of four, and one node still."""
    fleet = Played(nodes, 8, "pcie-errors")
    for hour in range(24):
        for gpu in range(8):
            fleet.rise("n0", gpu, at=DAY + hour * HOUR + gpu * MINUTE)
    for node in range(nodes):
        fleet.end(fleet.counters.expire(f"n{node}", 2 * DAY))
    assert fleet.nodes_found == {"n0"}
    assert len(fleet.open) == 8


def test_a_counter_that_wraps_is_one_that_began_anew() -> None:
    """17,700 a second pass the contract's 2^31 after 34 hours."""
    fleet = Played(100, 8, "ecc-corrected")
    for minute in range(48 * 60):
        fleet.values["n1", 0] = (minute + 1) * 17_700 * 60 % 2**31
        fleet.set_value("n1", 0, fleet.values["n1", 0], at=minute * MINUTE)
    assert fleet.nodes_found == {"n1"}
    assert fleet.found[-1][0] == (48 * 60 - 1) * MINUTE
    assert len(fleet.found) > 46 * 60


def test_a_link_with_rises_on_each_day_is_found_in_a_fleet_with_noise() -> None:
    rng = random.Random(3)
    fleet = Played(2_000, 8, "nvlink-recoveries")
    sick = [
        (DAY * day + HOUR * rng.uniform(0, 24), "n77", 3) for day in range(8, 14) for _ in "123"
    ]
    for at, node, gpu in sorted([*healthy_month(rng, 2_000, 8), *sick]):
        fleet.rise(node, gpu, at=at)
    assert fleet.nodes_found == {"n77"}
    assert fleet.found[0][0] < 12 * DAY


def test_the_score_grows_with_each_occurrence_and_not_with_the_size_of_a_rise() -> None:
    fleet = statistic.Background(series=80_000, days=560_000, occurrences=50, noisy=80)
    scores = [
        statistic.score(range(0, 20 * count, 20), 20 * count, fleet, had_counted=False)
        for count in range(1, 6)
    ]
    assert scores == sorted(scores)
    within_a_slot = statistic.score([0, 1, 2, 3], 4, fleet, had_counted=False)
    assert within_a_slot == statistic.score([0], 4, fleet, had_counted=False)


def test_without_an_occurrence_there_is_no_score() -> None:
    fleet = statistic.Background(series=10, days=1, occurrences=0, noisy=0)
    assert statistic.score([], 100, fleet, had_counted=True) == float("-inf")
