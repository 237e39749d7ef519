"""/metrics: built at the moment of the request, in a registry of its own.

Cardinality is bounded: a node's name stands only on metrics of nodes in quarantine, and those are
bounded by admission. docs/metrics.md describes each.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, GCCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from aggregator.cluster.port import Action, Phase
from aggregator.events import EventKind
from aggregator.quarantine.decide.cause_search import SCOPES
from aggregator.quarantine.state.fleet import QuarantineSummary
from aggregator.web.event_broker import EventBroker
from aggregator.web.fleet_view import FleetViewFindings
from aggregator.web.stats_interface import ApiStats, HistoryStats, IngestStatsReader, Stats

_KINDS = ("gpu", "disk", "network", "node")


@dataclass(frozen=True, slots=True)
class ShardScene:
    """The other replicas as seen by this one: their names, and whether each answers."""

    nodes: int
    members: int
    leads: bool
    frozen: bool
    settled: bool
    peers: Mapping[str, bool]


@dataclass(frozen=True, slots=True)
class Scene:
    """The content of one scrape: this replica's own nodes, so that sums over replicas are right.

    Fleet-wide values (mode, stop, limits, causes) are reported by each.
    """

    found: FleetViewFindings
    shards: ShardScene
    feed: EventBroker
    requests: Counter[tuple[str, int]]
    stats: Stats
    connections: int
    connections_ended: Mapping[str, int]
    version: str
    ready: bool


def registry_of(scene: Scene) -> CollectorRegistry:
    """A registry with the metrics of this scene, and of the process."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_SceneCollector(scene))
    ProcessCollector(registry=registry)
    GCCollector(registry=registry)
    return registry


class _SceneCollector(Collector):
    def __init__(self, scene: Scene) -> None:
        self._scene = scene

    def collect(self) -> Iterable[Metric]:
        scene = self._scene
        yield from _fleet(scene.found)
        yield from _work(scene.found)
        yield from _shards(scene.shards)
        yield from _own(scene)
        if scene.stats.ingest is not None:
            yield from _ingest(scene.stats.ingest)
        if scene.stats.api is not None:
            yield from _api(scene.stats.api)
        if scene.stats.outbox is not None:
            outbox = _gauge("sickbay_alerts_waiting", "Alerts that wait to be sent.", ["webhook"])
            for webhook, depth in scene.stats.outbox().items():
                outbox.add_metric([webhook], depth)
            yield outbox
            out = not scene.stats.alert_trouble()
            yield _one("sickbay_alerts_up", "1 while the last alert tried was taken.", out)
        if scene.stats.history is not None:
            yield from _history(scene.stats.history)


def _fleet(found: FleetViewFindings) -> Iterator[Metric]:
    nodes = _gauge("sickbay_nodes", "Nodes by how they stand.", ["standing"])
    for standing in QuarantineSummary:
        nodes.add_metric([standing.value], found.counts[standing])
    yield nodes
    yield _one("sickbay_agents_attached", "Agents that are attached now.", found.attached)
    yield _one("sickbay_agents_silent", "Agents that were heard and are not.", len(found.silent))
    yield _one("sickbay_agents_never_heard", "Nodes of no known agent.", found.never_heard)
    yield _one("sickbay_nodes_exempt", "Nodes that people want left alone.", found.exempt)
    yield _one("sickbay_node_conflicts", "Nodes that two agents claim.", found.conflicts)
    yield _one("sickbay_stopped", "1 while the stop switch is set.", bool(found.stop))
    yield _one("sickbay_view_up", "1 while the cluster's news is known.", not found.view_lost)
    doubted = bool(found.clock_doubt)
    yield _one("sickbay_clock_doubted", "1 while its wall clock is not believed.", doubted)
    yield _one("sickbay_record_entries", "Nodes in the admission record.", found.record_entries)
    mode = _gauge("sickbay_mode", "1 for the mode that caps every action.", ["mode"])
    for action in Action:
        mode.add_metric([action.value], found.mode == action.value)
    yield mode
    used = _gauge("sickbay_limit_used_nodes", "How much of a limit is used, in nodes.", ["limit"])
    most = _gauge("sickbay_limit_max_nodes", "The most that a limit allows, in nodes.", ["limit"])
    for limit in found.limits:
        if limit.used is not None and limit.most is not None:
            used.add_metric([limit.name], limit.used)
            most.add_metric([limit.name], limit.most)
    yield used
    yield most
    yield _one(
        "sickbay_cooling_down", "1 while no new quarantine is admitted.", bool(found.cooling)
    )
    yield _one(
        "sickbay_replicas_incomplete",
        "1 while the leading replica has not been told of all nodes.",
        bool(found.incomplete),
    )
    causes = _gauge("sickbay_common_causes", "Common causes that are open.", ["scope"])
    shared = _gauge("sickbay_common_cause_nodes", "Nodes that they explain.", ["scope"])
    for scope in (*SCOPES, "network"):
        mine = [one.nodes for one in found.causes if one.scope == scope]
        causes.add_metric([scope], len(mine))
        shared.add_metric([scope], sum(mine))
    yield causes
    yield shared


def _work(found: FleetViewFindings) -> Iterator[Metric]:
    incidents = _gauge("sickbay_incidents", "Open incidents.", ["kind", "action"])
    counted = Counter((one.kind, one.action) for one in found.incidents)
    for kind in _KINDS:
        for action in Action:
            incidents.add_metric([kind, action.value], counted[kind, action.value])
    yield incidents
    quarantines = _gauge("sickbay_quarantines", "Quarantines by phase.", ["phase"])
    phases = Counter(one.phase for one in found.quarantines)
    for phase in Phase:
        quarantines.add_metric([phase.value], phases[phase.value])
    yield quarantines
    unmarked = sum(1 for one in found.quarantines if one.unmarked)
    text = "Quarantines whose node lacks some of our marks."
    yield _one("sickbay_quarantines_unmarked", text, unmarked)
    holds = _gauge("sickbay_holds", "Nodes that a limit or the mode holds back.", ["limit"])
    for limit, count in sorted(Counter(one.limit for one in found.holds).items()):
        holds.add_metric([limit], count)
    yield holds
    node = ["node"]
    info = _gauge(
        "sickbay_quarantine_status",
        "1 for each node in quarantine.",
        ["node", "phase", "action", "kind"],
    )
    absent = _gauge("sickbay_quarantine_node_absent", "1 while its Node is gone.", node)
    pods = _gauge("sickbay_quarantine_pods_remaining", "Pods still to leave the node.", node)
    blocked = _gauge("sickbay_quarantine_pods_blocked", "Pods that may not be evicted now.", node)
    since = _gauge("sickbay_quarantine_created_timestamp_seconds", "When it was made.", node)
    failing = _gauge("sickbay_quarantine_failing", "1 while its last step has failed.", node)
    waits = _gauge("sickbay_quarantine_release_held", "1 while its release waits.", node)
    for one in found.quarantines:
        waits.add_metric([one.node], bool(one.release_held))
        absent.add_metric([one.node], one.node_absent_since is not None)
        info.add_metric([one.node, one.phase, one.action, one.kind], 1)
        blocked.add_metric([one.node], len(one.blockers))
        failing.add_metric([one.node], bool(one.last_error))
        if one.pods_remaining is not None:
            pods.add_metric([one.node], one.pods_remaining)
        if one.created_at is not None:
            since.add_metric([one.node], one.created_at.timestamp())
    yield from (info, pods, blocked, since, failing, waits, absent)


def _shards(shards: ShardScene) -> Iterator[Metric]:
    yield _one("sickbay_replica_nodes", "Nodes that this replica owns.", shards.nodes)
    yield _one("sickbay_replica_members", "Replicas that are alive.", shards.members)
    yield _one("sickbay_replica_leader", "1 where this one leads.", shards.leads)
    yield _one(
        "sickbay_replica_frozen", "1 while it does not know the other replicas.", shards.frozen
    )
    yield _one("sickbay_replica_settled", "1 once the newcomer's wait is over.", shards.settled)
    up = _gauge("sickbay_replica_peer_up", "1 while that replica's page answers.", ["replica"])
    for name, answers in sorted(shards.peers.items()):
        up.add_metric([name], answers)
    yield up


def _own(scene: Scene) -> Iterator[Metric]:
    build = _gauge("sickbay_build_info", "1 for the version that runs.", ["version"])
    build.add_metric([scene.version], 1)
    yield build
    yield _one("sickbay_ready", "1 while /readyz reports no trouble.", scene.ready)
    yield _one("sickbay_web_streams", "Event streams that are open.", scene.feed.streams)
    yield _one("sickbay_web_connections", "Connections that are open.", scene.connections)
    ended = _counter(
        "sickbay_web_connections_ended",
        "Connections that a limit ended or refused, by limit.",
        ["reason"],
    )
    for reason in ("evicted", "overdue", "refused"):
        ended.add_metric([reason], scene.connections_ended.get(reason, 0))
    yield ended
    transitions = _counter("sickbay_transitions", "Transitions, by kind.", ["kind"])
    for kind in EventKind:
        transitions.add_metric([kind.value], scene.feed.counts[kind])
    yield transitions
    requests = _counter("sickbay_web_requests", "Requests to this listener.", ["route", "code"])
    for (route, code), count in sorted(scene.requests.items()):
        requests.add_metric([route, str(code)], count)
    yield requests


def _history(stats: HistoryStats) -> Iterator[Metric]:
    yield _one("sickbay_history_up", "1 while history is kept.", not stats.problem)
    yield _one("sickbay_history_queued_rows", "Transitions that wait to be kept.", stats.depth)
    written = _counter("sickbay_history_rows_written", "Transitions that were kept.", [])
    written.add_metric([], stats.written)
    yield written
    lost = _counter(
        "sickbay_history_rows_lost", "Rows that history never kept, by their kind.", ["what"]
    )
    lost.add_metric(["transition"], stats.lost)
    lost.add_metric(["evidence"], stats.untold)
    yield lost


def _ingest(stats: IngestStatsReader) -> Iterator[Metric]:
    yield _one("sickbay_ingest_streams", "Streams of agents that are up.", stats.attached)
    yield _one(
        "sickbay_ingest_streams_overdue",
        "Streams on expired credentials that the cluster can't renew now.",
        stats.overdue,
    )
    yield _count("sickbay_ingest_streams_opened", "Streams that were opened.", stats.opened)
    for name, text, label, counts in (
        ("refused", "Streams that were refused, by why.", "reason", stats.refused),
        ("ended", "Attached streams that ended, by why.", "reason", stats.ended),
    ):
        family = _counter(f"sickbay_ingest_streams_{name}", text, [label])
        for value, count in sorted(counts.items()):
            family.add_metric([value], count)
        yield family
    messages = _counter("sickbay_ingest_messages", "Messages of agents.", ["kind"])
    for kind, count in sorted(stats.messages.items()):
        messages.add_metric([kind], count)
    yield messages
    yield _count("sickbay_ingest_acks", "Acknowledgements to agents.", stats.acks)
    yield _count("sickbay_ingest_resyncs", "Snapshots that were asked for.", stats.resyncs)
    yield _count(
        "sickbay_ingest_entries_dropped",
        "Entries of messages that were outside the contract's bounds.",
        stats.dropped,
    )
    yield _count("sickbay_ingest_throttles", "Times a stream had to wait.", stats.throttled)
    yield _count(
        "sickbay_ingest_streams_superseded", "Streams that a newer one closed.", stats.superseded
    )
    yield _count("sickbay_ingest_conflicts", "Times two agents claimed a node.", stats.conflicts)
    yield _count(
        "sickbay_ingest_certificate_errors",
        "Rotated TLS certificates that could not be used.",
        stats.certificate_troubles,
    )


def _api(stats: ApiStats) -> Iterator[Metric]:
    requests = _counter(
        "sickbay_api_requests",
        "Requests to the API server; code 0 is no answer.",
        ["method", "kind", "code"],
    )
    for (method, kind, code), count in sorted(stats.answers.items()):
        requests.add_metric([method, kind, str(code)], count)
    yield requests
    yield _count(
        "sickbay_api_throttles", "Answers 429 because the server is busy.", stats.throttled
    )
    yield _count("sickbay_api_evictions_blocked", "Evictions that a budget refused.", stats.blocked)


def _gauge(name: str, text: str, labels: list[str]) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, labels=labels)


def _counter(name: str, text: str, labels: list[str]) -> CounterMetricFamily:
    return CounterMetricFamily(name, text, labels=labels)


def _one(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, value=float(value))


def _count(name: str, text: str, value: float) -> CounterMetricFamily:
    return CounterMetricFamily(name, text, value=float(value))
