"""Markdown tables: read from a page of the documentation, and written."""

import re
from collections.abc import Iterable, Iterator, Sequence

_CELL = re.compile(r"(?<!\\)\|")
_LINK = re.compile(r"\[([^]]*)\]\([^)]*\)")


def rows(markdown: str) -> Iterator[list[str]]:
    """The cells of each row whose first cell begins with code."""
    for line in markdown.splitlines():
        if line.startswith("| `"):
            yield [cell.strip() for cell in _CELL.split(line.strip().strip("|"))]


def code(cell: str) -> str:
    """The code that a cell consists of, or no text."""
    found = re.fullmatch(r"`([^`]+)`", cell)
    return found[1] if found is not None else ""


def plain(markdown: str) -> str:
    """The text without links and marks, as an editor shows it."""
    return _LINK.sub(r"\1", markdown).replace("`", "").replace("**", "").strip()


def table(head: Sequence[str], body: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a table; a cell's text is one line, and its bars are escaped."""
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for cells in body:
        shown = (" ".join(cell.split()).replace("|", "\\|") for cell in cells)
        lines.append("| " + " | ".join(shown) + " |")
    return lines
