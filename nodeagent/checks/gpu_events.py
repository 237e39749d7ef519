"""Xids that NVML reports and the kernel log does not: its line was lost, or is not readable.

A supplement to the check xid and never its echo: this check reports an Xid one look later, when the
log still does not have it. NVML gives its code alone, without the driver's words.
"""

from collections.abc import Sequence

from nodeagent.checks import gpu_common, xid_codes
from nodeagent.checks.base import CheckSpec, Report
from nodeagent.model import ClearedBy, FaultSighting, Observation, Status
from nodeagent.sources import Sources
from nodeagent.sources.gpu_sample import GpuSample, XidEvent

#: Seconds by which the log's stamp of an Xid may be before the sample that preceded its event.
_SLACK = 10.0


class GpuEvents(gpu_common.GpuCheck):
    """Keeps each event for one look, so that the kernel log's line comes first."""

    def __init__(self, sources: Sources) -> None:
        super().__init__(SPEC.name, sources, call="events")
        self._waiting: Sequence[XidEvent] = ()
        self._taken = 0

    def evaluate(self, sample: GpuSample) -> Report:
        ripe, self._waiting = self._waiting, self._fresh()
        faults = [self._sighting(event) for event in ripe if not self._is_reported(event)]
        return [*faults, _node(sample)]

    def _fresh(self) -> Sequence[XidEvent]:
        """The events that have come since the last look."""
        nvml = self._sources.nvml
        new, self._taken = nvml.xids_received - self._taken, nvml.xids_received
        return tuple(nvml.xids)[-new:] if new else ()

    def _is_reported(self, event: XidEvent) -> bool:
        return self._sources.driver_log.has_reported(event.pci, event.code, event.since - _SLACK)

    def _sighting(self, event: XidEvent) -> FaultSighting:
        cleared_by = xid_codes.cleared_by(event.code)
        if cleared_by is not ClearedBy.EXPIRY:
            self._sources.driver_log.erred(event.pci)
        return FaultSighting(
            code=f"xid:{event.code}",
            check=SPEC.name,
            component=event.uuid,
            message=f"Xid {event.code} on {event.pci}, by NVML; the kernel log has no line of it",
            source=f"nvml-event:{event.uuid}",
            source_seq=int(event.at * 1000),
            at=event.at,
            cleared_by=cleared_by,
            details={"pci": event.pci, "reported_by": "nvml"},
        )


def _node(sample: GpuSample) -> Observation:
    if sample.trouble is not None:
        trouble = sample.trouble
        return Observation(SPEC.name, "", Status.UNKNOWN, trouble.kind.value, trouble.message)
    deaf = [f"GPU {gpu.index}" for gpu in sample.gpus if "events" in gpu.errors]
    if deaf:
        text = f"NVML gives no events of {', '.join(deaf)}"
        return Observation(SPEC.name, "", Status.UNKNOWN, "no-events", text)
    return Observation(SPEC.name, "", Status.OK, "", "NVML's events are listened to")


SPEC = CheckSpec(
    name="gpu-events",
    sees="an Xid that NVML reports and the kernel log does not",
    source="NVML, nvmlEventSetWait_v2; the Xids that the check xid has read",
    cost="no cost next to gpu-inventory; one call",
    blind_to="events from before the NVML worker started; the driver's words; with the check xid "
    "off it reports every Xid; comes one or two minutes late",
    deadline=gpu_common.DEADLINE,
    build=lambda sources, _: GpuEvents(sources),
)
