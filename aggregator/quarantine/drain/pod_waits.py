"""Why else a pod may wait: where features next to the drain meet it.

The drain calls them once in each round, with all that it has read, before the round's requests.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from aggregator.cluster.port import ClusterError, Pod, Quarantine
from aggregator.quarantine.actions.node_actions import NodeActions
from aggregator.quarantine.decide.drain_plan import DrainMoment, DrainPlan
from aggregator.quarantine.state.node import NodeState
from aggregator.quarantine.state.race import Still


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

    def latest(self) -> Quarantine:
        """The Quarantine as last written: an earlier part of the round may have changed its status.

        Raises ClusterError where it is another one.
        """
        quarantine = self.node_state.quarantine
        if quarantine is None or quarantine.uid != self.quarantine.uid:
            raise ClusterError("the quarantine was replaced meanwhile")
        return quarantine

    async def write_status(self, **changes: Any) -> None:
        """Change these fields of the latest status by compare-and-set."""
        quarantine = self.latest()
        status = replace(quarantine.status, **changes)
        await self.acts.write_status(self.node_state, quarantine, status)


class PodWaits(Protocol):
    """A feature that lets pods wait. Each wait has an end of its own, as no drain may last for
    ever.
    """

    async def reasons(self, one: DrainRound) -> Mapping[str, str]:
        """By uid, why a pod of ``plan.evict`` or ``plan.force`` is not evicted in this round.

        Raises `ClusterError`: then this round evicts no pod.
        """
        ...


@dataclass(frozen=True, slots=True)
class InTurn:
    """Several features in turn: each receives only the pods that would be evicted now. Without any,
    the drain's own rules alone decide.
    """

    parts: Sequence[PodWaits] = ()

    async def reasons(self, one: DrainRound) -> Mapping[str, str]:
        found: dict[str, str] = {}
        for part in self.parts:
            rest = _without(one, found)
            if rest.plan.evict or rest.plan.force:
                found |= await part.reasons(rest)
        return found


def _without(one: DrainRound, waiting: Mapping[str, str]) -> DrainRound:
    def going(pods: Sequence[Pod]) -> tuple[Pod, ...]:
        return tuple(pod for pod in pods if pod.uid not in waiting)

    plan = replace(one.plan, evict=going(one.plan.evict), force=going(one.plan.force))
    return replace(one, plan=plan)
