"""Metrics of the stages from a fault to the release, and of the GPUs that this concerns."""

from collections.abc import Mapping

from aggregator.quarantine.state.gpus import GpuCounts
from aggregator.quarantine.state.stage_times import StageTimes
from aggregator.web.metric_families import Values


def stage_values(stages: StageTimes) -> Mapping[str, Values]:
    return {
        "sickbay_kernel_to_ingest_seconds": stages.kernel_to_ingest,
        "sickbay_ingest_to_decision_seconds": stages.ingest_to_decision,
        "sickbay_decision_to_taint_seconds": {
            _boolean(held): found for held, found in stages.decision_to_taint.items()
        },
        "sickbay_taint_to_drained_seconds": stages.taint_to_drained,
        "sickbay_quarantine_to_release_seconds": stages.quarantine_to_release,
        "sickbay_quarantine_causes": dict(sorted(stages.causes.items())),
        "sickbay_gpu_out_of_service_seconds": stages.gpu_seconds,
    }


def gpu_values(gpus: Mapping[bool, GpuCounts]) -> Mapping[str, Values]:
    return {
        "sickbay_gpus": {
            (state, _boolean(quarantined)): number
            for quarantined in (False, True)
            for state, number in gpus.get(quarantined, GpuCounts())._asdict().items()
        }
    }


def _boolean(value: bool) -> str:  # noqa: FBT001 - a label's value
    return "true" if value else "false"
