"""Memory and stalls, from /proc/meminfo (by psutil) and /proc/pressure (PSI).

PSI gives the share of the time in which work stalled for lack of a resource: *some* of it, or
*full*, all of it at once (Documentation/accounting/psi.rst of the kernel).
"""

import errno
import re
import warnings

import psutil

from nodeagent.dataclass import dataclass
from nodeagent.sources.host import HostRoots
from nodeagent.sources.small_file import read_whole

__all__ = ["Memory", "NoPressure", "Stall", "parse_stall", "read_memory", "stall"]

_STALL = re.compile(r"^(some|full) avg10=\S+ avg60=(\d+(?:\.\d+)?) ", re.MULTILINE)


class NoPressure(Exception):
    """The kernel does not measure stalls (older than 4.20, or ``psi=0``); the text states so."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes. ``available`` is for new work without swapping, by the kernel's estimate."""

    total: int
    available: int


@dataclass(frozen=True, slots=True)
class Stall:
    """Per cent of the last minute. ``full`` is 0 where the kernel does not measure it (cpu)."""

    some: float
    full: float


def read_memory(machine: HostRoots) -> Memory:
    """Raises OSError, and ValueError when it is no meminfo."""
    try:
        with machine.psutil_here(), warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # of other fields that are missing
            memory = psutil.virtual_memory()
    except KeyError as error:
        raise ValueError(f"meminfo has no {error.args[0].decode()[:-1]}") from None
    except (ValueError, IndexError) as error:
        raise ValueError(f"meminfo is malformed: {error}") from None
    return Memory(memory.total, memory.available)


def stall(machine: HostRoots, resource: str) -> Stall:
    """The stall of "cpu", "memory" or "io".

    Raises NoPressure, OSError, and ValueError if garbled.
    """
    try:
        text = read_whole(f"{machine.proc}/pressure/{resource}").decode("utf-8", "replace")
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
