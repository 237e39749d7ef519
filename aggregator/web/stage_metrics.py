"""Metrics of the stages from a fault to the release, and of the GPUs that this concerns."""

from collections.abc import Iterator, Mapping

from prometheus_client.metrics_core import Metric

from aggregator.quarantine.state.gpus import GpuCounts
from aggregator.quarantine.state.stage_times import StageTimes
from aggregator.web.metric_families import counter, gauge, histogram, single_counter


def stage_metrics(stages: StageTimes) -> Iterator[Metric]:
    yield histogram(
        "sickbay_kernel_to_ingest_seconds",
        "From a line of the kernel log to the arrival of its fault, to 1 ms, by the "
        "agent's monotonic clock. Faults in an agent's first message on a stream do not "
        "count: it sends those again whenever it connects.",
        [],
        {(): stages.kernel_to_ingest},
    )
    yield histogram(
        "sickbay_ingest_to_decision_seconds",
        "From the arrival of evidence to the decision that it needs a quarantine. In mode "
        "observe too. A decision that a rule delays (for) does not count, as its wait is "
        "configuration.",
        [],
        {(): stages.ingest_to_decision},
    )
    yield histogram(
        "sickbay_decision_to_taint_seconds",
        "From that decision to the marks on the node. held is true where a limit or "
        "another reason held the node in between.",
        ["held"],
        {(_boolean(held),): found for held, found in stages.decision_to_taint.items()},
    )
    yield histogram(
        "sickbay_taint_to_drained_seconds",
        "From the marks to the end of the drain, also where another replica or an "
        "earlier process began it.",
        [],
        {(): stages.taint_to_drained},
    )
    yield histogram(
        "sickbay_quarantine_to_release_seconds",
        "From the marks to the release.",
        [],
        {(): stages.quarantine_to_release},
    )
    yield counter(
        "sickbay_quarantine_causes",
        "Quarantines by each rule and code of their evidence; one with two codes counts "
        "for both. A person's has (manual). Beyond 150 pairs further ones count as "
        "(other).",
        ["rule", "code"],
        {(rule, code): number for (rule, code), number in sorted(stages.causes.items())},
    )
    yield single_counter(
        "sickbay_gpu_out_of_service_seconds",
        "GPUs of nodes in quarantine, times seconds, counted every 5 seconds since the "
        "start; divide increase() by 3600 for GPU hours. Where the agent has not "
        "reported since the start, the node's label nvidia.com/gpu.count has the "
        "number.",
        stages.gpu_seconds,
    )


def gpu_metrics(gpus: Mapping[bool, GpuCounts]) -> Iterator[Metric]:
    yield gauge(
        "sickbay_gpus",
        "GPUs by their worst status (ok, degraded, failed, unknown), and by whether "
        "their node is in quarantine (true, false). A GPU that an incident accuses is "
        "failed.",
        ["state", "quarantined"],
        {
            (state, _boolean(quarantined)): number
            for quarantined in (False, True)
            for state, number in gpus.get(quarantined, GpuCounts())._asdict().items()
        },
    )


def _boolean(value: bool) -> str:  # noqa: FBT001 - a label's value
    return "true" if value else "false"
