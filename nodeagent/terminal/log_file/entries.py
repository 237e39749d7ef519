"""The entries of a log file, by the form that its first line shows."""

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain, islice
from typing import IO, Any

from nodeagent.terminal.log_file import csv_form, gcloud, journal_fields, logfmt
from nodeagent.terminal.log_file.entry import Entry
from nodeagent.terminal.log_file.hosts import Hosts
from nodeagent.terminal.log_file.lines import numbered_lines, plain
from nodeagent.terminal.log_file.text_form import text_entries
from nodeagent.terminal.log_file.wrapped import is_wrapped, unwrapped

#: journalctl's own lines: "-- Journal begins at ...", "-- Boot 3f2a... --", "-- No entries --"; the
#: heading of ``kubectl describe``; and Grafana's lines before an export.
_REMARKS = (b"-- ", b"Common labels: {", b"Line limit: ", b"Total bytes processed: ")
_HEADING = b"Events:"
#: Values from which their form is recognised.
_SAMPLE = 50


def read_entries(file: IO[bytes]) -> Iterator[Entry]:
    """The file's entries in its order, lazily. Raises OSError."""
    raw = numbered_lines(file)
    first = next(raw, None)
    if first is not None and journal_fields.is_export(first[1]):
        yield from journal_fields.export_entries(file, first[1])
        return
    lines = (item for item in plain(chain([first] if first else [], raw)) if not _is_remark(item))
    head = next(lines, None)
    if head is None:
        return
    hosts = Hosts()
    if head[1] == gcloud.BEGINNING:
        yield from _json_entries(iter(gcloud.yaml_values(chain([head], lines))))
        return
    if journal_fields.is_verbose(head[1]):
        yield from journal_fields.verbose_entries(chain([head], lines))
        return
    for entry in _entries(hosts.without(chain([head], lines))):
        yield replace(entry, node=hosts.of(entry.number))


def _entries(lines: Iterator[tuple[int, bytes]]) -> Iterator[Entry]:
    head = next(lines, None)
    every = chain([head] if head else [], lines)
    if head is not None and csv_form.is_csv(head[1]):
        return _json_entries(csv_form.csv_values(every))
    if head is not None and logfmt.is_logfmt(head[1]):
        return _json_entries(logfmt.logfmt_values(every))
    if head is not None and journal_fields.is_json(head[1]):
        return _json_entries(journal_fields.json_values(every))
    return text_entries((number, _unquoted(line)) for number, line in every)


def _unquoted(line: bytes) -> bytes:
    """The text of a JSON string, as of ``jq .MESSAGE``; a newline in it begins no record."""
    if not (line.startswith(b'"') and line.endswith(b'"')):
        return line
    try:
        return str(json.loads(line)).replace("\n", r"\x0a").encode("utf-8", "replace")
    except ValueError:
        return line


def _json_entries(values: Iterator[tuple[int, Any]]) -> Iterator[Entry]:
    sample = list(islice(values, _SAMPLE))
    every = chain(sample, values)
    texts = (value for _, value in sample if is_wrapped(value) or journal_fields.has_message(value))
    if is_wrapped(next(texts, None)):
        return text_entries(unwrapped(every))
    return journal_fields.json_entries(every)


def _is_remark(item: tuple[int, bytes]) -> bool:
    return item[1] == _HEADING or (item[1].startswith(_REMARKS) and not item[1].startswith(b"---"))
