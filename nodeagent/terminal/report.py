"""Findings and checks as people read them: an aligned table, JSON, one line for Slurm."""

import json
import textwrap
from collections import Counter
from collections.abc import Sequence
from typing import Any

from nodeagent.local.findings import Findings, Latched, Result
from nodeagent.model import CheckInfo, Status

WIDTH = 100
_COLOURS = {
    Status.FAILED: "\033[31m",
    Status.DEGRADED: "\033[33m",
    Status.UNKNOWN: "\033[36m",
    Status.OK: "\033[32m",
}
_PLAIN = "\033[0m"
_GAP = "  "
#: From this number of components with the same message on it is printed once, and how many of them
#: are named.
_ALIKE = 3
_NAMED = 8

_Item = Result | Latched
_Row = tuple[str, ...]


def findings_table(findings: Findings, *, colour: bool = False) -> str:
    """The findings, worst first, then the checks that are off, then notes."""
    shown = _shown_once(findings.ranked())
    rows = [("STATUS", "CHECK", "COMPONENT", "AGE", "WHAT"), *(row for _, row in shown)]
    lines = [_headline(findings, colour=colour)]
    if shown:
        table = aligned(rows)
        lines += ["", table[0]]
        for (item, _), line in zip(shown, table[1:], strict=True):
            lines.append(_coloured(line, item.status, colour=colour))
    off = [check for check in findings.checks if check.off_because]
    if off:
        lines.append("")
        lines += _off_lines(off)
    lines += [f"note: {note}" for note in findings.notes]
    return "\n".join(lines)


def _shown_once(ranked: Sequence[_Item]) -> list[tuple[_Item, _Row]]:
    """The rows. A message that three or more components share is in one row for all of them."""
    alike: dict[tuple[Status, str, str], list[Result]] = {}
    for item in ranked:
        if isinstance(item, Result) and item.message:
            alike.setdefault(_likeness(item), []).append(item)
    shown: list[tuple[_Item, _Row]] = []
    for item in ranked:
        same = alike.get(_likeness(item), []) if isinstance(item, Result) else []
        if len(same) < _ALIKE:
            shown.append((item, _row(item)))
        elif same[0] is item:
            shown.append((item, _row_of_all(same)))
    return shown


def _likeness(result: Result) -> tuple[Status, str, str]:
    """Components that are ok are only put together by check: each check keeps its row."""
    check = result.check if result.status is Status.OK else ""
    return result.status, check, result.message


def _row_of_all(same: Sequence[Result]) -> _Row:
    status, check, component, old, what = _row(same[0])
    if same[0].status is Status.OK:
        return status, check, f"{len(same)} components", old, what
    return status, check, component, old, f"{what}; the same: {_names(same[1:])}"


def _names(items: Sequence[Result]) -> str:
    """The checks, with their components while these are few."""
    if len(items) <= _NAMED:
        return ", ".join(f"{item.check} {item.component}".rstrip() for item in items)
    of_check = Counter(item.check for item in items)
    return ", ".join(f"{name} ({n})" if n > 1 else name for name, n in of_check.items())


def _off_lines(off: Sequence[CheckInfo]) -> list[str]:
    """A line for each reason, with all that are off for it."""
    names: dict[str, list[str]] = {}
    for check in off:
        names.setdefault(check.off_because, []).append(check.name)
    lines = []
    for reason, checks in names.items():
        text = f"off, {reason.removeprefix('off ')}: {', '.join(checks)}"
        lines += textwrap.wrap(text, WIDTH, subsequent_indent="     ", break_on_hyphens=False)
    return lines


def as_json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)


def slurm_line(findings: Findings) -> str:
    """One line, for a node's reason in Slurm: the worst there is, and how much more of it."""
    worst = findings.worst
    if worst is Status.OK:
        return "sickbay: ok"
    bad = [item for item in findings.ranked() if item.status is worst]
    more = f" (and {len(bad) - 1} more)" if len(bad) > 1 else ""
    # Only a failed result has no status before it: the line becomes the node's reason.
    status = "" if worst is Status.FAILED else f"{worst.name.lower()}: "
    first = bad[0]
    _, _, component, _, what = _row(first)
    name = first.check
    if isinstance(first, Latched):
        name, what = first.code, first.message
    where = f" {component}" if component != "-" else ""
    return one_line(f"sickbay: {status}{name}{where}: {what}", 180 - len(more)) + more


def aligned(rows: Sequence[Sequence[str]], width: int = WIDTH) -> list[str]:
    """A text per row: columns padded to their widest cell, the last one wrapped to ``width``.

    It keeps at least 30 characters: a line that is too long beats a column of single words.
    """
    columns = len(rows[0])
    widths = [max(len(row[i]) for row in rows) for i in range(columns - 1)]
    room = max(30, width - sum(widths) - len(_GAP) * (columns - 1))
    lines = []
    for row in rows:
        cells = [cell.ljust(size) for cell, size in zip(row, widths, strict=False)]
        indent = "\n" + " " * (sum(widths) + len(_GAP) * len(widths))
        wrapped = textwrap.wrap(_flat(row[-1]), room, break_on_hyphens=False) or [""]
        lines.append(_GAP.join([*cells, indent.join(wrapped)]).rstrip())
    return lines


def one_line(text: str, room: int) -> str:
    """``text`` without line breaks or terminal controls, cut to ``room`` with "..." ."""
    flat = _flat(text)
    return flat if len(flat) <= room else flat[: room - 3].rstrip() + "..."


def _flat(text: str) -> str:
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def age(seconds: float | None) -> str:
    """Short: "12s", "5m", "3h", "2d"; "-" when it isn't known."""
    if seconds is None:
        return "-"
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= size:
            return f"{int(seconds // size)}{unit}"
    return f"{int(max(seconds, 0))}s"


def _row(item: Result | Latched) -> tuple[str, str, str, str, str]:
    status = item.status.name.lower()
    component = one_line(item.component, 44) or "-"
    if isinstance(item, Result):
        what = item.message or item.reason
        return status, item.check, component, age(item.age_seconds), what
    times = f" x{item.count}" if item.count > 1 else ""
    past = "history: " if item.historical else ""
    return (
        status,
        item.check,
        component,
        age(item.last_age_seconds),
        f"{past}{item.code}{times}: {item.message}",
    )


def _headline(findings: Findings, *, colour: bool) -> str:
    by = (
        "by its agent"
        if findings.source == "agent"
        else "by one run of the checks, without an agent"
    )
    worst = _coloured(findings.worst.name.lower(), findings.worst, colour=colour)
    return f"{findings.node}: {worst} ({by})"


def _coloured(text: str, status: Status, *, colour: bool) -> str:
    return f"{_COLOURS[status]}{text}{_PLAIN}" if colour else text
