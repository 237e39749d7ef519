"""A line for each pool of the fleet: its nodes by state, its mode, its limits. Pure."""

from collections import Counter
from collections.abc import Iterator

from aggregator.quarantine.decide.pool_budget import allowance
from aggregator.quarantine.decide.pools import Pool
from aggregator.quarantine.state.fleet import FleetState, QuarantineSummary
from aggregator.web import models
from aggregator.web.models import limit_use


class PoolCounter:
    """Counts nodes by pool and state as they are added."""

    def __init__(self, fleet: FleetState) -> None:
        self._fleet = fleet
        self._states: Counter[tuple[str, QuarantineSummary]] = Counter()

    def add(self, pool: str, state: QuarantineSummary) -> None:
        """A node."""
        if pool:
            self._states[pool, state] += 1

    def pools(self) -> tuple[models.Pool, ...]:
        """In the order of the configuration, with the nodes that no pool selects last."""
        pools = self._fleet.pools
        found = {one.name: one for one in pools.pools}
        return tuple(self._pool(name, found.get(name)) for name in pools.names)

    def _pool(self, name: str, pool: Pool | None) -> models.Pool:
        counts = {state: self._states[name, state] for state in QuarantineSummary}
        use = self._fleet.pool_use.get(name)
        return models.Pool(
            name=name,
            selector=str(pool.selector) if pool is not None else "",
            mode=self._fleet.pools.mode_of(name).value,
            nodes=sum(counts.values()),
            counts=counts,
            cooling=use.cooling if use is not None else "",
            limits=list(self._limits(pool, sum(counts.values()))) if pool is not None else [],
        )

    def _limits(self, pool: Pool, total: int) -> Iterator[models.LimitUse]:
        use = self._fleet.pool_use.get(pool.name)
        in_quarantine, lately = (use.in_quarantine, use.lately) if use is not None else (0, 0)
        limits = pool.limits
        if limits.concurrent is not None:
            text = "nodes in quarantine at once"
            yield _use("concurrent", limits.concurrent, in_quarantine, limits.concurrent, text)
        if limits.concurrent_percent is not None:
            value = f"{limits.concurrent_percent:g}%"
            most, text = allowance(total, limits.concurrent_percent), f"{value} of {total:,} nodes"
            yield _use("concurrent_percent", value, in_quarantine, most, text)
        if limits.new_per_window is not None:
            text = f"new quarantines within {self._fleet.limits.get('window', '')}"
            yield _use("new_per_window", limits.new_per_window, lately, limits.new_per_window, text)


def _use(name: str, value: object, used: int, most: int, text: str) -> models.LimitUse:
    return limit_use(f"pools.limits.{name}", str(value), used, most, text)
