"""The dashboard of sickbay: the state of the fleet at the top, the aggregator itself at the end."""

import json
from pathlib import Path
from typing import Any

from tests.dashboard.panels import Panel, Query, Row, Threshold, dashboard

FILE = Path(__file__).parents[2] / "deploy" / "profiles" / "grafana-dashboard" / "sickbay.json"

_BAD = (Threshold(1, "red"),)
_ODD = (Threshold(1, "orange"),)
#: Below 1 is bad.
_UP = (Threshold(0, "red"), Threshold(1, "green"))


def _stat(
    title: str, expression: str, text: str, *thresholds: Threshold, unit: str = "short"
) -> Panel:
    return Panel(
        title, "stat", [Query(expression)], text, unit, width=4, height=4, thresholds=thresholds
    )


def _quantiles(metric: str, window: str, more: str = "") -> list[Query]:
    """The time within which half of the observations, and 99 in 100, were done."""
    by = f"le, {more}" if more else "le"
    legend = f"{{{{{more}}}}} " if more else ""
    return [
        Query(
            f"histogram_quantile({q}, sum by ({by}) (rate({metric}_bucket[{window}])))",
            f"{legend}{name}",
        )
        for q, name in ((0.5, "half"), (0.99, "99 in 100"))
    ]


NOW = Row(
    "Now",
    [
        _stat(
            "Replicas",
            "count(sickbay_build_info)",
            "Replicas of the aggregator that Prometheus scrapes.",
            *_UP,
        ),
        _stat("Ready", "min(sickbay_ready)", "1 while every replica is ready.", *_UP),
        _stat("Stopped", "max(sickbay_stopped)", "1 while the stop switch is set.", *_ODD),
        _stat(
            "In quarantine",
            "sum(sickbay_quarantines)",
            "Nodes with a Quarantine, in any phase.",
        ),
        _stat(
            "Held back",
            'sum(sickbay_holds{limit!~"mode|exempt"}) or vector(0)',
            "Nodes that should be in quarantine and that a limit keeps in service.",
            *_ODD,
        ),
        _stat(
            "Common causes",
            "sum(max by (scope) (sickbay_common_causes))",
            "Causes that many nodes share; no node is quarantined for them.",
            *_BAD,
        ),
        Panel(
            "Nodes by state",
            "timeseries",
            [Query("sum by (state) (sickbay_nodes)", "{{state}}")],
            "Every node of the fleet: quarantined, held, warning, silent, unknown or ok.",
            stacked=True,
        ),
        Panel(
            "Quarantines by phase",
            "timeseries",
            [Query("sum by (phase) (sickbay_quarantines)", "{{phase}}")],
            "Draining for long: a pod can't be evicted. Drained: waits for a repair.",
            stacked=True,
        ),
        Panel(
            "Use of the limits",
            "timeseries",
            [
                Query(
                    "max by (limit) (sickbay_limit_used_nodes) "
                    "/ (max by (limit) (sickbay_limit_max_nodes) > 0)",
                    "{{limit}}",
                )
            ],
            "At 100 % further bad nodes stay in service.",
            unit="percentunit",
        ),
    ],
)

GPUS = Row(
    "GPUs",
    [
        Panel(
            "GPUs that are not well",
            "timeseries",
            [
                Query(
                    'sum by (state, quarantined) (sickbay_gpus{state!="ok"})',
                    "{{state}}, quarantined: {{quarantined}}",
                )
            ],
            "By their worst status, and by whether their node is in quarantine.",
        ),
        Panel(
            "GPUs in quarantine",
            "timeseries",
            [Query("sickbay:gpus_quarantined:ratio", "share of all GPUs")],
            "The share of GPUs on nodes in quarantine.",
            unit="percentunit",
        ),
        Panel(
            "GPU hours out of service",
            "timeseries",
            [Query("sickbay:gpu_hours_out_of_service:increase_1d", "within 24 hours")],
            "GPU hours on nodes in quarantine, within the 24 hours before.",
            unit="h",
        ),
        Panel(
            "Causes of the last 24 hours",
            "bargauge",
            [
                Query(
                    "topk(15, sum by (rule, code) (sickbay:quarantine_causes:increase_1d) > 0)",
                    "{{code}} ({{rule}})",
                )
            ],
            "Quarantines by code and rule of their evidence, the most frequent ones.",
            width=12,
        ),
        Panel(
            "Open incidents",
            "timeseries",
            [Query("sum by (kind, action) (sickbay_incidents) > 0", "{{kind}}, {{action}}")],
            "By kind, and by the action that policy requires.",
            width=12,
        ),
    ],
)

STAGES = Row(
    "From a fault to the release",
    [
        Panel(
            "Kernel line to ingest",
            "timeseries",
            _quantiles("sickbay_kernel_to_ingest_seconds", "30m"),
            "Seconds: the agent has reconnected, or its node is busy.",
            unit="s",
        ),
        Panel(
            "Ingest to decision",
            "timeseries",
            _quantiles("sickbay_ingest_to_decision_seconds", "30m"),
            "Rises when many agents report at once.",
            unit="s",
        ),
        Panel(
            "Decision to taint",
            "timeseries",
            _quantiles("sickbay_decision_to_taint_seconds", "30m", "held"),
            "held=true: a limit kept the node in service meanwhile.",
            unit="s",
        ),
        Panel(
            "Taint to drained",
            "timeseries",
            _quantiles("sickbay_taint_to_drained_seconds", "6h"),
            "Pods with long grace periods, and disruption budgets.",
            unit="s",
        ),
        Panel(
            "Quarantine to release",
            "timeseries",
            _quantiles("sickbay_quarantine_to_release_seconds", "1d"),
            "The time of recovery and repair.",
            unit="s",
        ),
        Panel(
            "Drains",
            "timeseries",
            [
                Query("sum(sickbay_drain_pods_remaining)", "pods to move"),
                Query("sum(sickbay_quarantines_blocked)", "nodes with a blocked pod"),
                Query("sum(sickbay_quarantines_failing)", "nodes with a failing step"),
            ],
            "kubectl get quarantines -o wide names the pods that block.",
        ),
    ],
)

POOLS = Row(
    "Pools",
    [
        Panel(
            "Nodes out of service by pool",
            "timeseries",
            [
                Query(
                    'sum by (pool) (sickbay_pool_nodes{state="quarantined"})',
                    "{{pool}}: in quarantine",
                ),
                Query('sum by (pool) (sickbay_pool_nodes{state="held"})', "{{pool}}: held back"),
            ],
            "Empty without pools in the configuration.",
        ),
        Panel(
            "Use of the pools' limits",
            "timeseries",
            [
                Query(
                    "max by (pool, limit) (sickbay_pool_limit_used_nodes) "
                    "/ (max by (pool, limit) (sickbay_pool_limit_max_nodes) > 0)",
                    "{{pool}}: {{limit}}",
                )
            ],
            "At 100 % further bad nodes of the pool stay in service.",
            unit="percentunit",
        ),
        Panel(
            "Pools that cool down",
            "timeseries",
            [Query("max by (pool) (sickbay_pool_cooling_down)", "{{pool}}")],
            "1 while no node of the pool is admitted, after its own rate has tripped.",
        ),
    ],
)

REPAIRS = Row(
    "Repairs",
    [
        Panel(
            "Repairs under way",
            "timeseries",
            [Query("sum by (repair) (sickbay_repairs_running)", "{{repair}}")],
            "repair.concurrent and its percentage bound their number.",
            stacked=True,
        ),
        Panel(
            "Attempts by outcome",
            "timeseries",
            [
                Query(
                    "sum by (repair, outcome) (increase(sickbay_repair_attempts_total[1d])) > 0",
                    "{{repair}}: {{outcome}}",
                )
            ],
            "Attempts that ended within the 24 hours before.",
        ),
        Panel(
            "New nodes under their startup taint",
            "timeseries",
            [Query("sum by (state) (sickbay_new_nodes)", "{{state}}")],
            "Those that need a person have failed their test, or their tests gave no verdict.",
            stacked=True,
        ),
        Panel(
            "Ladders that have ended",
            "timeseries",
            [Query("sum(sickbay_quarantines_repair_exhausted)", "nodes")],
            "No further repair of these nodes begins by itself: a person has to go on.",
        ),
        Panel(
            "Order to end of a repair",
            "timeseries",
            _quantiles("sickbay_repair_duration_seconds", "1d", "repair"),
            "By kind, whatever the outcome.",
            unit="s",
            width=12,
        ),
        Panel(
            "Quarantine to release after a repair",
            "timeseries",
            _quantiles("sickbay_node_return_duration_seconds", "7d"),
            "Of nodes that had a repair.",
            unit="s",
            width=12,
        ),
    ],
)

ITSELF = Row(
    "Agents, API server and sickbay itself",
    [
        Panel(
            "Agents",
            "timeseries",
            [
                Query("sum(sickbay_agents_attached)", "attached"),
                Query("sum(sickbay_agents_silent)", "silent"),
                Query("sum(sickbay_agents_never_seen)", "never seen"),
            ],
            "Silence is no fault; faults on these nodes are not seen.",
        ),
        Panel(
            "Agents' streams refused",
            "timeseries",
            [
                Query(
                    "sum by (reason) "
                    "(rate(sickbay_ingest_streams_refused_total[$__rate_interval])) > 0",
                    "{{reason}}",
                )
            ],
            "A second, by reason.",
            unit="ops",
        ),
        Panel(
            "Requests to the API server",
            "timeseries",
            [
                Query(
                    "sum by (method, kind) "
                    "(rate(sickbay_api_requests_total[$__rate_interval])) > 0",
                    "{{method}} {{kind}}",
                )
            ],
            "A second. At rest: renewals of the Lease, and a list every three minutes.",
            unit="ops",
        ),
        Panel(
            "Failed requests to the API server",
            "timeseries",
            [
                Query(
                    "sum by (code) (rate(sickbay_api_requests_total"
                    '{code=~"0|429|5.."}[$__rate_interval])) > 0',
                    "{{code}}",
                )
            ],
            "A second, by HTTP status; 0 is no answer.",
            unit="ops",
        ),
        Panel(
            "Requests to the API server, 99 in 100",
            "timeseries",
            [Query("sickbay:api_request_duration_seconds:p99_5m", "{{method}} {{kind}}")],
            "From the sending to the whole answer.",
            unit="s",
        ),
        Panel(
            "Answers of the page, 99 in 100",
            "timeseries",
            _quantiles("sickbay_web_request_duration_seconds", "30m")[1:],
            "Pages, the API and /metrics.",
            unit="s",
        ),
        Panel(
            "Alerts that wait, and dead letters",
            "timeseries",
            [
                Query("max by (route) (sickbay_alerts_waiting)", "{{route}} waits"),
                Query("max by (route) (sickbay_alerts_dead_letters)", "{{route}} given up"),
            ],
            "Of sickbay's own alerts, by route.",
        ),
        Panel(
            "Deliveries of alerts, 99 in 100",
            "timeseries",
            _quantiles("sickbay_alerts_delivery_duration_seconds", "1h", "route")[1:],
            "Attempts, failed ones included.",
            unit="s",
        ),
        Panel(
            "Memory",
            "timeseries",
            [
                Query(
                    "process_resident_memory_bytes "
                    "and on (cluster, instance, job) sickbay_build_info",
                    "{{instance}}",
                )
            ],
            "Resident memory of each replica.",
            unit="bytes",
        ),
    ],
)

ROWS = (NOW, GPUS, POOLS, STAGES, REPAIRS, ITSELF)


def made() -> dict[str, Any]:
    """The dashboard."""
    text = "Health and quarantine of GPU nodes. Needs the recorded series of deploy/prometheus."
    return dashboard("sickbay", "sickbay", text, ROWS)


def text() -> str:
    """The file's text."""
    return json.dumps(made(), indent=2) + "\n"


def write() -> None:
    """Write the file anew."""
    FILE.write_text(text(), encoding="utf-8")
