"""Where a process waits, from its ``/proc`` entry; which of the agent's cannot be killed."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class ProcessState:
    """``state`` is the kernel's letter ("D": waits and cannot be killed); empty when it is gone.

    ``wchan`` is the kernel function in which it waits, empty when it runs or may not be seen.
    """

    state: str = ""
    wchan: str = ""
    name: str = ""

    def __str__(self) -> str:
        return f"state {self.state or '?'}" + (f" in {self.wchan}" if self.wchan else "")


def read_state(pid: int, proc: Path = Path("/proc")) -> ProcessState:
    """The state of ``pid`` now, all empty when there is no such process."""
    entry = proc / str(pid)
    try:
        stat = (entry / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ProcessState()
    # "PID (NAME) STATE ...", and the name may hold parentheses and spaces.
    head, _, tail = stat.rpartition(")")
    return ProcessState(
        state=tail.split()[0] if tail.split() else "",
        wchan=_wchan(entry),
        name=head.partition("(")[2],
    )


@dataclass(frozen=True, slots=True)
class StuckTask:
    """A thread of ours, or of a process below ours, that is in state D, and where it waits."""

    pid: int
    thread: int
    name: str
    command: str
    wchan: str

    def __str__(self) -> str:
        where = f"in {self.wchan}" if self.wchan else "nobody knows where"
        return f"{self.command or self.name} (pid {self.pid}) waits in the kernel, {where}"


#: Levels of processes below ours: a worker or probe, and those that a site's own check has started.
_DEEPEST = 4


def stuck(pid: int | None = None, proc: Path = Path("/proc")) -> list[StuckTask]:
    """The threads of ``pid`` (this process) and its descendants that are in state D now."""
    ours = os.getpid() if pid is None else pid
    found = []
    for each in (ours, *_descendants(ours, proc)):
        for thread in _threads(each, proc):
            state = read_state(thread, proc / str(each) / "task")
            if state.state == "D":
                command = _command(proc / str(each))
                found.append(StuckTask(each, thread, state.name, command, state.wchan))
    return found


def _descendants(pid: int, proc: Path, depth: int = 0) -> Iterator[int]:
    if depth >= _DEEPEST:
        return
    for thread in _threads(pid, proc):
        try:
            children = (proc / str(pid) / "task" / str(thread) / "children").read_text()
        except OSError:
            continue  # it has ended
        for child in map(int, children.split()):
            yield child
            yield from _descendants(child, proc, depth + 1)


def _threads(pid: int, proc: Path) -> list[int]:
    try:
        return [int(each.name) for each in (proc / str(pid) / "task").iterdir()]
    except OSError:
        return []  # it has ended


def _command(entry: Path) -> str:
    try:
        raw = (entry / "cmdline").read_bytes()
    except OSError:
        return ""
    return raw.rstrip(b"\0").replace(b"\0", b" ").decode("utf-8", "backslashreplace")[:200]


def _wchan(entry: Path) -> str:
    try:
        wchan = (entry / "wchan").read_text(encoding="ascii", errors="replace").strip("\0\n ")
    except OSError:
        return ""
    return "" if wchan == "0" else wchan
