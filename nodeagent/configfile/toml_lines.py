"""The line of a key in a TOML text: ``tomllib`` doesn't report it, and messages must name it.

It is the line after the longest beginning of the text that is TOML and does not have the key. An
entry of a list that is written over several lines has the line of its list.
"""

import re
import tomllib
from collections.abc import Sequence
from typing import Any

Path = tuple[str | int, ...]
#: Only a line like this begins a key: no beginning that ends within a long list is parsed.
_BEGINS = re.compile(r"""\s*(?:\[|(?:[\w-]+|"(?:[^"\\]|\\.)*"|'[^']*')\s*[.=])""")


def line_of(text: str, path: Path) -> int:
    """The line (from 1) of ``path``, or of the nearest table around it that is there; else 1."""
    content = tomllib.loads(text)
    lines = text.replace("\r\n", "\n").split("\n")
    known = (path[:length] for length in range(len(path), 0, -1) if _has(content, path[:length]))
    return next((_line(lines, part) for part in known), 1)


def _line(lines: Sequence[str], path: Path) -> int:
    ends = [*(n for n, line in enumerate(lines) if _BEGINS.match(line)), len(lines)]
    before, until = 0, len(ends) - 1  # up to these the lines are TOML without the path, and with it
    while until - before > 1:
        middle = at = (before + until) // 2
        while (content := _parsed(lines[: ends[at]])) is None:  # within a text over several lines
            at = at - 1 if before + 1 < at <= middle else max(at, middle) + 1
        if at == until:
            break
        if _has(content, path):
            until = at
        else:
            before = at
    return ends[before] + 1


def _parsed(lines: Sequence[str]) -> dict[str, Any] | None:
    try:
        return tomllib.loads("\n".join(lines))
    except tomllib.TOMLDecodeError:
        return None


def _has(content: Any, path: Path) -> bool:
    for part in path:
        try:
            content = content[part]
        except (KeyError, IndexError, TypeError):
            return False
    return True
