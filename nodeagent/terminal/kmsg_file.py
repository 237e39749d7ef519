"""``sickbay-agent parse-kmsg``: the faults in a kernel log that a person sent.

It takes raw ``/dev/kmsg`` records, the output of ``dmesg`` (with or without stamps, ``-T`` and
``-x`` too) and of ``journalctl -k`` or a syslog file. Which devices and mounts the machine had is
not known here, so every one counts, and a text file can be forged: this decodes and does not prove.
"""

import errno
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

from nodeagent.checks.base import LogCheck
from nodeagent.checks.disk_io import DiskIo
from nodeagent.checks.hung_task import HungTask
from nodeagent.checks.machine_check import MachineCheck
from nodeagent.checks.oom import Oom
from nodeagent.checks.pcie_aer import PcieAer
from nodeagent.checks.sxid import SxidCheck
from nodeagent.checks.xid import XidCheck
from nodeagent.clock import SystemClock
from nodeagent.configfile import regular_file
from nodeagent.model import FaultSighting
from nodeagent.sources.gpus import GpuMap
from nodeagent.sources.host import HostRoots
from nodeagent.sources.kmsg import Record, parse
from nodeagent.terminal.report import aligned, one_line

_RAW = re.compile(rb"\d{1,9},\d{1,20},\d{1,20},[^;]*;")
_FACILITY = re.compile(rb"^(?:<\d{1,3}>|[a-z]+ *:[a-z]+ *: )")
_STAMP = re.compile(rb"^\[ *(?:(\d+\.\d+)|[^\]]{1,40})\] ")
# A date in any format and a host: "Nov 21 11:22:33 host kernel: [  12.3] ".
_SYSLOG = re.compile(rb"^\S.{5,60}? kernel: ")

_BROKEN_UP = b"NVRM: The NVIDIA GPU "
_CONTINUED = (b"NVRM: (PCI ID:", b"NVRM: fallen off the bus")
_LONGEST_LINE = 64 * 1024


class _AnyGpu(GpuMap):
    """The map of a machine that is not here: every address may have been one of its GPUs."""

    def has_gpu(self, address: str) -> bool:
        del address
        return True

    def has_switch(self, address: str) -> bool:
        del address
        return True


class _AnyBus:
    def has(self, address: str) -> bool:
        del address
        return True

    def behind(self, address: str) -> tuple[str, ...]:
        del address
        return ()

    def interfaces(self, address: str) -> tuple[str, ...]:
        del address
        return ()


class _AnyMounts:
    """No mount is known, so the device stands for it."""

    def on(self, device: str, sector: int | None) -> tuple[str, ...]:
        del sector
        return (device,)

    def on_controller(self, controller: str) -> tuple[str, ...]:
        return (controller,)


class _NoGpu(GpuMap):
    """Any device reports PCIe errors: its address is its name."""

    def has_gpu(self, address: str) -> bool:
        del address
        return False


def _checks() -> tuple[LogCheck, ...]:
    machine = HostRoots(SystemClock())
    gpus = _AnyGpu(machine)
    return (
        XidCheck(gpus),
        SxidCheck(gpus),
        MachineCheck(),
        PcieAer(_AnyBus(), _NoGpu(machine)),
        DiskIo(_AnyMounts()),
        Oom(),
        HungTask(),
    )


def decode_file(path: Path) -> list[dict[str, Any]]:
    """An object per line that is a fault, in the file's order. Raises OSError.

    A pipe will do, as of ``<(dmesg)``. A device is read without an end: /dev/kmsg waits for more.
    """
    if regular_file.kind(path) == "a device":
        raise OSError(
            errno.EINVAL, "it is a device; expected a file, as of: dmesg > FILE", str(path)
        )
    checks = _checks()
    found: list[dict[str, Any]] = []
    with path.open("rb") as file:
        for number, record in _in_one_piece(_lines(file)):
            found += [_entry(number, s) for check in checks for s in check.read(record)]
    return found


def _lines(file: IO[bytes]) -> Iterator[bytes]:
    """The file's lines. A line of megabytes, which is no line of a log, is cut."""
    while line := file.readline(_LONGEST_LINE):
        yield line
        while not line.endswith(b"\n") and line:
            line = file.readline(_LONGEST_LINE)


def _in_one_piece(lines: Iterable[bytes]) -> Iterator[tuple[int, Record]]:
    """Each record with the number of its first line.

    dmesg and journald print the driver's record of three lines, which tells of a GPU that has left
    the bus, as three. Here the text file leads to no action, so they may be joined again.
    """
    whole: Record | None = None
    begun = 0
    for number, line in enumerate(lines, start=1):
        record = _record(line.rstrip(b"\r\n"))
        if whole is not None:
            if record.text.startswith(_CONTINUED):
                whole = replace(whole, text=whole.text + rb"\x0a" + record.text)
                continue
            yield begun, whole
            whole = None
        if record.text.startswith(_BROKEN_UP):
            whole, begun = record, number
        else:
            yield number, record
    if whole is not None:
        yield begun, whole


def table(found: list[dict[str, Any]]) -> str:
    """The faults, a line each; says so when there is none."""
    if not found:
        return "no line of this file is a fault that is known here"
    rows = [("LINE", "TIME", "CODE", "COMPONENT", "WHAT")]
    rows += [
        (
            str(entry["line"]),
            "-" if entry["time_seconds"] is None else f"{entry['time_seconds']:.3f}",
            entry["code"],
            one_line(entry["component"], 44) or "-",
            entry["message"],
        )
        for entry in found
    ]
    return "\n".join(aligned(rows))


def _record(line: bytes) -> Record:
    """``at`` is the line's stamp, seconds since the boot of that machine; -1 where it has none."""
    raw = parse(line) if _RAW.match(line) else None
    if raw is not None:
        return raw
    text = _FACILITY.sub(b"", line, count=1)
    text = _SYSLOG.sub(b"", text, count=1)
    stamp = _STAMP.match(text)
    at = float(stamp[1]) if stamp and stamp[1] else -1.0
    return Record(0, 0, 0, at, text[stamp.end() :] if stamp else text)


def _entry(number: int, seen: FaultSighting) -> dict[str, Any]:
    return {
        "line": number,
        "time_seconds": seen.at if seen.at >= 0 else None,
        "code": seen.code,
        "check": seen.check,
        "component": seen.component,
        "cleared_by": seen.cleared_by.name.lower(),
        "message": seen.message,
        "details": dict(seen.details),
    }
