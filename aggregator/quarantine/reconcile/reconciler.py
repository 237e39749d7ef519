"""The work for each node in quarantine, in a fixed order: one reconciler for each concern.

None imports another. They meet in the Quarantine and in the admission record alone.
"""

from typing import Protocol

from aggregator.cluster.port import Quarantine
from aggregator.quarantine.decide.plans.step import NextStep
from aggregator.quarantine.state.node import NodeState
from aggregator.quarantine.state.race import Still


class Reconciler(Protocol):
    """``is_late``: its steps come after all writes of evidence, and may last for days."""

    is_late: bool

    def plan(self, node_state: NodeState, quarantine: Quarantine, /) -> NextStep | None:
        """Its next step, by a pure plan over its own view; None: it has none."""

    async def carry_out(self, node_state: NodeState, step: NextStep, still: Still, /) -> bool:
        """Carry the step out. Returns True where no step is left now.

        Raises `ClusterError`.
        """
