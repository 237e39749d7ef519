"""Kernel log lines that are faults: the table ``kernel_lines.toml``, and its one engine.

A line is a fault when a row matches from the first byte of the raw record, the kernel wrote it, and
it names a part of this node. No text is unescaped and no two records are joined.
"""

import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from nodeagent.checks.base import CheckSpec
from nodeagent.checks.disk_common import MOUNT_OPTIONS, Watch
from nodeagent.checks.line_pattern import LinePattern, line_pattern, starts
from nodeagent.checks.line_places import KINDS, OF_MOUNTS, LinePlace, LinePlaces, NodePlaces
from nodeagent.checks.loglines import LONGEST_DETAIL, names_pci_device, sighting, text, words_at
from nodeagent.dataclass import dataclass
from nodeagent.model import ClearedBy, FaultSighting
from nodeagent.sources import Sources
from nodeagent.sources.kmsg import Record, is_users_line

TABLE = Path(__file__).with_suffix(".toml")

_PCI_PREFIX = re.compile(
    rb"(?P<driver>[\w.-]{1,40}) (?P<pci>[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])"
    # Until Linux 4.19 a port's service; an interface or RDMA device; the address once more (mlx5
    # until 5.0), a function, its line and task.
    rb"(?::pcie\d{2,3})?(?: (?:[^\s:/()\\]{1,32}|\(unnamed net_device\)))?(?: \(\w{1,16}\))?: "
    rb"(?:(?:[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]:)?\w{1,60}:\d{1,6}:\(pid \d{1,10}\): )?"
)
# Before the name may be the driver and its device on another bus than PCI ("virtio1").
_INTERFACE_PREFIX = re.compile(
    rb"(?:[a-z][\w-]{1,31} [\w.:-]{1,64} )?(?P<iface>[^\s:/()\\]{1,15})(?: \([\w-]{1,32}\))?: "
)
#: The forms of what may be before a pattern. A line's is found once for all rows.
PREFIXES: Mapping[str, Callable[[bytes], re.Match[bytes] | None]]
PREFIXES = {"pci": lru_cache(1)(_PCI_PREFIX.match), "interface": _INTERFACE_PREFIX.match}
#: Fields that are shown in small letters.
_SMALL = frozenset({"operation", "outcome", "part"})
#: Fields that name a part of the node, which its place shows in its own way.
_OF_PLACES = frozenset(
    {"pci", "bdf", "sid", "gpu", "dev", "numbers", "iface", "rdma", "driver", "pool"}
    | {"session", "port"}
)
_FIELD = re.compile(r"\{([a-z_]+)\}")


@dataclass(frozen=True, slots=True)
class LineRow:
    """A kind of line. ``kind`` empty: it is no fault.

    ``component``: a kind of place, or a text with fields. ``message`` and ``details`` may have
    fields, too; the kernel's own words are the message where it is empty.
    """

    pattern: LinePattern
    kind: str
    of: str = ""
    drivers: tuple[bytes, ...] = ()
    component: str = ""
    clears: ClearedBy = ClearedBy.EXPIRY
    details: tuple[tuple[str, str], ...] = ()
    message: str = ""

    def match(self, line: bytes) -> dict[str, str] | None:
        """The fields of the line, or None for another line."""
        prefix = PREFIXES.get(self.of)
        head = prefix(line) if prefix else None
        if prefix and head is None:
            return None
        found = self.pattern.compiled.match(line, head.end() if head else 0)
        if found is None or not self.kind:
            return None if found is None else {}
        before = head.groupdict() if head else {}
        fields = {name: text(raw) for name, raw in {**before, **self.pattern.fields(found)}.items()}
        return {name: each.lower() if name in _SMALL else each for name, each in fields.items()}


Skips = Callable[[LineRow, bytes], bool]


class RowsByStart:
    """Rows, found by the first bytes of a line. ``starts`` are those of all rows."""

    def __init__(self, rows: Iterable[LineRow]) -> None:
        wanted = [(starts(row.pattern), row) for row in rows]
        self.starts = frozenset(start for own, _ in wanted for start in own)
        self._rows = {
            start: tuple(row for own, row in wanted if start in own) for start in self.starts
        }
        self._lengths = sorted({len(start) for start in self.starts})

    def of(self, line: bytes, at: int = 0) -> Iterator[LineRow]:
        """The rows that may match from there, in their order."""
        for length in self._lengths:
            yield from self._rows.get(line[at : at + length], ())


class KernelLines:
    """Reads records as they come. ``foreign`` counts lines about parts that the node lacks."""

    def __init__(self, name: str, rows: Sequence[LineRow], places: LinePlaces) -> None:
        self.foreign = 0
        self._name = name
        self._places = places
        self._of_pci = tuple(row for row in rows if row.of == "pci")
        self._of_interface = RowsByStart(row for row in rows if row.of == "interface")
        self._others = RowsByStart(row for row in rows if not row.of)
        # A first row of another check's lines is compared, not matched: a flood may have them.
        head = rows[0].pattern.source.replace(b"\\", b"") if rows and not rows[0].kind else b""
        self._passed = head if head and starts(rows[0].pattern, len(head)) == {head} else b"\0"
        self.first = self._others.starts
        self.after_name = self._of_interface.starts
        self.of_pci = bool(self._of_pci)

    def read(self, record: Record, skips: Skips | None = None) -> Sequence[FaultSighting]:
        """The evidence of this record, if any. Raises no exception, whatever the record.

        ``skips``: whether a row that matches a line is passed over.
        """
        line = record.text
        if line.startswith(self._passed):
            return ()
        for row in self.rows(line):
            fields = row.match(line)
            if fields is not None and not (skips and skips(row, line)):
                return () if is_users_line(line) else self._evidence(record, row, fields)
        return ()

    def rows(self, line: bytes) -> Iterator[LineRow]:
        """The rows that may match, of the driver that the line names, in their order."""
        yield from self._others.of(line)
        if self._of_pci and names_pci_device(line):
            head = PREFIXES["pci"](line)
            driver = head and head["driver"]
            yield from (row for row in self._of_pci if not row.drivers or driver in row.drivers)
        elif self.after_name:
            yield from self._of_interface.of(line, words_at(line))

    def _evidence(
        self, record: Record, row: LineRow, fields: Mapping[str, str]
    ) -> Sequence[FaultSighting]:
        if not row.kind:
            return ()
        places = self._found(row, fields)
        self.foreign += not places
        return tuple(self._at(record, row, fields, place) for place in places)

    def _found(self, row: LineRow, fields: Mapping[str, str]) -> Sequence[LinePlace]:
        if row.component in KINDS:
            return self._places.find(row.component, fields)
        return (LinePlace(_filled(row.component, fields)[:LONGEST_DETAIL]),)

    def _at(
        self, record: Record, row: LineRow, fields: Mapping[str, str], place: LinePlace
    ) -> FaultSighting:
        shown = {
            name: each
            for name, each in fields.items()
            if name not in _OF_PLACES and f"{{{name}}}" not in row.component
        }
        constant = {name: _filled(each, fields) for name, each in row.details}
        words = _filled(row.message, fields) or text(record.text[: place.most])
        message = f"{place.before}{words}{place.after}"
        return sighting(
            record,
            check=self._name,
            code=f"{self._name}:{row.kind}",
            component=place.component,
            message=message,
            cleared_by=row.clears,
            details={**constant, **shown, **place.details},
        )


@dataclass(frozen=True, slots=True)
class BuildLines:
    """Builds the check of some rows; ``watches``: it looks up mounts, by the check's options."""

    name: str
    rows: tuple[LineRow, ...]
    watches: bool = False

    def __call__(self, sources: Sources, options: Mapping[str, Any]) -> KernelLines:
        watch = Watch(sources.mounts, options) if self.watches else None
        return KernelLines(self.name, self.rows, NodePlaces(sources, watch))


def _filled(template: str, fields: Mapping[str, str]) -> str:
    return _FIELD.sub(lambda found: fields.get(found[1], ""), template)


def _row(entry: Mapping[str, Any]) -> LineRow:
    """A row of the table. The file is ours: a mistake in it is a bug, and raises what it raises."""
    options = "|".join(entry.get("any", ()))
    source = f"{entry.get('head', '')}{f'(?:{options})' * bool(options)}{entry.get('tail', '')}"
    return LineRow(
        line_pattern(source, WORDS, shipped=True),
        entry.get("kind", ""),
        of=entry.get("of", ""),
        drivers=tuple(driver.encode() for driver in entry.get("drivers", ())),
        component=entry.get("component", ""),
        clears=ClearedBy[entry.get("clears", "expiry").upper()],
        details=tuple(entry.get("details", {}).items()),
    )


def _spec(name: str, entry: Mapping[str, Any]) -> CheckSpec:
    rows = ROWS[name]
    watches = any(row.component in OF_MOUNTS for row in rows)
    return CheckSpec(
        name=name,
        sees=entry["sees"],
        source=entry["source"],
        cost=entry.get("cost", "a lookup of 4 bytes for each kernel record"),
        blind_to=entry["blind_to"],
        interval=0,
        deadline=0,
        build=BuildLines(name, rows, watches),
        options=MOUNT_OPTIONS if watches else (),
    )


_TABLE = tomllib.loads(TABLE.read_text(encoding="utf-8"))
WORDS: Mapping[str, str] = _TABLE.pop("words")
#: The rows of each check.
ROWS: Mapping[str, tuple[LineRow, ...]] = {
    name: tuple(_row(line) for line in entry["lines"]) for name, entry in _TABLE.items()
}
#: The checks of the table, by name.
SPECS: Mapping[str, CheckSpec] = {name: _spec(name, entry) for name, entry in _TABLE.items()}
del _TABLE
