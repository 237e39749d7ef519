"""Limits of the kernel that work has run into: open files of the node, processes of a container.

``VFS: file-max limit 9223372 reached`` and ``cgroup: fork rejected by pids controller in
/kubepods/burstable/pod1/c1``. The name of a control group may be its user's choice; it stands
behind the kernel's words, and is only shown.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from nodeagent.checks.base import CheckSpec
from nodeagent.checks.loglines import first_bytes, sighting, text
from nodeagent.model import FaultSighting
from nodeagent.sources import Sources
from nodeagent.sources.kmsg import Record, is_packet_log

NAME = "kernel-limits"

_STARTS = (b"VFS: file-max limit ", b"cgroup: fork rejected by pids controller")
_FILES = re.compile(rb"VFS: file-max limit (\d{1,20}) reached")
_PIDS = re.compile(rb"cgroup: fork rejected by pids controller(?: in (.{1,300}))?$")


class KernelLimits:
    """Reads records as they come."""

    first = first_bytes(_STARTS)

    def read(self, record: Record) -> Sequence[FaultSighting]:
        """The limit of this record, if any. Raises no exception, whatever the record."""
        line = record.text
        if not line.startswith(_STARTS) or is_packet_log(line):
            return ()
        files = _FILES.match(line)
        if files is not None:
            details = {"limit": text(files[1])}
            return (sighting(record, check=NAME, code=f"{NAME}:files", details=details),)
        pids = _PIDS.match(line)
        if pids is not None:
            details = {"cgroup": text(pids[1] or b"")}
            return (sighting(record, check=NAME, code=f"{NAME}:pids", details=details),)
        return ()


def _build(_sources: Sources, _options: Mapping[str, Any]) -> KernelLimits:
    return KernelLimits()


SPEC = CheckSpec(
    name=NAME,
    sees="the node's limit of open files (fs.file-max) reached, a container's limit of processes",
    source="kernel log, lines of the VFS and of the pids controller",
    cost="a comparison of 20 bytes for each kernel record",
    blind_to="limits of a process (ulimit); a container's limit of processes after the first time",
    interval=0,
    deadline=0,
    build=_build,
)
