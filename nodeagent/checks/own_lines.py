"""A site's own kernel lines, from its configuration: faults, and level evidence with a status."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from nodeagent.checks.base import CheckSpec
from nodeagent.checks.kernel_lines import KernelLines, LineRow
from nodeagent.checks.line_places import LinePlaces, NodePlaces
from nodeagent.dataclass import dataclass
from nodeagent.model import FaultSighting, Observation, Status
from nodeagent.sources import Sources
from nodeagent.sources.kmsg import Record

#: Bytes of a record that a site's patterns are matched with: the kernel's own lines are shorter.
LONGEST = 1024
#: Beginnings of lines in which the kernel quotes a user's text.
QUOTES = (
    *(b"tmpfs: ", b"overlayfs: ", b"overlay: ", b"fuse: ", b"cgroup: ", b"cgroup2: ", b"ramfs: "),
    *(b"audit: ", b"traps: ", b"process '", b"warning: `", b"netlink: ", b"oom-kill:", b"mmap: "),
    *(b"mqueue: ", b"proc: ", b"sysfs: ", b"devpts: ", b"squashfs: ", b"erofs: ", b"bpf: "),
    *(b"hugetlbfs: ", b"x86/split lock detection: ", b"capability: warning: `", b"coredump: "),
    *(b"sctp: [Deprecated]: ", b"sock: process `", b"futex_wake_op: ", b"random: ", b"Pid "),
    *(b"ptrace attach of ", b"kvm [", b"kvm: "),
)
_OF_USERS = re.compile(
    # The kernel's words after the name of a process, which is at most 15 bytes.
    rb"(?:.{1,15}?(?:\[\d{1,10}\]|: (?:page|vmemmap) alloc(?:ation)? failure| invoked oom-killer"
    rb"| \(\d{1,10}\)|: potentially unexpected fatal signal|: Corrupted page table"
    # Last: a row of the table of tasks that is printed where memory has run out.
    rb"|: attempt to access beyond end)|\[ *\d{1,10}\] "
    rb"|[\w-]{1,32}: Unknown parameter |" + b"|".join(map(re.escape, QUOTES)) + rb")"
)


#: Before the pattern of a rule that may be anywhere in a line; the rule is the first group.
ANYWHERE = "(?:.{0,1024}?)"
#: The kernel's words before the name of a process, within a line.
_BEFORE_A_NAME = re.compile(
    rb"INFO: task |[Kk]ill(?:ed|ing)? process \d{1,10} \(|stuck for \d{1,6}s! \[|\b[Cc]omm:? "
    rb"|, name=|the client '|in process |SIGBUS to |[Kk]illing |cgroup: fork rejected "
    rb"|reaped process \d{1,10} \(|task:|by task |\bProcess "
)
_NAME, _ANYWHERE = 15, ANYWHERE.encode()


def begins_in_a_name(row: LineRow, line: bytes) -> bool:
    """Whether a rule that may be anywhere begins to match within the name of a process."""
    found = row.pattern.compiled.match(line) if row.pattern.source.startswith(_ANYWHERE) else None
    return found is not None and any(
        each.end() <= found.start(1) < each.end() + _NAME for each in _BEFORE_A_NAME.finditer(line)
    )


def quotes_a_user(line: bytes) -> bool:
    """Whether a user may have chosen a part of the line before the kernel's words."""
    return _OF_USERS.match(line) is not None


class OwnLines:
    """Reads records as they come. A row whose kind has a status reports the component's status."""

    def __init__(self, lines: KernelLines, statuses: Mapping[str, Status]) -> None:
        self._lines = lines
        self._statuses = statuses
        self.first, self.after_name = lines.first, lines.after_name
        self.of_pci = lines.of_pci

    def read(self, record: Record) -> Sequence[FaultSighting | Observation]:
        """The evidence of this record, if any. Raises no exception, whatever the record."""
        if quotes_a_user(record.text):
            return ()
        is_long = len(record.text) > LONGEST
        short = replace(record, text=record.text[:LONGEST]) if is_long else record
        return [self._stated(each) for each in self._lines.read(short, begins_in_a_name)]

    def _stated(self, seen: FaultSighting) -> FaultSighting | Observation:
        kind = seen.code.removeprefix(f"{seen.check}:")
        status = self._statuses.get(kind)
        if status is None or seen.historical:
            return seen
        reason = "" if status is Status.OK else kind
        return Observation(seen.check, seen.component, status, reason, seen.message)


@dataclass(frozen=True, slots=True)
class BuildOwnLines:
    """``statuses``: the kinds that are level evidence."""

    name: str
    rows: tuple[LineRow, ...]
    statuses: tuple[tuple[str, Status], ...]

    def __call__(self, sources: Sources, options: Mapping[str, Any]) -> OwnLines:
        del options
        places: LinePlaces = NodePlaces(sources)
        return OwnLines(KernelLines(self.name, self.rows, places), dict(self.statuses))


def own_lines(
    name: str, rows: Sequence[LineRow], statuses: Mapping[str, Status], sees: str
) -> CheckSpec:
    """The check of a site's own lines."""
    return CheckSpec(
        name=name,
        sees=sees,
        source="kernel log, lines of the configuration",
        cost="a lookup of 4 bytes for each kernel record",
        blind_to="lines in which the kernel quotes a user's text",
        interval=0,
        deadline=0,
        build=BuildOwnLines(name, tuple(rows), tuple(statuses.items())),
    )
