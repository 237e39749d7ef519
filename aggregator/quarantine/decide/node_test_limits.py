"""The limits of tests of nodes that are in no quarantine. Pure."""

from dataclasses import dataclass

from aggregator.quarantine.decide.admission import FleetSize
from aggregator.quarantine.decide.admission_record import Record, RunningOperation
from aggregator.quarantine.decide.held import Held
from aggregator.quarantine.decide.idle_nodes import IdleNodeRules, no_room_for_idle
from aggregator.quarantine.decide.new_nodes import NewNodeRules, no_room


@dataclass(frozen=True, slots=True)
class NodeTestLimits:
    """Implements `OperationLimits`, by the rules of new or of idle nodes."""

    rules: NewNodeRules | IdleNodeRules

    def current(self, record: Record, _now: float) -> Record:
        return record

    def hold(self, record: Record, proposal: RunningOperation, size: FleetSize) -> Held | None:
        others = other_tests(record, proposal.node).values()
        if isinstance(self.rules, IdleNodeRules):
            running = record.repairs.values()
            return no_room_for_idle(others, running, proposal.domains, self.rules, size.nodes)
        return no_room(others, self.rules.concurrent)


def other_tests(record: Record, node: str) -> dict[str, RunningOperation]:
    """The tests under way on other nodes."""
    return {name: one for name, one in record.node_tests.items() if name != node}
