"""How a process is, by proc(5)."""

from pathlib import Path


def stopped(pid: int) -> bool:
    """Whether every thread of the process is stopped. A signal takes a moment to reach them all."""
    stats = [file.read_text(encoding="utf-8") for file in Path(f"/proc/{pid}/task").glob("*/stat")]
    return bool(stats) and all(_state(stat) == "T" for stat in stats)


def ended(pid: int) -> bool:
    """Gone, or only waiting for its parent to notice: where no process reaps orphans at once, a
    zombie is as good as gone.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except (FileNotFoundError, ProcessLookupError):
        return True
    return _state(stat) in "ZX"


def _state(stat: str) -> str:
    return stat.rpartition(")")[2].split()[0]
