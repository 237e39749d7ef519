"""Hardware errors of CPUs and memory: machine checks, EDAC, and firmware's reports (APEI).

One event is several lines; the one that states its severity counts, and is not joined with others:

- ``mce: [Hardware Error]: CPU 2: Machine Check: 0 Bank 9: 8c000045000800c0``: bits of the bank's
  status say it (Intel SDM vol. 3, IA32_MCi_STATUS: 61 uncorrected, 57 processor context corrupt).
  "Machine Check Exception" is the last line before a panic.
- ``EDAC MC0: 1 CE memory read error on CPU_SrcID#0_MC#0_Chan#1_DIMM#0 (...)``: CE or UE, and where.
- ``{1}[Hardware Error]: event severity: recoverable``: the firmware's word. Without the number
  it is of the boot before this one: the boot error record table (drivers/acpi/apei/bert.c).
- ``[Hardware Error]: Corrected error, no action required.``: AMD's decoder.
- ``Memory failure: 0x12ab3: recovery action for dirty LRU page: Recovered``: a page taken away;
  until Linux 4.5 "MCE 0x12ab3: dirty LRU page recovery: Recovered".
- ``SError Interrupt on CPU3, code 0x00000000be000011 -- SError``: an Arm CPU's uncorrected error,
  "Bad mode in Error handler detected on CPU3" until Linux 4.14; a panic follows.
- ``mce: [Hardware Error]: Machine check events logged``: no further line unless a program decodes.

The component is the memory module as its driver calls it where a line names one, else the node.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from nodeagent.checks.base import CheckSpec
from nodeagent.checks.loglines import sighting, text
from nodeagent.model import FaultSighting
from nodeagent.sources import Sources
from nodeagent.sources.kmsg import Record, is_packet_log

NAME = "machine-check"

CORRECTED, UNCORRECTED, FATAL, UNSTATED = "corrected", "uncorrected", "fatal", "unstated"

_STARTS = (
    *(b"mce: ", b"EDAC ", b"[Hardware Error]: ", b"{", b"Memory failure: ", b"MCE 0x"),
    *(b"SError Interrupt on CPU", b"Bad mode in Error handler", b"Unhandled fault: synchronous"),
)

_BANK = re.compile(
    rb"(?:mce: )?\[Hardware Error\]: CPU (\d{1,5}): Machine Check( Exception)?: [0-9a-f]{1,16} "
    rb"Bank (\d{1,3}): ([0-9a-f]{16})"
)
_LOGGED = re.compile(rb"(?:mce: )?\[Hardware Error\]: Machine check events logged")
_USER_ACCESS = re.compile(
    rb"mce: (?:Uncorrected hardware memory error in user-access at ([0-9a-f]{1,16})"
    rb"|Kernel accessed poison in user space at ([0-9a-f]{1,16})"
    rb"|Uncorrected memory error in page (0x[0-9a-f]{1,16}) ignored|Memory error not recovered)"
)
# CE and UE must be followed by words: the crash of a process called "EDAC MC0: 1 UE " ("[4711]:
# segfault ... on CPU 1 (core 1") would else be read as an error.
_EDAC = re.compile(
    rb"EDAC MC(\d{1,3}): (\d{1,10}) (CE|UE) (?:([A-Za-z][\w ,/-]{0,100}?) )?on (\S.{0,80}?) \("
)
_APEI = re.compile(
    rb"(\{\d{1,10}\})?\[Hardware Error\]: event severity: (info|corrected|recoverable|fatal)\b"
)
_AMD = re.compile(
    rb"\[Hardware Error\]: (?:Error Status: )?(Corrected error, no action required"
    rb"|Deferred error, no action required"
    rb"|Uncorrected, software (?:restartable|containable) error"
    rb"|System Fatal error)\b"
)
_PAGE = re.compile(
    rb"(?:Memory failure: |MCE )(0x[0-9a-f]{1,16}): "
    rb"(?:recovery action for (.{1,60}?)|(.{1,60}?) page recovery): "
    rb"(Recovered|Delayed|Ignored|Failed)"
)
_SERROR = re.compile(
    rb"SError Interrupt on CPU(\d{1,5}), code (0x[0-9a-f]{1,16})"
    rb"|Bad mode in Error handler detected(?: on CPU(\d{1,5}))?, code (0x[0-9a-f]{1,16})"
)
# In the kernel itself it is an oops. For a process that touched it, it is a bad page or bus.
_ABORT = re.compile(
    rb"Unhandled fault: (synchronous (?:external abort|parity or ECC error|parity error)"
    rb"[\w ()]{0,60}?) \((0x[0-9a-f]{1,16})\) at 0x[0-9a-f]{1,16}"
)

_UC, _PCC = 1 << 61, 1 << 57

_BY_APEI = {b"corrected": CORRECTED, b"recoverable": UNCORRECTED, b"fatal": FATAL}
_BY_AMD = {b"C": CORRECTED, b"D": UNCORRECTED, b"U": UNCORRECTED, b"S": FATAL}

_Parsed = tuple[str, str, dict[str, str]]  # severity, component, details


class MachineCheck:
    """Reads records as they come."""

    def read(self, record: Record) -> Sequence[FaultSighting]:
        """The hardware error of this record, if any. Raises no exception, whatever the record."""
        line = record.text
        if not line.startswith(_STARTS) or is_packet_log(line):
            return ()
        found = _parse(line)
        if found is None:
            return ()
        severity, component, details = found
        code = f"{NAME}:{severity}"
        return (sighting(record, check=NAME, code=code, component=component, details=details),)


def _parse(line: bytes) -> _Parsed | None:
    for pattern, reading in _READINGS:
        match = pattern.match(line)
        if match is not None:
            return reading(match)
    return None


def _bank(line: re.Match[bytes]) -> _Parsed:
    status = int(line[4], 16)
    severity = CORRECTED
    if line[2] or status & _PCC:
        severity = FATAL
    elif status & _UC:
        severity = UNCORRECTED
    details = {"cpu": text(line[1]), "bank": text(line[3]), "status": text(line[4])}
    return severity, "", {"by": "mce", **details}


def _edac(line: re.Match[bytes]) -> _Parsed:
    severity = CORRECTED if line[3] == b"CE" else UNCORRECTED
    controller = f"mc{int(line[1])}"
    details = {"by": "edac", "controller": controller, "errors": text(line[2])}
    return severity, f"{controller}/{text(line[5])}", details | {"what": text(line[4] or b"")}


def _apei(line: re.Match[bytes]) -> _Parsed | None:
    severity = _BY_APEI.get(line[2])
    boot = {} if line[1] else {"boot": "previous"}
    return None if severity is None else (severity, "", {"by": "firmware", **boot})


def _amd(line: re.Match[bytes]) -> _Parsed:
    return _BY_AMD[line[1][:1]], "", {"by": "mce", "what": text(line[1])}


def _page(line: re.Match[bytes]) -> _Parsed:
    what = text(line[2] or line[3])
    details = {"page": text(line[1]), "what": what, "outcome": text(line[4]).lower()}
    return UNCORRECTED, "", {"by": "memory-failure", **details}


def _user_access(line: re.Match[bytes]) -> _Parsed:
    return UNCORRECTED, "", {"by": "mce", "address": text(line[1] or line[2] or line[3] or b"")}


def _serror(line: re.Match[bytes]) -> _Parsed:
    details = {"cpu": text(line[1] or line[3] or b""), "status": text(line[2] or line[4])}
    return FATAL, "", {"by": "serror", **details}


def _abort(line: re.Match[bytes]) -> _Parsed:
    return UNCORRECTED, "", {"by": "abort", "what": text(line[1]), "status": text(line[2])}


def _logged(_line: re.Match[bytes]) -> _Parsed:
    return UNSTATED, "", {"by": "mce"}


_READINGS = (
    (_BANK, _bank),
    (_EDAC, _edac),
    (_APEI, _apei),
    (_AMD, _amd),
    (_PAGE, _page),
    (_USER_ACCESS, _user_access),
    (_LOGGED, _logged),
    (_SERROR, _serror),
    (_ABORT, _abort),
)


def _build(_sources: Sources, _options: Mapping[str, Any]) -> MachineCheck:
    return MachineCheck()


SPEC = CheckSpec(
    name=NAME,
    sees="hardware errors of CPUs and memory, corrected, uncorrected or fatal, with the module "
    "where a driver names it",
    source="kernel log, lines of MCE, EDAC, APEI, Arm's SError and the page offliner",
    cost="a comparison of 18 bytes for each kernel record",
    blind_to="errors that the firmware keeps to itself (the BMC's log); corrected errors below the "
    "kernel's own threshold; GPU memory (xid, gpu-ecc)",
    interval=0,
    deadline=0,
    build=_build,
)
