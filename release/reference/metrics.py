"""docs/reference/metrics.md: every metric of the aggregator, as a scrape describes it."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from prometheus_client.metrics_core import Metric

from aggregator.cluster.kubernetes.transport import RequestCounters
from aggregator.ingest.stats import IngestStats
from aggregator.quarantine.state.fleet import FleetState
from aggregator.quarantine.state.stage_times import StageTimes
from aggregator.web.event_broker import EventBroker
from aggregator.web.fleet_view import FleetViewBuilder
from aggregator.web.gateway_metrics import GatewayScrape, gateway_families
from aggregator.web.metrics import ScrapeContent, families
from aggregator.web.models import Pool
from aggregator.web.node_view import ViewMoment
from aggregator.web.pool_metrics import pool_metrics
from aggregator.web.stats_interface import Stats
from aggregator.web.zero_first import ZeroFirst
from release.reference.tables import table

_HEAD = """# Metrics of the aggregator
Made from the code by `make docs-reference`. [metrics.md](../metrics.md) groups them by question and
has the recorded series and alert rules; [agent.md](../agent.md#metrics) has the agent's.
"""
_POOL = Pool(name="", selector="", mode="", nodes=0, counts={}, cooling="", limits=[])


@dataclass(frozen=True, slots=True)
class _NoHistory:
    """Implements `HistoryStats`."""

    problem: str = ""
    depth: int = 0
    written: int = 0
    lost: int = 0
    untold: int = 0


def page() -> str:
    """The page's Markdown."""
    body = sorted(_row(one) for one in all_families())
    lines = [_HEAD, *table(("metric", "type", "labels", "meaning"), body)]
    return "\n".join(lines).rstrip() + "\n"


def all_families() -> Iterator[Metric]:
    """Those of an aggregator that has each part: Kubernetes, history, alerts and pools."""
    stats = Stats(
        ingest=IngestStats(),
        api=RequestCounters(),
        outbox=dict,
        history=_NoHistory(),
    )
    scrape = ScrapeContent(
        zero_first=ZeroFirst(),
        found=FleetViewBuilder(FleetState(), ViewMoment(0.0, 0.0)).conclude([]),
        feed=EventBroker(epoch=1),
        requests=Counter(),
        durations={},
        stages=StageTimes(),
        stats=stats,
        connections=0,
        connections_ended={},
        version="",
        ready=False,
    )
    yield from families(scrape)
    yield from pool_metrics([_POOL])
    yield from (one for one in _of_a_gateway() if one.name.startswith("sickbay_relay_"))


def _of_a_gateway() -> Iterator[Metric]:
    """The controller has those that are not about the relay."""
    scrape = GatewayScrape(
        "",
        ready=False,
        relayed=False,
        dropped=0,
        agents=0,
        certificates={},
        connections=0,
        connections_ended={},
    )
    return gateway_families(scrape)


def _row(family: Metric) -> tuple[str, str, str, str]:
    name = f"{family.name}_total" if family.type == "counter" else family.name
    labels = ", ".join(f"`{one}`" for one in getattr(family, "_labelnames", ()))
    return f"`{name}`", family.type, labels, family.documentation
