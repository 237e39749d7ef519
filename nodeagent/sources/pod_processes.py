"""The pod of a process, by its cgroup, and the pod's name, by the kubelet's folder of its logs."""

import os
import re

from nodeagent.sources.host import HostRoots
from nodeagent.sources.small_file import read_small

LOGS = "/var/log/pods"
#: As systemd names it ("kubepods-burstable-pod0a1b_2c.slice"), or cgroupfs ("/kubepods/pod0a1b/").
_CGROUP = re.compile(
    r"kubepods[^\n]*?[-/]pod([0-9a-f][0-9a-f_-]{7,63})(?:\.slice|/|$)", re.MULTILINE
)


def pod_of(machine: HostRoots, pid: int) -> str:
    """The UID of the process's pod; empty for a process of no pod, and for one that has ended."""
    found = _CGROUP.search(read_small(f"{machine.proc}/{pid}/cgroup") or "")
    return found[1].replace("_", "-") if found else ""


def names_by_uid(machine: HostRoots) -> dict[str, tuple[str, str]]:
    """Namespace and name of each pod on the node by its UID."""
    try:
        folders = os.listdir(machine.host(LOGS))  # noqa: PTH208  # a Path for each costs ten times it
    except OSError:
        return {}
    parts = (folder.split("_") for folder in folders)
    return {part[2]: (part[0], part[1]) for part in parts if len(part) == 3}
