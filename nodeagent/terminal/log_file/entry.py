"""One entry of a log file."""

from nodeagent.dataclass import dataclass
from nodeagent.sources.kmsg import Record


@dataclass(frozen=True, slots=True)
class Entry:
    """``number``: its first line, from 1. ``text``: its text, whichever program wrote it.

    ``record`` is None for an entry that is not the kernel's own. Its ``at`` is in seconds since the
    boot of that machine; -1 where the form has no such stamp. ``continues``: the line has no prefix
    of its own and follows a line of the kernel's, so it may be the rest of that record.
    ``known``: false for a line of a form that is not known here. ``prefix``: what is before the
    text, with the time. ``node``: the machine that the form names.
    """

    number: int
    text: bytes
    record: Record | None = None
    continues: bool = False
    known: bool = True
    prefix: bytes = b""
    node: str = ""


def kernel_entry(number: int, text: bytes, at: float = -1.0) -> Entry:
    """An entry that the kernel wrote, as a record of facility 0."""
    return Entry(number, text, Record(0, 0, 0, at, text))
