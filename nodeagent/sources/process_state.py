"""Where a process waits, from its ``/proc`` entry; which of the agent's cannot be killed."""

import os
from collections.abc import Iterator
from pathlib import Path

import psutil

from nodeagent.dataclass import dataclass
from nodeagent.sources.proc_stat import read_stat
from nodeagent.sources.small_file import small_text


@dataclass(frozen=True, slots=True)
class ProcessState:
    """``state`` is the kernel's letter ("D": waits and cannot be killed); empty when it is gone.

    ``wchan`` is the kernel function in which it waits, empty when it runs or may not be seen.
    """

    state: str = ""
    wchan: str = ""
    name: str = ""

    @property
    def where(self) -> str:
        return f"{self.state} in {self.wchan}" if self.wchan else self.state

    def __str__(self) -> str:
        return f"state {self.where or '?'}"


def read_state(pid: int, proc: Path = Path("/proc")) -> ProcessState:
    """The state of ``pid`` now, all empty when there is no such process."""
    stat = read_stat(f"{proc}/{pid}/stat")
    if stat is None:
        return ProcessState()
    return ProcessState(state=stat.state, wchan=_wchan(proc / str(pid)), name=stat.name)


def where(pid: int, thread: int | None = None) -> str:
    """Where a thread of a child waits, such as "D in percpu_rwsem_wait". Empty when it is gone."""
    return read_state(thread or pid, Path(f"/proc/{pid}/task")).where


@dataclass(frozen=True, slots=True)
class StuckTask:
    """A thread of ours, or of a process below ours, that is in state D, and where it waits."""

    pid: int
    thread: int
    name: str
    command: str
    wchan: str

    def __str__(self) -> str:
        where = f"in {self.wchan}" if self.wchan else "at an unknown place"
        return f"{self.command or self.name} (pid {self.pid}) waits in the kernel, {where}"


def stuck() -> list[StuckTask]:
    """The threads of this process and its descendants that are in state D now.

    To find the descendants psutil reads the stat of every process: 15 us each.
    """
    ours = psutil.Process()
    try:
        below = ours.children(recursive=True)
    except psutil.AccessDenied:
        below = []  # hidepid=1 refuses the stat of other users' processes
    return [task for process in (ours, *below) for task in _stuck_threads(process)]


def _stuck_threads(process: psutil.Process) -> Iterator[StuckTask]:
    """Without psutil, which has no state of a thread."""
    tasks = Path(f"/proc/{process.pid}/task")
    try:
        threads = [int(each.name) for each in tasks.iterdir()]
    except OSError:
        return  # it has ended
    for thread in threads:
        state = read_state(thread, tasks)
        if state.state == "D":
            yield StuckTask(process.pid, thread, state.name, _command(process), state.wchan)


def _command(process: psutil.Process) -> str:
    try:
        raw = os.fsencode(" ".join(process.cmdline()))
    except psutil.Error:
        return ""
    return raw.decode("utf-8", "backslashreplace")[:200]


def _wchan(entry: Path) -> str:
    wchan = small_text(entry / "wchan").strip("\0\n ")
    return "" if wchan == "0" else wchan
