"""The journal's entries as fields: ``journalctl -o verbose``, ``export`` and the four JSON forms.

``dmesg --json`` is read here too. Fields of the journal whose names begin with an underscore are
journald's own, so that ``_TRANSPORT=kernel`` can't be claimed by a program
(systemd.journal-fields(7)). journald undoes the kernel's escapes, which are made again here: a
newline in a record must not look like the start of another record.
"""

import contextlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import IO, Any

from nodeagent.terminal.log_file.entry import Entry, kernel_entry
from nodeagent.terminal.log_file.lines import LONGEST_LINE
from nodeagent.terminal.log_file.prefix import Writer, parse_line
from nodeagent.terminal.log_file.wrapped import is_of_program
from sickbay.json_text import read_json

#: Bytes of one JSON object; longer ones are not decoded.
_LONGEST_OBJECT = 1 << 20
_BRACKETS = b"{}[], "
_CHUNK = 64 * 1024
_LONGEST_UPTIME = 1e10

_MESSAGE = "MESSAGE"
_STAMPS = ("_SOURCE_MONOTONIC_TIMESTAMP", "__MONOTONIC_TIMESTAMP")  # microseconds
_KEPT = frozenset({_MESSAGE, "_TRANSPORT", "SYSLOG_FACILITY", *_STAMPS})
_OF_EVERY_ENTRY = frozenset(
    {_MESSAGE, "__CURSOR", "__REALTIME_TIMESTAMP", "__MONOTONIC_TIMESTAMP", "_BOOT_ID"}
    | {"__SEQNUM", "__SEQNUM_ID"}
)

_NAME = re.compile(rb"[A-Z_][A-Z0-9_]{0,63}")
_MICROSECONDS = re.compile(r"\d{1,18}")
_VERBOSE_HEAD = re.compile(rb"\S.{10,60} \[s=[0-9a-f]{32};i=[0-9a-f]{1,16};b=[0-9a-f]{32};")
# Continuation lines of a value are indented deeper than four spaces.
_VERBOSE_FIELD = re.compile(rb"    ([A-Z_][A-Z0-9_]{0,63})=(.*)")
#: Fields that make a value an entry: of journald, dmesg, a container's log, a shipper, a store.
_TEXTS = frozenset(
    {_MESSAGE, "msg", "log", "message", "line", "textPayload", "@message", "SyslogMessage"}
    | {"_msg", "_raw", "short_message", "Message"}
)
#: The text, its program and its facility in the JSON of syslog-ng, of CEE and of rsyslog.
_SYSLOG = (
    *(("MESSAGE", "PROGRAM", "FACILITY"), ("msg", "pname", "subsys")),
    *(("msg", name, "syslogfacility-text") for name in ("programname", "syslogtag")),
)
#: Azure's output of a command that ran on a machine.
_RUN = "[stdout]\n"
#: The nesting of a cloud's answer around an entry.
_DEEPEST = 10
_STRING = re.compile(rb'"(?:\\.|[^"\\])*"')
#: The text before the first entry of an object that has a list of them.
_OPENING = re.compile(
    rb'\{(?: "[\w.@$ -]{1,60}": ?(?:(?:"[^"]{0,200}"|[\d.]{1,20}|true|false|null'
    rb"|\{[^{}\[\]]{0,500}\}|\[[^{}\[\]]{0,500}\]),|[\[{])| [\[{]){0,30}"
)
_HAS_TEXT = re.compile(rb'"(?:' + "|".join((*sorted(_TEXTS), "body")).encode() + rb')": ?["{]')
#: A field after the list of entries within an object.
_CLOSING = re.compile(rb'"[\w.@$ -]{1,60}": ?(?:"[^"]{0,200}"|[\d.]{1,20}|true|false|null),?')
#: Fluent Bit's output ``stdout``: a record's number and tag before it, and "=>" within it.
_FLUENT_BIT = re.compile(rb"\[\d{1,9}\] [\w./-]{1,200}: (?=\[)")
_CEE = b"@cee:"

_OUTSIDE_ASCII = re.compile(rb"[^ -\[\]-~]")


def is_export(line: bytes) -> bool:
    """Whether the file's first line begins an export of the journal."""
    return line.startswith(b"__CURSOR=")


def is_verbose(line: bytes) -> bool:
    return _VERBOSE_HEAD.match(line) is not None


def is_json(line: bytes) -> bool:
    """Whether the file's first line begins JSON; a kernel line may begin with "{1}[Hardware"."""
    text = _json_text(line)
    return text in (b"{", b"[", b"[{") or text.startswith((b'{"', b'[{"', b"[[", b'["'))


def has_message(value: Any) -> bool:
    """Whether a value is an entry of the journal or of dmesg."""
    return isinstance(value, dict) and (_MESSAGE in value or "msg" in value)


def export_entries(file: IO[bytes], first: bytes) -> Iterator[Entry]:
    """The entries after ``first``, the line that was already read (JOURNAL_EXPORT_FORMATS).

    A value with a newline is written as its length and its bytes, so it can't pose as a field.
    """
    fields: dict[str, Any] = {}
    number = begun = 1
    line = first
    while line:
        name, equals, value = line.rstrip(b"\n").partition(b"=")
        if not name:
            if fields:
                yield _journal_entry(begun, fields)
            fields, begun = {}, number + 1
        elif equals:
            _keep(fields, name, value)
            line = _rest_of_line(file, line)
        elif _NAME.fullmatch(name):
            value, lines = _sized_value(file)
            number += lines
            _keep(fields, name, value)
        number += 1
        line = file.readline(LONGEST_LINE)
    if fields:
        yield _journal_entry(begun, fields)


def verbose_entries(lines: Iterable[tuple[int, bytes]]) -> Iterator[Entry]:
    fields: dict[str, Any] = {}
    begun, last = 0, b""
    for number, line in lines:
        field = _VERBOSE_FIELD.match(line)
        if field is not None:
            last = field[1]
            _keep(fields, last, field[2])
        elif not line.startswith(b" "):
            if begun and fields:
                yield _journal_entry(begun, fields)
            fields, begun, last = {}, number, b""
        elif last == _MESSAGE.encode() and len(fields[_MESSAGE]) < LONGEST_LINE:
            fields[_MESSAGE] += b"\n" + line.strip()
    if begun and fields:
        yield _journal_entry(begun, fields)


def json_values(lines: Iterable[tuple[int, bytes]]) -> Iterator[tuple[int, Any]]:
    """One object a line, or objects over several lines, or one object with dmesg's whole log.

    A text that is no JSON is given as its bytes.
    """
    for number, text in _json_texts(lines):
        try:
            value = read_json(text.rstrip(b","))
        except ValueError:
            yield number, text
            continue
        if isinstance(value, dict) and isinstance(value.get("dmesg"), list):
            value = value["dmesg"]
        for each in records_in(value):
            yield number, each


def records_in(
    value: Any, around: Mapping[str, Any] | None = None, depth: int = 0
) -> Iterator[Any]:
    """The entries in a value: itself, or those that a cloud's or a store's answer has within it.

    Fields next to an inner entry count as its own, unless it has them. A text may be JSON itself,
    as shippers write it.
    """
    rows = _rows(value)
    if depth > _DEEPEST:
        yield value
    elif rows is not None:
        yield from records_in(rows, around, depth + 1)
    elif isinstance(value, str) and not depth:
        yield {"log": value}
    elif isinstance(value, list):
        is_text = not around and all(isinstance(each, str) for each in value)
        for each in ({"log": each} for each in value) if is_text else value:
            yield from records_in(each, around, depth + 1)
    elif isinstance(value, dict) and not _TEXTS.intersection(value):
        inner = [each for each in value.values() if isinstance(each, dict | list)]
        known = {key: each for key, each in value.items() if isinstance(each, str | int)}
        found = [
            record
            for each in inner
            for record in records_in(each, {**(around or {}), **known}, depth + 1)
            if isinstance(record, dict) and _TEXTS.intersection(record)
        ]
        yield from found or _lines_within(value) or [value]
    elif isinstance(value, dict) and _RUN in str(value.get("message")):
        yield from _lines_within(value) or [value]
    elif isinstance(value, dict):
        name, inner = _json_within(value)
        if inner is None:
            yield _of_syslog({**(around or {}), **value})
        else:
            outer = {key: each for key, each in value.items() if key != name}
            yield from records_in(inner, {**(around or {}), **outer}, depth + 1)
    elif not around:
        yield value


def _rows(value: Any) -> Any:
    """The entries of a value that has them as a table; any other value gives None.

    Loki has pairs of time and line, CloudWatch Insights the fields of an entry, Ansible lines,
    Azure rows below columns; OpenTelemetry's protocol names the type of each value.
    """
    if not isinstance(value, dict):
        return None
    if "stringValue" in value:
        return [{"log": value["stringValue"]}]
    fields = value["kvlistValue"].get("values") if _is_object(value, "kvlistValue") else None
    if isinstance(fields, list):
        return _pairs(fields)
    if isinstance(value.get("attributes"), list) and not _TEXTS.intersection(value):
        others = {name: each for name, each in value.items() if name != "attributes"}
        return {**others, **_pairs(value["attributes"])}
    columns, rows = value.get("columns"), value.get("rows")
    if isinstance(columns, list) and isinstance(rows, list):
        names = [str(each.get("name")) for each in columns if isinstance(each, dict)]
        found = [each for each in rows if isinstance(each, list)]
        return [dict(zip(names, each, strict=False)) for each in found]
    if value.keys() == {"field", "value"}:
        return {value["field"]: value["value"]} if value["field"] == "@message" else []
    stream, values = value.get("stream"), value.get("values")
    if isinstance(stream, dict) and isinstance(values, list):
        return [
            {**stream, "line": each[1]}
            for each in values
            if isinstance(each, list) and len(each) > 1
        ]
    for name, lines in value.items():
        if name.rpartition(".")[2] == "stdout_lines" and isinstance(lines, list):
            return [{"log": each} for each in lines]
    return None


def _pairs(fields: Iterable[Any]) -> dict[str, Any]:
    pairs = [(each.get("key"), each.get("value")) for each in fields if isinstance(each, dict)]
    return {str(key): next(iter(of.values())) for key, of in pairs if isinstance(of, dict) and of}


def _is_object(value: Mapping[str, Any], name: str) -> bool:
    return isinstance(value.get(name), dict)


def _lines_within(value: Mapping[str, Any]) -> list[dict[str, str]]:
    """The lines of the texts of several lines: a console's or a command's output.

    Each must have a line that its own prefix gives to the kernel.
    """
    texts = [each for each in value.values() if isinstance(each, str) and "\n" in each]
    if is_of_program(value):
        return []
    return [
        {"log": line}
        for lines in map(str.splitlines, texts)
        if any(
            parse_line(line.encode("utf-8", "replace")).writer is Writer.KERNEL for line in lines
        )
        for line in lines
    ]


def _of_syslog(entry: dict[str, Any]) -> dict[str, Any]:
    """The entry, or that of a syslog daemon under the names that ``wrapped`` has for it."""
    for text, program, facility in _SYSLOG:
        if "_TRANSPORT" not in entry and program in entry and text in entry:
            name = str(entry[program]).removesuffix(":")
            names = {"message": str(entry[text]).strip(), "program": name}
            return names | {"facility": entry.get(facility, 0)}
    return entry


def _json_within(entry: Mapping[str, Any]) -> tuple[str, Any]:
    """The field of an entry whose text is JSON, and its value; ("", None) where none is.

    journald names the writer of an entry, and what a program wrote there is its own claim.
    """
    if "_TRANSPORT" in entry or is_of_program(entry):
        return "", None
    for name in _TEXTS.intersection(entry):
        text = entry[name]
        if isinstance(text, str) and text.startswith("{"):
            with contextlib.suppress(ValueError):
                return name, read_json(text)
    return "", None


def json_entries(values: Iterable[tuple[int, Any]]) -> Iterator[Entry]:
    """The entries of `json_values` of dmesg or journalctl.

    A value of another form is an entry of its text: a mention of the driver in it is reported as
    not decoded.
    """
    for number, each in values:
        if isinstance(each, dict) and "msg" in each and "sequence" in each:
            yield _fluent_entry(number, each)
        elif isinstance(each, dict) and "msg" in each:
            yield _dmesg_entry(number, each)
        elif isinstance(each, dict) and _MESSAGE in each:
            yield _journal_entry(number, each)
        else:
            text = each if isinstance(each, bytes) else json.dumps(each).encode()
            yield Entry(number, text, known=False)


def _json_texts(lines: Iterable[tuple[int, bytes]]) -> Iterator[tuple[int, bytes]]:
    r"""Each object's text, and each other text, with the number of its first line.

    A line that is only a bracket is never part of a string, where a newline is written as "\n".
    """
    held: list[bytes] = []
    size = begun = depth = 0
    has_text = False  # of the lines that are held
    for number, line in lines:
        text = _json_text(line)
        if len(text) > 3 and text.startswith((b"{", b"[{")):
            if held:
                yield begun, b" ".join(held)
            held = []
            yield number, text.removesuffix(b",")
            continue
        if text.startswith(b"}") and depth == 1 and held:
            yield begun, b" ".join([*held, b"}"])
            held = []
        # "{", "[{" or "},{" begins an entry, except within one.
        if text.endswith(b"{") and len(text) <= 3 and not (held and has_text):
            if held and not _OPENING.fullmatch(b" ".join(held)):
                yield begun, b" ".join(held)
            held, size, begun, depth, has_text = [b"{"], 1, number, 1, False
        elif held:
            size += len(text)
            held.append(text)
            has_text = has_text or _HAS_TEXT.match(text) is not None
            bare = _STRING.sub(b"", text)
            depth += bare.count(b"{") - bare.count(b"}")
            if size > _LONGEST_OBJECT:
                yield begun, b" ".join(held)
                held = []
        elif text.strip(_BRACKETS) and not _CLOSING.fullmatch(text):
            yield number, text
    if held and not _OPENING.fullmatch(b" ".join(held)):
        yield begun, b" ".join(held)


def _json_text(line: bytes) -> bytes:
    """Without the frame of a server-sent event, a JSON text sequence (RFC 7464), or CEE."""
    text = line.strip(b"\x1e \t\r\n").removeprefix(b"data: ")
    tag = _FLUENT_BIT.match(text)
    if tag is not None:
        return text[tag.end() :].replace(b'"=>', b'":')
    return text.removeprefix(_CEE).lstrip() if text.startswith(_CEE) else text


def _journal_entry(number: int, fields: Mapping[str, Any]) -> Entry:
    text = _escaped(_bytes(fields.get(_MESSAGE)))
    facility = _bytes(fields.get("SYSLOG_FACILITY", b"0"))
    # Lines that root writes to /dev/kmsg have the kernel's transport too, and another facility.
    alone = fields.keys() <= _OF_EVERY_ENTRY  # of --output-fields=MESSAGE: as of -o cat
    if not alone and (_bytes(fields.get("_TRANSPORT")) != b"kernel" or facility != b"0"):
        return Entry(number, text)
    return kernel_entry(number, text, _seconds(fields))


def _dmesg_entry(number: int, item: Mapping[str, Any]) -> Entry:
    """An item of ``dmesg --json``.

    "pri" has the facility too, except next to "fac" (``-x``), and both are absent where dmesg has
    no name for the facility.
    """
    text = _escaped(_bytes(item["msg"]))
    priority = item.get("pri")
    facility = priority >> 3 if isinstance(priority, int) else 0
    if priority is None or facility != 0 or item.get("fac", "kern") != "kern":
        return Entry(number, text)
    stamp = item.get("time")
    if not isinstance(stamp, int | float) or not 0 <= stamp < _LONGEST_UPTIME:
        stamp = -1
    return kernel_entry(number, text, float(stamp))


def _fluent_entry(number: int, item: Mapping[str, Any]) -> Entry:
    """A record of fluent-bit's input ``kmsg``, which leaves the facility out."""
    text = _escaped(_bytes(item["msg"]))
    stamp, micro = item.get("sec"), item.get("usec")
    if not isinstance(stamp, int) or not isinstance(micro, int) or not 0 <= stamp < _LONGEST_UPTIME:
        return kernel_entry(number, text)
    return kernel_entry(number, text, stamp + micro / 1e6)


def _seconds(fields: Mapping[str, Any]) -> float:
    for name in _STAMPS:
        stamp = _bytes(fields.get(name)).decode("ascii", "replace")
        if _MICROSECONDS.fullmatch(stamp):
            return int(stamp) / 1e6
    return -1.0


def _bytes(value: Any) -> bytes:
    """A field's value: text, or the list of its bytes where it is not printable."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode("utf-8", "replace")
    if isinstance(value, list) and all(isinstance(b, int) and 0 <= b < 256 for b in value):
        return bytes(value)
    return b""


def _escaped(text: bytes) -> bytes:
    """As ``/dev/kmsg`` shows it (Documentation/ABI/testing/dev-kmsg)."""
    return _OUTSIDE_ASCII.sub(lambda byte: b"\\x%02x" % byte[0][0], text)


def _keep(fields: dict[str, Any], name: bytes, value: bytes) -> None:
    key = name.decode("ascii", "replace")
    if key in _KEPT:
        fields.setdefault(key, value)


def _rest_of_line(file: IO[bytes], line: bytes) -> bytes:
    while line and not line.endswith(b"\n"):
        line = file.readline(LONGEST_LINE)
    return line


def _sized_value(file: IO[bytes]) -> tuple[bytes, int]:
    """The value's beginning, and how many newlines it and its length have."""
    size = file.read(8)
    lines = size.count(b"\n") + 1
    left = int.from_bytes(size, "little")
    value = b""
    while left > 0 and (chunk := file.read(min(left, _CHUNK))):
        left -= len(chunk)
        lines += chunk.count(b"\n")
        value = value or chunk
    file.read(1)  # the newline after it
    return value, lines
