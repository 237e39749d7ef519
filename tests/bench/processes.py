"""The cost of a tree of processes."""

import contextlib
from dataclasses import dataclass

import psutil

_MIB = 2**20


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of a process and all its descendants.

    ``cpu_s`` includes children that have ended.
    """

    pss_mib: float
    rss_mib: float
    cpu_s: float
    processes: int


def cost(pid: int) -> Cost:
    """The cost of the process and its descendants now; one that ends meanwhile is left out."""
    root = psutil.Process(pid)
    parts = []
    for process in (root, *root.children(recursive=True)):
        with contextlib.suppress(psutil.Error):
            parts.append(_one(process))
    return Cost(
        sum(part.pss_mib for part in parts),
        sum(part.rss_mib for part in parts),
        sum(part.cpu_s for part in parts),
        sum(part.processes for part in parts),
    )


def _one(process: psutil.Process) -> Cost:
    memory, cpu = process.memory_full_info(), process.cpu_times()
    seconds = cpu.user + cpu.system + cpu.children_user + cpu.children_system
    return Cost(memory.pss / _MIB, memory.rss / _MIB, seconds, 1)
