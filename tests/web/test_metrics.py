"""/metrics: its contents, their bounds, and that each metric is documented."""

import re
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from aggregator.cluster.kubernetes.transport import RequestCounters
from aggregator.events import EventKind, Transition
from aggregator.ingest.stats import IngestStats
from aggregator.quarantine.state.fleet import FleetState
from aggregator.web.stats_interface import ApiStats
from aggregator.web.stats_interface import IngestStatsReader as WhatWeAskOfIngest
from tests.web.support import (
    NIGHT,
    Hands,
    Served,
    big_fleet,
    record_common_cause,
    serving,
    small_fleet,
)

DOCS = Path(__file__).parents[2] / "docs" / "metrics.md"


async def scrape(served: Served) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    text = await served.text("/metrics")
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def labels(**values: str) -> frozenset[tuple[str, str]]:
    return frozenset(values.items())


def test_what_ingest_and_the_cluster_count_is_what_is_asked_of_them() -> None:
    ingest: WhatWeAskOfIngest = IngestStats()
    api: ApiStats = RequestCounters()
    assert ingest.acks == api.throttled == 0


async def test_the_numbers_are_the_fleets() -> None:
    hands = Hands()
    async with serving(small_fleet(hands), hands.clocks()) as served:
        served.ingest.refused["wrong_node"] = 2
        served.ingest.messages["delta"] = 40
        served.ingest.acks = 39
        served.api.answers["POST", "pods/eviction", 429] = 5
        served.api.answers["GET", "nodes", 503] = 2
        served.api.answers["GET", "nodes", 0] = 1
        served.api.throttled = 3
        served.feed.record_event(Transition(NIGHT, EventKind.EVICTED, "node-2", "evicted"))
        served.fleet.stop = "the network is being worked on"
        record_common_cause(served.fleet, hands.now)
        await served.text("/nodes/none", 404)
        found = await scrape(served)
    assert found["sickbay_nodes", labels(standing="quarantined")] == 2
    assert found["sickbay_nodes", labels(standing="ok")] == 2
    assert found["sickbay_incidents", labels(kind="gpu", action="drain")] == 2
    assert found["sickbay_quarantines", labels(phase="Draining")] == 1
    assert found["sickbay_quarantines", labels(phase="Invalid")] == 0
    assert found["sickbay_holds", labels(limit="limits.concurrent")] == 1
    assert found["sickbay_record_entries", labels()] == 2
    assert found["sickbay_stopped", labels()] == 1
    assert found["sickbay_view_up", labels()] == 1
    assert found["sickbay_mode", labels(mode="drain")] == 1
    assert found["sickbay_mode", labels(mode="observe")] == 0
    assert found["sickbay_limit_used_nodes", labels(limit="limits.concurrent")] == 2
    assert found["sickbay_limit_max_nodes", labels(limit="limits.concurrent")] == 20
    assert found["sickbay_limit_used_nodes", labels(limit="limits.new_per_window")] == 7
    assert found["sickbay_cooling_down", labels()] == 1
    assert found["sickbay_common_causes", labels(scope="place")] == 1
    assert found["sickbay_common_cause_nodes", labels(scope="place")] == 9
    assert found["sickbay_common_causes", labels(scope="target")] == 0
    assert found["sickbay_quarantine_pods_remaining", labels(node="node-2")] == 4
    assert found["sickbay_quarantine_pods_blocked", labels(node="node-2")] == 1
    assert found["sickbay_ingest_streams_refused_total", labels(reason="wrong_node")] == 2
    assert found["sickbay_ingest_messages_total", labels(kind="delta")] == 40
    assert found["sickbay_ingest_acks_total", labels()] == 39
    eviction = labels(method="POST", kind="pods/eviction", code="429")
    assert found["sickbay_api_requests_total", eviction] == 5
    assert found["sickbay_api_throttles_total", labels()] == 3
    assert found["sickbay_transitions_total", labels(kind="pod.evicted")] == 1
    assert found["sickbay_alerts_waiting", labels(webhook="0")] == 3
    assert found["sickbay_build_info", labels(version="0.1.0")] == 1
    missing = labels(route="/nodes/{name}", code="404")
    assert found["sickbay_web_requests_total", missing] == 1


async def test_a_nodes_name_stands_only_on_metrics_of_nodes_in_quarantine() -> None:
    hands = Hands()
    async with serving(big_fleet(hands), hands.clocks()) as served:
        for number in range(300):
            await served.text(f"/nodes/guess-{number}", 404)
            await served.text(f"/guess-{number}", 404)
        found = await scrape(served)
    named = {dict(own)["node"] for _, own in found if "node" in dict(own)}
    assert named == {name for name, one in served.fleet.node_summaries.items() if one.quarantine}
    assert len([1 for _, own in found if "node" not in dict(own)]) < 250


async def test_openmetrics_is_spoken_when_asked_for() -> None:
    async with serving(FleetState(), Hands().clocks()) as served:
        text = await served.text("/metrics", Accept="application/openmetrics-text; version=1.0.0")
        assert text.endswith("# EOF\n")


@pytest.fixture
async def told() -> set[str]:
    """The names of all metrics, as a scrape writes them."""
    hands = Hands()
    async with serving(small_fleet(hands), hands.clocks()) as served:
        text = await served.text("/metrics")
    names = re.findall(r"^# TYPE (\S+) ", text, re.MULTILINE)
    return {name for name in names if name.startswith("sickbay_")}


async def test_each_metric_is_documented_and_nothing_else_is(told: set[str]) -> None:
    documented = set(re.findall(r"^\| `(sickbay_\w+)", DOCS.read_text(), re.MULTILINE))
    assert told == documented
