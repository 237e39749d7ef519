"""The entries of a log in a table: a line of names, then a line for each entry.

- Comma- or tab-separated, as clouds and log stores export it; with bars, as of a database's client;
- in columns, as ``kubectl get events``, ``kubectl describe node`` and ``az -o table`` print it.
"""

import csv
import re
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any

from nodeagent.dataclass import dataclass
from nodeagent.terminal.log_file.journal_fields import records_in

_NAME = re.compile(r"[\w.@ \[\]/-]{1,64}")
#: Columns of a text: of the journal, Google Cloud, Azure, Grafana, CloudWatch and Datadog.
_TEXTS = frozenset({"MESSAGE", "message", "textPayload", "SyslogMessage", "Line", "line"})
_TEXTS |= {"@message", "_raw", "log", "Message"}
#: The columns of Kubernetes' events, and the fields of the same in JSON.
_OF_EVENTS = {
    "MESSAGE": "message",
    "Message": "message",
    "OBJECT": "involvedObject.kind",
    "SOURCE": "source.component",
    "From": "source.component",
}
_COLUMN = re.compile(r"\S+(?: \S+)*")
_RULE = re.compile(rb"[-+|: ]{3,}")

Numbered = tuple[int, bytes]


@dataclass(frozen=True, slots=True)
class _Table:
    """``starts``: where each column begins, in a table without a ``delimiter``."""

    delimiter: str
    starts: tuple[int, ...] = ()

    def fields(self, line: bytes) -> list[str]:
        text = line.decode("utf-8", "replace").lstrip("\ufeff")
        if self.starts:
            return [text[a:b].strip() for a, b in pairwise((*self.starts, None))]
        if self.delimiter == "|":
            return [each.strip() for each in text.strip(" |").split("|")]
        rows: Iterable[list[str]] = csv.reader([text], delimiter=self.delimiter)
        try:
            return next(iter(rows), [])
        except csv.Error:  # a field that is longer than csv's bound
            return []


def _table(line: bytes) -> _Table | None:
    """The form of a log's table that has this line of names; another line gives None."""
    text = line.decode("utf-8", "replace")
    found = [_Table(delimiter) for delimiter in ",\t|" if delimiter in text]
    if not found and "  " in text:
        found = [_Table("", tuple(each.start() for each in _COLUMN.finditer(text)))]
    for table in found:
        names = table.fields(line)
        short = {_short(name) for name in names}
        if len(names) > 1 and all(map(_NAME.fullmatch, names)) and not short.isdisjoint(_TEXTS):
            return table
    return None


def is_csv(line: bytes) -> bool:
    """Whether the file's first line names the columns of a log."""
    return _table(line) is not None


def csv_values(lines: Iterator[Numbered]) -> Iterator[tuple[int, Any]]:
    """Each line's fields by the last part of their column's name; the first line names these."""
    first = next(lines)[1]
    table = _table(first) or _Table(",")
    names = [_short(name) for name in table.fields(first)]
    is_of_events = bool(table.starts) and not {"OBJECT", "From"}.isdisjoint(names)
    for number, line in lines:
        if _RULE.fullmatch(line):
            continue
        value: dict[str, str] = {}
        for name, text in zip(names, table.fields(line), strict=False):
            field = _OF_EVENTS.get(name, name) if is_of_events else name
            if text:
                value.setdefault({"Line": "line", "Message": "message"}.get(field, field), text)
        for each in records_in(value):
            yield number, each


def _short(name: str) -> str:
    return name.rpartition(".")[2]
