"""``sickbay-agent parse-kmsg``: the faults in a kernel log that a person sent.

``log_file`` knows the forms. Which devices and mounts the machine had is not known here, so every
one counts, and a text file can be forged: this decodes and does not prove.
"""

import errno
import os
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from io import BufferedReader
from pathlib import Path
from typing import Any

from nodeagent.checks import kernel_lines, sxid, xid
from nodeagent.checks.base import LogCheck
from nodeagent.checks.kernel_lines import KernelLines
from nodeagent.checks.line_places import LinePlace, device_of, pci_address, transport_of
from nodeagent.checks.sxid import SxidCheck
from nodeagent.checks.xid import XidCheck
from nodeagent.clock import SystemClock
from nodeagent.dataclass import dataclass
from nodeagent.model import FaultSighting
from nodeagent.sources.gpus import GpuMap, normalise
from nodeagent.sources.host import HostRoots
from nodeagent.terminal.log_file import file_type
from nodeagent.terminal.log_file.entries import read_entries
from nodeagent.terminal.log_file.entry import Entry
from nodeagent.terminal.report import WIDTH, aligned, one_line
from sickbay import regular_file

STANDARD_INPUT = Path("-")

_DRIVER = b"NVRM"
_DIGIT = re.compile(rb"\d")
#: The driver's words on its start, its settings and each GPU.
_NO_FAULT = re.compile(
    rb"NVRM: (?:loading NVIDIA UNIX |GPU at |GPU Board Serial Number: "
    rb"|Persistence mode is deprecated )"
)
#: Optical drives, floppies and images, which carry no watched mount: a BMC's virtual CD fails
#: on many servers.
_NO_DISK = re.compile(r"(?:sr|scd|fd|loop|ram)\d")
#: Line numbers in one note.
_SHOWN = 20


class _AnyGpu(GpuMap):
    """The map of a machine that is not here: every address may have been one of its GPUs."""

    def has_gpu(self, address: str) -> bool:
        del address
        return True

    def has_switch(self, address: str) -> bool:
        del address
        return True


class AnyPlaces:
    """Every device that a line names may have been the machine's; no mount is known, so the device
    is used instead.
    """

    def find(self, kind: str, fields: Mapping[str, str]) -> Sequence[LinePlace]:
        match kind:
            case "gpu":
                address = normalise(fields["gpu"]) or fields["gpu"]
                return (LinePlace(f"pci:{address}", {"pci": address}),)
            case "device":
                address = pci_address(fields)
                return (LinePlace(f"pci:{address}", {"pci": address}, most=300),)
            case "adapter":
                return (LinePlace(f"pci:{pci_address(fields)}", {"driver": fields["driver"]}),)
            case "interface" | "rdma":
                return (LinePlace(fields.get("iface") or fields["rdma"]),)
            case "transport":
                return (LinePlace(transport_of(fields)),)
            case _:
                device = fields.get("controller") or fields.get("pool") or device_of(fields)
                return (LinePlace(device, {"device": device}, before=f"{device}: "),)


def _checks() -> dict[str, LogCheck]:
    gpus = _AnyGpu(HostRoots(SystemClock()))
    places = AnyPlaces()
    return {
        xid.NAME: XidCheck(gpus),
        sxid.NAME: SxidCheck(gpus),
        **{name: KernelLines(name, rows, places) for name, rows in kernel_lines.ROWS.items()},
    }


@dataclass(slots=True)
class Decoded:
    """``faults``: an object per line that is a fault, in the file's order.

    ``undecoded``, ``continued`` and ``foreign``: the numbers of lines that mention the driver
    ("NVRM") and are no fault that is known here. The continued ones follow the first line of a
    kernel's record; the foreign ones were written by another program than the kernel.
    ``lines``: their number, ``unknown`` those of a form that is not known here. ``repeats``: how
    many faults the file has once more. ``empty``: it has no line, or only journalctl's remarks.
    """

    faults: list[dict[str, Any]]
    undecoded: list[int]
    continued: list[int]
    foreign: list[int]
    empty: bool = False
    lines: int = 0
    unknown: list[int] = field(default_factory=list)
    repeats: int = 0

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.faults)

    def notes(self) -> list[str]:
        """The lines that a person should read, as sentences."""
        sentences = []
        if self.empty:
            sentences.append("this file has no line of a log")
        if self.unknown:
            verb = "is" if len(self.unknown) == 1 else "are"
            sentences.append(
                f"{len(self.unknown)} of {self.lines} lines {verb} of no known form: "
                f"{_numbers(self.unknown)}"
            )
        if self.repeats:
            again = "1 fault is" if self.repeats == 1 else f"{self.repeats} faults are"
            sentences.append(
                f"{again} in this file once more, with the same time and text, and shown once"
            )
        if self.undecoded:
            sentences.append(f"{_mentions(self.undecoded)} not decoded: {_numbers(self.undecoded)}")
        if self.continued:
            sentences.append(
                f"{_mentions(self.continued)} not decoded, since "
                f"{'it continues' if len(self.continued) == 1 else 'they continue'} the record of "
                f"an earlier line: {_numbers(self.continued)}"
            )
        if self.foreign:
            sentences.append(
                f"{_mentions(self.foreign)} not the kernel's, so not decoded: "
                f"{_numbers(self.foreign)}"
            )
        return sentences


def decode_file(path: Path) -> Decoded:
    """Of standard input for the path "-". Raises OSError, also for a file that is no text.

    A pipe will do, as of ``<(dmesg)``. A device is read without an end: /dev/kmsg waits for more.
    """
    standard_input = path == STANDARD_INPUT
    if regular_file.kind(Path("/dev/stdin") if standard_input else path) == "a device":
        raise OSError(
            errno.EINVAL, "it is a device; expected a file, as of: dmesg > FILE", str(path)
        )
    with os.fdopen(0, "rb", closefd=False) if standard_input else path.open("rb") as file:
        return _decode(file, str(path))


def _decode(file: BufferedReader, name: str) -> Decoded:
    reason = file_type.why_not_text(file.peek(file_type.HEAD)[: file_type.HEAD])
    if reason:
        raise OSError(errno.EINVAL, reason, name)
    checks = _checks().values()
    decoded = Decoded([], [], [], [], empty=True)
    shown: set[tuple[Any, ...]] = set()
    for entry in read_entries(file):
        decoded.empty = False
        decoded.lines += 1
        record = entry.record
        found = [each for check in checks for each in check.read(record)] if record else []
        seen = [
            each for each in found if isinstance(each, FaultSighting) and not _is_of_no_disk(each)
        ]
        if not (entry.known or seen):
            decoded.unknown.append(entry.number)
        for sighting in seen:
            key = (entry.node, entry.prefix, sighting.at, sighting.code, sighting.message)
            if _DIGIT.search(entry.prefix) or sighting.at >= 0:
                if key in shown:
                    decoded.repeats += 1
                    continue
                shown.add(key)
            decoded.faults.append(_fault(entry, sighting))
        if not seen and _DRIVER in entry.text and not _NO_FAULT.match(entry.text):
            _list_for(decoded, entry).append(entry.number)
    return decoded


def _is_of_no_disk(seen: FaultSighting) -> bool:
    """Whether it is an I/O error of a drive that no node needs; a filesystem may be needed."""
    io_error = seen.check == "disk-io" and seen.code != "disk-io:filesystem"
    return io_error and _NO_DISK.match(seen.component) is not None


def _list_for(decoded: Decoded, entry: Entry) -> list[int]:
    if entry.record:
        return decoded.undecoded
    return decoded.continued if entry.continues else decoded.foreign


def _mentions(numbers: Sequence[int]) -> str:
    one = len(numbers) == 1
    return (
        f"{len(numbers)} {'line mentions' if one else 'lines mention'} NVRM and "
        f"{'was' if one else 'were'}"
    )


def _numbers(numbers: Sequence[int]) -> str:
    """The first of them, for people."""
    shown = ", ".join(map(str, numbers[:_SHOWN]))
    more = len(numbers) - _SHOWN
    return f"{shown} and {more} more" if more > 0 else shown


def table(decoded: Decoded) -> str:
    """The faults, a line each, or that there is none; then the lines that were not decoded."""
    notes = [line for note in decoded.notes() for line in textwrap.wrap(note, WIDTH)]
    if decoded.empty:
        return "\n".join(notes)
    if not decoded.faults:
        if len(decoded.unknown) == decoded.lines:
            return "\n".join(notes)
        return "\n".join(["no line of this file is a fault that is known here", *notes])
    named = any("node" in entry for entry in decoded.faults)
    rows = [("LINE", *("NODE",) * named, "TIME", "CODE", "COMPONENT", "WHAT")]
    rows += [
        (
            str(entry["line"]),
            *(entry.get("node", "-"),) * named,
            "-" if entry["time_seconds"] is None else f"{entry['time_seconds']:.3f}",
            entry["code"],
            one_line(entry["component"], 44) or "-",
            entry["message"],
        )
        for entry in decoded.faults
    ]
    return "\n".join([*aligned(rows), *([""] if notes else []), *notes])


def _fault(entry: Entry, seen: FaultSighting) -> dict[str, Any]:
    return {
        "line": entry.number,
        **({"node": entry.node} if entry.node else {}),
        "time_seconds": seen.at if seen.at >= 0 else None,
        "code": seen.code,
        "check": seen.check,
        "component": seen.component,
        "cleared_by": seen.cleared_by.name.lower(),
        "message": seen.message,
        "details": dict(seen.details),
    }
