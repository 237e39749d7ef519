"""Where a process waits, from its ``/proc`` entry."""

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


def _wchan(entry: Path) -> str:
    try:
        wchan = (entry / "wchan").read_text(encoding="ascii", errors="replace").strip("\0\n ")
    except OSError:
        return ""
    return "" if wchan == "0" else wchan
