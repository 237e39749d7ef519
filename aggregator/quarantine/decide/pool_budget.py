"""How many nodes of each pool are in quarantine, and the hold of a pool's own limits. Pure.

A node counts in the pool that it was admitted in as long as its entry is there, and in the pool
that selects it now: a change of labels lifts no limit. A node whose pool is not known counts in
every pool.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from aggregator.quarantine.decide.admission_record import DEFAULT_POOL, POOL_COOLDOWN, Entry, Record
from aggregator.quarantine.decide.held import Held, held_by
from aggregator.quarantine.decide.pools import PoolLimits
from aggregator.rfc3339 import time_of_day
from aggregator.runtime.text import counted


def allowance(total: int, percent: float) -> int:
    """How many of ``total`` are ``percent``, such that a pool of three can lose one.

    0 % is none: a person who writes that means it.
    """
    if total <= 0 or percent <= 0:
        return 0
    return max(1, int(total * percent / 100 + 1e-9))  # tolerates the float's last bit


#: A fleet of fewer nodes is a small one: 5 % of it are fewer than two.
SMALL_FLEET = 40


def floored(most: int, floor: int, *, of: int, fleet: int) -> int:
    """An allowance of ``most`` nodes with the floor of small fleets, at most half ``of`` them.

    ``fleet``: how many nodes there are in all; in a larger fleet the allowance stays as it is.
    """
    return max(most, min(floor, of // 2)) if most and fleet < SMALL_FLEET else most


@dataclass(frozen=True, slots=True)
class PoolFacts:
    """The pools as they are at one decision.

    ``limits`` by the pool's name; empty where there are no pools. ``sizes``: nodes in each pool.
    ``present``: by node, the pool that selects each node in quarantine now.
    """

    limits: Mapping[str, PoolLimits] = field(default_factory=dict)
    sizes: Mapping[str, int] = field(default_factory=dict)
    present: Mapping[str, str] = field(default_factory=dict)


NO_POOLS = PoolFacts()


def cooldown_id(pool: str) -> str:
    """The id of the pool's cooldown in the record."""
    return f"{POOL_COOLDOWN}{pool}"


class PoolBudget:
    """The counts of each pool, against one record and what is admitted after it.

    ``record`` has no times outside of the ``window`` (seconds) before ``now``. ``unrecorded`` are
    nodes in quarantine without an entry, ``absent`` those whose Node is gone.
    """

    def __init__(
        self,
        facts: PoolFacts,
        record: Record,
        *,
        unrecorded: frozenset[str] = frozenset(),
        absent: frozenset[str] = frozenset(),
        now: float = 0.0,
        window: float = 0.0,
    ) -> None:
        self._facts = facts
        self._record = record
        self._nodes = (record.entries.keys() | unrecorded) - absent if facts.limits else frozenset()
        self._now, self._window = now, window
        self._in_quarantine: dict[str, int] = {}
        self._lately: dict[str, int] = {}

    def cooling(self, pool: str, cooldown: float) -> str:
        """Until when the pool cools down, and why; empty: it does not."""
        found = self._record.cooldowns.get(cooldown_id(pool))
        if found is None:
            return ""
        return f"no new quarantine until {time_of_day(found.at + cooldown)}: {found.because}"

    def full(self, pool: str) -> Held | None:
        """The hold of a proposal by the number of the pool's nodes in quarantine."""
        if not self._facts.limits or pool == DEFAULT_POOL:
            return None
        if not pool:
            text = "the node's labels are not known yet, and so its pool: they are read again"
            return Held("pools", "unknown", text)
        limits = self._facts.limits.get(pool)
        if limits is None:  # of another replica's configuration, which holds it there as well
            return Held("pools", pool, f"this replica has no pool {pool}: see its configuration")
        in_quarantine, total = self.in_quarantine(pool), self._facts.sizes.get(pool, 0)
        if limits.concurrent is not None and in_quarantine >= limits.concurrent:
            nodes = f"node of pool {pool} is", f"nodes of pool {pool} are"
            text = (
                f"{counted(in_quarantine, *nodes)} in quarantine; its limit is {limits.concurrent}"
            )
            return held_by(limits, "concurrent", text, under="pools.limits")
        if limits.concurrent_percent is not None:
            most = allowance(total, limits.concurrent_percent)
            if in_quarantine >= most:
                text = f"{in_quarantine} of {total} nodes of pool {pool} are in quarantine"
                text += f"; {limits.concurrent_percent:g} % allow {most}"
                return held_by(limits, "concurrent_percent", text, under="pools.limits")
        return None

    def too_fast(self, pool: str) -> Held | None:
        """The hold of a proposal by the pool's rate."""
        limits = self._facts.limits.get(pool)
        most = limits.new_per_window if limits is not None else None
        lately = self.lately(pool) if most is not None else 0
        if most is None or lately < most:
            return None
        nodes = counted(lately, f"node of pool {pool} was", f"nodes of pool {pool} were")
        text = f"{nodes} admitted within limits.window; its limit is {most}"
        spare = lately - most
        return held_by(limits, "new_per_window", text, under="pools.limits", spare=spare)

    def take(self, pool: str) -> None:
        """Count a node that was just admitted in the pool."""
        if self._facts.limits:
            self._in_quarantine[pool] = self.in_quarantine(pool) + 1
            self._lately[pool] = self.lately(pool) + 1

    def in_quarantine(self, pool: str) -> int:
        """How many nodes of the pool are in quarantine."""
        if pool not in self._in_quarantine:
            self._in_quarantine[pool] = sum(self._is_in(node, pool) for node in self._nodes)
        return self._in_quarantine[pool]

    def lately(self, pool: str) -> int:
        """How many nodes were admitted in the pool within the window.

        Of a pool that has got another name in the configuration the present entries count.
        """
        if pool not in self._lately:
            times = [at for at, of in self._record.admissions if of == pool]
            entries = [
                one.at
                for one in self._record.entries.values()
                if abs(self._now - one.at) < self._window and self._admitted_in(one) == pool
            ]
            self._lately[pool] = (Counter(times) | Counter(entries)).total()
        return self._lately[pool]

    def _is_in(self, node: str, pool: str) -> bool:
        entry = self._record.entries.get(node)
        recorded = entry.policy_pool if entry is not None else ""
        present = self._facts.present.get(node, "")
        return pool in (recorded, present) or not (recorded or present)

    def _admitted_in(self, entry: Entry) -> str:
        """The pool whose rate the entry counts for: of a pool that is gone, its node's present one.

        So a pool that gets another name in the configuration keeps the rate that it has used.
        """
        known = entry.policy_pool in self._facts.limits or entry.policy_pool == DEFAULT_POOL
        return entry.policy_pool if known else self._facts.present.get(entry.node, "")
