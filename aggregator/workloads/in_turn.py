"""Several features that let pods wait, in turn: each sees only the pods that would go by now."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from aggregator.cluster.port import Pod
from aggregator.quarantine.drain.pod_waits import DrainRound, PodWaits


@dataclass(frozen=True, slots=True)
class InTurn:
    """Implements `PodWaits`."""

    parts: Sequence[PodWaits]

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
