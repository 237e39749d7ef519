r"""Lines of a text log that a tool has put into JSON: a container's log, or a log shipper's output.

``{"log": "...\n", "stream": "stdout", "time": "..."}`` is Docker's json-file; shippers and log
stores write ``{"message": "..."}`` or ``{"line": "..."}`` next to fields of their own. The text is
taken as a line of a text file, so its own prefix names the writer, as far as it has one. Shippers
that read the journal keep its fields under the same names or in small letters.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from nodeagent.terminal.log_file.entry import Entry

_TEXTS = (
    *("log", "message", "line", "textPayload", "@message", "SyslogMessage", "_msg", "_raw"),
    "short_message",
)
#: Fields that name the writer; a value that is not the kernel's name is another program.
_WRITERS = (
    *("_transport", "syslog_identifier", "appname", "app_name", "program", "ident"),
    "processname",
)
_FACILITIES = ("syslog_facility", "facility")
_OF_KERNEL = ("kernel", "kern")


def is_wrapped(value: Any) -> bool:
    """Whether a file whose first JSON value is this has the lines of a text log in its values."""
    return isinstance(value, Mapping) and _text(value) is not None


def unwrapped(values: Iterable[tuple[int, Any]]) -> Iterator[tuple[int, bytes] | Entry]:
    r"""Each value's line; a value that has none, or a program's, is an entry of another program.

    A newline within the text becomes the kernel's own escape "\x0a", since what follows it is no
    record of its own.
    """
    for number, value in values:
        text = _text(value) if isinstance(value, Mapping) else None
        if text is None:
            shown = value if isinstance(value, bytes) else json.dumps(value).encode()
            yield Entry(number, shown, known=False)
        elif is_of_program(value):
            yield Entry(number, text)
        elif text:
            yield number, text


def _text(value: Mapping[str, Any]) -> bytes | None:
    for name in _TEXTS:
        text = value.get(name)
        if isinstance(text, str):
            line = text.encode("utf-8", "replace").rstrip(b"\r\n")
            return line.replace(b"\r\n", b"\n").replace(b"\n", rb"\x0a")
    return None


def is_of_program(value: Mapping[str, Any]) -> bool:
    """Whether the fields next to the text name a writer that is not the kernel."""
    fields = {name.lower(): found for name, found in value.items()}
    if any(str(fields.get(name, 0)) not in ("0", *_OF_KERNEL) for name in _FACILITIES):
        return True
    return any(str(fields.get(name, _OF_KERNEL[0])) not in _OF_KERNEL for name in _WRITERS)
