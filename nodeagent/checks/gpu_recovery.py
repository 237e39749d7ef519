"""The action that the driver itself requests before a GPU is used again.

A GPU that lacks this while most of its model on the node have it is ``unlike-siblings``
(degraded).
"""

import math

from nodeagent.checks import gpu_common
from nodeagent.checks.base import CheckSpec, Report
from nodeagent.checks.gpu_common import Verdict
from nodeagent.model import Clearing, Status
from nodeagent.sources import Sources
from nodeagent.sources.driver_log import INIT_FAILED
from nodeagent.sources.gpu_sample import Gpu, GpuSample

#: nvmlDeviceGpuRecoveryAction_t. Two are degraded: there the peer traffic or the IMEX domain must
#: be fixed, and the GPU need not be reset.
_ACTIONS: dict[int, Verdict] = {
    0: (Status.OK, "", "the driver requests no action"),
    1: (Status.FAILED, "reset", "the driver requests a GPU reset"),
    2: (Status.FAILED, "reboot", "the driver requests a reboot of the node"),
    3: (Status.DEGRADED, "drain-p2p", "the driver requests an end of peer-to-peer work"),
    4: (
        Status.FAILED,
        "drain-and-reset",
        "the driver requests no new work, and a GPU reset once the present work has ended",
    ),
    5: (Status.DEGRADED, "recover-imex", "the driver requests recovery of the IMEX domain"),
    6: (Status.FAILED, "bus-reset", "the driver requests a reset of the GPU's bus"),
    7: (Status.FAILED, "system-reboot", "the driver requests a reboot of the system"),
}


#: Actions whose end means that the GPU has been reset in some way.
_RESETTING = frozenset({1, 2, 4, 6, 7})


class GpuRecovery(gpu_common.GpuCheck):
    """The recovery action of each GPU, and its end as the sign that a reset has happened."""

    def __init__(self, sources: Sources) -> None:
        super().__init__(SPEC.name, sources)
        self._wanted = sources.driver_log.wanted
        #: By UUID: the load of the driver that has been reported as a reset.
        self._loads_reported: dict[str, float] = {}

    def evaluate(self, sample: GpuSample) -> Report:
        clearings = [sign for gpu in sample.gpus for sign in self._clearing(gpu, sample.at)]
        if not clearings and gpu_common.nobody_has(sample, "recovery"):
            return gpu_common.NOT_SUPPORTED
        return [*clearings, *self._per_gpu.observe(sample, evaluate, "recovery")]

    def _clearing(self, gpu: Gpu, at: float) -> list[Clearing]:
        return [*self._started(gpu, at), *self._reset(gpu, at)] if gpu.uuid else []

    def _started(self, gpu: Gpu, at: float) -> list[Clearing]:
        answers = gpu.clocks is not None and not gpu_common.is_ill(gpu)
        if not (answers and self._sources.driver_log.take_start(gpu.pci, at)):
            return []
        names = gpu.uuid, f"pci:{gpu.pci}"  # it may have had no UUID
        return [Clearing(name, "gpu-reset", INIT_FAILED) for name in names]

    def _reset(self, gpu: Gpu, at: float) -> list[Clearing]:
        if self._was_loaded_anew(gpu, at):
            self._wanted.discard(gpu.uuid)
            return [Clearing(component=gpu.uuid, how="gpu-reset")]
        if gpu.recovery_action in _RESETTING:
            self._wanted.add(gpu.uuid)
        elif gpu.recovery_action == 0 and gpu.uuid in self._wanted:
            self._wanted.remove(gpu.uuid)
            return [Clearing(component=gpu.uuid, how="gpu-reset")]
        return []

    def _was_loaded_anew(self, gpu: Gpu, at: float) -> bool:
        """Whether the driver has been loaded, reports no fault of the GPU since, and it answers."""
        log = self._sources.driver_log
        reported = self._loads_reported.get(gpu.uuid, -math.inf)
        if at <= log.loaded_at or not log.has_reset(gpu.pci, reported) or gpu_common.is_ill(gpu):
            return False
        self._loads_reported[gpu.uuid] = log.loaded_at
        return True


def evaluate(gpu: Gpu) -> Verdict:
    """The verdict on one GPU."""
    action = gpu.recovery_action
    if action is None:
        return gpu_common.unreadable(gpu, "recovery")
    unknown = f"the driver requests recovery action {action}, which sickbay does not know"
    return _ACTIONS.get(action, (Status.UNKNOWN, "unknown-action", unknown))


SPEC = CheckSpec(
    name="gpu-recovery",
    sees="the driver's own verdict on a GPU: reset, reboot, drain and reset; and when it is over",
    source="NVML field 230 (GPU recovery action); the driver's loading, in the kernel log",
    cost=gpu_common.COST,
    blind_to="drivers before R565, off: they do not report it; a reset done while no "
    "agent ran, of a GPU for which the driver had requested no action",
    deadline=gpu_common.DEADLINE,
    build=lambda sources, _: GpuRecovery(sources),
)
