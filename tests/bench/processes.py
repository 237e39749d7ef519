"""The cost of a tree of processes, from /proc."""

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of a process and all its descendants.

    ``cpu_s`` includes children that have ended.
    """

    pss_mib: float
    rss_mib: float
    cpu_s: float
    processes: int


def _children() -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                stat = (folder / "stat").read_text()
            except OSError:
                continue
            parent = int(stat.rpartition(")")[2].split()[1])
            found.setdefault(parent, []).append(int(folder.name))
    return found


def _tree(pid: int) -> list[int]:
    children, found = _children(), [pid]
    for one in found:
        found.extend(children.get(one, ()))
    return found


def _one(pid: int) -> Cost:
    folder = Path("/proc") / str(pid)
    rollup = dict(
        line.split()[:2] for line in (folder / "smaps_rollup").read_text().splitlines()[1:]
    )
    fields = (folder / "stat").read_text().rpartition(")")[2].split()
    ticks = sum(int(field) for field in fields[11:15])  # utime, stime, cutime, cstime
    return Cost(
        int(rollup["Pss:"]) / 1024, int(rollup["Rss:"]) / 1024, ticks / os.sysconf("SC_CLK_TCK"), 1
    )


def cost(pid: int) -> Cost:
    """The cost of the process and its descendants now; one that ends meanwhile is left out."""
    parts = []
    for one in _tree(pid):
        try:
            parts.append(_one(one))
        except OSError:
            continue
    return Cost(
        sum(part.pss_mib for part in parts),
        sum(part.rss_mib for part in parts),
        sum(part.cpu_s for part in parts),
        sum(part.processes for part in parts),
    )
