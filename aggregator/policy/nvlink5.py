"""NVLink 5 (Xids 144-150): the action that the registers in the line call for. Pure.

Source: NVIDIA, "Analyzing Xid errors with the Xid catalog"; the table is in catalogue.yaml. The
second register is compared as a whole: a value that the table does not have is not guessed at from
its bits.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

#: From this major version of the driver on, the first register has a new layout.
NEW_LAYOUT = 575
#: The class of each action of the table; a line without a row keeps the code's own class.
CLASSES = {"reset": "nvlink5-reset", "ignore": "nvlink5-ignore", "follow-154": "nvlink5-follow"}
#: The class of a row whose action is a reset, then an inspection of the device at the link's other
#: end.
PEER_CLASS, _PEER = "nvlink5-peer", "INVESTIGATE_PEER_DEVICE"

_REGISTER = re.compile(r"0x[0-9a-fA-F]{1,8}")
_MASK = re.compile(r"[01.]{32}")
_MOST_ROWS = 1_024


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the table. ``action`` is of `CLASSES`; ``then`` is the later investigation."""

    unit: str
    action: str
    severity: str
    then: str

    @property
    def fault_class(self) -> str:
        """The class of a fault whose registers match this row."""
        if self.action == "reset" and self.then == _PEER:
            return PEER_CLASS
        return CLASSES[self.action]


@dataclass(frozen=True, slots=True)
class _Entry:
    before: re.Pattern[str]
    after: re.Pattern[str]
    statuses: frozenset[int] | None  # any, if None
    row: Row


@dataclass(frozen=True, slots=True)
class Nvlink5:
    """The table, by Xid code ("xid:149")."""

    entries: Mapping[str, tuple[_Entry, ...]]
    #: Rows by the question: a node's faults are evaluated anew with each of its messages.
    _rows: dict[tuple[str, str | None, str | None, str], Row | None] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def row(self, code: str, details: Mapping[str, str], driver: str) -> Row | None:
        """The row for the line's registers, or None where the table has no row, or rows that
        disagree.

        ``details`` are the fault's (``intr_info``, ``error_status``), ``driver`` is the version
        ("580.82.07"). Where it is not known, both layouts must give the same.
        """
        if code not in self.entries:  # nearly every fault, for each rule: must be cheap
            return None
        key = code, details.get("intr_info"), details.get("error_status"), driver
        if key not in self._rows:
            if len(self._rows) >= _MOST_ROWS:  # agents choose the registers
                self._rows.clear()
            self._rows[key] = self._find_row(*key)
        return self._rows[key]

    def _find_row(
        self, code: str, intr_info: str | None, error_status: str | None, driver: str
    ) -> Row | None:
        first, second = _register(intr_info), _register(error_status)
        if first is None:
            return None
        bits = f"{first:032b}"
        fits = [
            entry
            for entry in self.entries[code]
            if entry.statuses is None or second in entry.statuses
        ]
        old = _only([entry.row for entry in fits if entry.before.fullmatch(bits)])
        new = _only([entry.row for entry in fits if entry.after.fullmatch(bits)])
        major = driver.partition(".")[0]
        if major.isdecimal():
            return new if int(major) >= NEW_LAYOUT else old
        same = old is not None and new is not None and old.fault_class == new.fault_class
        return new if same else None


def parse_nvlink5(entries: list[dict[str, Any]]) -> Nvlink5:
    """Build the table from the parsed YAML. The file is ours: a mistake in it is a bug."""
    found: dict[str, list[_Entry]] = {}
    for entry in entries:
        before, after = entry["before_r575"], entry["from_r575"]
        if not _MASK.fullmatch(before) or not _MASK.fullmatch(after):
            raise ValueError(f"xid {entry['xid']} {entry['unit']}: a mask is not 32 of 0, 1 and .")
        for status, text in entry["status"].items():
            action, severity, then = (part.strip() for part in text.split(";"))
            if action not in CLASSES:
                raise ValueError(f"{entry['unit']}: no action {action!r}")
            row = Row(str(entry["unit"]), action, severity, then)
            found.setdefault(f"xid:{entry['xid']}", []).append(
                _Entry(re.compile(before), re.compile(after), _statuses(status), row)
            )
    return Nvlink5({code: tuple(rows) for code, rows in found.items()})


def _statuses(key: int | str) -> frozenset[int] | None:
    """``any``, a number, or several in one text."""
    if key == "any":
        return None
    return frozenset((key,) if isinstance(key, int) else (int(one, 16) for one in key.split()))


def _register(text: str | None) -> int | None:
    return int(text, 16) if text is not None and _REGISTER.fullmatch(text) else None


def _only(rows: list[Row]) -> Row | None:
    """The rows' common result: the first, where all of them have the same."""
    return rows[0] if rows and len({row.fault_class for row in rows}) == 1 else None
