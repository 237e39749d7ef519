"""Whether a file is text at all: a compressed or binary file has no line that is a fault."""

import re

#: Bytes of a file's beginning that show its type.
HEAD = 4096

# The first bytes, from each format's specification or file(1)'s magic, the type, and the remedy.
_TYPES = (
    (b"\x1f\x8b", "compressed (gzip)", "zcat"),
    (b"\xfd7zXZ\x00", "compressed (xz)", "xzcat"),
    (b"\x28\xb5\x2f\xfd", "compressed (zstd)", "zstdcat"),
    (b"BZh", "compressed (bzip2)", "bzcat"),
    (b"\xff\xfe\0\0", "UTF-32", "iconv -f UTF-32 -t UTF-8"),
    (b"\xff\xfe", "UTF-16", "iconv -f UTF-16 -t UTF-8"),
    (b"\xfe\xff", "UTF-16", "iconv -f UTF-16 -t UTF-8"),
    (b"LPKSHHRH", "a journal file", "journalctl _TRANSPORT=kernel --file"),
)

#: Bytes from which UTF-16 without a mark is recognised.
_SAMPLE = 64

_LINE_OF_TEXT = re.compile(rb"[\t\x1b -~\x80-\xff]*[\t\x1b -~]{12}[\t\x1b -~\x80-\xff]*")


def why_not_text(head: bytes) -> str:
    """The reason why a file that begins so is no text log, and the remedy; empty for text.

    A few NULs are no reason: a log has a block of them after a crash, and an export of the journal
    has them in its sized values. So one line of text makes a file text.
    """
    for magic, name, remedy in _TYPES:
        if head.startswith(magic):
            return f"it is {name}; expected text, as of: {remedy} FILE > OTHER"
    for name, at in (("UTF-16LE", 0), ("UTF-16BE", 1)):
        low, high = head[at:_SAMPLE:2], head[1 - at : _SAMPLE : 2]
        if len(high) > 1 and not any(high) and _LINE_OF_TEXT.fullmatch(low.splitlines()[0]):
            return f"it is UTF-16; expected text, as of: iconv -f {name} -t UTF-8 FILE > OTHER"
    if b"\0" in head and not any(map(_is_text, head.split(b"\n"))):
        return "it is binary (it has NUL bytes and no line of text); expected text"
    return ""


def _is_text(line: bytes) -> bool:
    return _LINE_OF_TEXT.fullmatch(line.strip(b"\0\r")) is not None
