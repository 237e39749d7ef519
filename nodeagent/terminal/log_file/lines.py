"""A log file's lines, bounded, without terminal control sequences and common indentation."""

import re
from collections.abc import Iterable, Iterator
from typing import IO

#: A line of megabytes is no line of a log: the rest of it is skipped.
LONGEST_LINE = 64 * 1024
#: Except of JSON, which may have the whole log on one line: the answer of a log store's API, and
#: ``dmesg --json | jq -c``.
_LONGEST_JSON = 8 * 1024 * 1024
_JSON = re.compile(rb'(?:\xef\xbb\xbf)?[ \t]{0,8}(?:\{ ?"|\[ ?[{["])')

# ECMA-48: CSI sequences (colours), OSC sequences (titles), character sets.
_TERMINAL = re.compile(
    rb"\x1b(?:\[[0-?]{0,64}[ -/]{0,8}[@-~]|\][^\x07\x1b]{0,256}(?:\x07|\x1b\\)|[()][0-9A-Z]|[=>78])"
)
#: A web page's spaces: no-break, and narrow no-break.
_WIDE_SPACES = re.compile(rb"\xc2\xa0|\xe2\x80\xaf")
_UTF8_MARK = b"\xef\xbb\xbf"


def numbered_lines(file: IO[bytes]) -> Iterator[tuple[int, bytes]]:
    """Each line with its number from 1; a line that is too long is cut."""
    number = 0
    while line := file.readline(LONGEST_LINE):
        number += 1
        if not line.endswith(b"\n") and _JSON.match(line):
            line += file.readline(_LONGEST_JSON)
        yield number, line
        while not line.endswith(b"\n") and line:
            line = file.readline(LONGEST_LINE)


def plain(lines: Iterable[tuple[int, bytes]]) -> Iterator[tuple[int, bytes]]:
    """The lines that have a text, as a terminal shows them.

    Carriage returns of serial consoles, colours, and the indentation of the first line are removed:
    a person may have sent an excerpt that is indented as a whole. A deeper indentation stays, since
    it marks a line that continues the one before it.
    """
    indent: bytes | None = None
    for number, line in lines:
        text = line.strip(b"\r\n")
        if b"\x1b" in text:
            text = _TERMINAL.sub(b"", text)
        if b"\xa0" in text or b"\xaf" in text:
            text = _WIDE_SPACES.sub(b" ", text)
        if indent is None:
            text = text.removeprefix(_UTF8_MARK)
            if text.strip():
                indent = text[: len(text) - len(text.lstrip(b" \t"))]
        if text.strip():
            yield number, text.removeprefix(indent or b"")
