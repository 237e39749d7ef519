"""Metrics of the pools; none where there are no pools."""

from collections.abc import Iterator, Sequence
from itertools import product

from prometheus_client.core import Metric

from aggregator.cluster.port import Action
from aggregator.web import models
from aggregator.web.metric_families import gauge


def pool_metrics(pools: Sequence[models.Pool]) -> Iterator[Metric]:
    """Series for each pool and for the nodes that none selects: 33 pools at most."""
    if not pools:
        return
    yield gauge(
        "sickbay_pool_nodes",
        "Nodes of each pool by state; default are those that no pool selects. The "
        "five metrics of pools are there with pools alone.",
        ["pool", "state"],
        {(pool.name, state.value): count for pool in pools for state, count in pool.counts.items()},
    )
    yield gauge(
        "sickbay_pool_mode",
        "1 for the mode that caps every action in the pool.",
        ["pool", "mode"],
        {
            (pool.name, action.value): pool.mode == action.value
            for pool, action in product(pools, Action)
        },
    )
    yield gauge(
        "sickbay_pool_cooling_down",
        "1 while sickbay admits no node of the pool, after its own rate has tripped.",
        ["pool"],
        {pool.name: bool(pool.cooling) for pool in pools},
    )
    limits = {
        (pool.name, limit.name): (limit.used, limit.most)
        for pool in pools
        for limit in pool.limits
        if limit.used is not None and limit.most is not None
    }
    yield gauge(
        "sickbay_pool_limit_used_nodes",
        "How much of the pool's own limit is used, in nodes.",
        ["pool", "limit"],
        {of: used for of, (used, _) in limits.items()},
    )
    yield gauge(
        "sickbay_pool_limit_max_nodes",
        "The maximum of that limit, in nodes.",
        ["pool", "limit"],
        {of: most for of, (_, most) in limits.items()},
    )
