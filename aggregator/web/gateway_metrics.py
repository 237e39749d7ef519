"""/metrics of a replica that is not the controller. docs/metrics.md describes each metric."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from prometheus_client.metrics_core import Metric

from aggregator.web.metric_families import single_counter, single_gauge
from aggregator.web.metrics import (
    CONNECTED,
    IS_CONTROLLER,
    build_metric,
    certificate_metric,
    connection_metrics,
    ready_metric,
)


@dataclass(frozen=True, slots=True)
class GatewayScrape:
    """The content of one scrape of a gateway."""

    version: str
    ready: bool
    relayed: bool
    dropped: int
    agents: int
    certificates: Mapping[str, float]
    connections: int
    connections_ended: Mapping[str, int]


def gateway_families(scrape: GatewayScrape) -> Iterator[Metric]:
    """The metrics of this scrape without the process's."""
    yield single_gauge("sickbay_controller", IS_CONTROLLER, 0)
    yield single_gauge("sickbay_replica_agents", CONNECTED, scrape.agents)
    yield single_gauge(
        "sickbay_relay_up", "1 while agents' messages reach the controller.", scrape.relayed
    )
    yield single_counter(
        "sickbay_relay_dropped", "Agents' messages that were not forwarded.", scrape.dropped
    )
    yield build_metric(scrape.version)
    yield ready_metric(ready=scrape.ready)
    yield certificate_metric(scrape.certificates)
    yield from connection_metrics(scrape.connections, scrape.connections_ended)
