"""The outliers of a node, on its page and in the API: numbers, a chart, and words for both."""

import datetime as dt
import re
from xml.etree import ElementTree as ET

from hypothesis import given
from hypothesis import strategies as st

from aggregator.health.model import MeasuredSeries
from aggregator.quarantine.state.fleet import FleetState
from aggregator.web import models
from aggregator.web.outlier_view import chart
from tests.support.present import present
from tests.web.support import Hands, serving, small_fleet

EVIL = 'GPU-<script>alert("5")</script>'


def measured(fleet: FleetState, now: float, component: str = "GPU-5", minutes: int = 90) -> None:
    """Twelve nodes of eight GPUs, on one of which one is slow for so many minutes until now."""
    names = [component if gpu == 5 else f"GPU-{gpu}" for gpu in range(8)]
    parts = [MeasuredSeries("gpu-clock", name, "NVIDIA H200") for name in names]
    nodes = [f"node-{number}" for number in range(1, 13)]
    for node in nodes:
        fleet.measurements.add_series(node, "training", parts)
    for minute in range(minutes):
        at = now - 60.0 * (minutes - 1 - minute)
        for node in nodes:
            values = [(gpu, 1740 if (node, gpu) == ("node-2", 5) else 1980) for gpu in range(8)]
            fleet.measurements.update(node, values)
        for node in nodes:
            fleet.measurements.evaluate(node, at)


async def test_a_nodes_page_has_a_chart_with_a_title_and_its_numbers() -> None:
    hands = Hands()
    fleet = small_fleet(hands)
    measured(fleet, hands.now)
    async with serving(fleet, hands.clocks()) as served:
        page = await served.text("/nodes/node-2")
        other = await served.text("/nodes/node-1")
        told = await served.json("/api/v1/nodes/node-2")
    assert "<svg" not in other
    [svg] = re.findall(r'<svg class="chart".*?</svg>', page, re.DOTALL)
    tree = ET.fromstring(svg)
    assert tree.attrib["role"] == "img"
    ids = {each.attrib.get("id") for each in tree}
    assert set(tree.attrib["aria-labelledby"].split()) <= ids
    assert "clock under load of GPU-5" in (tree.findtext("title") or "")
    assert "1,740" in page
    assert "the median of 96 on 12 nodes is 1,980 MHz" in page
    [outlier] = told["outliers"]
    assert (outlier["component"], outlier["value"], outlier["median"]) == ("GPU-5", 1740, 1980)
    assert outlier["pool"] == "training"
    assert len(outlier["points"]) == 18


async def test_a_components_name_is_text_on_the_page_whatever_it_says() -> None:
    hands = Hands()
    fleet = small_fleet(hands)
    measured(fleet, hands.now, EVIL)
    async with serving(fleet, hands.clocks()) as served:
        page = await served.text("/nodes/node-2")
    assert "<script>alert" not in page
    assert "GPU-&lt;script&gt;" in page


async def test_a_node_without_an_outlier_has_a_place_for_one_that_is_live() -> None:
    hands = Hands()
    async with serving(small_fleet(hands), hands.clocks()) as served:
        page = await served.text("/nodes/node-2")
    assert re.search(r'<div id="outliers" data-live>\s*</div>', page)


def outlier(points: list[tuple[float, float, float, float]]) -> models.Outlier:
    begin = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    return models.Outlier(
        measure="gpu-clock",
        what="clock under load",
        component="GPU-5",
        model="",
        pool="",
        unit="MHz",
        low=True,
        value=None,
        median=1980,
        mad=5,
        limit=99,
        values=96,
        nodes=12,
        since=begin,
        points=[
            models.OutlierPoint(
                at=begin + dt.timedelta(seconds=at), value=value, median=median, mad=mad
            )
            for at, value, median, mad in points
        ],
    )


def test_one_point_is_no_chart() -> None:
    assert chart(outlier([(0, 1740, 1980, 5)])) is None


def test_a_line_has_a_gap_where_nothing_was_measured() -> None:
    drawn = chart(outlier([(0, 1, 2, 0), (300, 1, 2, 0), (5000, 1, 2, 0), (5300, 1, 2, 0)]))
    assert drawn is not None
    assert len(drawn.lines) == len(drawn.medians) == len(drawn.bands) == 2


numbers = st.floats(0, 2**32)


@given(st.lists(st.tuples(st.floats(0, 1e6), numbers, numbers, numbers), min_size=2, max_size=30))
def test_every_line_is_within_the_picture(points: list[tuple[float, float, float, float]]) -> None:
    drawn = present(chart(outlier(sorted(points))))
    for line in (*drawn.lines, *drawn.medians, *drawn.bands):
        for pair in line.split():
            x, y = map(float, pair.split(","))
            assert 0 <= x <= drawn.seconds + 0.5
            assert 0 <= y <= (drawn.top - drawn.bottom) * 1.00001
