"""Shows the fleet's state: the record's entries, the pools' use, the quorum, common causes."""

from attrs import define

from aggregator.quarantine.admission.record_writer import AdmissionRecordWriter
from aggregator.quarantine.correlation.common_cause import CommonCauseTracker
from aggregator.quarantine.correlation.network import NetworkTracker
from aggregator.quarantine.decide.admission import Limits, quorum
from aggregator.quarantine.state.fleet import PoolUse
from aggregator.quarantine.state.registry import NodePools, NodeRegistry


@define(eq=False, repr=False, slots=False, kw_only=True)
class FleetReport:
    _registry: NodeRegistry
    _record_writer: AdmissionRecordWriter
    _pools: NodePools
    _causes: CommonCauseTracker
    _network: NetworkTracker
    _limits: Limits

    async def update(self) -> None:
        """Once a round; silent nodes count towards common causes."""
        await self._causes.count_silence()
        entries = self._record_writer.record.entries
        self._registry.fleet.record_entries = len(entries)
        self._registry.fleet.absent_entries = len(self._registry.absent & entries.keys())
        self._registry.fleet.repairing = len(self._record_writer.record.repairs)
        self._record_writer.go_round()
        self._update_pools()
        self.update_quorum()
        self._causes.go_round(self._record_writer.record)
        self._network.go_round()

    def _update_pools(self) -> None:
        if not self._pools.pools:
            return
        budget, cooldown = self._record_writer.pool_budget(), self._limits.cooldown
        self._registry.fleet.pool_use = {
            name: PoolUse(
                budget.in_quarantine(name), budget.lately(name), budget.cooling(name, cooldown)
            )
            for name in self._pools.pools.names
        }

    def update_quorum(self) -> bool:
        """Returns whether too few agents have reported for new admissions."""
        waiting = quorum(self._limits, self._registry.size())
        self._registry.fleet.waiting_for_quorum = waiting.reason if waiting is not None else ""
        return waiting is not None
