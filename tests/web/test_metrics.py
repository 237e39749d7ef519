"""/metrics: its contents, their bounds, and that each metric is documented."""

import re
from pathlib import Path

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from aggregator.alerts.overview import AlertOverview, RouteState
from aggregator.cluster.kubernetes.transport import RequestCounters
from aggregator.cluster.port import Action, Blocker, EvidenceItem, Phase, QuarantineSpec
from aggregator.events import EventKind, Transition
from aggregator.health.model import Snapshot, Status
from aggregator.policy.label_selector import LabelSelector
from aggregator.quarantine.decide.pools import Pool, Pools
from aggregator.quarantine.state.fleet import FleetState
from aggregator.quarantine.state.stage_times import MAX_CAUSES, OTHER
from aggregator.runtime.histogram import REQUEST, Histogram
from aggregator.web.gateway_metrics import GatewayScrape, gateway_families
from aggregator.web.probes import registry_of
from aggregator.web.stats_interface import ApiStats
from aggregator.web.zero_first import SCRAPES
from tests.support.node_states import summary_in
from tests.support.present import present
from tests.web.support import (
    NIGHT,
    Hands,
    Served,
    big_fleet,
    component,
    incident_of,
    quarantine_of,
    record_common_cause,
    serving,
    small_fleet,
)

DOCS = Path(__file__).parents[2] / "docs" / "reference" / "metrics.md"


#: The kinds of objects in requests to the API server.
KINDS = (
    "configmaps",
    "customresourcedefinitions",
    "discovery",
    "events",
    "leases",
    "nodes",
    "nodes/status",
    "pods",
    "quarantines",
    "secrets",
    "selfsubjectaccessreviews",
)


def item(code: str, rule: str) -> EvidenceItem:
    return EvidenceItem(
        code=code, component="c", boot_id="b", cleared_by="", rule=rule, incident="i"
    )


def route(name: str) -> RouteState:
    return RouteState(name, "slack", "chat", 0, 0, 0, 0, 0, "", Histogram(REQUEST))


async def scrape(served: Served) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """The fourth scrape: new series of open labels begin at 0."""
    for _ in range(SCRAPES):
        await served.text("/metrics")
    text = await served.text("/metrics")
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def labels(**values: str) -> frozenset[tuple[str, str]]:
    return frozenset(values.items())


def test_what_the_cluster_counts_is_what_is_asked_of_it() -> None:
    api: ApiStats = RequestCounters()
    assert api.throttled == 0


async def test_the_numbers_are_the_fleets() -> None:
    hands = Hands()
    fleet = small_fleet(hands)
    again = Blocker("jobs/debug", "placed there after the drain", hands.wall - 86400)
    drained = summary_in(fleet, "node-7")
    quarantine_of(drained, hands.wall, phase=Phase.DRAINED, pods=0, blockers=(again,))
    sick = summary_in(fleet, "node-2")
    incident_of(sick, hands.now, action="observe", kind="node", code="drift:nvme", cleared_by=None)
    async with serving(fleet, hands.clocks()) as served:
        served.ingest.refused["wrong_node"] = 2
        served.ingest.messages["delta"] = 40
        served.ingest.acks = 39
        served.api.answers["POST", "pods/eviction", 429] = 5
        served.api.answers["GET", "nodes", 503] = 2
        served.api.answers["GET", "nodes", 0] = 1
        served.api.throttled = 3
        served.feed.record_event(Transition(NIGHT, EventKind.MOVED, "node-2", "evicted"))
        served.fleet.stop = "the network is being worked on"
        record_common_cause(served.fleet, hands.now)
        await served.text("/nodes/none", 404)
        found = await scrape(served)
    assert found["sickbay_nodes", labels(state="quarantined")] == 2
    assert found["sickbay_nodes", labels(state="ok")] == 2
    assert found["sickbay_incidents", labels(kind="gpu", action="drain")] == 2
    assert found["sickbay_drifted_nodes", labels(group="nvme")] == 1
    assert found["sickbay_drifted_nodes", labels(group="kernel")] == 0
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
    assert found["sickbay_drain_pods_remaining", labels()] == 4
    assert found["sickbay_quarantines_blocked", labels()] == 1
    oldest = "sickbay_quarantines_oldest_timestamp_seconds"
    assert found[oldest, labels(what="blocked")] == hands.wall - 120
    assert found[oldest, labels(what="created")] < hands.wall - 120
    assert found["sickbay_ingest_streams_refused_total", labels(reason="wrong_node")] == 2
    assert found["sickbay_ingest_messages_total", labels(kind="delta")] == 40
    assert found["sickbay_ingest_acks_total", labels()] == 39
    eviction = labels(method="POST", kind="pods/eviction", code="429")
    assert found["sickbay_api_requests_total", eviction] == 5
    assert found["sickbay_api_throttles_total", labels()] == 3
    assert found["sickbay_transitions_total", labels(kind="work.moved")] == 1
    assert found["sickbay_alerts_waiting", labels(route="0")] == 3
    assert found["sickbay_build_info", labels(version="0.1.0")] == 1
    missing = labels(route="/nodes/{name}", code="404")
    assert found["sickbay_web_requests_total", missing] == 1


async def test_a_series_begins_at_0_so_that_the_first_cause_of_the_day_is_an_increase() -> None:
    hands = Hands()
    fleet = small_fleet(hands)
    cause = 'sickbay_quarantine_causes_total{code="xid:79",rule="gpu-gone"}'
    async with serving(fleet, hands.clocks()) as served:
        text = await served.text("/metrics")
        assert 'sickbay_repair_attempts_total{outcome="Failed",repair="reboot"} 0.0' in text
        assert 'sickbay_tests_total{outcome="Failed",reason="idle"} 0.0' in text
        assert 'sickbay_ingest_streams_refused_total{reason="expired"} 0.0' in text
        assert 'sickbay_holds{limit="limits.common_cause_nodes"} 0.0' in text
        assert 'sickbay_holds{limit="repair.' not in text
        fleet.stages.note_causes(
            QuarantineSpec(Action.DRAIN, "gpu", "x", evidence=(item("xid:79", "gpu-gone"),))
        )
        for _ in range(SCRAPES):
            assert f"{cause} 0.0" in await served.text("/metrics")
        assert f"{cause} 1.0" in await served.text("/metrics")


async def test_10_000_nodes_make_at_most_2_000_series_and_no_label_has_a_nodes_name() -> None:
    """With more values of each label than a large site has."""
    hands = Hands()
    fleet = big_fleet(hands, count=10_000)
    for number in range(500):
        spec = QuarantineSpec(
            Action.DRAIN, "gpu", "x", evidence=(item(f"own:{number}", f"rule-{number % 80}"),)
        )
        fleet.stages.note_causes(spec)
    overview = AlertOverview(tuple(route(f"route-{number}") for number in range(10)))
    async with serving(fleet, hands.clocks(), alerts=overview) as served:
        for kind in (*KINDS, "pods/eviction"):
            for method in ("GET", "POST", "PATCH", "PUT"):
                served.api.note_duration(method, kind, 0.02)
                for code in (0, 200, 409, 500):
                    served.api.answers[method, kind, code] = 1
        for number in range(300):
            await served.text(f"/nodes/guess-{number}", 404)
            await served.text(f"/guess-{number}", 404)
        found = await scrape(served)
    assert {name for own in found for name, _ in own[1]}.isdisjoint({"node", "pod", "uuid"})
    assert 0 < len(found) <= 2_000
    causes = [own for name, own in found if name == "sickbay_quarantine_causes_total"]
    assert labels(rule=OTHER, code=OTHER) in causes
    assert len(causes) == MAX_CAUSES + 1


async def test_gpus_are_counted_by_state_and_by_their_nodes_quarantine() -> None:
    hands = Hands()
    fleet = small_fleet(hands)
    for node, failed in (("node-1", 0), ("node-2", 1)):
        health = present(summary_in(fleet, node).agent.health)
        gpus = [f"GPU-{number}" for number in range(8)]
        health.snapshot(
            Snapshot(
                tuple(
                    component(
                        hands.now,
                        "gpu-inventory",
                        name,
                        Status.FAILED if number < failed else Status.OK,
                        "",
                    )
                    for number, name in enumerate(gpus)
                ),
                (),
            )
        )
    async with serving(fleet, hands.clocks()) as served:
        found = await scrape(served)
    assert found["sickbay_gpus", labels(state="ok", quarantined="false")] == 8
    assert found["sickbay_gpus", labels(state="ok", quarantined="true")] == 7
    assert found["sickbay_gpus", labels(state="failed", quarantined="true")] == 1


async def test_a_histogram_has_its_buckets_its_sum_and_its_count() -> None:
    hands = Hands()
    fleet = small_fleet(hands)
    fleet.stages.note_drained(100.0, 107.0)
    fleet.stages.note_drained(100.0, 160.0)
    async with serving(fleet, hands.clocks()) as served:
        await served.text("/")
        found = await scrape(served)
    name = "sickbay_taint_to_drained_seconds"
    assert found[f"{name}_bucket", labels(le="5.0")] == 0
    assert found[f"{name}_bucket", labels(le="15.0")] == 1
    assert found[f"{name}_bucket", labels(le="+Inf")] == found[f"{name}_count", labels()] == 2
    assert found[f"{name}_sum", labels()] == 67
    assert found["sickbay_web_request_duration_seconds_count", labels(route="/")] == 1


async def test_openmetrics_is_spoken_when_asked_for() -> None:
    async with serving(FleetState(), Hands().clocks()) as served:
        text = await served.text("/metrics", Accept="application/openmetrics-text; version=1.0.0")
        assert text.endswith("# EOF\n")


@pytest.fixture
async def metric_names() -> set[str]:
    """The names of all metrics, as a scrape of the controller and one of a gateway write them."""
    hands = Hands()
    fleet = small_fleet(hands)
    fleet.pools = Pools((Pool("canary", LabelSelector({"pool": "canary"})),), Action.OBSERVE)
    async with serving(fleet, hands.clocks()) as served:
        text = await served.text("/metrics")
    gateway = GatewayScrape(
        version="",
        ready=True,
        relayed=True,
        dropped=0,
        agents=0,
        certificates={},
        connections=0,
        connections_ended={},
    )
    text += generate_latest(registry_of(lambda: gateway_families(gateway))).decode()
    names = re.findall(r"^# TYPE (\S+) ", text, re.MULTILINE)
    return {name for name in names if name.startswith("sickbay_")}


async def test_each_metric_is_documented_and_nothing_else_is(metric_names: set[str]) -> None:
    documented = set(re.findall(r"^\| `(sickbay_\w+)", DOCS.read_text(), re.MULTILINE))
    assert metric_names == documented
