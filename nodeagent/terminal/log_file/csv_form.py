"""The entries of a cloud's or a store's log in CSV: a line of names, then a line for each entry."""

import csv
import re
from collections.abc import Iterable, Iterator
from typing import Any

from nodeagent.terminal.log_file.journal_fields import records_in

_NAME = re.compile(r"[\w.@ \[\]/-]{1,64}")
#: Columns of a text: of the journal, Google Cloud, Azure, Grafana and CloudWatch.
_TEXTS = frozenset({"MESSAGE", "message", "textPayload", "SyslogMessage", "Line", "line"})
_TEXTS |= {"@message", "_raw", "log"}

Numbered = tuple[int, bytes]


def is_csv(line: bytes) -> bool:
    """Whether the file's first line names the columns of a log."""
    names = _fields(line)
    short = {_short(name) for name in names}
    return len(names) > 1 and all(map(_NAME.fullmatch, names)) and not short.isdisjoint(_TEXTS)


def csv_values(lines: Iterator[Numbered]) -> Iterator[tuple[int, Any]]:
    """Each line's fields by the last part of their column's name; the first line names these."""
    names = [_short(name) for name in _fields(next(lines)[1])]
    for number, line in lines:
        value: dict[str, str] = {}
        for name, text in zip(names, _fields(line), strict=False):
            if text:
                value.setdefault("line" if name == "Line" else name, text)
        for each in records_in(value):
            yield number, each


def _short(name: str) -> str:
    return name.rpartition(".")[2]


def _fields(line: bytes) -> list[str]:
    rows: Iterable[list[str]] = csv.reader([line.decode("utf-8", "replace").lstrip("\ufeff")])
    try:
        return next(iter(rows), [])
    except csv.Error:  # a field that is longer than csv's bound
        return []
