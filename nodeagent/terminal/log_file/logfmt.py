r"""Lines of ``name=value`` pairs (logfmt), as programs in Go and log shippers write them.

``ts=2026-04-22T21:23:52Z host=gpu-7 facility=kern msg="NVRM: Xid ..."``. A program that names the
place in its own source is no kernel. Where no field names the writer, the kernel's own stamp or
prefix in the text does: many programs write ``time=... level=error msg="..."`` and nothing else.
"""

import json
import re
from collections.abc import Iterable, Iterator

from nodeagent.terminal.log_file.prefix import Writer, parse_line
from nodeagent.terminal.log_file.wrapped import KERNELS

_PAIR = rb'([A-Za-z_@][\w.@/-]{0,63})=("(?:[^"\\]|\\.)*"|[^\s"]*)'
_EACH = re.compile(_PAIR)
# A space between the pairs: without one a text has as many readings as it has ways to be cut.
_LINE = re.compile(_PAIR + rb"(?: +" + _PAIR + rb"){1,99} *")
_TEXTS = ("msg", "message", "log", "line")
_OF_PROGRAMS = ("caller", "source", "logger", "app", "component", "process")

Numbered = tuple[int, bytes]


def is_logfmt(line: bytes) -> bool:
    return _LINE.fullmatch(line) is not None and bool(_text(_pairs(line)))


def logfmt_values(lines: Iterable[Numbered]) -> Iterator[tuple[int, dict[str, str] | bytes]]:
    """Each line's pairs; a line of another form is given as its bytes."""
    for number, line in lines:
        pairs = _pairs(line) if _LINE.fullmatch(line) else {}
        text = _text(pairs)
        if not text:
            yield number, line
            continue
        others = {name: each for name, each in pairs.items() if name not in _TEXTS}
        yield number, {"program": _writer(pairs, text), **others, "message": text}


def _writer(pairs: dict[str, str], text: str) -> str:
    """The program; "kernel" if a field or the text is a sign of the kernel, and no field denies."""
    named = [pairs[name] for name in _OF_PROGRAMS if name in pairs]
    if named:
        return named[0]
    line = text.encode("utf-8", "replace")
    is_kernels = any(name.lower() in KERNELS for name in pairs)
    return "kernel" if is_kernels or parse_line(line).writer is Writer.KERNEL else ""


def _text(pairs: dict[str, str]) -> str:
    return next((pairs[name] for name in _TEXTS if name in pairs), "")


def _pairs(line: bytes) -> dict[str, str]:
    return {name.decode(): _unquoted(value) for name, value in _EACH.findall(line)}


def _unquoted(value: bytes) -> str:
    text = value.decode("utf-8", "replace")
    try:
        return str(json.loads(text)) if text.startswith('"') else text
    except ValueError:
        return text.strip('"')
