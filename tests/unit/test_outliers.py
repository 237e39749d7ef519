"""Outliers in the fleet: which deviations are findings, and above all which are none."""

import random
from collections.abc import Callable, Iterable

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from aggregator.health.model import MeasuredSeries
from aggregator.policy.outliers.fleet import (
    MOST_CHARTS,
    MOST_CHARTS_OF_A_NODE,
    MOST_KEPT,
    MOST_OF_A_NODE,
    MOST_POINTS,
    MOST_SPREADS,
    FleetMeasurements,
    Outlier,
)
from aggregator.policy.outliers.measures import MEASURES
from aggregator.policy.outliers.spread import (
    LEAST_DEVIATING_NODES,
    LEAST_FOR_KINDS,
    LEAST_NODES,
    Spread,
    weighted_median,
)

pytestmark = pytest.mark.slow

GPUS = 8
MINUTE = 60.0


class Minutes:
    """A fleet whose nodes report once a minute, by a clock of its own."""

    def __init__(
        self, nodes: int = 40, measure: str = "gpu-clock", *, pools: int = 1, parts: int = GPUS
    ) -> None:
        self.fleet = FleetMeasurements()
        self.now = 1_000_000.0
        self.parts = parts
        self.names = [f"node-{number}" for number in range(nodes)]
        self.series = [
            MeasuredSeries(measure, f"GPU-{part}", "NVIDIA H200") for part in range(parts)
        ]
        self.found: dict[tuple[str, str], Outlier] = {}
        self.begun: list[tuple[str, str]] = []
        for number, name in enumerate(self.names):
            self.fleet.add_series(name, f"pool-{number % pools}", self.series)

    def run(
        self, minutes: int, value: Callable[[str, int], int | None], nodes: Iterable[str] = ()
    ) -> None:
        """Each part has the ``value`` of its node and number in each minute; None: no value."""
        for _ in range(minutes):
            self.now += MINUTE
            for name in nodes or self.names:
                told = [(part, value(name, part)) for part in range(self.parts)]
                self.fleet.update(
                    name,
                    [(part, one) for part, one in told if one is not None],
                    [part for part, one in told if one is None],
                )
            for name in nodes or self.names:
                for change in self.fleet.evaluate(name, self.now):
                    key = (name, change.series.component)
                    if change.outlier is None:
                        del self.found[key]
                    else:
                        self.found[key] = change.outlier
                        self.begun.append(key)


def test_a_gpu_that_is_slow_for_long_is_found_and_no_other() -> None:
    fleet = Minutes()
    fleet.run(29, lambda name, gpu: 1740 if (name, gpu) == ("node-3", 5) else 1980)
    assert not fleet.found
    fleet.run(1, lambda name, gpu: 1740 if (name, gpu) == ("node-3", 5) else 1980)
    assert set(fleet.found) == {("node-3", "GPU-5")}
    [outlier] = fleet.found.values()
    assert (outlier.value, outlier.median, outlier.of, outlier.nodes) == (1740, 1980, 320, 40)
    assert outlier.since == 1_000_000.0 + MINUTE


def test_a_finding_ends_only_after_the_part_was_as_the_others_for_as_long() -> None:
    fleet = Minutes()
    fleet.run(40, lambda name, gpu: 1740 if (name, gpu) == ("node-3", 5) else 1980)
    fleet.run(29, lambda _name, _gpu: 1980)
    assert fleet.found
    fleet.run(1, lambda _name, _gpu: 1980)
    assert not fleet.found
    assert len(fleet.begun) == 1


def test_a_part_near_the_limit_whose_noise_crosses_it_now_and_then_is_none() -> None:
    fleet = Minutes()
    rng = random.Random(5)
    own = {("node-3", 5): 1890}  # the limit is 1,881
    fleet.run(1000, lambda name, gpu: own.get((name, gpu), 1980) + 5 * rng.randint(-4, 4))
    assert not fleet.found


def test_a_finding_near_the_limit_does_not_come_and_go() -> None:
    fleet = Minutes()
    fleet.run(40, lambda name, gpu: 1740 if (name, gpu) == ("node-3", 5) else 1980)
    fleet.run(300, lambda name, gpu: 1900 if (name, gpu) == ("node-3", 5) else 1980)
    assert fleet.found


def test_a_gpu_that_is_too_fast_is_none() -> None:
    fleet = Minutes()
    fleet.run(60, lambda name, gpu: 2500 if (name, gpu) == ("node-3", 5) else 1980)
    assert not fleet.found


def test_too_few_nodes_are_no_population_however_many_parts_they_have() -> None:
    fleet = Minutes(nodes=LEAST_NODES - 1)
    fleet.run(120, lambda name, gpu: 1000 if (name, gpu) == ("node-3", 5) else 1980)
    assert not fleet.found
    assert not list(fleet.fleet.findings("node-3"))


def test_a_pool_is_not_compared_with_another() -> None:
    fleet = Minutes(nodes=80, pools=2)
    fleet.run(120, lambda name, _gpu: 1980 if int(name[5:]) % 2 else 1410)
    assert not fleet.found


def test_a_pool_that_shifts_node_by_node_has_no_outlier() -> None:
    fleet = Minutes()
    moved: set[str] = set()
    for name in fleet.names:
        moved.add(name)
        fleet.run(3, lambda name, _gpu: 1740 if name in moved else 1980)
    fleet.run(60, lambda _name, _gpu: 1740)
    assert not fleet.found


def test_a_pool_that_shifts_at_once_has_no_outlier() -> None:
    fleet = Minutes()
    fleet.run(60, lambda _name, _gpu: 1980)
    fleet.run(60, lambda _name, _gpu: 1410)
    assert not fleet.found


def test_a_share_of_the_pool_that_differs_for_ever_is_a_kind_of_its_own() -> None:
    fleet = Minutes()
    fleet.run(300, lambda name, _gpu: 1740 if int(name[5:]) < 8 else 1980)
    assert not fleet.found


def test_a_gpu_that_is_slow_among_nodes_of_a_kind_of_their_own_is_found() -> None:
    fleet = Minutes()
    slow = ("node-2", 5)
    kind = {f"node-{number}" for number in range(8)}
    fleet.run(60, lambda name, gpu: 1500 if (name, gpu) == slow else 1740 if name in kind else 1980)
    assert set(fleet.found) == {("node-2", "GPU-5")}


def test_a_node_all_of_whose_parts_are_far_off_masks_no_outlier_of_the_others() -> None:
    fleet = Minutes(nodes=12, measure="nvlink-errors")
    slow = {("node-1", 2), ("node-2", 6)}
    fleet.run(
        70, lambda name, gpu: 2**31 if name == "node-3" else 9000 if (name, gpu) in slow else 0
    )
    of_liar = {("node-3", part.component) for part in fleet.series}
    assert set(fleet.found) == {("node-1", "GPU-2"), ("node-2", "GPU-6"), *of_liar}


def test_a_node_that_is_far_worse_masks_no_outlier_among_nodes_of_a_kind_of_their_own() -> None:
    fleet = Minutes(nodes=13, measure="nvlink-errors")
    worse = ("node-1", 2)
    kind = {"node-1", "node-2", "node-3", "node-4"}
    fleet.run(
        70,
        lambda name, gpu: (
            2**31
            if name == "node-6"
            else 9000
            if (name, gpu) == worse
            else 500
            if name in kind
            else 0
        ),
    )
    of_liar = {("node-6", part.component) for part in fleet.series}
    assert set(fleet.found) == {("node-1", "GPU-2"), *of_liar}


def test_two_nodes_are_no_kind_of_their_own_where_a_kind_would_show_on_more() -> None:
    fleet = Minutes(nodes=LEAST_FOR_KINDS, parts=2)
    fleet.run(30, lambda name, _gpu: 1740 if name in ("node-1", "node-2") else 1980)
    assert {name for name, _ in fleet.found} == {"node-1", "node-2"}


def test_errors_of_all_parts_of_a_node_are_no_kind_of_its_own_however_small_the_pool() -> None:
    fleet = Minutes(nodes=12, measure="nvlink-errors")
    fleet.run(60, lambda name, _gpu: 900 if name in ("node-1", "node-2") else 0)
    assert {name for name, _ in fleet.found} == {"node-1", "node-2"}


@settings(deadline=None, max_examples=25, phases=[Phase.generate])  # shrinking is slow
@given(
    seed=st.integers(0, 10**6),
    nodes=st.integers(LEAST_NODES, 40),
    kind=st.sets(st.integers(0, 9), max_size=3),
    idle=st.floats(0.0, 0.5),
    slow=st.none() | st.tuples(st.integers(0, 9), st.integers(0, GPUS - 1)),
)
def test_a_small_pool_takes_no_firmware_for_a_fault_and_finds_the_gpu_that_is_slow_alone(
    seed: int, nodes: int, kind: set[int], idle: float, slow: tuple[int, int] | None
) -> None:
    """Some nodes have a lower highest clock on all GPUs, and each GPU is idle now and then."""
    rng = random.Random(seed)
    fleet = Minutes(nodes=nodes)
    slow_part = None if slow is None else (f"node-{slow[0]}", slow[1])

    def value(name: str, gpu: int) -> int | None:
        if rng.random() < idle:
            return None
        most = 1755 if int(name[5:]) in kind else 1980
        return most - 15 * rng.randint(0, 2) - 300 * ((name, gpu) == slow_part)

    fleet.run(90, value)
    wanted = set() if slow_part is None else {(slow_part[0], f"GPU-{slow_part[1]}")}
    assert set(fleet.found) <= wanted
    if slow is not None and slow[0] not in kind and len(kind) + 1 < LEAST_DEVIATING_NODES:
        assert set(fleet.found) == wanted


@settings(deadline=None, max_examples=5, phases=[Phase.generate])
@given(seed=st.integers(0, 10**6), kind=st.integers(0, 4))
def test_a_pool_in_which_kinds_show_is_evaluated_as_if_no_pool_were_small(
    seed: int, kind: int
) -> None:
    """The same values once under the rule of small pools, and once without that."""

    def begun(least: int) -> list[tuple[str, str]]:
        rng = random.Random(seed)
        fleet = Minutes(nodes=LEAST_FOR_KINDS, parts=2)

        def value(name: str, gpu: int) -> int:
            most = 1755 if int(name[5:]) < kind else 1980
            return most - 15 * rng.randint(0, 1) - 300 * ((name, gpu) == ("node-9", 1))

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("aggregator.policy.outliers.spread.LEAST_FOR_KINDS", least)
            fleet.run(40, value)
        return fleet.begun

    found = begun(LEAST_FOR_KINDS)
    assert found == begun(0)
    assert ("node-9", "GPU-1") in found


def test_a_pool_that_shrinks_until_kinds_no_longer_show_counts_its_present_nodes() -> None:
    fleet = Minutes(nodes=LEAST_FOR_KINDS, parts=2)
    fleet.run(1, lambda _name, _gpu: 1980)
    [spread] = fleet.fleet.spreads()
    assert spread.shows_kinds
    fleet.fleet.begin("node-5")
    assert (spread.members, spread.shows_kinds) == (LEAST_FOR_KINDS - 1, False)


def test_three_nodes_that_are_more_than_a_twentieth_are_a_kind_of_their_own() -> None:
    fleet = Minutes()
    fleet.run(90, lambda name, _gpu: 1740 if name in ("node-1", "node-2", "node-3") else 1980)
    assert not fleet.found


def test_a_check_has_one_duration_of_a_node_however_often_it_is_named() -> None:
    fleet = FleetMeasurements()
    fleet.add_series("liar", "", [MeasuredSeries("check-duration", "disk", "H")] * 16)
    fleet.update("liar", [(number, 10**6) for number in range(16)])
    [spread] = fleet.spreads()
    assert spread.total == 1


def test_a_third_kind_is_no_outlier_either() -> None:
    fleet = Minutes()
    kinds = {f"node-{number}": 1740 if number < 6 else 1410 for number in range(12)}
    fleet.run(120, lambda name, _gpu: kinds.get(name, 1980))
    assert not fleet.found


def test_a_node_with_fewer_parts_at_the_cap_than_a_median_needs_is_not_compared() -> None:
    fleet = Minutes(measure="gpu-clock-capped")
    fleet.run(
        90,
        lambda name, gpu: (
            None if name == "node-1" and gpu > 2 else 1750 - 300 * ((name, gpu) == ("node-1", 1))
        ),
    )
    assert not fleet.found
    [spread] = fleet.fleet.spreads()
    assert (spread.nodes, spread.median) == (39, 1000)


def test_a_load_that_comes_and_goes_is_no_deviation() -> None:
    fleet = Minutes()
    rng = random.Random(3)
    fleet.run(300, lambda _name, _gpu: 1980 if rng.random() < 0.5 else None)
    assert not fleet.found


def test_minutes_without_load_neither_confirm_nor_end() -> None:
    fleet = Minutes()
    slow = ("node-3", 5)
    for _ in range(30):
        fleet.run(1, lambda name, gpu: 1740 if (name, gpu) == slow else 1980)
        fleet.run(2, lambda _name, _gpu: None)
    assert set(fleet.found) == {("node-3", "GPU-5")}
    fleet.run(600, lambda _name, _gpu: None)
    assert fleet.found


def test_a_job_that_is_heavier_on_all_gpus_of_some_nodes_is_no_outlier() -> None:
    fleet = Minutes(measure="gpu-clock-capped")
    fleet.run(300, lambda name, _gpu: 1200 if name in ("node-1", "node-2") else 1750)
    assert not fleet.found


def test_a_gpu_that_is_slower_than_the_job_of_its_node_is_found_at_the_power_cap() -> None:
    fleet = Minutes(measure="gpu-clock-capped")
    fleet.run(60, lambda name, gpu: 1200 if (name, gpu) == ("node-1", 2) else 1750 - 5 * (gpu % 3))
    assert set(fleet.found) == {("node-1", "GPU-2")}


def test_a_rate_that_is_nought_everywhere_has_a_floor() -> None:
    fleet = Minutes(measure="pcie-replays")
    fleet.run(90, lambda name, gpu: 59 if (name, gpu) == ("node-3", 5) else 0)
    assert not fleet.found
    fleet.run(90, lambda name, gpu: 900 if (name, gpu) == ("node-3", 5) else 0)
    assert set(fleet.found) == {("node-3", "GPU-5")}


def test_a_burst_shorter_than_the_time_is_none() -> None:
    fleet = Minutes(measure="pcie-replays")
    for _ in range(5):
        fleet.run(30, lambda name, gpu: 900 if (name, gpu) == ("node-3", 5) else 0)
        fleet.run(30, lambda _name, _gpu: 0)
    assert not fleet.found


@settings(deadline=None, max_examples=25)
@given(
    seed=st.integers(0, 10**6),
    parts_differ=st.floats(0.0, 0.03),
    noise=st.floats(0.0, 0.02),
    tail=st.floats(0.0, 0.05),
)
def test_a_fleet_of_equal_parts_with_real_noise_has_no_outlier(
    seed: int, parts_differ: float, noise: float, tail: float
) -> None:
    """Parts differ by some per cent for ever, readings by some more, and some are far off."""
    rng = random.Random(seed)
    fleet = Minutes(nodes=12)
    own = {(name, gpu): rng.gauss(1.0, parts_differ) for name in fleet.names for gpu in range(GPUS)}

    def value(name: str, gpu: int) -> int:
        low = 0.7 if rng.random() < tail else 1.0
        return max(0, round(1700 * own[name, gpu] * rng.gauss(1.0, noise) * low))

    fleet.run(120, value)
    spread = next(fleet.fleet.spreads())
    # A part that differs for ever, by more than the noise of all, is what is looked for.
    for (name, gpu), share in own.items():
        if fleet.found.get((name, f"GPU-{gpu}")):
            assert share < 1 - 0.9 * spread.limit / 1700


@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 10**6), slow=st.integers(0, 11), slower=st.floats(0.1, 0.4))
def test_a_slow_part_is_found_in_noise_and_alone(seed: int, slow: int, slower: float) -> None:
    rng = random.Random(seed)
    fleet = Minutes(nodes=12)

    def value(name: str, gpu: int) -> int:
        share = 1 - slower if (name, gpu) == (f"node-{slow}", 1) else 1.0
        return round(1980 * share * rng.gauss(1.0, 0.005))

    fleet.run(60, value)
    assert set(fleet.found) == {(f"node-{slow}", "GPU-1")}


@given(st.lists(st.integers(0, 300), min_size=1, max_size=60))
def test_the_weighted_median_is_the_lower_median_of_the_values(values: list[int]) -> None:
    counts: dict[int, int] = {}
    for value in values:
        counts[value] = counts.get(value, 0) + 1
    assert weighted_median(counts) == sorted(values)[(len(values) - 1) // 2]


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 7), st.none() | st.integers(0, 40)), max_size=60
    )
)
def test_the_counts_follow_the_values_whatever_changes(
    changes: list[tuple[int, int, int | None]],
) -> None:
    fleet = FleetMeasurements()
    names = [f"node-{number}" for number in range(4)]
    for name in names:
        fleet.add_series(
            name, "", [MeasuredSeries("gpu-clock", f"GPU-{gpu}", "H") for gpu in range(8)]
        )
    held: dict[tuple[str, int], int] = {}
    for number, gpu, value in changes:
        if value is None:
            held.pop((names[number], gpu), None)
            fleet.update(names[number], (), [gpu])
        else:
            held[names[number], gpu] = value
            fleet.update(names[number], [(gpu, value)])
    [spread] = fleet.spreads()
    assert spread.total == len(held)
    assert spread.nodes == len({name for name, _ in held})
    if held:
        spread.refresh(0.0)
        assert spread.median == sorted(held.values())[(len(held) - 1) // 2]
    for name in names:
        fleet.forget(name)
    assert not list(fleet.spreads())


def test_a_new_stream_goes_on_where_the_last_one_ended() -> None:
    fleet = Minutes()
    slow = ("node-3", 5)
    fleet.run(20, lambda name, gpu: 1740 if (name, gpu) == slow else 1980)
    fleet.fleet.begin("node-3")
    fleet.fleet.add_series("node-3", "pool-0", list(reversed(fleet.series)))
    fleet.series.reverse()
    fleet.run(9, lambda name, gpu: 1740 if (name, gpu) == ("node-3", 2) else 1980)
    assert not fleet.found
    fleet.run(1, lambda name, gpu: 1740 if (name, gpu) == ("node-3", 2) else 1980)
    assert set(fleet.found) == {("node-3", "GPU-5")}


def test_a_finding_stands_while_its_agent_is_silent() -> None:
    fleet = Minutes()
    fleet.run(30, lambda name, gpu: 1740 if (name, gpu) == ("node-3", 5) else 1980)
    fleet.fleet.drop_values("node-3")
    others = [name for name in fleet.names if name != "node-3"]
    fleet.run(120, lambda _name, _gpu: 1980, others)
    [outlier] = fleet.fleet.findings("node-3")
    assert outlier.value is None
    [spread] = fleet.fleet.spreads()
    assert (spread.total, spread.nodes) == (312, 39)


def test_a_new_stream_without_the_part_ends_no_finding() -> None:
    fleet = Minutes()
    fleet.run(30, lambda name, gpu: 1740 if (name, gpu) == ("node-3", 5) else 1980)
    fleet.fleet.begin("node-3")
    assert [one.series.component for one in fleet.fleet.findings("node-3")] == ["GPU-5"]
    [change] = fleet.fleet.dismiss("node-3", "GPU-5")
    assert change.outlier is None
    assert not fleet.fleet.findings("node-3")


@pytest.mark.parametrize("new_stream", [False, True])
def test_a_finding_ends_when_its_part_is_measured_as_another_model(*, new_stream: bool) -> None:
    fleet = Minutes(measure="ib-errors")
    fleet.run(60, lambda name, port: 900 if (name, port) == ("node-3", 5) else 0)
    assert fleet.found
    port = MeasuredSeries("ib-errors", "GPU-5", "a slower rate")
    if new_stream:
        fleet.fleet.begin("node-3")
    number = fleet.fleet.size("node-3")
    fleet.fleet.add_series("node-3", "pool-0", [port])
    assert not fleet.fleet.restore("node-3", {("ib-errors", "GPU-5")}, fleet.now)
    fleet.fleet.update("node-3", (), [] if new_stream else [5])
    assert not fleet.fleet.evaluate("node-3", fleet.now + MINUTE)  # no value is no sign
    assert fleet.fleet.findings("node-3")
    fleet.fleet.update("node-3", [(number, 0)])
    [change] = fleet.fleet.evaluate("node-3", fleet.now + 2 * MINUTE)
    assert (change.series.model, change.outlier) == ("NVIDIA H200", None)
    assert not fleet.fleet.findings("node-3")
    assert all(not spread.deviating for spread in fleet.fleet.spreads())
    assert fleet.fleet._charts == 0


def test_a_quarantine_restores_its_finding_until_the_part_is_as_the_others() -> None:
    fleet = Minutes()
    fleet.run(5, lambda _name, _gpu: 1980)
    [change] = fleet.fleet.restore("node-3", {("gpu-clock", "GPU-5")}, fleet.now)
    assert change.outlier is not None
    assert not fleet.fleet.restore("node-3", {("gpu-clock", "GPU-5")}, fleet.now)
    fleet.found["node-3", "GPU-5"] = change.outlier
    fleet.run(29, lambda _name, _gpu: 1980)
    assert fleet.found
    fleet.run(1, lambda _name, _gpu: 1980)
    assert not fleet.found


def test_a_node_that_reports_too_often_is_evaluated_no_faster() -> None:
    fleet = Minutes()
    fleet.run(10, lambda _name, _gpu: 1980)
    fleet.fleet.update("node-3", [(5, 1000)])
    for second in range(44):
        assert not fleet.fleet.evaluate("node-3", fleet.now + second)
    assert not fleet.fleet.findings("node-3")


def test_a_node_with_many_parts_sways_no_median() -> None:
    fleet = FleetMeasurements()
    many = [MeasuredSeries("gpu-clock", f"GPU-{number}", "H") for number in range(200)]
    fleet.add_series("liar", "", many)
    fleet.update("liar", [(number, 1) for number in range(200)])
    [spread] = fleet.spreads()
    assert spread.total == MOST_OF_A_NODE
    fleet.begin("liar")
    assert not list(fleet.spreads())


def test_the_distributions_are_bounded_whatever_models_agents_name() -> None:
    fleet = FleetMeasurements()
    for number in range(MOST_SPREADS // 200 + 2):
        models = [MeasuredSeries("gpu-clock", "GPU-0", f"model {number} {i}") for i in range(200)]
        fleet.add_series(f"node-{number}", "", models)
        fleet.update(f"node-{number}", [(i, 5) for i in range(200)])
    assert len(list(fleet.spreads())) == MOST_SPREADS


def test_a_measure_that_is_not_known_is_taken_and_not_evaluated() -> None:
    fleet = Minutes(measure="fan-speed")
    fleet.run(60, lambda name, gpu: 1 if (name, gpu) == ("node-3", 5) else 1980)
    assert not fleet.found


def test_a_node_that_changes_its_pool_is_compared_there() -> None:
    fleet = Minutes(nodes=40, pools=2, measure="nvlink-errors")
    fleet.run(10, lambda name, _gpu: 0 if int(name[5:]) % 2 else 900)
    fleet.fleet.move("node-0", "pool-1")
    fleet.run(60, lambda name, _gpu: 0 if int(name[5:]) % 2 else 900)
    assert {name for name, _ in fleet.found} == {"node-0"}


def test_a_chart_has_a_point_every_five_minutes_and_no_more_than_fit() -> None:
    fleet = Minutes(nodes=12)
    fleet.run(900, lambda name, gpu: 1740 if (name, gpu) == ("node-3", 5) else 1980)
    [outlier] = fleet.fleet.findings("node-3")
    assert len(outlier.points) == MOST_POINTS
    assert {(p.value, p.median) for p in outlier.points} == {(1740.0, 1980.0)}
    gaps = {b.at - a.at for a, b in zip(outlier.points, outlier.points[1:], strict=False)}
    assert gaps == {300.0}


def test_charts_are_bounded() -> None:
    minutes = Minutes(nodes=12)
    minutes.fleet._charts = MOST_CHARTS
    minutes.run(30, lambda name, gpu: 1740 if (name, gpu) == ("node-3", 5) else 1980)
    [outlier] = minutes.fleet.findings("node-3")
    assert outlier.points == ()


def test_a_node_whose_streams_name_other_parts_each_time_has_bounded_charts_and_scores() -> None:
    fleet = Minutes(measure="disk-latency")
    fleet.run(1, lambda _name, _part: 5)
    for stream in range(100):
        _connect_with_slow_disks(fleet, stream)
        fleet.now += MINUTE
        fleet.fleet.evaluate("liar", fleet.now)
    assert fleet.fleet._charts <= MOST_CHARTS_OF_A_NODE
    assert len(fleet.fleet._nodes["liar"].kept) <= MOST_KEPT


def test_the_oldest_findings_of_parts_that_no_stream_names_end_where_there_are_too_many() -> None:
    fleet = Minutes(measure="disk-latency")
    fleet.run(1, lambda _name, _part: 5)
    open_findings: list[MeasuredSeries] = []
    streams = MOST_KEPT // MOST_OF_A_NODE + 3
    for stream in range(streams):
        _connect_with_slow_disks(fleet, stream)
        for _ in range(MEASURES["disk-latency"].minutes):
            fleet.now += MINUTE
            for change in fleet.fleet.evaluate("liar", fleet.now):
                if change.outlier is None:
                    open_findings.remove(change.series)
                else:
                    open_findings.append(change.series)
    found = [one.series for one in fleet.fleet.findings("liar")]
    assert set(found) == set(open_findings)
    assert len(found) == MOST_KEPT + MOST_OF_A_NODE
    streams_kept = {int(one.component.partition("-")[0]) for one in found}
    assert streams_kept == set(range(2, streams))
    assert fleet.fleet._charts <= MOST_CHARTS_OF_A_NODE


def _connect_with_slow_disks(fleet: Minutes, stream: int) -> None:
    fleet.fleet.begin("liar")
    disks = [
        MeasuredSeries("disk-latency", f"{stream}-{disk}", "NVIDIA H200")
        for disk in range(MOST_OF_A_NODE)
    ]
    fleet.fleet.add_series("liar", "pool-0", disks)
    fleet.fleet.update("liar", [(disk, 10**6) for disk in range(MOST_OF_A_NODE)])


@pytest.mark.parametrize("name", sorted(MEASURES))
def test_each_measure_finds_what_is_far_off_on_its_bad_side(name: str) -> None:
    measure = MEASURES[name]
    spread = Spread(("", name, ""), measure)
    for _ in range(30):
        spread.add(100)
    spread.refresh(0.0)
    bad = 100 - 10**4 if measure.low else 100 + 10**4
    assert spread.deviation(bad) > spread.limit > spread.deviation(100)
    assert 0 < measure.minutes <= 255
