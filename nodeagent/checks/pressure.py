"""Whether work stalls for lack of CPU or of disks and remote filesystems (PSI).

Components: ``cpu`` and ``io``. Reason ``stalled``: degraded, for load is no fault of the node by
itself. ``no-procfs``: unknown. Memory has a check of its own.
"""

from collections.abc import Mapping
from typing import Any

from nodeagent.checks.base import CheckSpec, Kind, Off, Option, Report
from nodeagent.model import Observation, Status
from nodeagent.sources.host import HostRoots
from nodeagent.sources.pressure import NoPressure, Stall, stall

NAME = "pressure"


def evaluate(resource: str, pressure: Stall, *, limit: float) -> Observation:
    """Pure. Of the CPU *some* counts (all work at once never waits for it), of I/O *full*."""
    share, who = (pressure.some, "some") if resource == "cpu" else (pressure.full, "all")
    message = f"{who} work waited for {resource} for {share:.0f}% of the last minute"
    if share > limit:
        return Observation(NAME, resource, Status.DEGRADED, "stalled", message)
    return Observation(NAME, resource, Status.OK, "", message)


class PressureCheck:
    def __init__(self, machine: HostRoots, options: Mapping[str, Any]) -> None:
        self._machine = machine
        self._limits: Mapping[str, float] = {"cpu": options["cpu"], "io": options["io"]}

    async def run_check(self) -> Report:
        try:
            return [self._of(resource, limit) for resource, limit in self._limits.items()]
        except NoPressure as none:
            return Off(str(none))

    def _of(self, resource: str, limit: float) -> Observation:
        try:
            return evaluate(resource, stall(self._machine, resource), limit=limit)
        except (OSError, ValueError) as error:
            return Observation(NAME, resource, Status.UNKNOWN, "no-procfs", str(error))


SPEC = CheckSpec(
    name=NAME,
    sees="work that waits for CPU or I/O nearly all the time",
    source="/proc/pressure/cpu and io",
    cost="0.2 ms of CPU every 60 s",
    blind_to="which tasks wait, and which cause the load; which disk",
    deadline=5.0,
    build=lambda sources, options: PressureCheck(sources.machine, options),
    options=(
        Option("cpu", Kind.PERCENT, 95.0, "some work waiting for a CPU for more than this share"),
        Option("io", Kind.PERCENT, 80.0, "all work waiting for I/O for more than this share"),
    ),
)
