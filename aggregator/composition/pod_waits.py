"""The features next to the drain that let pods wait, in the order in which they decide."""

from collections.abc import Callable, Iterator

from aggregator.clock import Clocks
from aggregator.cluster.capabilities import OpenedCluster
from aggregator.cluster.port import Quarantine
from aggregator.config.settings import Config
from aggregator.hooks.factory import notice_hooks
from aggregator.jobs.gpu_reader import PodGpuReader
from aggregator.jobs.identity import Markers
from aggregator.policy.rules import Policy
from aggregator.quarantine.drain.pod_waits import InTurn, PodWaits
from aggregator.quarantine.state.fleet import FleetState
from aggregator.workloads.eviction_requests import EvictionRequests
from aggregator.workloads.gpu_scope import GpuScope
from aggregator.workloads.limit import WorkloadLimit
from aggregator.workloads.notices import EvictionNotices, WebhookRoute
from aggregator.workloads.slurm_pods import SlurmPods


def pod_waits(
    config: Config,
    policy: Policy,
    cluster: OpenedCluster,
    fleet: FleetState,
    clocks: Clocks,
    pod_gpus: PodGpuReader,
    requests: EvictionRequests | None,
) -> PodWaits:
    scopes = {rule.name: rule.scope for rule in policy.rules}
    parts: list[PodWaits] = [GpuScope(config.drain, lambda rule: scopes.get(rule, ""), pod_gpus)]
    notes = cluster.capabilities.pod_notes
    if notes is not None:  # nodes of another cluster have no pods
        parts.append(SlurmPods(config.drain.slurm_jobs_for))
        parts.append(
            WorkloadLimit(
                config.limits.per_workload,
                config.limits.window,
                Markers(jobs=config.jobs.job_keys, gangs=config.drain.gang_keys),
                lambda: _quarantines(fleet),
                clocks,
            )
        )
        hooks = notice_hooks(config.drain.notice.webhooks, wall=clocks.wall)
        parts.append(
            EvictionNotices(
                notes,
                rules=config.drain.notice,
                webhooks=[WebhookRoute(takes, hook) for takes, hook in hooks],
                keys=config.drain.gang_keys,
                clocks=clocks,
                requests=requests,
            )
        )
    return InTurn(parts)


def eviction_requests(
    cluster: OpenedCluster, fleet: FleetState, clocks: Clocks, may_act: Callable[[], bool]
) -> EvictionRequests | None:
    """None where the cluster has no objects for them."""
    objects = cluster.capabilities.objects
    if objects is None or cluster.capabilities.pod_notes is None:
        return None
    return EvictionRequests(objects(""), lambda: _quarantines(fleet), clocks, may_act)


def _quarantines(fleet: FleetState) -> Iterator[Quarantine]:
    found = (one.quarantine for one in fleet.node_summaries.values())
    return (quarantine for quarantine in found if quarantine is not None)
