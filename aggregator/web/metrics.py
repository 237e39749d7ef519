"""/metrics: built at the moment of the request, in a registry of its own.

Cardinality is bounded: no label has a node's name. metrics.yaml describes each metric.
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
from aggregator.quarantine.state.stage_times import StageTimes
from aggregator.runtime.histogram import Histogram
from aggregator.web import models
from aggregator.web.event_broker import EventBroker
from aggregator.web.fleet_view import FleetViewFindings
from aggregator.web.job_metrics import job_values
from aggregator.web.metric_families import Values, families_of
from aggregator.web.pool_metrics import pool_values
from aggregator.web.repair_metrics import repair_values
from aggregator.web.stage_metrics import gpu_values, stage_values
from aggregator.web.stats_interface import ApiStats, HistoryStats, Stats
from aggregator.web.zero_first import ZeroFirst

_KINDS = ("gpu", "disk", "network", "node")
#: Why a limit ends a connection, or refuses it.
_ENDED = ("evicted", "overdue", "refused")

#: Counters whose labels have values that are not known before they occur.
_OPEN_LABELS = frozenset({"sickbay_quarantine_causes", "sickbay_api_requests"})


@dataclass(frozen=True, slots=True)
class ReplicaScrape:
    """The part of a scrape that every replica has."""

    version: str
    ready: bool
    connections: int
    connections_ended: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class ScrapeContent(ReplicaScrape):
    """The content of one scrape of the controller."""

    found: FleetViewFindings
    feed: EventBroker
    requests: Counter[tuple[str, int]]
    durations: Mapping[str, Histogram]
    stages: StageTimes
    stats: Stats
    zero_first: ZeroFirst


def families(scrape: ScrapeContent) -> Iterator[Metric]:
    """The metrics of this scrape without the process's. A part that is not in use has none."""
    for part in _parts(scrape):
        for family in families_of(part):
            open_ended = family.name in _OPEN_LABELS
            yield scrape.zero_first.begin(family) if open_ended else family


def _parts(scrape: ScrapeContent) -> Iterator[Mapping[str, Values]]:
    found, stats = scrape.found, scrape.stats
    yield _fleet(found)
    yield pool_values(found.pools)
    yield _work(found)
    yield _quarantines(found.quarantines)
    yield gpu_values(found.gpus)
    yield stage_values(scrape.stages)
    yield repair_values(scrape.stages, found.quarantines, found.new_nodes)
    yield _replica(scrape)
    if stats.ingest is not None:
        yield _ingest(stats.ingest)
    if stats.api is not None:
        yield _api(stats.api)
    if stats.outbox is not None:
        yield _alerts(stats.alerts().routes)
        yield {
            "sickbay_alerts_waiting": stats.outbox(),
            "sickbay_alerts_up": not stats.alert_trouble(),
        }
    if stats.jobs is not None:
        yield job_values(stats.jobs)
    if stats.history is not None:
        yield _history(stats.history)


def _fleet(found: FleetViewFindings) -> Mapping[str, Values]:
    limits = {
        one.name: (one.used, one.most)
        for one in found.limits
        if one.used is not None and one.most is not None
    }
    explained = {
        scope: [one.nodes for one in found.causes if one.scope == scope]
        for scope in (*SCOPES, "network")
    }
    return {
        "sickbay_nodes": {state.value: count for state, count in found.counts.items()},
        "sickbay_agents_attached": found.attached,
        "sickbay_agents_silent": len(found.silent),
        "sickbay_agents_never_seen": found.never_seen,
        "sickbay_nodes_exempt": found.exempt,
        "sickbay_node_conflicts": found.conflicts,
        "sickbay_stopped": bool(found.stop),
        "sickbay_view_up": not found.view_lost,
        "sickbay_clock_doubted": bool(found.clock_doubt),
        "sickbay_record_entries": found.record_entries,
        "sickbay_mode": {action.value: found.mode == action.value for action in Action},
        "sickbay_limit_used_nodes": {name: used for name, (used, _) in limits.items()},
        "sickbay_limit_max_nodes": {name: most for name, (_, most) in limits.items()},
        "sickbay_cooling_down": bool(found.cooling),
        "sickbay_common_causes": {scope: len(nodes) for scope, nodes in explained.items()},
        "sickbay_common_cause_nodes": {scope: sum(nodes) for scope, nodes in explained.items()},
    }


def _work(found: FleetViewFindings) -> Mapping[str, Values]:
    incidents = Counter((one.kind, one.action) for one in found.incidents)
    differ = {
        (piece.code.removeprefix(f"{drift.CHECK}:"), one.node)
        for one in found.incidents
        for piece in one.evidence
        if piece.code.startswith(f"{drift.CHECK}:")
    }
    drifted = Counter(group for group, _ in differ)
    held = Counter(one.limit for one in found.holds)
    return {
        "sickbay_incidents": {
            (kind, action.value): incidents[kind, action.value]
            for kind, action in product(_KINDS, Action)
        },
        "sickbay_drifted_nodes": {group: drifted[group] for group in drift.GROUPS},
        "sickbay_holds": {limit: held[limit] for limit in sorted(NODE_HOLDS | held.keys())},
    }


def _quarantines(quarantines: Sequence[models.Quarantine]) -> Mapping[str, Values]:
    """Sums over the nodes in quarantine; `sickbay quarantines` and the API name the nodes."""
    phases = Counter(one.phase for one in quarantines)
    # After a drain blockers are pods that came back or were stuck: no one waits for them.
    drains = [one for one in quarantines if one.phase == Phase.DRAINING]
    oldest = {
        "created": [one.created_at for one in quarantines if one.created_at is not None],
        "blocked": [each.since for one in drains for each in one.blockers if each.since],
    }
    absent = sum(one.node_absent_since is not None for one in quarantines)
    return {
        "sickbay_quarantines": {phase.value: phases[phase.value] for phase in Phase},
        "sickbay_quarantines_unmarked": sum(bool(one.unmarked) for one in quarantines),
        "sickbay_quarantines_node_absent": absent,
        "sickbay_quarantines_release_held": sum(bool(one.release_held) for one in quarantines),
        "sickbay_quarantines_failing": sum(bool(one.last_error) for one in quarantines),
        "sickbay_quarantines_blocked": sum(bool(one.blockers) for one in drains),
        "sickbay_drain_pods_remaining": sum(one.pods_remaining or 0 for one in quarantines),
        "sickbay_quarantines_oldest_timestamp_seconds": {
            what: min(times).timestamp() for what, times in oldest.items() if times
        },
    }


def _replica(scrape: ScrapeContent) -> Mapping[str, Values]:
    return {
        "sickbay_controller": not scrape.found.lease_lost,
        "sickbay_replica_agents": scrape.stats.connected(),
        "sickbay_relays": scrape.stats.relays(),
        **replica_values(scrape, scrape.stats.certificates()),
        "sickbay_web_streams": scrape.feed.streams,
        "sickbay_transitions": {kind.value: scrape.feed.counts[kind] for kind in EventKind},
        "sickbay_web_requests": {
            (route, str(code)): count for (route, code), count in sorted(scrape.requests.items())
        },
        "sickbay_web_request_duration_seconds": scrape.durations,
    }


def replica_values(
    scrape: ReplicaScrape, certificates: Mapping[str, float]
) -> Mapping[str, Values]:
    """Of any replica. ``certificates``: when each ends, wall clock seconds, by its purpose."""
    return {
        "sickbay_build_info": {scrape.version: 1},
        "sickbay_ready": scrape.ready,
        "sickbay_certificate_expires_timestamp_seconds": dict(sorted(certificates.items())),
        "sickbay_web_connections": scrape.connections,
        "sickbay_web_connections_ended": {
            reason: scrape.connections_ended.get(reason, 0) for reason in _ENDED
        },
    }


def _alerts(routes: Sequence[RouteState]) -> Mapping[str, Values]:
    return {
        "sickbay_alerts_dead_letters": {route.name: route.dead for route in routes},
        "sickbay_alerts_delivered": {route.name: route.delivered for route in routes},
        "sickbay_alerts_attempts_failed": {route.name: route.failed_attempts for route in routes},
        "sickbay_alerts_given_up": {route.name: route.given_up for route in routes},
        "sickbay_alerts_delivery_duration_seconds": {
            route.name: route.durations for route in routes if route.durations is not None
        },
    }


def _history(stats: HistoryStats) -> Mapping[str, Values]:
    return {
        "sickbay_history_up": not stats.problem,
        "sickbay_history_queued_rows": stats.depth,
        "sickbay_history_rows_written": stats.written,
        "sickbay_history_rows_lost": {"transition": stats.lost, "evidence": stats.evidence_lost},
    }


def _ingest(stats: IngestStats) -> Mapping[str, Values]:
    def by_reason(counts: Mapping[str, int]) -> Mapping[str, int]:
        reasons = sorted({*Refusal, *CloseReason} | counts.keys())
        return {reason: counts.get(reason, 0) for reason in reasons}

    return {
        "sickbay_ingest_streams": stats.attached,
        "sickbay_ingest_streams_overdue": stats.overdue,
        "sickbay_ingest_streams_opened": stats.opened,
        "sickbay_ingest_streams_refused": by_reason(stats.refused),
        "sickbay_ingest_streams_ended": by_reason(stats.ended),
        "sickbay_ingest_messages": dict(sorted(stats.messages.items())),
        "sickbay_ingest_acks": stats.acks,
        "sickbay_ingest_resyncs": stats.resyncs,
        "sickbay_ingest_entries_dropped": stats.dropped,
        "sickbay_ingest_throttles": stats.throttled,
        "sickbay_ingest_streams_superseded": stats.superseded,
        "sickbay_ingest_conflicts": stats.conflicts,
        "sickbay_ingest_certificate_errors": stats.certificate_troubles,
    }


def _api(stats: ApiStats) -> Mapping[str, Values]:
    return {
        "sickbay_api_requests": {
            (method, kind, str(code)): count
            for (method, kind, code), count in sorted(stats.answers.items())
        },
        "sickbay_api_request_duration_seconds": stats.durations,
        "sickbay_api_throttles": stats.throttled,
        "sickbay_api_evictions_blocked": stats.blocked,
    }
