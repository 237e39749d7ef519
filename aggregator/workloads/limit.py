"""``limits.per_workload``: from so many nodes a gang's pods are evicted within a window, no more.

Each Quarantine has the gangs of which pods were evicted from its node, written by compare-and-set
before the first request. So the count is that of durable objects, whichever replica acts.
"""

import asyncio
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from aggregator.clock import Clocks
from aggregator.cluster.port import ClusterError, EvictedWorkload, Quarantine
from aggregator.events import EventKind
from aggregator.jobs.notice import Workload, workloads_of
from aggregator.quarantine.decide.intent import OURS
from aggregator.quarantine.drain.pod_waits import DrainRound
from aggregator.rfc3339 import span
from aggregator.runtime.text import some_of

#: Gangs in one Quarantine; the schema has the same bound. Of further ones none is evicted.
MOST_WORKLOADS = 128
_MOST_NAMED = 4


@dataclass(slots=True)
class WorkloadLimit:
    """Implements `PodWaits`. ``nodes`` 0 sets no limit; ``window`` is in seconds. ``keys`` are a
    site's own markers of gangs, ``quarantines`` all of the cluster.
    """

    nodes: int
    window: float
    keys: tuple[str, ...]
    quarantines: Callable[[], Iterable[Quarantine]]
    clocks: Clocks
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    _reported: set[tuple[str, str]] = field(default_factory=set)

    async def reasons(self, one: DrainRound) -> Mapping[str, str]:
        going = (*one.plan.evict, *one.plan.force)
        gangs = {
            key: workload
            for key, workload in workloads_of(going, self.keys).items()
            if workload.gang is not None
        }
        if not self.nodes or not gangs:
            return {}
        async with self._lock:  # two drains of one gang must not both be the last
            held = self._held(one, gangs)
            await self._note(one, [key for key in gangs if key not in held])
        for key, reason in held.items():
            self._report(one, gangs[key], reason)
        return {pod.uid: reason for key, reason in held.items() for pod in gangs[key].pods}

    def _held(self, one: DrainRound, gangs: Mapping[str, Workload]) -> dict[str, str]:
        """By gang, why its pods are not evicted. A person's quarantine counts, and is not held."""
        known = {item.workload for item in _latest(one).status.evicted_workloads}
        others = {key: self._other_nodes(one.quarantine.node, key) for key in gangs}
        room = MOST_WORKLOADS - len(known)
        held = {}
        for key, nodes in others.items():
            if key in known:
                continue
            if len(nodes) >= self.nodes and one.quarantine.spec.requester == OURS:
                held[key] = (
                    f"its gang lost {len(nodes)} nodes within {span(self.window)}: "
                    f"{some_of(nodes, _MOST_NAMED)} (limits.per_workload is {self.nodes})"
                )
            elif room <= 0:
                held[key] = f"pods of {MOST_WORKLOADS} gangs were evicted from this node already"
            else:
                room -= 1
        return held

    def _other_nodes(self, node: str, workload: str) -> list[str]:
        since = self.clocks.earliest() - self.window
        return sorted(
            quarantine.node
            for quarantine in self.quarantines()
            if quarantine.node != node
            and any(
                item.workload == workload and item.at > since
                for item in quarantine.status.evicted_workloads
            )
        )

    async def _note(self, one: DrainRound, keys: Iterable[str]) -> None:
        """Note the gangs whose pods go, and again while they still have to go: so a drain that is
        under way always counts.
        """
        quarantine = _latest(one)
        known = {item.workload: item.at for item in quarantine.status.evicted_workloads}
        at = round(self.clocks.latest(), 3)
        due = {key: at for key in keys if at - known.get(key, -math.inf) > self.window / 4}
        if due:
            items = tuple(EvictedWorkload(*item) for item in (known | due).items())
            status = replace(quarantine.status, evicted_workloads=items)
            await one.acts.write_status(one.node_state, quarantine, status)

    def _report(self, one: DrainRound, workload: Workload, reason: str) -> None:
        """Alert once for a quarantine and gang; a blocker in the status was alerted before."""
        subject = (one.quarantine.uid, workload.key)
        pod = workload.pods[0].key
        if subject not in self._reported and all(
            blocker.pod != pod for blocker in one.quarantine.status.blockers
        ):
            text = f"{pod} is not evicted: {reason}"
            one.acts.emit_event(one.node_state, EventKind.BLOCKED, text, {"pod": pod})
        self._reported.add(subject)


def _latest(one: DrainRound) -> Quarantine:
    """The Quarantine as last written: an earlier part of the round may have changed its status."""
    quarantine = one.node_state.node_summary.quarantine
    if quarantine is None or quarantine.uid != one.quarantine.uid:
        raise ClusterError("the quarantine was replaced meanwhile")
    return quarantine
