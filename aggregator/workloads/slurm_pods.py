"""Pods of slurmd (slurm-operator) leave a node once Slurm has drained it. Pure.

slurm-operator drains the Slurm node of a cordoned Node, and reports Slurm's states as conditions of
the pod. The end of such a pod sets its Slurm node DOWN, which ends each of its jobs: so the pod
waits for them, at most ``drain.slurm_jobs_for``. Other pods of the node, and other pools, do not.
https://github.com/SlinkyProject/slurm-operator
"""

from collections.abc import Mapping
from dataclasses import dataclass

from aggregator.cluster.port import Pod
from aggregator.quarantine.decide.drain_plan import DrainMoment
from aggregator.quarantine.drain.pod_waits import DrainRound
from aggregator.rfc3339 import write_time

_OWNER = "NodeSet"
SLURMD = "nodeset.slinky.slurm.net/pod-name"
_STATE = "SlurmNodeState"
AT_WORK = frozenset({f"{_STATE}Allocated", f"{_STATE}Mixed", f"{_STATE}Completing"})
DOWN = frozenset({f"{_STATE}Down", f"{_STATE}Error"})
DRAIN, UNDRAIN = f"{_STATE}Drain", f"{_STATE}Undrain"


@dataclass(frozen=True, slots=True)
class SlurmPods:
    """Implements `PodWaits`. ``jobs_for``: seconds since the drain began."""

    jobs_for: float

    async def reasons(self, one: DrainRound) -> Mapping[str, str]:
        going = (*one.plan.evict, *one.plan.force)
        found = ((pod, why_it_waits(pod, one.moment, self.jobs_for)) for pod in going)
        return {pod.uid: reason for pod, reason in found if reason}


def why_it_waits(pod: Pod, moment: DrainMoment, jobs_for: float) -> str:
    """Why a pod of slurmd is not evicted yet; empty for other pods, and where Slurm is done."""
    until = moment.began + jobs_for
    if pod.owner_kind != _OWNER or SLURMD not in pod.labels or moment.now >= until:
        return ""
    states = {one for one in pod.conditions if one.startswith(_STATE)}
    work = sorted(states & AT_WORK)
    if work:
        reason = f"Slurm lets its jobs end (pod condition {work[0]})"
    elif states & DOWN or (DRAIN in states and UNDRAIN not in states):
        return ""
    elif states:
        reason = f"Slurm has not drained its node (no pod condition {DRAIN})"
    else:
        reason = f"slurm-operator reports no state of its Slurm node (no pod condition {_STATE}*)"
    return f"{reason}; it is evicted at the latest at {write_time(until)}"
