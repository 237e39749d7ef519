"""Which pod uses which GPU: the pods' status and the agent's report in one. Pure.

The kubelet gives a pod's status (`allocatedResourcesStatus`) and PodResources. One of them is
enough. Where they differ, the pod's GPUs are unknown. A process of the pod on another GPU adds
that GPU: the driver can show more use than was allocated, never less.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from aggregator.cluster.port import Pod
from aggregator.runtime.text import some_of

#: How NVIDIA's device plugin names whole GPUs, and how it marks those that several pods share.
UUID, SHARE = "GPU-", "::"
#: A DRA driver whose devices are channels of memory, and no GPUs.
_NO_GPU = "compute-domain.nvidia.com/"
_MOST_NAMED = 4


@dataclass(frozen=True, slots=True)
class PodGpu:
    """One GPU of one container by the kubelet, or of one pod by its processes."""

    namespace: str
    pod: str
    pod_uid: str
    gpu: str
    container: str = ""
    claim: str = ""
    allocated: bool = True
    processes: int = 0


@dataclass(frozen=True, slots=True)
class GpuReport:
    """An agent's report. ``unknown``: why not all allocations are in it; ``processes_unknown``: the
    same of processes.
    """

    pods: tuple[PodGpu, ...] = ()
    unknown: str = ""
    processes_unknown: str = ""


@dataclass(frozen=True, slots=True)
class GpusOfPod:
    """The UUIDs of whole GPUs that the pod uses. ``unknown``: why not all of them are known."""

    gpus: frozenset[str] = frozenset()
    unknown: str = ""


NO_REPORT = GpuReport(unknown="the node's agent was not requested to report it")


def gpus_by_pod(pods: Iterable[Pod], report: GpuReport = NO_REPORT) -> Mapping[str, GpusOfPod]:
    """By uid, the GPUs of these pods, which are on the node of the report."""
    return {pod.uid: _gpus_of(pod, report) for pod in pods}


def _gpus_of(pod: Pod, report: GpuReport) -> GpusOfPod:
    used = frozenset(
        uuid
        for one in report.pods
        if one.pod_uid == pod.uid
        and (one.processes or not one.allocated)
        and (uuid := _whole(one.gpu))
    )
    status, reported = _by_status(pod), _by_report(pod, report)
    if status.unknown and reported.unknown:
        return GpusOfPod(used, reported.unknown)
    if not status.unknown and not reported.unknown and status.gpus != reported.gpus:
        text = (
            f"its status names {_named(status.gpus)}, "
            f"PodResources of the kubelet {_named(reported.gpus)}"
        )
        return GpusOfPod(used | status.gpus | reported.gpus, text)
    known = reported if status.unknown else status
    return GpusOfPod(known.gpus | used)


def _by_status(pod: Pod) -> GpusOfPod:
    if pod.has_claims:
        return GpusOfPod(unknown="its status does not name the GPUs of its claims")
    return _counted(pod, pod.gpu_ids, "its status")


def _by_report(pod: Pod, report: GpuReport) -> GpusOfPod:
    if report.unknown:
        return GpusOfPod(unknown=report.unknown)
    mine = [
        one
        for one in report.pods
        if one.allocated and (one.namespace, one.pod) == (pod.namespace, pod.name)
    ]
    if any(one.pod_uid not in ("", pod.uid) for one in mine):
        return GpusOfPod(unknown="the agent's report is about an earlier pod of its name")
    claimed = [one.gpu for one in mine if one.claim and not one.gpu.startswith(_NO_GPU)]
    if pod.has_claims and not any(one.claim for one in mine):
        return GpusOfPod(unknown="PodResources of the kubelet does not name its claims")
    plugin = [one.gpu for one in mine if not one.claim]
    if pod.has_claims and len(plugin) == pod.gpus:
        return _all_whole((*plugin, *claimed), "PodResources of the kubelet")
    return _counted(pod, (*plugin, *claimed), "PodResources of the kubelet")


def _counted(pod: Pod, ids: Sequence[str], source: str) -> GpusOfPod:
    if len(ids) != pod.gpus:
        return GpusOfPod(unknown=f"it requests {pod.gpus} GPUs, and {source} names {len(ids)}")
    return _all_whole(ids, source)


def _all_whole(ids: Sequence[str], source: str) -> GpusOfPod:
    odd = next((one for one in ids if not _whole(one)), None)
    if odd is not None:
        return GpusOfPod(unknown=f"{source} names {odd[:80]}, which is no GPU's UUID")
    return GpusOfPod(frozenset(_whole(one) for one in ids))


def _whole(device: str) -> str:
    """The UUID of a whole GPU, without the mark of a share; empty for another id."""
    return device.partition(SHARE)[0] if device.startswith(UUID) else ""


def _named(gpus: frozenset[str]) -> str:
    return some_of(sorted(gpus), _MOST_NAMED) or "none"
