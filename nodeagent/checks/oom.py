"""Processes that the kernel killed for want of memory. Context: no action follows from it.

``Out of memory: Killed process 4711 (python3) total-vm:..., anon-rss:...`` is the whole node's
memory; ``Memory cgroup out of memory: ...`` one container's limit, which is its tenant's business.
The process's name is its user's choice; it stands behind the kernel's words, and is only shown.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from nodeagent.checks.base import CheckSpec
from nodeagent.checks.loglines import first_bytes, sighting, text
from nodeagent.model import FaultSighting
from nodeagent.sources import Sources
from nodeagent.sources.kmsg import Record, is_packet_log

NAME = "oom"

# Linux before 4.20 writes two lines: "Kill process 4711 (python3) score 900 or sacrifice child",
# which counts, and "Killed process 4711 (python3) total-vm:" without the reason before it.
_KILLED = re.compile(
    rb"(?:(Memory cgroup out of memory)|Out of memory(?: \(oom_kill_allocating_task\))?): "
    rb"(?:Killed process (\d{1,10}) \((.{0,64})\),? (?:UID \d{1,10},? )?total-vm:"
    rb"|Kill process (\d{1,10}) \((.{0,64})\) score \d{1,10} or sacrifice child)"
)
_RESIDENT = re.compile(rb"anon-rss:(\d{1,15})kB")


class Oom:
    """Reads records as they come."""

    first = first_bytes((b"Out of memory", b"Memory cgroup out of memory"))

    def read(self, record: Record) -> Sequence[FaultSighting]:
        """The kill of this record, if any. Raises no exception, whatever the record."""
        line = record.text
        if not line.startswith((b"Out of memory", b"Memory cgroup out of memory")):
            return ()
        killed = _KILLED.match(line)
        if killed is None or is_packet_log(line):
            return ()
        resident = _RESIDENT.search(line, killed.end())
        details = {"pid": text(killed[2] or killed[4]), "name": text(killed[3] or killed[5] or b"")}
        if resident is not None:
            details["resident_kib"] = text(resident[1])
        code = "oom:cgroup" if killed[1] else "oom:node"
        return (sighting(record, check=NAME, code=code, details=details),)


def _build(_sources: Sources, _options: Mapping[str, Any]) -> Oom:
    return Oom()


SPEC = CheckSpec(
    name=NAME,
    sees="a process that the kernel killed for want of memory: the node's, or its container's",
    source="kernel log, lines of the memory manager",
    cost="a comparison of 13 bytes for each kernel record",
    blind_to="processes that ended themselves when an allocation failed; kills by "
    "systemd-oomd or the kubelet",
    interval=0,
    deadline=0,
    build=_build,
)
