"""Follows the pods of the cluster that were stopped by anyone and have failed.

One watch of the failed pods, from the present on: a pod in Terminating fails once its last
container has ended, and is deleted after that. Pods that failed before are not listed, as there may
be thousands, and an error that comes minutes later is the node's own. No failure here concerns
another watch.
"""

import logging
from collections.abc import Iterable

import msgspec

from aggregator.cluster.kubernetes import paths
from aggregator.cluster.kubernetes.limiter import Priority
from aggregator.cluster.kubernetes.objects import (
    ACCELERATORS,
    ContainerStatus,
    PodObject,
    PodSpec,
    PodStatus,
    decode,
    seconds,
)
from aggregator.cluster.kubernetes.reflector import Follower, Resource, Watches, WatchEvent
from aggregator.cluster.pod_ends import PodEnd, PodEndSink
from aggregator.cluster.port import ClusterError
from aggregator.runtime.backoff import Backoff

log = logging.getLogger("sickbay.kubernetes")

#: The exit code of a process that SIGKILL ended.
_KILLED = 137
_DISRUPTED = "DisruptionTarget"
#: The reasons of that condition, and what a node's name follows.
_HOW = {
    "EvictionByEvictionAPI": "evicted from",
    "PreemptionByScheduler": "preempted on",
    "DeletionByTaintManager": "deleted for a taint from",
    "TerminationByKubelet": "terminated by the kubelet of",
}


class PodEndInformer(Follower):
    """Reports each end, from the present on."""

    #: Up to half a minute and a minute between two tries: a missing right does not come in seconds.
    _BACKOFF = Backoff(first=1.0, most=60.0, spread=0.5)

    def __init__(self, watches: Watches, sink: PodEndSink) -> None:
        failed = {"fieldSelector": "status.phase=Failed"}
        super().__init__(watches, Resource(paths.PODS, failed, lane=Priority.STATUS))
        self._sink = sink

    def _take(self, change: WatchEvent) -> None:
        if change.type != "DELETED" and (end := read_pod_end(change.object)):
            self._sink.note_pod_end(end)

    def _report(self, error: ClusterError | None) -> None:
        if error is None:
            log.info("evictions by others can be followed again")
            return
        text = "evictions by others can't be followed: no fault is attributed to them"
        log.warning(text, extra={"error": str(error)})


def read_pod_end(raw: msgspec.Raw) -> PodEnd | None:
    """The end of a failed pod, unless it ended by itself or has no accelerator.

    A pod without `DisruptionTarget` counts where it was deleted and a container of it was killed.
    """
    pod = decode(raw, PodObject)
    meta, spec, status = pod.metadata, pod.spec or PodSpec(), pod.status or PodStatus()
    if not spec.node_name or not _has_accelerator(spec):
        return None
    disrupted = next((one for one in status.true_conditions if one.type == _DISRUPTED), None)
    grace = meta.deletion_grace_period_seconds
    if grace is None:
        grace = spec.termination_grace_period_seconds
    grace = 30.0 if grace is None else grace
    if disrupted is not None:
        began = seconds(disrupted.last_transition_time)
        how = _HOW.get(disrupted.reason, "deleted from")
    elif meta.deletion_timestamp is not None and _was_killed(status.container_statuses or ()):
        began, how = seconds(meta.deletion_timestamp) - grace, "deleted from"
    else:
        return None
    return PodEnd(spec.node_name, f"{meta.namespace}/{meta.name}", began, grace, how)


def _has_accelerator(spec: PodSpec) -> bool:
    for container in (*(spec.containers or ()), *(spec.init_containers or ())):
        found = container.resources
        if found and (
            found.claims or any(one.startswith(ACCELERATORS) for one in found.limits or ())
        ):
            return True
    return False


def _was_killed(statuses: Iterable[ContainerStatus]) -> bool:
    ended = (one.state.terminated for one in statuses if one.state is not None)
    return any(one is not None and one.exit_code == _KILLED for one in ended)
