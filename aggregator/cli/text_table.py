"""Text for a terminal. Names and messages come from nodes, so no character in them may move the
cursor: `clean` is the one function for text from outside.
"""

import datetime as dt
import textwrap
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from aggregator.cli.screen import Screen
from aggregator.runtime.text import truncate

Answer = dict[str, Any]
#: A column: the field of this name, or what is made of the item.
Cell = str | Callable[[Answer], object]

#: Characters of one text, and of a reason.
LONGEST, _LONGEST_REASON = 4_096, 1_000
#: Columns with which the last cell of a row stays in its line; else it has ``_LINES`` lines at
#: most.
_ROOM, _LINES, _INDENT = 40, 3, 4
#: Marks above and below one letter: with more, they reach into other lines.
_MARKS = 3
_COMBINING = {"Mn", "Me"}
_CONTROL = "\x1b["
_RED, _GREEN, _YELLOW = "31", "32", "33"
#: The colour of a word in a column of that name.
_COLOURS: Mapping[str, Mapping[str, str]] = {
    "STATE": {
        "quarantined": _RED,
        "held": _YELLOW,
        "warning": _YELLOW,
        "silent": _YELLOW,
        "ok": _GREEN,
    },
    "AGENT": {"silent": _YELLOW},
    "PHASE": {"Invalid": _RED, "Draining": _YELLOW, "Admitted": _YELLOW},
    "STATUS": {"failed": _RED, "degraded": _YELLOW, "ok": _GREEN},
    "CALLS FOR": {"drain": _RED, "cordon": _YELLOW},
    "READY": {"no": _RED, "yes": _GREEN},
}


def clean(value: object, most: int = LONGEST) -> str:
    """One line of printable text, cut to ``most`` characters.

    Line breaks become blanks. Escape sequences, characters without a width, those that reverse the
    direction of text, and halves of characters become "?".
    """
    line = truncate(" ".join(str(value).split()), most)
    shown = "".join(char if char.isprintable() else "?" for char in line)
    return shown if shown.isascii() else _without_towers(shown)


def _without_towers(text: str) -> str:
    """The text with a bounded number of combining marks in a row."""
    kept, row = [], 0
    for char in text:
        row = row + 1 if unicodedata.category(char) in _COMBINING else 0
        kept.append(char if row <= _MARKS else "?")
    return "".join(kept)


def brief(value: object) -> str:
    """The same for a person's reason, which may be a pasted log."""
    return clean(value, _LONGEST_REASON)


def printable(text: str) -> str:
    """Text that has lines of its own, which stay. No other character in it moves the cursor."""
    return "\n".join(
        "".join(char if char.isprintable() else "?" for char in line) for line in text.split("\n")
    )


def table(
    head: Sequence[str], rows: Iterable[Sequence[object]], width: int = 0, *, colour: bool = False
) -> str:
    """Columns side by side. The last one is cut to ``width`` characters; 0: to none. Where it
    has little room, a cell that is longer has lines of its own.
    """
    lines = [["-" if cell is None else clean(cell) or "-" for cell in row] for row in rows]
    sizes = [max(map(columns, (name, *cells))) for name, *cells in zip(head, *lines, strict=True)]
    colours = [_COLOURS.get(name, {}) if colour else {} for name in head]

    def line_of(cells: Sequence[str]) -> str:
        *before, last = cells
        line = "".join(
            f"{_painted(cell, shades)}{' ' * (size - columns(cell) + 2)}"
            for cell, size, shades in zip(before, sizes, colours, strict=False)
        )
        room = max(1, width - sum(sizes[:-1]) - 2 * len(before)) if width else 0
        if 0 < room < _ROOM and columns(last) > room:
            indent = " " * min(_INDENT, width // 4)
            wrapped = textwrap.wrap(last, max(1, width - len(indent)), break_on_hyphens=False)
            cut = [*wrapped[: _LINES - 1], _cut(" ".join(wrapped[_LINES - 1 :]), width - _INDENT)]
            return "\n".join([line.rstrip(), *(f"{indent}{one}" for one in cut if one)])
        return (line + _painted(_cut(last, room), colours[-1])).rstrip()

    return "\n".join([line_of(head), *map(line_of, lines)])


def listed(items: Iterable[Answer], columns_of: Mapping[str, Cell], screen: Screen) -> str:
    """A row for each item, a column for each title, as the screen has room and colours."""
    rows = [
        [one[of] if isinstance(of, str) else of(one) for of in columns_of.values()] for one in items
    ]
    return table(list(columns_of), rows, screen.width, colour=screen.colour)


def age(field: str, screen: Screen) -> Cell:
    """The column that has how long ago a field's time was."""
    return lambda one: ago(one[field], screen.now)


def _painted(cell: str, shades: Mapping[str, str]) -> str:
    shade = shades.get(cell)
    return f"{_CONTROL}{shade}m{cell}{_CONTROL}0m" if shade else cell


def columns(text: str) -> int:
    """The columns that a terminal needs for it."""
    if text.isascii():
        return len(text)
    return sum(_columns(char) for char in text)


def _columns(char: str) -> int:
    if unicodedata.category(char) in _COMBINING:
        return 0
    return 2 if unicodedata.east_asian_width(char) in {"W", "F"} else 1


def _cut(text: str, room: int) -> str:
    """The text in ``room`` columns; 0: as it is."""
    if not room or columns(text) <= room:
        return text
    kept, used = "", 0
    for char in text:
        used += _columns(char)
        if used > max(0, room - 3):
            break
        kept += char
    return kept + "..."


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


def labelled(one: Answer, labels: Mapping[str, str], indent: str = "") -> Iterator[str]:
    """A line for each of these fields that is set, with its label, if that is not empty."""
    for name, label in labels.items():
        if one.get(name):
            yield f"{indent}{label}{': ' if label else ''}{clean(one[name])}"


def evidence(items: Iterable[dict[str, Any]]) -> str:
    """The evidence in one cell."""
    parts = []
    for item in items:
        mark = " (over)" if item["over"] else " (lost, in force)" if item["lost"] else ""
        parts.append(f"{item['code']} {item['component']}".rstrip() + mark)
    return "; ".join(parts)
