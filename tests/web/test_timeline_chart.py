"""The chart of a node's timeline: lanes, order, bounds, and hostile text."""

import datetime as dt
import re
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from aggregator.events import EventKind, Transition
from aggregator.quarantine.state.fleet import FleetState
from aggregator.web import models, node_view
from aggregator.web.timeline_chart import MOST, TimelineChart, lane_of, timeline_chart
from tests.support.present import present
from tests.web.support import NIGHT, Hands, ListHistory, serving, some_past, well

HOSTILE = "</title><script>alert(1)</script>\x1b[31m\u202e" + "long " * 900


def make_events(*events: tuple[float, EventKind, str]) -> list[models.Event]:
    """Newest first, from seconds, kinds and incidents."""
    made = [
        node_view.event(Transition(NIGHT + at, kind, "n", f"n: {kind}", incident))
        for at, kind, incident in events
    ]
    return sorted(made, key=lambda one: one.at, reverse=True)


def drawn(*events: tuple[float, EventKind, str]) -> TimelineChart:
    return present(timeline_chart(make_events(*events)))


COURSE = (
    (0.0, EventKind.INCIDENT_OPENED, "i"),
    (0.4, EventKind.ADMITTED, "i"),
    (0.8, EventKind.CORDONED, "i"),
    (7200.0, EventKind.RELEASED, "i"),
    (7201.0, EventKind.INCIDENT_CLOSED, "i"),
)


def test_every_kind_has_a_lane() -> None:
    lanes = {kind: lane_of(kind) for kind in EventKind}
    assert set(lanes.values()) == {"evidence", "decision", "action"}
    assert lanes[EventKind.INCIDENT_OPENED] == lanes[EventKind.AGENT_SILENT] == "evidence"
    assert lanes[EventKind.HELD] == lanes[EventKind.ADMITTED] == "decision"
    assert lanes[EventKind.CORDONED] == lanes[EventKind.MOVED] == "action"
    assert lane_of("of.a.newer.version") == "action"


def test_a_course_reads_from_left_to_right_and_long_gaps_have_their_length() -> None:
    chart = drawn(*COURSE)
    by_lane = {lane: [one.x for one in chart.marks if one.lane == lane] for lane, _ in chart.lanes}
    assert by_lane["evidence"][0] < by_lane["decision"][0] < by_lane["action"][0]
    assert [text for _, text in chart.gaps if text == "2 h"]
    assert [(bar.lane, bar.x) for bar in chart.bars] == [
        ("evidence", by_lane["evidence"][0]),
        ("action", by_lane["action"][0]),
    ]
    assert sorted(one.lane for one in chart.marks if one.good) == ["action", "evidence"]


def test_an_incident_that_is_open_reaches_to_the_edge() -> None:
    chart = drawn(
        (0.0, EventKind.INCIDENT_OPENED, "a"),
        (5.0, EventKind.INCIDENT_OPENED, "b"),
        (9.0, EventKind.INCIDENT_CLOSED, "a"),
        (60.0, EventKind.AGENT_SILENT, ""),
    )
    (bar,) = chart.bars
    assert bar.x + bar.width == chart.right


def test_no_event_makes_no_chart_and_one_makes_one_mark() -> None:
    assert timeline_chart([]) is None
    assert len(drawn((0.0, EventKind.CORDONED, "i")).marks) == 1


@given(
    st.lists(
        st.tuples(
            st.floats(0, 1e9), st.sampled_from(list(EventKind)), st.sampled_from(["", "a", "b"])
        ),
        min_size=1,
        max_size=150,
    )
)
def test_every_event_is_counted_once_within_the_frame(
    events: list[tuple[float, EventKind, str]],
) -> None:
    chart = drawn(*events)
    assert sum(mark.count for mark in chart.marks) == chart.events == min(MOST, len(events))
    for mark in chart.marks:
        assert chart.left <= mark.x <= chart.right
    for bar in chart.bars:
        assert chart.left <= bar.x
        assert bar.width >= 0
        assert bar.x + bar.width <= chart.right + 0.2
    for lane, _ in chart.lanes:
        places = [mark.x for mark in chart.marks if mark.lane == lane]
        assert places == sorted(places)
        assert all(b - a >= 12 for a, b in pairwise(places))


def test_the_chart_is_the_same_until_something_happens() -> None:
    """It has no present moment, so that an open page gets nothing while nothing changes."""
    before = timeline_chart(make_events(*COURSE))
    assert before == timeline_chart(make_events(*COURSE))
    assert before is not None
    assert before.last == dt.datetime.fromtimestamp(NIGHT + 7201, dt.UTC)


async def test_the_page_of_a_node_has_chart_and_list_and_hostile_text_stays_text() -> None:
    hands = Hands()
    fleet = FleetState(mode="drain")
    well(fleet, "node-2", hands.now)
    past = [
        *some_past(NIGHT),
        Transition(NIGHT, EventKind.INCIDENT_OPENED, "node-2", HOSTILE, incident=HOSTILE),
    ]
    async with serving(fleet, hands.clocks(), history=ListHistory(past)) as served:
        text = await served.text("/nodes/node-2")
        assert "<script>alert" not in text
        chart, narrow = re.findall(r'<svg class="chart timeline .*?</svg>', text, re.DOTALL)
        assert chart.count("<path") >= 4
        assert 'viewBox="0 0 330' in narrow
        assert "8 events from 2026-03-14" in chart
        assert "node-2: tainted gpu and unschedulable" in chart
        assert "<p>node-2: tainted gpu and unschedulable</p>" in text  # in the list, too
        other = await served.text("/nodes/node-2?fragment=1")
        assert chart.split("<desc")[1] in other
