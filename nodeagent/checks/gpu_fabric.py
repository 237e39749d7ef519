"""Whether each GPU has joined its NVLink fabric, and how well it is there.

A GPU that the fabric manager has not registered runs no CUDA program, and no log shows it: a
manager that is down has gone unnoticed for weeks. Reasons: ``registration-failed``,
``not-registered``, ``unhealthy``, ``misconfigured`` and ``route-unhealthy`` (failed);
``not-started``, ``manager-disconnected``, ``degraded-bandwidth``, ``limited-capacity``,
``recovering`` and ``no-fabric`` (degraded: a model that belongs to a fabric, or a GPU next to
NVSwitches or to registered siblings, has none); ``starting`` (unknown). Off where no GPU is to be
part of a fabric.
"""

import math
import re

from nodeagent.checks import gpu_common
from nodeagent.checks.base import CheckSpec, Report
from nodeagent.checks.gpu_common import Verdict
from nodeagent.model import Status
from nodeagent.sources import Sources
from nodeagent.sources.gpu_sample import Code, Fabric, Gpu, GpuSample

_NOT_SUPPORTED, _NOT_STARTED, _IN_PROGRESS, _COMPLETED = range(4)
_TRUE = 1

#: In the health mask two bits each, 1 for "true" (nvml.h, NVML_GPU_FABRIC_HEALTH_MASK_*).
_TROUBLES = (
    (4, Status.FAILED, "route-unhealthy", "a route through the fabric is unhealthy"),
    (0, Status.DEGRADED, "degraded-bandwidth", "the fabric gives it less bandwidth"),
    (2, Status.DEGRADED, "recovering", "a route through the fabric is being recovered"),
    (6, Status.DEGRADED, "recovering", "an access to the fabric has timed out and is recovered"),
)
_CONFIGURATION, _MANAGER = 8, 14
_MISCONFIGURED = {
    2: "a wrong system GUID",
    3: "a wrong chassis serial number",
    4: "no partition",
    5: "too few NVLinks",
    6: "an incompatible GPU firmware",
    7: "an invalid location",
    8: "an invalid GPU state",
}
_MANAGER_DISCONNECTED = 2
_UNHEALTHY, _LIMITED = 2, 3
#: Models of NVLink racks, and those that are one fabric where the node has NVSwitches.
_RACK_MODEL = re.compile(r"\bG[BR][2-9]\d\d\b")
_SWITCHED_MODEL = re.compile(r"\b[HB][1-9]\d\d?\b")


class GpuFabric(gpu_common.GpuCheck):
    """The fabric's state of each GPU. After a boot or a quiesce it takes some time to come."""

    def __init__(self, sources: Sources, boot_grace: float) -> None:
        super().__init__(SPEC.name, sources, brief=True)
        self._boot_grace = boot_grace
        #: UUIDs that have been registered since we look: they are not starting any more.
        self._joined: set[str] = set()
        #: When NVML last gave no answer (the driver may have been loaded anew), or it was loaded.
        self._trouble_at = -math.inf
        #: UUIDs of the GPUs that are to have a fabric and have none.
        self._lacking: frozenset[str] = frozenset()

    def evaluate(self, sample: GpuSample) -> Report:
        self._lacking = self._gpus_without(sample)
        if _nobody_has_one(sample) and not self._lacking:
            return gpu_common.NOT_SUPPORTED
        if sample.trouble is not None:
            self._joined.clear()  # a driver that comes back registers anew
            self._trouble_at = sample.at
        if self._trouble_at < self._sources.driver_log.loaded_at:
            self._joined.clear()
            self._trouble_at = self._sources.driver_log.loaded_at
        return self._per_gpu.observe(sample, self._verdict)

    def _gpus_without(self, sample: GpuSample) -> frozenset[str]:
        has_switches = bool(self._sources.gpus.switches())
        models = [gpu.name for gpu in sample.gpus]
        joined = [gpu.name for gpu in sample.gpus if gpu.fabric and gpu.fabric.state]
        return frozenset(
            gpu.uuid
            for gpu in sample.gpus
            if (gpu.fabric is not None and gpu.fabric.state == _NOT_SUPPORTED)
            or (gpu.fabric is None and gpu.errors.get("fabric") == Code.NOT_SUPPORTED)
            if 2 * joined.count(gpu.name) > models.count(gpu.name)
            or _RACK_MODEL.search(gpu.name)
            or (gpu.fabric is not None and has_switches and _SWITCHED_MODEL.search(gpu.name))
        )

    def _verdict(self, gpu: Gpu) -> Verdict:
        if gpu.uuid in self._lacking:
            if self._is_young():
                return Status.UNKNOWN, "starting", "the GPU has no NVLink fabric yet"
            text = "by its driver this GPU has no NVLink fabric, and its model is to have one"
            return Status.DEGRADED, "no-fabric", f"{gpu.name}: {text}"
        if gpu.fabric is None or gpu.fabric.state == _NOT_SUPPORTED:
            return gpu_common.unreadable(gpu, "fabric") if gpu.fabric is None else _NONE
        if gpu.fabric.state == _COMPLETED:
            self._joined.add(gpu.uuid)
        return evaluate(gpu.fabric, is_young=self._is_young() and gpu.uuid not in self._joined)

    def _is_young(self) -> bool:
        return gpu_common.is_young(self._sources, self._boot_grace, since=self._trouble_at)


_NONE: Verdict = (Status.UNKNOWN, "unsupported", "this GPU is part of no fabric")


def evaluate(fabric: Fabric, *, is_young: bool) -> Verdict:
    """The verdict on one GPU that can be part of a fabric. ``is_young``: it may still come."""
    where = f"clique {fabric.clique} of cluster {fabric.cluster}"
    if fabric.state in (_NOT_STARTED, _IN_PROGRESS):
        if is_young:
            return Status.UNKNOWN, "starting", "the fabric manager has not registered this GPU yet"
        if fabric.state == _NOT_STARTED:
            return Status.DEGRADED, "not-started", "the GPU has not begun to join its fabric"
        text = "the fabric manager has not registered this GPU: is nvidia-fabricmanager running?"
        return Status.FAILED, "not-registered", text
    if fabric.state != _COMPLETED:
        return Status.UNKNOWN, "unknown-state", f"fabric state {fabric.state} is not known"
    if fabric.status != 0:
        text = f"the fabric manager refused this GPU (error {fabric.status})"
        return Status.FAILED, "registration-failed", f"{text}; {where}"
    status, reason, text = _health(fabric)
    return status, reason, f"{text}; {where}"


def _health(fabric: Fabric) -> Verdict:
    configuration = fabric.health >> _CONFIGURATION & 0xF
    if configuration > 1:
        what = _MISCONFIGURED.get(configuration, f"error {configuration}")
        return Status.FAILED, "misconfigured", f"the fabric's configuration is wrong: {what}"
    if fabric.summary == _UNHEALTHY:
        return Status.FAILED, "unhealthy", f"the fabric calls it unhealthy ({fabric.health:#x})"
    for shift, status, reason, text in _TROUBLES:
        if fabric.health >> shift & 0x3 == _TRUE:
            return status, reason, text
    if fabric.health >> _MANAGER & 0x3 == _MANAGER_DISCONNECTED:
        return Status.DEGRADED, "manager-disconnected", "the fabric manager is not connected"
    if fabric.summary == _LIMITED:
        text = f"the fabric has limited capacity ({fabric.health:#x})"
        return Status.DEGRADED, "limited-capacity", text
    return Status.OK, "", "registered"


def _nobody_has_one(sample: GpuSample) -> bool:
    if gpu_common.nobody_has(sample, "fabric"):
        return True
    states = [None if gpu.fabric is None else gpu.fabric.state for gpu in sample.gpus]
    return sample.trouble is None and bool(states) and set(states) == {_NOT_SUPPORTED}


SPEC = CheckSpec(
    name="gpu-fabric",
    sees="a GPU that its NVLink fabric has not registered, or registered with a fault; a GPU of a "
    "rack that has no fabric at all",
    source="NVML, nvmlDeviceGetGpuFabricInfoV",
    cost=gpu_common.COST_SELDOM,
    blind_to="GPUs before Hopper and those that are to have no fabric: off there; the switches "
    "themselves; the last minutes",
    deadline=gpu_common.DEADLINE,
    build=lambda sources, options: GpuFabric(sources, options["boot_grace"]),
    options=(gpu_common.boot_grace("a GPU may take to be registered"),),
)
