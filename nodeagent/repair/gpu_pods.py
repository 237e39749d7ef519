"""Which pod uses which GPU: the kubelet's PodResources, and the processes that NVML reports.

It is read on request alone. The kubelet decides what is allocated. A process on a GPU that is not
allocated to its pod is reported next to it.
"""

import asyncio
import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from nodeagent.repair.pod_gpu import PodGpu, PodGpus
from nodeagent.repair.pod_resources import (
    SOCKET,
    Device,
    PodResourcesUnknown,
    read_devices,
)
from nodeagent.sources.gpu_sample import GpuSample
from nodeagent.sources.gpu_users import GpuUsersUnknown, check_namespace
from nodeagent.sources.gpus import GpuMap
from nodeagent.sources.host import HostRoots
from nodeagent.sources.kubelet_devices import uids_by_device
from nodeagent.sources.nvidia_driver import addresses_by_minor
from nodeagent.sources.nvml import Nvml
from nodeagent.sources.pod_processes import names_by_uid, pod_of
from sickbay.v1.limits import MAX_POD_GPUS

__all__ = ["find_pod_gpus"]

#: Seconds for the kubelet, and for the driver: the requester waits for 5 s.
_KUBELET, _DRIVER = 2.0, 3.0
#: Resources of NVIDIA's device plugin, shared ones and MIG devices included.
_RESOURCES = ("nvidia.com/gpu", "nvidia.com/mig-")
_GPU_ID = ("GPU-", "MIG-")
#: NVIDIA's DRA driver names a whole GPU by its minor number.
_DRA, _DRA_GPU = "gpu.nvidia.com", "gpu-"
_SHARE = "::"


async def find_pod_gpus(
    machine: HostRoots, gpus: GpuMap, nvml: Nvml, *, own_namespace: bool
) -> PodGpus:
    """Comes within some 3 s, whatever the kubelet and the driver do."""
    reading = asyncio.create_task(_sample(nvml))
    unknown = ""
    pods: list[PodGpu] = []
    try:
        devices = await read_devices(machine.host(SOCKET), _KUBELET)
        pods = list(_allocated(machine, gpus, devices))
    except PodResourcesUnknown as error:
        unknown = str(error)
    except OSError as error:
        unknown = f"{SOCKET}: {error.strerror or error}"
    sample = await reading
    seen, processes_unknown = _running(machine, sample, own_namespace=own_namespace)
    pods = _joined(machine, pods, seen)
    if len(pods) > MAX_POD_GPUS:
        unknown = f"{len(pods)} GPUs of pods, of which {MAX_POD_GPUS} are reported"
    return PodGpus(tuple(pods[:MAX_POD_GPUS]), unknown, processes_unknown)


async def _sample(nvml: Nvml) -> GpuSample | None:
    """None: the driver takes too long, or there is none."""
    if not nvml.has_library():
        return None
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_DRIVER):
            return await nvml.sample_processes()
    return None


def _allocated(machine: HostRoots, gpus: GpuMap, devices: Iterable[Device]) -> Iterator[PodGpu]:
    uids = uids_by_device(machine)
    minors = addresses_by_minor(machine)
    for one in devices:
        if one.claim:
            yield PodGpu(
                one.namespace, one.pod, "", one.container, _gpu_of(one, gpus, minors), one.claim
            )
        elif one.owner.startswith(_RESOURCES) or one.device.startswith(_GPU_ID):
            found = uids.get((one.container, one.device), frozenset())
            uid = next(iter(found)) if len(found) == 1 else ""
            yield PodGpu(one.namespace, one.pod, uid, one.container, one.device)


def _gpu_of(one: Device, gpus: GpuMap, minors: dict[int, str]) -> str:
    """The UUID of a claim's GPU, where it is a whole one that the node knows."""
    name = one.device.rpartition("/")[2]
    number = name.removeprefix(_DRA_GPU)
    if one.owner == _DRA and number != name and number.isascii() and number.isdigit():
        uuid = gpus.uuid(minors.get(int(number), ""))
        if uuid:
            return uuid
    return f"{one.owner}/{one.device}"


def _running(
    machine: HostRoots, sample: GpuSample | None, *, own_namespace: bool
) -> tuple[dict[tuple[str, str], int], str]:
    """How many processes each pod (by uid) has on each GPU, and why that is not known in full."""
    if sample is None:
        return {}, "NVML gave no answer in time, or there is no NVML"
    if sample.trouble is not None:
        return {}, sample.trouble.message
    try:
        if not own_namespace:
            check_namespace(machine)
    except GpuUsersUnknown as error:
        return {}, str(error)
    counts: dict[tuple[str, str], int] = {}
    unread = []
    for gpu in sample.gpus:
        if gpu.pids is None:
            unread.append(gpu.uuid or gpu.pci or f"GPU {gpu.index}")
        for pid in gpu.pids or ():
            uid = pod_of(machine, pid)
            if uid:
                counts[uid, gpu.uuid] = counts.get((uid, gpu.uuid), 0) + 1
    return counts, f"NVML gives no processes of {', '.join(unread)}" if unread else ""


def _joined(
    machine: HostRoots, pods: Sequence[PodGpu], seen: dict[tuple[str, str], int]
) -> list[PodGpu]:
    """The allocations with their processes, and the processes outside of every allocation."""
    if not seen:
        return list(pods)
    names = names_by_uid(machine)
    uids = {name: uid for uid, name in names.items()}
    rest = dict(seen)
    joined = []
    for one in pods:
        uid = one.pod_uid or uids.get((one.namespace, one.pod), "")
        count = rest.pop((uid, one.gpu.partition(_SHARE)[0]), 0)
        joined.append(replace(one, processes=count) if count else one)
    for (uid, gpu), count in sorted(rest.items()):
        namespace, pod = names.get(uid, ("", ""))
        joined.append(PodGpu(namespace, pod, uid, "", gpu, allocated=False, processes=count))
    return joined
