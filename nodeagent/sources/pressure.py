"""Memory and stalls, from /proc/meminfo and /proc/pressure (PSI).

PSI says which share of the time work stood still for want of a resource: *some* of it, or *full*,
all of it at once (Documentation/accounting/psi.rst of the kernel).
"""

import errno
import re
from dataclasses import dataclass

from nodeagent.sources.host import HostRoots

__all__ = ["Memory", "NoPressure", "Stall", "parse_meminfo", "parse_stall", "read_memory", "stall"]

_FIELD = re.compile(r"^(MemTotal|MemAvailable):\s+(\d+) kB$", re.MULTILINE)
_STALL = re.compile(r"^(some|full) avg10=\S+ avg60=(\d+(?:\.\d+)?) ", re.MULTILINE)


class NoPressure(Exception):
    """The kernel does not measure stalls (older than 4.20, or ``psi=0``); the text says so."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes. ``available`` is for new work without swapping, by the kernel's estimate."""

    total: int
    available: int


@dataclass(frozen=True, slots=True)
class Stall:
    """Per cent of the last minute. ``full`` is 0 where the kernel does not tell it (cpu)."""

    some: float
    full: float


def read_memory(machine: HostRoots) -> Memory:
    """Raises OSError, and ValueError when it is no meminfo."""
    return parse_meminfo((machine.proc / "meminfo").read_text(errors="replace"))


def parse_meminfo(text: str) -> Memory:
    """Raises ValueError when MemTotal or MemAvailable is missing."""
    found = {name: int(kib) * 1024 for name, kib in _FIELD.findall(text)}
    try:
        return Memory(found["MemTotal"], found["MemAvailable"])
    except KeyError as error:
        raise ValueError(f"meminfo has no {error.args[0]}") from None


def stall(machine: HostRoots, resource: str) -> Stall:
    """The stall of "cpu", "memory" or "io".

    Raises NoPressure, OSError, and ValueError if garbled.
    """
    try:
        text = (machine.proc / "pressure" / resource).read_text(errors="replace")
    except FileNotFoundError:
        raise NoPressure("this kernel has no /proc/pressure") from None
    except OSError as error:
        if error.errno == errno.EOPNOTSUPP:
            raise NoPressure("pressure is switched off in this kernel (psi=0)") from None
        raise
    return parse_stall(text)


def parse_stall(text: str) -> Stall:
    """Raises ValueError when there is no "some" line."""
    found = {kind: float(share) for kind, share in _STALL.findall(text)}
    if "some" not in found:
        raise ValueError(f"{text[:60]!r} is no pressure")
    return Stall(found["some"], found.get("full", 0.0))
