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
from nodeagent.terminal.log_file.prefix import Writer, parse_line

_TEXTS = (
    *("log", "message", "line", "textPayload", "@message", "SyslogMessage", "_msg", "_raw"),
    *("short_message", "Message"),
)
_KERNEL = ("kernel", "kern")
#: The kernel's values of fields that name the writer, in small letters and with the names of the
#: fields around; another value is another program's. Events of a node's log are node problem
#: detector's, and a BMC's log of the host's console is "Oem".
KERNELS = {
    **dict.fromkeys(
        (
            *("_transport", "syslog_identifier", "appname", "app_name", "program", "ident"),
            *("processname", "process.name", "log.syslog.appname", "syslog.identifier"),
        ),
        _KERNEL,
    ),
    **dict.fromkeys(
        (
            *("syslog_facility", "facility", "syslog.facility", "syslog.facility_label"),
            *("log.syslog.facility.code", "log.syslog.facility.name"),
        ),
        ("0", *_KERNEL),
    ),
    "involvedobject.kind": ("node",),
    "source.component": ("kernel-monitor",),
    "entrytype": ("oem",),
}
#: What follows the kernel's value: "node/gpu-7", "kernel-monitor, gpu-7".
_JOINED = {"involvedobject.kind": "/", "source.component": ","}
#: Fields that name the pod whose container wrote the text.
_PODS = frozenset(
    {"kubernetes.pod_name", "kubernetes.pod.name", "resource.labels.pod_name", "k8s.pod.name"}
    | {"podname", "pod_name", "labels.pod_name"}
)
_DEEPEST = 4


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
        elif is_of_program(value) or (_is_of_container(value) and _has_no_prefix(text)):
            yield Entry(number, text)
        elif text:
            yield number, text


def _text(value: Mapping[str, Any]) -> bytes | None:
    for name in _TEXTS:
        text = value.get(name)
        if isinstance(text, str):
            # rsyslog's own text of a message begins with the space after the tag.
            line = text.encode("utf-8", "replace").rstrip(b"\r\n").removeprefix(b" ")
            return line.replace(b"\r\n", b"\n").replace(b"\n", rb"\x0a")
    return None


def is_of_program(value: Mapping[str, Any]) -> bool:
    """Whether the fields next to the text name a writer that is not the kernel."""
    return any(
        _value(name, found) not in KERNELS[name]
        for name, found in _flat(value, "", 0)
        if name in KERNELS
    )


def _value(name: str, found: Any) -> str:
    text = str(found).lower()
    return text.partition(_JOINED[name])[0] if name in _JOINED else text


def _is_of_container(value: Mapping[str, Any]) -> bool:
    is_stream = value.get("stream") in ("stdout", "stderr")
    return is_stream or any(name in _PODS for name, _ in _flat(value, "", 0))


def _has_no_prefix(text: bytes) -> bool:
    """Whether the text has no sign of the kernel's except "kernel: ", which any pod may print."""
    return parse_line(text).writer in (Writer.UNSTATED, Writer.CLAIMED)


def _flat(value: Mapping[str, Any], around: str, depth: int) -> Iterator[tuple[str, Any]]:
    """Each field with its name in small letters, after the names of the fields around it."""
    for name, each in value.items():
        whole = f"{around}{str(name).lower()}"
        if isinstance(each, Mapping) and depth < _DEEPEST:
            yield from _flat(each, f"{whole}.", depth + 1)
        else:
            yield whole, each
