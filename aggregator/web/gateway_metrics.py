"""/metrics of a replica that is not the controller. metrics.yaml describes each metric."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from prometheus_client.metrics_core import Metric

from aggregator.web.metric_families import families_of
from aggregator.web.metrics import ReplicaScrape, replica_values


@dataclass(frozen=True, slots=True)
class GatewayScrape(ReplicaScrape):
    """The content of one scrape of a gateway."""

    relayed: bool
    dropped: int
    agents: int
    certificates: Mapping[str, float]


def gateway_families(scrape: GatewayScrape) -> Iterator[Metric]:
    """The metrics of this scrape without the process's."""
    return families_of(
        {
            "sickbay_controller": 0,
            "sickbay_replica_agents": scrape.agents,
            "sickbay_relay_up": scrape.relayed,
            "sickbay_relay_dropped": scrape.dropped,
            **replica_values(scrape, scrape.certificates),
        }
    )
