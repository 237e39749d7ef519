"""Compares what the nodes run, now and then, and gives a node that has drifted its evidence.

No other part waits for it.
"""

import asyncio
from collections.abc import Mapping

from attrs import define, field

from aggregator.clock import Clocks
from aggregator.health.model import Component, Status
from aggregator.policy.drift import CHECK, ComparedNode, Drift, DriftSearch, evidence, read_facts
from aggregator.quarantine.correlation.measurements import NodeEvidence
from aggregator.quarantine.state.fleet import FleetState

#: Seconds.
EVERY = 600.0
#: Nodes that are read before other work gets its turn.
_SLICE = 100


@define(eq=False, repr=False, slots=False)
class DriftWatch:
    _fleet: FleetState
    _clocks: Clocks
    _evidence: NodeEvidence
    _search: DriftSearch = field(factory=DriftSearch, init=False)
    #: Node and component of each drift that was reported.
    _reported: set[tuple[str, str]] = field(factory=set, init=False)

    async def compare(self) -> list[Drift]:
        """Compare all nodes now, and report what has begun and ended.

        In slices and in a thread: the controller continues meanwhile.
        """
        now = self._clocks.now()
        rows = await self._rows()
        found = await asyncio.to_thread(self._compare, rows, now)
        reported = {(drift.node, drift.component) for drift in found}
        text = "as on the other nodes of the pool, or no value is usual there any more"
        ended = [
            (node, Component(CHECK, component, Status.OK, "", text, now))
            for node, component in sorted(self._reported - reported)
        ]
        # Each time, for the node's evidence may have been discarded.
        for node, component in (*ended, *((drift.node, evidence(drift)) for drift in found)):
            self._evidence.record(node, component)
            await asyncio.sleep(0)
        self._reported = reported
        return found

    def _compare(self, rows: Mapping[str, tuple[str, list[Component]]], now: float) -> list[Drift]:
        nodes = {
            node: ComparedNode(pool, read_facts(components))
            for node, (pool, components) in rows.items()
        }
        return self._search.search(nodes, now)

    async def _rows(self) -> dict[str, tuple[str, list[Component]]]:
        """Each node's pool and its rows of the check."""
        found: dict[str, tuple[str, list[Component]]] = {}
        for count, (node, summary) in enumerate(list(self._fleet.node_summaries.items())):
            health = summary.agent.health
            if health is not None and (components := health.components.of(CHECK)):
                found[node] = self._fleet.pool_of(summary), components
            if count % _SLICE == _SLICE - 1:
                await asyncio.sleep(0)
        return found
