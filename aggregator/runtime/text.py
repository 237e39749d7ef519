"""Text from other programs or people, cut to a readable length."""

import re
from collections.abc import Sequence

#: At most 300 digits at once: Python refuses to convert more than 4,300, and a query may have them.
_DIGITS = re.compile(r"(\d{1,300})")


def truncate(text: str, most: int) -> str:
    """At most ``most`` of its characters; a cut text ends with how many it had."""
    if len(text) <= most:
        return text
    mark = f"… ({len(text):,} characters)"
    return text[: most - len(mark)] + mark


def counted(count: int, one: str, more: str = "") -> str:
    """A number of things for people: "1 node is", "2 nodes are". ``more`` is for several of them,
    where that is not ``one`` with an "s".
    """
    return f"{count} {one if count == 1 else more or one + 's'}"


def some_of(names: Sequence[str], most: int) -> str:
    """The first names, and how many others there are."""
    more = f" and {counted(len(names) - most, 'other')}" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def shell_quoted(text: str, most: int = 200) -> str:
    """One argument of a shell's command line, in single quotes. A quote within is left out: the
    page finds a command's end by its quotes.
    """
    return f"'{visible(text.replace(chr(39), ' '), most) or 'why'}'"


def visible(text: str, most: int) -> str:
    """One line of at most ``most`` characters that a terminal and a browser show as they are.

    Characters that are not printable (escape sequences, marks that reverse the direction of text,
    halves of surrogate pairs) become "?", and line breaks become blanks.
    """
    line = " ".join(text[: 4 * most].split())
    shown = "".join(char if char.isprintable() else "?" for char in line)
    return truncate(shown, most) if len(text) <= 4 * most else shown[: most - 1] + "…"


def visible_lines(text: str, most: int) -> str:
    """The same for text that has lines of its own, which stay."""
    lines = (
        "".join(char if char.isprintable() else "?" for char in line)
        for line in text[: 4 * most].replace("\r\n", "\n").split("\n")
    )
    return truncate("\n".join(lines), most)


def natural(name: str) -> tuple[tuple[int, int, str], ...]:
    """A sort key that puts node-9 before node-10."""
    return tuple(
        (0, int(part), part) if part.isdecimal() else (1, 0, part)
        for part in _DIGITS.split(name)
        if part
    )


def common_start(one: Sequence[object], other: Sequence[object]) -> int:
    """How many characters, or entries, both begin with."""
    shorter = min(len(one), len(other))
    return next((n for n in range(shorter) if one[n] != other[n]), shorter)
