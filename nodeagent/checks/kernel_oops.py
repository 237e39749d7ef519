"""Errors of the kernel itself: oopses, BUGs, and panics that are still read.

``BUG: unable to handle page fault for address: ffffb0c2c5a2f000`` (of Linux before 5.1 "unable to
handle kernel paging request at"), ``Oops: 0000 [#1] SMP``, ``general protection fault: 0000 [#1]``,
``kernel BUG at fs/ext4/inode.c:2721!``; on arm64 ``Unable to handle kernel NULL pointer dereference
at virtual address`` and ``Internal error: Oops: 96000004 [#1] SMP``. One oops has several of these
lines. The number after "#" tells a first oops from those that follow from it.

Some lines of this form are warnings of the kernel's own checks, after which it works on: ``BUG:
using smp_processor_id() in preemptible [00000000] code: python3/4711``. They expire.

A process's own general protection fault ("traps: python3[4711] general protection fault ip:") is
its user's business and begins otherwise.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from nodeagent.checks.base import CheckSpec
from nodeagent.checks.loglines import first_bytes, sighting, text
from nodeagent.model import ClearedBy, FaultSighting
from nodeagent.sources import Sources
from nodeagent.sources.kmsg import Record, is_packet_log

NAME = "kernel-oops"
WARNING = "warning"

_FIRST = first_bytes(
    (
        *(b"BUG: ", b"kernel BUG at ", b"Oops: ", b"general protection fault", b"invalid opcode: "),
        *(b"divide error: ", b"double fault: ", b"stack segment: ", b"int3: ", b"invalid TSS: "),
        *(b"segment not present: ", b"alignment check: ", b"Unable to handle kernel "),
        *(b"bounds: ", b"overflow: ", b"fpu exception: ", b"simd exception: ", b"iret exception: "),
        *(b"control protection: ", b"kernel stack overflow ", b"Bad pagetable: ", b"BUG "),
        *(b"Internal error: ", b"Kernel panic - not syncing", b"PANIC: double fault"),
        b"traps: PANIC: double fault",
    )
)

# Four digits and letters after the bracket are more than the 15 bytes of a process's name: the
# crash of a process called "int3 [#1] SMP" ("[4711]: segfault") would else be read as the kernel's.
_DIE = re.compile(
    rb"(?:Internal error: ([A-Za-z][\w ,./()'-]{2,100}?): [0-9a-f]{1,16}"
    rb"|(?:Oops: )?([A-Za-z][\w ,./()'-]{2,100}?)"
    rb"(?:[, ]{1,2}(?:probably|maybe) for (?:non-canonical )?address 0x[0-9a-f]{1,16})?"
    rb": [0-9a-f]{4,16}) \[#(\d{1,4})\](?: (?:[A-Z_]{2,}\b|$)|$)"
)
# Each has more than the 15 bytes of a process's name before the first word that may differ.
_BUG = re.compile(
    rb"BUG: (?:unable to handle (?:kernel |page fault|[\w ]{1,40} at )"
    rb"|kernel NULL pointer dereference|Bad page (?:state|map) in process "
    rb"|\w{0,12} ?stack guard page was hit"
    rb"|(?:KASAN|KFENCE|KCSAN|KMSAN): [\w -]{4,60} in \w|spinlock [\w ]{1,40} on CPU#)"
    # The allocator's own check of a cache ("kmalloc-64") that was written to after it was freed.
    rb"|BUG [\w.:-]{1,60} \((?:Not tainted|Tainted: .{1,60}?)\): [A-Z]"
    rb"|kernel BUG at [\w./+-]{1,200}:\d{1,6}!"
    rb"|Unable to handle kernel [\w ]{4,80} at virtual address "
)
_WARNING = re.compile(
    rb"BUG: (?:Bad rss-counter state |scheduling while atomic: "
    rb"|sleeping function called from invalid context|using \w{1,40}\(\) in preemptible "
    rb"|non-zero (?:pgtables_bytes|nr_\w{3,8}) on freeing |workqueue leaked (?:lock|atomic)"
    rb"|assuming (?:atomic|non migratable) context at )"
)
_PANIC = re.compile(rb"Kernel panic - not syncing|(?:traps: )?PANIC: double fault, error_code: 0x")


class KernelOops:
    """Reads records as they come."""

    first = _FIRST

    def read(self, record: Record) -> Sequence[FaultSighting]:
        """The kernel's own error in this record. Raises no exception, whatever the record."""
        line = record.text
        if line[:4] not in _FIRST or is_packet_log(line):
            return ()
        found = _parse(line)
        if found is None:
            return ()
        kind, details = found
        code, ends = f"{NAME}:{kind}", ClearedBy.EXPIRY if kind == WARNING else ClearedBy.REBOOT
        return (sighting(record, check=NAME, code=code, cleared_by=ends, details=details),)


def _parse(line: bytes) -> tuple[str, dict[str, str]] | None:
    if _PANIC.match(line):
        return "panic", {}
    if _BUG.match(line):
        return "bug", {}
    if _WARNING.match(line):
        return WARNING, {}
    died = _DIE.match(line)
    if died is None:
        return None
    return "oops", {"what": text(died[1] or died[2]), "number": text(died[3])}


def _build(_sources: Sources, _options: Mapping[str, Any]) -> KernelOops:
    return KernelOops()


SPEC = CheckSpec(
    name=NAME,
    sees="errors of the kernel itself: oopses, BUGs, general protection faults in the kernel",
    source="kernel log, lines of the kernel's fault handlers",
    cost="a lookup of 4 bytes for each kernel record",
    blind_to="a panic, after which no agent runs (reboot tells of it); warnings (WARN_ON)",
    interval=0,
    deadline=0,
    build=_build,
)
