"""Why else a pod may wait: where features next to the drain meet it.

The drain calls them once in each round, with all that it has read, before the round's requests.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from aggregator.cluster.port import Pod, Quarantine
from aggregator.quarantine.actions.node_actions import NodeActions
from aggregator.quarantine.decide.drain_plan import DrainMoment, DrainPlan
from aggregator.quarantine.state.node import NodeState
from aggregator.quarantine.state.race import Still
from aggregator.runtime.interning import EMPTY


@dataclass(frozen=True, slots=True)
class DrainRound:
    """One round of a drain. ``plan`` is by the drain's rules alone; ``pods`` are all of the node's,
    without sickbay's own. ``still``: whether the drain is in force.
    """

    node_state: NodeState
    quarantine: Quarantine
    pods: Sequence[Pod]
    plan: DrainPlan
    moment: DrainMoment
    acts: NodeActions
    still: Still


class PodWaits(Protocol):
    """A feature that lets pods wait. Each wait has an end of its own, as no drain may last for
    ever.
    """

    async def reasons(self, one: DrainRound) -> Mapping[str, str]:
        """By uid, why a pod of ``plan.evict`` or ``plan.force`` is not evicted in this round.

        Raises `ClusterError`: then this round evicts no pod.
        """
        ...


class NoWaits:
    """The rules of the drain alone."""

    async def reasons(self, one: DrainRound) -> Mapping[str, str]:
        del one
        return EMPTY
