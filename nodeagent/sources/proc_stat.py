"""The one reader of /proc/PID/stat. A sweep of all processes needs it, and a child without psutil.

psutil reads the same file in four times the time: docs/decisions/0004-dependencies.md has figures.
``command_child`` imports this by its path, so it imports nothing that costs memory there.
"""

import os

__all__ = ["Stat", "parse_stat", "read_stat"]

_BYTES = 1024


class Stat:
    """``state`` is the kernel's letter. ``started`` with the pid names one process."""

    __slots__ = ("name", "parent", "started", "state")  # a dataclass costs the child 1.6 MiB

    def __init__(self, name: str, state: str, parent: int, started: int) -> None:
        self.name = name
        self.state = state
        self.parent = parent
        self.started = started


def read_stat(path: str, states: bytes = b"") -> Stat | None:
    """The stat of a process or thread, or None when it is gone.

    With ``states`` a process in another state counts as gone: a sweep reads thousands that sleep,
    and parses none of them.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return None
    try:
        raw = os.read(descriptor, _BYTES)
    except OSError:
        return None  # it ended between the two
    finally:
        os.close(descriptor)
    if states:
        at = raw.rfind(b") ") + 2
        if raw[at : at + 1] not in states:
            return None
    return parse_stat(raw)


def parse_stat(raw: bytes) -> Stat | None:
    """Parses /proc/PID/stat. The name may hold any bytes: fields count from its last bracket."""
    head, bracket, rest = raw.rpartition(b") ")
    fields = rest.split()
    if not bracket or len(fields) < 20 or not fields[1].isdigit() or not fields[19].isdigit():
        return None
    name = head.partition(b" (")[2].decode("utf-8", "replace")
    return Stat(name, fields[0].decode("ascii", "replace"), int(fields[1]), int(fields[19]))
