"""Text for a terminal. Names and messages come from nodes, so no character in them may move the
cursor.
"""

import datetime as dt
from collections.abc import Iterable, Sequence
from typing import Any

from aggregator.runtime.text import truncate

#: Characters of a reason.
_LONGEST = 1_000


def clean(value: object) -> str:
    """One line of printable text. Escape sequences and line breaks become "?" and blanks."""
    text = " ".join(str(value).split())
    return "".join(char if char.isprintable() else "?" for char in text)


def brief(value: object) -> str:
    """The same for a person's reason, which may be a pasted log."""
    return truncate(clean(value), _LONGEST)


def printable(text: str) -> str:
    """Text that has lines of its own, which stay. No other character in it moves the cursor."""
    return "\n".join(
        "".join(char if char.isprintable() else "?" for char in line) for line in text.split("\n")
    )


def table(head: Sequence[str], rows: Iterable[Sequence[object]], width: int = 0) -> str:
    """Columns side by side. The last one is cut to ``width`` characters; 0: to none."""
    lines = [list(head), *([clean(cell) or "-" for cell in row] for row in rows)]
    sizes = [max(len(line[i]) for line in lines) for i in range(len(head) - 1)]
    text = [
        "  ".join([*(cell.ljust(size) for cell, size in zip(line, sizes, strict=False)), line[-1]])
        for line in lines
    ]
    return "\n".join(_cut(line.rstrip(), width) for line in text)


def _cut(line: str, width: int) -> str:
    return line if not width or len(line) <= width else line[: max(1, width - 3)] + "..."


def ago(at: str | None, now: dt.datetime) -> str:
    """How long ago an RFC 3339 time was: "4m", "2h", "3d"; "-" for none."""
    if not at:
        return "-"
    seconds = (now - dt.datetime.fromisoformat(at)).total_seconds()
    for size, unit in ((2 * 86400, "d"), (2 * 3600, "h"), (120, "m")):
        if abs(seconds) >= size:
            return f"{int(seconds / {'d': 86400, 'h': 3600, 'm': 60}[unit])}{unit}"
    return f"{int(seconds)}s"


def clock(at: str) -> str:
    """An RFC 3339 time for a log line, in UTC."""
    return dt.datetime.fromisoformat(at).astimezone(dt.UTC).strftime("%Y-%m-%d %H:%M:%S")


def pairs(items: Iterable[tuple[str, object]]) -> str:
    """Labels and values, one a line, without empty values."""
    shown = [(label, clean(value)) for label, value in items if value not in {"", None}]
    size = max((len(label) for label, _ in shown), default=0)
    return "\n".join(f"{label + ':':<{size + 1}} {value}" for label, value in shown)


def evidence(items: Iterable[dict[str, Any]]) -> str:
    """The evidence in one cell."""
    parts = []
    for item in items:
        mark = " (over)" if item["over"] else " (lost, in force)" if item["lost"] else ""
        parts.append(f"{item['code']} {item['component']}".rstrip() + mark)
    return "; ".join(parts)
