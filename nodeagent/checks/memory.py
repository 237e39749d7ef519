"""How much memory new work can have, and whether work stalls for lack of it.

Reasons: ``low`` (less than ``low`` of all memory is available) and ``stalled`` (for more than
``stalled`` of the last minute all work waited for memory): degraded, for a job may be the cause;
``no-procfs``: unknown. The node is the component.
"""

from collections.abc import Mapping
from typing import Any

from nodeagent.checks.base import CheckSpec, Kind, Option, Report
from nodeagent.checks.error_counters import count_dimm_errors
from nodeagent.model import Observation, Status
from nodeagent.sources.host import HostRoots
from nodeagent.sources.measurements import Measurements
from nodeagent.sources.pressure import Memory, NoPressure, Stall, read_memory, stall

NAME = "memory"


def evaluate(memory: Memory, pressure: Stall | None, *, low: float, stalled: float) -> Observation:
    """Pure. ``low`` and ``stalled`` are per cent; ``pressure`` None: the kernel does not measure.

    Stalled outranks low, because it shows that work suffers.
    """
    if pressure is not None and pressure.full > stalled:
        message = f"all work waited for memory for {pressure.full:.0f}% of the last minute"
        return Observation(NAME, "", Status.DEGRADED, "stalled", message)
    free, total = memory.available / 2**30, memory.total / 2**30
    message = f"{free:.1f} of {total:.0f} GiB available"
    if memory.available * 100 < memory.total * low:
        return Observation(NAME, "", Status.DEGRADED, "low", message)
    return Observation(NAME, "", Status.OK, "", message)


class MemoryCheck:
    def __init__(
        self, machine: HostRoots, measurements: Measurements, options: Mapping[str, Any]
    ) -> None:
        self._machine = machine
        self._measurements = measurements
        self._low: float = options["low"]
        self._stalled: float = options["stalled"]

    async def run_check(self) -> Report:
        try:
            memory = read_memory(self._machine)
            pressure = self._pressure()
        except (OSError, ValueError) as error:
            return [Observation(NAME, "", Status.UNKNOWN, "no-procfs", str(error))]
        at = self._machine.clock.boottime()
        count_dimm_errors(self._machine, self._measurements, at=at)
        return [evaluate(memory, pressure, low=self._low, stalled=self._stalled)]

    def _pressure(self) -> Stall | None:
        try:
            return stall(self._machine, "memory")
        except NoPressure:
            return None


SPEC = CheckSpec(
    name=NAME,
    sees="memory that is nearly used up, or that all work waits for",
    source="/proc/meminfo, /proc/pressure/memory",
    cost="0.2 ms of CPU every 60 s",
    blind_to="the limits of single pods and jobs; one NUMA node that is full next to empty ones; "
    "stalls where the kernel does not measure them",
    deadline=5.0,
    build=lambda sources, options: MemoryCheck(sources.machine, sources.measurements, options),
    options=(
        Option("low", Kind.PERCENT, 2.0, "less than this available is degraded"),
        Option(
            "stalled",
            Kind.PERCENT,
            20.0,
            "all work waiting for memory for more than this share of a minute is degraded",
        ),
    ),
)
