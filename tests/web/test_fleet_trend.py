"""The fleet's last day: from memory, from history, and as a chart with a table."""

import math
import re
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggregator.quarantine.state.fleet import FleetState
from aggregator.web import trend_recorder
from aggregator.web.fleet_trend import LENGTH, STEP, FleetTrend, TrendSample
from aggregator.web.trend_chart import trend_chart
from aggregator.web.trend_recorder import TrendRecorder
from tests.support.present import present
from tests.support.waiting import until
from tests.web.support import (
    NIGHT,
    Hands,
    ListHistory,
    counts_of,
    incident_of,
    serving,
    small_fleet,
    well,
)


def monotonic_hands() -> Hands:
    """Evidence dated by the clock that the server runs on."""
    return Hands(now=time.monotonic())


def point(at: float, **changes: int) -> TrendSample:
    counts: dict[str, Any] = {"nodes": 10, "held": 0, "quarantined": 0, "drained": 0, "other": 0}
    return TrendSample(at=at, **(counts | changes))


def test_a_day_is_remembered_and_no_more() -> None:
    trend = FleetTrend()
    for number in range(1000):
        trend.add(point(number * STEP + 7))
        trend.add(point(number * STEP + 8))  # of the same five minutes
    last = 999 * STEP + 7
    points = trend.points(last)
    assert len(points) == LENGTH / STEP + 1
    assert (points[0].at, points[-1].at) == (last - LENGTH, last)
    trend.add(point(0.0))  # the clock was set back
    assert trend.points(last) == points


def test_a_clock_that_was_ahead_for_days_does_not_end_the_chart() -> None:
    trend, ahead = FleetTrend(), 40 * LENGTH
    for number in range(10):
        trend.add(point(NIGHT + number * STEP))
    for number in range(600):
        trend.add(point(NIGHT + ahead + number * STEP, held=1))
    for number in range(10, 400):
        trend.add(point(NIGHT + number * STEP, other=1))
    points = trend.points(NIGHT + 399 * STEP)
    assert len(points) == LENGTH / STEP + 1
    assert {one.other for one in points} == {1}


def test_points_of_history_come_before_those_of_memory_alone() -> None:
    trend = FleetTrend()
    trend.add(point(NIGHT, held=1))
    older = [point(NIGHT - ago * STEP, held=held) for ago, held in ((2, 2), (1, 9), (1, 3), (0, 8))]
    trend.prepend(older)  # two replicas may write of the same five minutes
    assert [one.held for one in trend.points(NIGHT)] == [2, 3, 1]
    assert trend.own_since == NIGHT


def test_the_chart_has_a_step_for_each_change_and_a_gap_where_points_are_missing() -> None:
    assert trend_chart([point(NIGHT)]) is None
    points = [point(NIGHT + number * STEP, quarantined=number // 4) for number in range(12)]
    chart = present(trend_chart(points))
    lines = {line.field: line for line in chart.lines}
    assert lines["quarantined"].path.count("V") == 2
    assert lines["held"].path.count("V") == 0
    assert (lines["quarantined"].last, lines["well"].last) == (2, 8)
    with_gap = present(trend_chart([*points, point(NIGHT + 7200)]))
    assert all(line.path.count("M") == 2 for line in with_gap.lines)


@given(
    st.lists(
        st.tuples(st.integers(0, 400), st.integers(0, 3), st.integers(0, 3), st.integers(0, 3)),
        min_size=2,
        max_size=80,
        unique_by=lambda one: one[0],
    )
)
def test_every_line_stays_within_the_frame(values: list[tuple[int, int, int, int]]) -> None:
    points = [
        point(NIGHT + slot * STEP, held=a, quarantined=b, other=c)
        for slot, a, b, c in sorted(values)
    ]
    chart = present(trend_chart(points[-289:]))
    for part in chart.parts:
        for line in part.lines:
            heights = [int(one) for one in re.findall(r"[,V](-?\d+)", line.path)]
            places = [int(one) for one in re.findall(r"[MH](-?\d+)", line.path)]
            assert all(0 <= one <= part.most - part.least for one in heights)
            assert places == sorted(places)
            assert (places[0], places[-1]) == (0, chart.seconds)


async def test_page_and_api_have_the_day_from_history_and_a_table_of_it() -> None:
    hands = Hands()
    async with serving(small_fleet(hands), hands.clocks()) as served:
        assert await TrendRecorder(served.web._queries).record()
        told = await served.json("/api/v1/trend")
        last = told["points"][-1]
        assert (last["quarantined"], last["drained"], last["held"], last["nodes"]) == (2, 1, 1, 8)
        assert told["own_since"].startswith("2026-03-14T03:14:07")
        assert told["points"][0]["quarantined"] == 1
        [(_, kept)] = [one for one in served.history.kept if one[0] == math.inf]
        assert kept == {
            "nodes": 8,
            "held": 1,
            "quarantined": 2,
            "drained": 1,
            "other": last["other"],
        }
        text = await served.text("/")
        assert text.count('aria-labelledby="trend-title trend-') == 2
        assert text.count('<td data-label="Time">') in (25, 26)
        assert "in quarantine <b>2</b>" in text
        assert "A short history" not in text
        # The legend has the present numbers, as the headline does, not those of the last point.
        incident_of(served.fleet.node_summaries["node-8"], hands.now, action="observe")
        hands.advance(2)
        text = await served.text("/")
        assert "well <b>1</b>" in text.partition('id="trend"')[2]


async def test_without_a_history_the_day_begins_now_and_the_page_says_why() -> None:
    hands = Hands()
    history = ListHistory(broken="disk I/O error <script>")
    async with serving(small_fleet(hands), hands.clocks(), history=history) as served:
        assert await TrendRecorder(served.web._queries).record()
        assert len((await served.json("/api/v1/trend"))["points"]) == 1
        text = await served.text("/")
        assert "No history yet: the first lines come within ten minutes" in text
        assert "is not known: history can&#39;t be read: disk I/O error &lt;script&gt;" in text


async def test_nothing_is_drawn_of_the_time_before_the_history_began() -> None:
    hands = Hands()
    history = ListHistory(kept=counts_of(NIGHT, 12))
    async with serving(small_fleet(hands), hands.clocks(), history=history) as served:
        assert await TrendRecorder(served.web._queries).record()
        points = served.web._queries.trend.points(NIGHT)
        assert 11 <= len(points) <= 13
        assert points[0].at >= NIGHT - 3600
        text = await served.text("/")
        assert "A short history: nothing is known of the time before 02:1" in text
        chart = present(trend_chart(points))
        # An hour takes the whole width, not a stroke at the end of an axis of a day.
        assert chart.lines[0].path.startswith("M0,")
        assert chart.seconds <= 3600


async def test_a_running_server_records_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trend_recorder, "SETTLE", 0.0)
    hands = Hands()
    async with serving(small_fleet(hands), hands.clocks()) as served:
        await until(lambda: len(served.web._queries.trend.points(NIGHT)) > 200)


@pytest.mark.parametrize("reason", ["view_lost", "waiting_for_quorum", "no node"])
async def test_no_point_is_taken_while_the_fleet_is_not_known(reason: str) -> None:
    hands = Hands()
    fleet = FleetState() if reason == "no node" else small_fleet(hands)
    if reason != "no node":
        setattr(fleet, reason, "not yet")
    async with serving(fleet, hands.clocks()) as served:
        recorder = TrendRecorder(served.web._queries)
        assert not await recorder.record()
        assert (await served.json("/api/v1/trend"))["points"] == []
        fleet.view_lost = fleet.waiting_for_quorum = ""
        well(fleet, "node-1", hands.now)
        hands.advance(10)
        assert await recorder.record()
        assert served.web._queries.trend.points(hands.wall)
