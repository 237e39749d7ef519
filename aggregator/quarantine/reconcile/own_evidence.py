"""Evidence about a node in the aggregator's own name."""

from aggregator.health.model import Component
from aggregator.quarantine.reconcile.work_queue import WorkQueue
from aggregator.quarantine.state.registry import NodeRegistry


class OwnEvidence:
    def __init__(self, registry: NodeRegistry, queue: WorkQueue) -> None:
        self._registry = registry
        self._queue = queue

    def record(self, node: str, component: Component) -> bool:
        """Fold it in, and have the node evaluated; False: its agent has not reported yet."""
        node_state = self._registry.known(node)
        if node_state is None or node_state.agent.health is None:
            return False
        if node_state.agent.health.record_own_evidence(component):
            self._queue.evaluate(node_state)
        return True
