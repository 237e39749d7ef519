"""/metrics: built at the moment of the request, in a registry of its own.

Cardinality is bounded: no label has a node's name. docs/metrics.md describes each metric.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from prometheus_client.metrics_core import Metric

from aggregator.alerts.overview import RouteState
from aggregator.cluster.port import Action, Phase
from aggregator.documentation import NODE_HOLDS
from aggregator.events import EventKind
from aggregator.ingest.close_reason import CloseReason
from aggregator.ingest.identity import Refusal
from aggregator.ingest.stats import IngestStats
from aggregator.policy import drift
from aggregator.quarantine.decide.common_cause import SCOPES
from aggregator.quarantine.state.fleet import QuarantineSummary
from aggregator.quarantine.state.stage_times import StageTimes
from aggregator.runtime.histogram import Histogram
from aggregator.web import models
from aggregator.web.event_broker import EventBroker
from aggregator.web.fleet_view import FleetViewFindings
from aggregator.web.job_metrics import job_metrics
from aggregator.web.metric_families import counter, gauge, histogram, single_counter, single_gauge
from aggregator.web.pool_metrics import pool_metrics
from aggregator.web.repair_metrics import repair_metrics
from aggregator.web.stage_metrics import gpu_metrics, stage_metrics
from aggregator.web.stats_interface import ApiStats, HistoryStats, Stats
from aggregator.web.zero_first import ZeroFirst

_KINDS = ("gpu", "disk", "network", "node")

#: Counters whose labels have values that are not known before they occur.
_OPEN_LABELS = frozenset({"sickbay_quarantine_causes", "sickbay_api_requests"})

CONNECTED = "Agents that are connected to this replica."
IS_CONTROLLER = "1 where this replica is the controller."


@dataclass(frozen=True, slots=True)
class ScrapeContent:
    """The content of one scrape of the controller."""

    found: FleetViewFindings
    feed: EventBroker
    requests: Counter[tuple[str, int]]
    durations: Mapping[str, Histogram]
    stages: StageTimes
    stats: Stats
    connections: int
    connections_ended: Mapping[str, int]
    version: str
    ready: bool
    zero_first: ZeroFirst


def families(scrape: ScrapeContent) -> Iterator[Metric]:
    """The metrics of this scrape without the process's. A part that is not in use has none."""
    begin = scrape.zero_first.begin
    for family in _families(scrape):
        yield begin(family) if family.name in _OPEN_LABELS else family


def _families(scrape: ScrapeContent) -> Iterator[Metric]:
    yield from _fleet(scrape.found)
    yield from _work(scrape.found)
    yield from gpu_metrics(scrape.found.gpus)
    yield from stage_metrics(scrape.stages)
    yield from repair_metrics(scrape.stages, scrape.found.quarantines, scrape.found.new_nodes)
    yield from _replica(scrape)
    yield from _own(scrape)
    if scrape.stats.ingest is not None:
        yield from _ingest(scrape.stats.ingest)
    if scrape.stats.api is not None:
        yield from _api(scrape.stats.api)
    if scrape.stats.outbox is not None:
        yield gauge(
            "sickbay_alerts_waiting",
            "Alerts that wait to be sent, by route. Replicas that share the outbox each "
            "have the same number.",
            ["route"],
            dict(scrape.stats.outbox().items()),
        )
        out = not scrape.stats.alert_trouble()
        yield from _routes(scrape.stats.alerts().routes)
        yield single_gauge(
            "sickbay_alerts_up",
            "1 while alerts get out: 0 since the last attempt at a webhook failed, or while "
            "they can't be stored.",
            out,
        )
    if scrape.stats.jobs is not None:
        yield from job_metrics(scrape.stats.jobs)
    if scrape.stats.history is not None:
        yield from _history(scrape.stats.history)


def _fleet(found: FleetViewFindings) -> Iterator[Metric]:
    yield gauge(
        "sickbay_nodes",
        "Nodes by state: ok, unknown, silent, warning, held, quarantined.",
        ["state"],
        {state.value: found.counts[state] for state in QuarantineSummary},
    )
    yield single_gauge(
        "sickbay_agents_attached", "Agents with a stream that is up.", found.attached
    )
    yield single_gauge(
        "sickbay_agents_silent",
        "Agents that have reported since the start and have no stream now.",
        len(found.silent),
    )
    yield single_gauge(
        "sickbay_agents_never_seen",
        "Nodes whose agent has not reported since the start.",
        found.never_seen,
    )
    yield single_gauge(
        "sickbay_nodes_exempt",
        "Nodes that people have exempted: sickbay shows them and takes no action on them.",
        found.exempt,
    )
    yield single_gauge(
        "sickbay_node_conflicts",
        "Nodes that two live agents claim. sickbay takes no new action on them.",
        found.conflicts,
    )
    yield single_gauge(
        "sickbay_stopped", "1 while a person's stop switch is set.", bool(found.stop)
    )
    yield single_gauge(
        "sickbay_view_up",
        "1 while the watches on the cluster are in sync. The aggregator does not act at 0.",
        not found.view_lost,
    )
    doubted = bool(found.clock_doubt)
    yield single_gauge(
        "sickbay_clock_doubted",
        "1 while this replica does not trust its wall clock, and irreversible actions wait.",
        doubted,
    )
    yield single_gauge(
        "sickbay_record_entries",
        "Nodes in the admission record, which the limits count.",
        found.record_entries,
    )
    yield gauge(
        "sickbay_mode",
        "1 for the mode of the file: observe, cordon or drain. It caps every action on "
        "a node in no pool with another one.",
        ["mode"],
        {action.value: found.mode == action.value for action in Action},
    )
    limits = {
        one.name: (one.used, one.most)
        for one in found.limits
        if one.used is not None and one.most is not None
    }
    yield gauge(
        "sickbay_limit_used_nodes",
        "How much of a limit is used, in nodes.",
        ["limit"],
        {name: used for name, (used, _) in limits.items()},
    )
    yield gauge(
        "sickbay_limit_max_nodes",
        "The maximum of that limit, in nodes.",
        ["limit"],
        {name: most for name, (_, most) in limits.items()},
    )
    yield from pool_metrics(found.pools)
    yield single_gauge(
        "sickbay_cooling_down",
        "1 while sickbay admits no node, after the rate or a common cause has tripped.",
        bool(found.cooling),
    )
    explained = {
        scope: [one.nodes for one in found.causes if one.scope == scope]
        for scope in (*SCOPES, "network")
    }
    yield gauge(
        "sickbay_common_causes",
        "Common causes that are open, by scope: check, target, place, version, agents, "
        "network (causes that triangulation blames).",
        ["scope"],
        {scope: len(nodes) for scope, nodes in explained.items()},
    )
    yield gauge(
        "sickbay_common_cause_nodes",
        "Nodes that they explain.",
        ["scope"],
        {scope: sum(nodes) for scope, nodes in explained.items()},
    )


def _work(found: FleetViewFindings) -> Iterator[Metric]:
    counted = Counter((one.kind, one.action) for one in found.incidents)
    yield gauge(
        "sickbay_incidents",
        "Open incidents by kind (gpu, disk, network, node) and by the action that they require.",
        ["kind", "action"],
        {
            (kind, action.value): counted[kind, action.value]
            for kind, action in product(_KINDS, Action)
        },
    )
    differ = {
        (piece.code.removeprefix(f"{drift.CHECK}:"), one.node)
        for one in found.incidents
        for piece in one.evidence
        if piece.code.startswith(f"{drift.CHECK}:")
    }
    nodes_by_group = Counter(group for group, _ in differ)
    yield gauge(
        "sickbay_drifted_nodes",
        "Nodes with an open incident of the check drift, by group of the fact that differs "
        "(kernel, gpu, nic, nvme, sysctl).",
        ["group"],
        {group: nodes_by_group[group] for group in drift.GROUPS},
    )
    phases = Counter(one.phase for one in found.quarantines)
    yield gauge(
        "sickbay_quarantines",
        "Quarantines by phase.",
        ["phase"],
        {phase.value: phases[phase.value] for phase in Phase},
    )
    unmarked = sum(1 for one in found.quarantines if one.unmarked)
    text = (
        "Quarantines whose node lacks some of sickbay's marks: people or a tool removed "
        "or changed them, or its Node was created again and is not marked yet."
    )
    yield single_gauge("sickbay_quarantines_unmarked", text, unmarked)
    held = Counter(one.limit for one in found.holds)
    yield gauge(
        "sickbay_holds",
        "Nodes that policy wants in quarantine and that a limit, the stop switch or the "
        "mode holds back.",
        ["limit"],
        {limit: held[limit] for limit in sorted(NODE_HOLDS | held.keys())},
    )
    yield from _quarantines(found.quarantines)


def _quarantines(quarantines: Sequence[models.Quarantine]) -> Iterator[Metric]:
    """Sums over the nodes in quarantine; `sickbay quarantines` and the API name the nodes."""
    absent = sum(one.node_absent_since is not None for one in quarantines)
    yield single_gauge(
        "sickbay_quarantines_node_absent",
        "Quarantines whose Node is gone: they count for no limit.",
        absent,
    )
    held = sum(bool(one.release_held) for one in quarantines)
    yield single_gauge(
        "sickbay_quarantines_release_held",
        "Quarantines whose cause has ended, while a check holds the release.",
        held,
    )
    failing = sum(bool(one.last_error) for one in quarantines)
    yield single_gauge(
        "sickbay_quarantines_failing",
        "Quarantines whose last step has failed and is tried again.",
        failing,
    )
    # After a drain blockers are pods that came back or were stuck: no one waits for them.
    drains = [one for one in quarantines if one.phase == Phase.DRAINING]
    blocked = sum(bool(one.blockers) for one in drains)
    yield single_gauge(
        "sickbay_quarantines_blocked",
        "Quarantines in phase Draining with work that does not leave now, because of a "
        "disruption budget for example.",
        blocked,
    )
    pods = sum(one.pods_remaining or 0 for one in quarantines)
    yield single_gauge(
        "sickbay_drain_pods_remaining", "Work (pods, jobs) that drains still have to move.", pods
    )
    oldest = {
        "created": [one.created_at for one in quarantines if one.created_at is not None],
        "blocked": [each.since for one in drains for each in one.blockers if each.since],
    }
    yield gauge(
        "sickbay_quarantines_oldest_timestamp_seconds",
        "Since when the oldest Quarantine exists (created), and the work that has "
        "blocked a drain for longest (blocked), in Unix time. A series is absent while "
        "there is none.",
        ["what"],
        {what: min(times).timestamp() for what, times in oldest.items() if times},
    )


def _replica(scrape: ScrapeContent) -> Iterator[Metric]:
    may_act = not scrape.found.lease_lost
    yield single_gauge("sickbay_controller", IS_CONTROLLER, may_act)
    yield single_gauge("sickbay_replica_agents", CONNECTED, scrape.stats.connected())
    yield single_gauge(
        "sickbay_relays", "Gateways that forward agents' messages.", scrape.stats.relays()
    )


def _own(scrape: ScrapeContent) -> Iterator[Metric]:
    yield build_metric(scrape.version)
    yield ready_metric(ready=scrape.ready)
    yield certificate_metric(scrape.stats.certificates())
    yield single_gauge(
        "sickbay_web_streams",
        "Event streams that are open: pages in view, and sickbay watch.",
        scrape.feed.streams,
    )
    yield from connection_metrics(scrape.connections, scrape.connections_ended)
    yield counter(
        "sickbay_transitions",
        "Events since the start, by kind (incident.opened, quarantine.admitted, ...). "
        "Work that has left a node has work.moved; work that stays has work.blocked, once "
        "for each time that it becomes so.",
        ["kind"],
        {kind.value: scrape.feed.counts[kind] for kind in EventKind},
    )
    yield counter(
        "sickbay_web_requests",
        "Requests to the web listener. Requests without a route count as (none).",
        ["route", "code"],
        {(route, str(code)): count for (route, code), count in sorted(scrape.requests.items())},
    )
    yield histogram(
        "sickbay_web_request_duration_seconds",
        "Answers of the web listener; event streams do not count.",
        ["route"],
        {(route,): found for route, found in scrape.durations.items()},
    )


def build_metric(version: str) -> Metric:
    return gauge("sickbay_build_info", "1 for the version that runs.", ["version"], {version: 1})


def ready_metric(*, ready: bool) -> Metric:
    return single_gauge("sickbay_ready", "1 while /readyz reports no problem.", ready)


def certificate_metric(ends: Mapping[str, float]) -> Metric:
    """``ends``: when each certificate ends, wall clock seconds, by its purpose."""
    return gauge(
        "sickbay_certificate_expires_timestamp_seconds",
        "When a certificate of the listeners ends, in Unix time. serving: the one that "
        "is served. authority: the CA that signed it, where replicas.ca_file names it or "
        "the aggregator made it. client_authority: the last of "
        "listen.tls.client_ca_file.",
        ["certificate"],
        dict(sorted(ends.items())),
    )


def connection_metrics(count: int, ended: Mapping[str, int]) -> Iterator[Metric]:
    yield single_gauge(
        "sickbay_web_connections",
        "Connections to the web listener that are open, at most 1,024.",
        count,
    )
    yield counter(
        "sickbay_web_connections_ended",
        "Connections that a limit ended: evicted (the limit was reached, and the "
        "connection had been idle for longest), overdue (no request within 10 s, no end "
        "of an answer within 60 s), refused (the limit was reached, and every "
        "connection was busy).",
        ["reason"],
        {reason: ended.get(reason, 0) for reason in ("evicted", "overdue", "refused")},
    )


def _routes(routes: Sequence[RouteState]) -> Iterator[Metric]:
    yield gauge(
        "sickbay_alerts_dead_letters",
        "Deliveries that were given up and are kept.",
        ["route"],
        {route.name: route.dead for route in routes},
    )
    yield counter(
        "sickbay_alerts_delivered",
        "Alerts that receivers took.",
        ["route"],
        {route.name: route.delivered for route in routes},
    )
    yield counter(
        "sickbay_alerts_attempts_failed",
        "Attempts that failed.",
        ["route"],
        {route.name: route.failed_attempts for route in routes},
    )
    yield counter(
        "sickbay_alerts_given_up",
        "Alerts that were given up.",
        ["route"],
        {route.name: route.given_up for route in routes},
    )
    yield histogram(
        "sickbay_alerts_delivery_duration_seconds",
        "Attempts to deliver alerts to a route, failed ones included.",
        ["route"],
        {(route.name,): route.durations for route in routes if route.durations is not None},
    )


def _history(stats: HistoryStats) -> Iterator[Metric]:
    yield single_gauge(
        "sickbay_history_up", "1 while the history records events.", not stats.problem
    )
    yield single_gauge(
        "sickbay_history_queued_rows", "Transitions that wait to be recorded.", stats.depth
    )
    yield counter(
        "sickbay_history_rows_written", "Transitions that were recorded.", [], {(): stats.written}
    )
    yield counter(
        "sickbay_history_rows_lost",
        "Rows that were lost: transition, or evidence (agents' reports).",
        ["what"],
        {"transition": stats.lost, "evidence": stats.untold},
    )


def _ingest(stats: IngestStats) -> Iterator[Metric]:
    yield single_gauge("sickbay_ingest_streams", "Streams that are up.", stats.attached)
    yield single_gauge(
        "sickbay_ingest_streams_overdue",
        "Those of them whose credentials have expired while the cluster could not renew them.",
        stats.overdue,
    )
    yield single_counter("sickbay_ingest_streams_opened", "Streams that were opened.", stats.opened)
    for name, text, label, counts in (
        (
            "refused",
            "Streams that were refused: a wrong token, another node's name, a malformed message.",
            "reason",
            stats.refused,
        ),
        ("ended", "Attached streams that ended.", "reason", stats.ended),
    ):
        yield counter(
            f"sickbay_ingest_streams_{name}",
            text,
            [label],
            {value: counts[value] for value in sorted({*Refusal, *CloseReason} | counts.keys())},
        )
    yield counter(
        "sickbay_ingest_messages",
        "Messages that were received.",
        ["kind"],
        dict(sorted(stats.messages.items())),
    )
    yield single_counter(
        "sickbay_ingest_acks", "Acknowledgements: evidence that is safe.", stats.acks
    )
    yield single_counter(
        "sickbay_ingest_resyncs",
        "Snapshots that the aggregator requested because the two sides differed.",
        stats.resyncs,
    )
    yield single_counter(
        "sickbay_ingest_entries_dropped",
        "Entries (components, faults, signs) that were dropped because they are outside "
        "the bounds of the contract; all others of their message count. The log names "
        "the node and the first entry.",
        stats.dropped,
    )
    yield single_counter(
        "sickbay_ingest_throttles",
        "Times that a stream had to wait because it sent too much. The log names the "
        "agent: an agent sends more than it may.",
        stats.throttled,
    )
    yield single_counter(
        "sickbay_ingest_streams_superseded",
        "Streams that a newer one of the same node closed.",
        stats.superseded,
    )
    yield single_counter(
        "sickbay_ingest_conflicts", "Times that two live agents claimed one node.", stats.conflicts
    )
    yield single_counter(
        "sickbay_ingest_certificate_errors",
        "Rotated TLS certificates that could not be used; the old one stays in use.",
        stats.certificate_troubles,
    )


def _api(stats: ApiStats) -> Iterator[Metric]:
    yield counter(
        "sickbay_api_requests",
        "Requests by method (WATCH for a watch), kind of object and HTTP status; code 0 "
        "is no answer. Errors have code=~'0|5..'.",
        ["method", "kind", "code"],
        {
            (method, kind, str(code)): count
            for (method, kind, code), count in sorted(stats.answers.items())
        },
    )
    yield histogram(
        "sickbay_api_request_duration_seconds",
        "Requests to the API server, from the sending to the whole answer; those "
        "without an answer have the time that was waited. The wait for the own rate "
        "limit and watches do not count. The local cluster has none.",
        ["method", "kind"],
        stats.durations,
    )
    yield single_counter(
        "sickbay_api_throttles",
        "Answers 429 because the server is busy. Refusals by a disruption budget are "
        "not counted here.",
        stats.throttled,
    )
    yield single_counter(
        "sickbay_api_evictions_blocked",
        "Evictions that a disruption budget refused (a 429 that is no sign of load).",
        stats.blocked,
    )
