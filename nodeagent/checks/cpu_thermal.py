"""CPUs that the hardware or the kernel has slowed down, for heat or for power.

``CPU12: Package temperature is above threshold, cpu clock is throttled (total events = 31)`` (with
"mce: " before it until Linux 5.5, and "temperature above threshold, cpu clock throttled"),
``CPU0: Package power limit notification (total events = 3)``, ``thermal thermal_zone0: critical
temperature reached``. The kernel logs each at most every 300 s; the event counts are its own. The
lines by which it ends ("temperature/speed normal") are passed over.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from nodeagent.checks.base import CheckSpec
from nodeagent.checks.loglines import first_bytes, sighting, text
from nodeagent.model import FaultSighting
from nodeagent.sources import Sources
from nodeagent.sources.kmsg import Record, is_packet_log

NAME = "cpu-thermal"

_STARTS = (
    *(b"CPU%d" % digit for digit in range(10)),
    *(b"mce: CPU", b"thermal", b"critical temperature", b"Critical temperature"),
)
_CPU = re.compile(
    rb"(?:mce: )?CPU(\d{1,5}): (?:(Core|Package|Die) )?(?:(power limit notification)"
    rb"|temperature (?:is )?above threshold, cpu clock (?:is )?throttled"
    rb"|Temperature above threshold, cpu clock throttled)(?: \(total events = (\d{1,20})\))?"
)
_CRITICAL = re.compile(
    rb"(?:thermal(?:_sys| thermal_zone\d{1,4}|_zone\d{1,4})?: )?(?:[\w.-]{1,32}: )?"
    rb"[Cc]ritical temperature reached\b"
)


class CpuThermal:
    """Reads records as they come."""

    first = first_bytes(_STARTS)

    def read(self, record: Record) -> Sequence[FaultSighting]:
        """The slowdown of this record, if any. Raises no exception, whatever the record."""
        line = record.text
        if not line.startswith(_STARTS) or is_packet_log(line):
            return ()
        cpu = _CPU.match(line)
        if cpu is not None:
            kind = "power-limit" if cpu[3] else "throttled"
            details = {
                "cpu": text(cpu[1]),
                "part": text(cpu[2] or b"").lower(),
                "events": text(cpu[4] or b""),
            }
            return (sighting(record, check=NAME, code=f"{NAME}:{kind}", details=details),)
        if _CRITICAL.match(line):
            return (sighting(record, check=NAME, code=f"{NAME}:critical"),)
        return ()


def _build(_sources: Sources, _options: Mapping[str, Any]) -> CpuThermal:
    return CpuThermal()


SPEC = CheckSpec(
    name=NAME,
    sees="CPUs that are slowed down for heat or power, a critical temperature of the machine",
    source="kernel log, lines of the CPU's thermal driver and of the thermal zones",
    cost="a comparison of 8 bytes for each kernel record",
    blind_to="AMD and Arm CPUs, whose slowdowns no driver logs; GPUs (gpu-clocks); fans",
    interval=0,
    deadline=0,
    build=_build,
)
