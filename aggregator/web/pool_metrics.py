"""Metrics of the pools; none where there are no pools."""

from collections.abc import Iterator, Sequence

from prometheus_client.core import GaugeMetricFamily, Metric

from aggregator.cluster.port import Action
from aggregator.web import models
from aggregator.web.metric_families import gauge


def pool_metrics(pools: Sequence[models.Pool]) -> Iterator[Metric]:
    """Series for each pool and for the nodes that none selects: 33 pools at most."""
    if not pools:
        return
    nodes = gauge(
        "sickbay_pool_nodes",
        (
            "Nodes of each pool by standing; default are those that no pool selects. The "
            "five metrics of pools are there with pools alone."
        ),
        ["pool", "standing"],
    )
    mode = gauge(
        "sickbay_pool_mode", "1 for the mode that caps every action in the pool.", ["pool", "mode"]
    )
    cooling = gauge(
        "sickbay_pool_cooling_down",
        ("1 while sickbay admits no node of the pool, after its own rate has tripped."),
        ["pool"],
    )
    labels = ["pool", "limit"]
    used = gauge(
        "sickbay_pool_limit_used_nodes",
        "How much of the pool's own limit is used, in nodes.",
        labels,
    )
    most = gauge("sickbay_pool_limit_max_nodes", "The maximum of that limit, in nodes.", labels)
    for pool in pools:
        for standing, count in pool.counts.items():
            nodes.add_metric([pool.name, standing.value], count)
        for action in Action:
            mode.add_metric([pool.name, action.value], pool.mode == action.value)
        cooling.add_metric([pool.name], bool(pool.cooling))
        _limits(pool, used, most)
    yield from (nodes, mode, cooling, used, most)


def _limits(pool: models.Pool, used: GaugeMetricFamily, most: GaugeMetricFamily) -> None:
    for limit in pool.limits:
        if limit.used is not None and limit.most is not None:
            used.add_metric([pool.name, limit.name], limit.used)
            most.add_metric([pool.name, limit.name], limit.most)
