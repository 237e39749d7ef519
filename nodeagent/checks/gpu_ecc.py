"""Memory errors that a GPU has counted since its driver loaded or it was reset.

Reasons: ``sram-threshold`` (failed); ``uncorrectable``, ``ecc-pending`` (ECC changes with the next
reset), ``ecc-off`` (off on this GPU, on for others of its model) and ``unlike-siblings`` (it
refuses the counters, and no other does), all degraded.
"""

from nodeagent.checks import gpu_common
from nodeagent.checks.base import CheckSpec, Report
from nodeagent.checks.error_counters import count_gpu_errors
from nodeagent.checks.gpu_common import Verdict
from nodeagent.model import ClearedBy, Clearing, FaultSighting, Status
from nodeagent.sources import Sources
from nodeagent.sources.gpu_sample import Gpu, GpuSample

FAULT = "ecc-uncorrectable"


class GpuEcc(gpu_common.GpuCheck):
    """ECC counters of each GPU.

    While the volatile count of uncorrectable errors is not zero the GPU is degraded. A rise is also
    a fault, dated to this look. A fall of a volatile count comes from a reset of the GPU or a
    reload of the driver, and clears the faults that a reset clears. Where the GPU still waits for a
    reset, a person has cleared the counts (``nvidia-smi -p``).
    """

    def __init__(self, sources: Sources) -> None:
        super().__init__(SPEC.name, sources)
        #: Volatile counts, corrected and uncorrected, by UUID.
        self._before: dict[str, tuple[int | None, int | None]] = {}

    def evaluate(self, sample: GpuSample) -> Report:
        count_gpu_errors(sample, self._sources.measurements)
        is_without = gpu_common.nobody_has(sample, "ecc") and not self._before
        if is_without and not any(map(_has_more, sample.gpus)):
            return gpu_common.NOT_SUPPORTED
        changes = [change for gpu in sample.gpus for change in self._changes(gpu, sample)]
        return [*changes, *self._per_gpu.observe(sample, evaluate, "ecc")]

    def _changes(self, gpu: Gpu, sample: GpuSample) -> list[FaultSighting | Clearing]:
        if not gpu.uuid or gpu.ecc is None:
            return []
        corrected, uncorrected = self._before.get(gpu.uuid, (None, None))
        now = gpu.ecc
        # A count that could not be read this time is compared with when it next can be.
        self._before[gpu.uuid] = (
            corrected if now.corrected is None else now.corrected,
            uncorrected if now.uncorrected is None else now.uncorrected,
        )
        found: list[FaultSighting | Clearing] = []
        if _rise(corrected, now.corrected) < 0 or _rise(uncorrected, now.uncorrected) < 0:
            if not (gpu_common.is_ill(gpu) or (gpu.rows is not None and gpu.rows.pending)):
                found.append(Clearing(component=gpu.uuid, how="gpu-reset"))
            uncorrected = 0
        if (more := _rise(uncorrected, now.uncorrected)) > 0:
            found.append(_sighting(gpu, more, sample))
        return found


def evaluate(gpu: Gpu) -> Verdict:
    """The verdict on one GPU."""
    if gpu.sram_threshold_exceeded:
        text = "the SRAM has had more uncorrectable errors than NVIDIA allows: replace the GPU"
        return Status.FAILED, "sram-threshold", text
    ecc, mode = gpu.ecc, gpu.ecc_mode
    is_changing = mode is not None and mode.enabled != mode.pending
    change = f"a reset of the GPU turns ECC {'on' if mode and mode.pending else 'off'}"
    if ecc is None or ecc.uncorrected is None:
        if is_changing:
            return Status.DEGRADED, "ecc-pending", change
        return gpu_common.unreadable(gpu, "ecc")
    message = (
        f"{ecc.uncorrected} uncorrectable, {_text(ecc.corrected)} corrected since the last reset "
        f"(in its life {_text(ecc.uncorrected_in_life)} and {_text(ecc.corrected_in_life)})"
    )
    if ecc.uncorrected > 0:
        return Status.DEGRADED, "uncorrectable", message
    if is_changing:
        return Status.DEGRADED, "ecc-pending", f"{message}; {change}"
    return Status.OK, "", message


def _has_more(gpu: Gpu) -> bool:
    """Whether there is something to report of a GPU that has no ECC counters."""
    mode = gpu.ecc_mode
    return bool(gpu.sram_threshold_exceeded) or (mode is not None and mode.enabled != mode.pending)


def _sighting(gpu: Gpu, more: int, sample: GpuSample) -> FaultSighting:
    return FaultSighting(
        code=FAULT,
        check=SPEC.name,
        component=gpu.uuid,
        message=f"{more} new uncorrectable memory errors",
        source=f"nvml-ecc:{gpu.uuid}",
        # The counter itself would do until a reset makes it count the same numbers again.
        source_seq=int(sample.at * 1000),
        at=sample.at,
        cleared_by=ClearedBy.GPU_RESET,
        details={"new": str(more), "pci": gpu.pci},
    )


def _rise(before: int | None, now: int | None) -> int:
    """How far a count has risen; 0 where one is not known: a rise that was not seen has no time."""
    return 0 if before is None or now is None else now - before


def _text(count: int | None) -> str:
    return "?" if count is None else str(count)


SPEC = CheckSpec(
    name="gpu-ecc",
    sees="uncorrectable memory errors, and counters that fall because the GPU was reset; an SRAM "
    "beyond NVIDIA's threshold; ECC that is off on one GPU alone, or waits for a reset",
    source="NVML, nvmlDeviceGetTotalEccErrors, nvmlDeviceGetSramEccErrorStatus, "
    "nvmlDeviceGetEccMode",
    cost=gpu_common.COST,
    blind_to="GPUs without ECC; which job it hit; errors counted before the agent's first run "
    "are shown but not dated",
    deadline=gpu_common.DEADLINE,
    build=lambda sources, _: GpuEcc(sources),
)
