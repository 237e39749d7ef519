"""Processes that are dead and not reaped, or stuck in the kernel, at a bounded cost for each
reading.

To read 10,000 processes takes 0.12 s of CPU. So a reading lists all of them, opens some, and the
next reading continues from there. Those found in state D or dead are read each time, up to the same
bound.

*Stuck* is exact and no guess by sampling: a process in uninterruptible sleep (state D) in two
readings has waited all the time between them if its count of voluntary context switches has not
moved, for each wait is a switch. A busy disk moves it at every request.
"""

import os
from collections.abc import Iterable
from dataclasses import field

import psutil

from nodeagent.dataclass import dataclass
from nodeagent.sources.host import HostRoots
from nodeagent.sources.proc_stat import Stat, read_stat
from nodeagent.sources.small_file import small_text

__all__ = ["Found", "Processes", "StuckProcess"]

#: The processes that one reading opens, next to as many known ones.
MOST = 500


@dataclass(frozen=True, slots=True)
class StuckProcess:
    """A process in state D since ``seconds`` at least; ``where`` is the kernel's function."""

    pid: int
    name: str
    where: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Found:
    """``zombies`` counts them by their parent (its pid and name). ``processes`` exist in all."""

    processes: int
    zombies: dict[tuple[int, str], int]
    stuck: list[StuckProcess]


@dataclass(slots=True)
class _Remark:
    """A zombie, or a process in state D: ``since`` is when it was first seen with ``switches``."""

    stat: Stat
    since: float
    seen: float
    switches: int = 0
    where: str = ""


@dataclass(slots=True)
class Processes:
    """Reads ``machine.proc``. A reading opens at most ``most`` processes, and as many known
    ones.
    """

    machine: HostRoots
    most: int = MOST
    _after: int = 0
    _known_after: int = 0
    _known: dict[int, _Remark] = field(default_factory=dict)

    def sample(self) -> Found:
        """Raises OSError when there is no procfs."""
        names = os.listdir(self.machine.proc)  # noqa: PTH208  # a Path for each costs ten times it
        pids = sorted(int(name) for name in names if name.isdigit())
        if not pids:
            raise FileNotFoundError(f"{self.machine.proc} holds no process")
        there = set(pids)
        self._known = {pid: remark for pid, remark in self._known.items() if pid in there}
        known = _from(sorted(self._known), self._known_after, self.most)
        others = _from(pids, self._after, self.most)
        self._known_after, self._after = known[-1] if known else 0, others[-1]
        now = self.machine.clock.boottime()
        proc = str(self.machine.proc)
        for pid in {*known, *others}:
            self._inspect(proc, pid, now)
        zombies = [r.stat for r in self._known.values() if r.stat.state == "Z"]
        return Found(len(pids), self._by_parent(zombies), self._stuck())

    def _inspect(self, proc: str, pid: int, now: float) -> None:
        stat = read_stat(f"{proc}/{pid}/stat", b"ZD")
        before = self._known.pop(pid, None)
        if stat is None:
            return
        remark = _Remark(stat, now, now)
        if stat.state == "D":
            remark.switches, remark.where = self._switches(pid), self._where(pid)
            if before is not None and _has_waited(before, remark):
                remark.since = before.since
        self._known[pid] = remark

    def _stuck(self) -> list[StuckProcess]:
        """Longest first."""
        stuck = [
            StuckProcess(pid, remark.stat.name, remark.where, remark.seen - remark.since)
            for pid, remark in self._known.items()
            if remark.stat.state == "D" and remark.since < remark.seen
        ]
        return sorted(stuck, key=lambda each: -each.seconds)

    def _switches(self, pid: int) -> int:
        """Its waits so far; -1 when it is gone, or its entry is malformed."""
        try:
            with self.machine.psutil_here():
                return psutil.Process(pid).num_ctx_switches().voluntary
        except (psutil.Error, NotImplementedError, OSError, ValueError, IndexError):
            return -1

    def _where(self, pid: int) -> str:
        where = small_text(self.machine.proc / str(pid) / "wchan")
        return "" if where == "0" else where[:80]

    def _by_parent(self, zombies: Iterable[Stat]) -> dict[tuple[int, str], int]:
        counts: dict[int, int] = {}
        for stat in zombies:
            counts[stat.parent] = counts.get(stat.parent, 0) + 1
        return {(pid, self._name(pid)): count for pid, count in counts.items()}

    def _name(self, pid: int) -> str:
        """Empty when it is gone."""
        stat = read_stat(f"{self.machine.proc}/{pid}/stat")
        return stat.name if stat is not None else ""


def _from(pids: list[int], after: int, most: int) -> list[int]:
    """At most ``most`` of the sorted ``pids``, those above ``after`` first, then from the start."""
    chosen = [pid for pid in pids if pid > after][:most]
    return chosen + [pid for pid in pids if pid <= after][: most - len(chosen)]


def _has_waited(before: _Remark, now: _Remark) -> bool:
    """Whether it is the same process in the same wait."""
    return (before.stat.state, before.stat.started, before.switches) == (
        "D",
        now.stat.started,
        now.switches,
    )
