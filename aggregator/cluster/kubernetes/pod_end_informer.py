"""Follows the pods of the cluster that were stopped by anyone and have failed.

One watch of the failed pods, from the present on: a pod in Terminating fails once its last
container has ended, and is deleted after that. Pods that failed before are not listed, as there may
be thousands, and an error that comes minutes later is the node's own. No failure here concerns
another watch.
"""

import asyncio
import contextlib
import logging
from collections.abc import Iterable

import msgspec

from aggregator.cluster.kubernetes import paths
from aggregator.cluster.kubernetes.limiter import Priority
from aggregator.cluster.kubernetes.objects import ACCELERATORS, Condition, decode, seconds
from aggregator.cluster.kubernetes.reflector import Resource, Watches, keep_following
from aggregator.cluster.pod_ends import PodEnd, PodEndSink
from aggregator.cluster.port import ClusterError
from aggregator.runtime.backoff import Backoff

log = logging.getLogger("sickbay.kubernetes")

#: Up to half a minute and a minute between two tries: a missing right does not come in seconds.
_BACKOFF = Backoff(first=1.0, most=60.0, spread=0.5)
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


class _Resources(msgspec.Struct, frozen=True):
    limits: dict[str, str] | None = None
    claims: list[msgspec.Raw] | None = None


class _Container(msgspec.Struct, frozen=True):
    resources: _Resources | None = None


class _Spec(msgspec.Struct, frozen=True, rename="camel"):
    node_name: str = ""
    termination_grace_period_seconds: float | None = None
    containers: list[_Container] | None = None
    init_containers: list[_Container] | None = None


class _Terminated(msgspec.Struct, frozen=True, rename="camel"):
    exit_code: int = 0


class _State(msgspec.Struct, frozen=True):
    terminated: _Terminated | None = None


class _ContainerStatus(msgspec.Struct, frozen=True):
    state: _State | None = None


class _Status(msgspec.Struct, frozen=True, rename="camel"):
    conditions: list[Condition] | None = None
    container_statuses: list[_ContainerStatus] | None = None


class _Meta(msgspec.Struct, frozen=True, rename="camel"):
    name: str
    namespace: str = ""
    deletion_timestamp: str | None = None
    deletion_grace_period_seconds: float | None = None


class _Pod(msgspec.Struct, frozen=True):
    metadata: _Meta
    spec: _Spec
    status: _Status


class PodEndInformer:
    def __init__(self, watches: Watches, sink: PodEndSink) -> None:
        self._rng = watches.rng
        self._sink = sink
        self._watch = watches.of(
            Resource(paths.PODS, {"fieldSelector": "status.phase=Failed"}, lane=Priority.STATUS)
        )

    async def follow(self) -> None:
        """Report each end, for ever. Raises only its cancellation."""
        await keep_following(
            self._watch.begin_now, self._follow_changes, report=_report, pause=self._pause
        )

    async def _follow_changes(self) -> None:
        async with contextlib.aclosing(self._watch.changes()) as batches:
            async for batch in batches:
                for change in batch:
                    if change.type != "DELETED" and (end := read_pod_end(change.object)):
                        self._sink.note_pod_end(end)

    async def _pause(self, failures: int) -> None:
        await asyncio.sleep(_BACKOFF.pause(failures, self._rng))


def _report(error: ClusterError | None) -> None:
    if error is None:
        log.info("evictions by others can be followed again")
        return
    text = "evictions by others can't be followed: no fault is attributed to them"
    log.warning(text, extra={"error": str(error)})


def read_pod_end(raw: msgspec.Raw) -> PodEnd | None:
    """The end of a failed pod, unless it ended by itself or has no accelerator.

    A pod without `DisruptionTarget` counts where it was deleted and a container of it was killed.
    """
    pod = decode(raw, _Pod)
    meta, spec = pod.metadata, pod.spec
    if not spec.node_name or not _has_accelerator(spec):
        return None
    disrupted = next(
        (
            one
            for one in pod.status.conditions or ()
            if one.type == _DISRUPTED and one.status == "True"
        ),
        None,
    )
    grace = meta.deletion_grace_period_seconds
    if grace is None:
        grace = spec.termination_grace_period_seconds
    grace = 30.0 if grace is None else grace
    if disrupted is not None:
        began = seconds(disrupted.last_transition_time)
        how = _HOW.get(disrupted.reason, "deleted from")
    elif meta.deletion_timestamp is not None and _was_killed(pod.status.container_statuses or ()):
        began, how = seconds(meta.deletion_timestamp) - grace, "deleted from"
    else:
        return None
    return PodEnd(spec.node_name, f"{meta.namespace}/{meta.name}", began, grace, how)


def _has_accelerator(spec: _Spec) -> bool:
    for container in (*(spec.containers or ()), *(spec.init_containers or ())):
        found = container.resources
        if found and (
            found.claims or any(one.startswith(ACCELERATORS) for one in found.limits or ())
        ):
            return True
    return False


def _was_killed(statuses: Iterable[_ContainerStatus]) -> bool:
    ended = (one.state.terminated for one in statuses if one.state is not None)
    return any(one is not None and one.exit_code == _KILLED for one in ended)
