"""Metrics of the pools; none where there are no pools."""

from collections.abc import Mapping, Sequence
from itertools import product

from aggregator.cluster.port import Action
from aggregator.web import models
from aggregator.web.metric_families import Values


def pool_values(pools: Sequence[models.Pool]) -> Mapping[str, Values]:
    """Series for each pool and for the nodes that none selects: 33 pools at most."""
    if not pools:
        return {}
    limits = {
        (pool.name, limit.name): (limit.used, limit.most)
        for pool in pools
        for limit in pool.limits
        if limit.used is not None and limit.most is not None
    }
    return {
        "sickbay_pool_nodes": {
            (pool.name, state.value): count
            for pool in pools
            for state, count in pool.counts.items()
        },
        "sickbay_pool_mode": {
            (pool.name, action.value): pool.mode == action.value
            for pool, action in product(pools, Action)
        },
        "sickbay_pool_cooling_down": {pool.name: bool(pool.cooling) for pool in pools},
        "sickbay_pool_limit_used_nodes": {of: used for of, (used, _) in limits.items()},
        "sickbay_pool_limit_max_nodes": {of: most for of, (_, most) in limits.items()},
    }
