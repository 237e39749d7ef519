"""The kernel log read without any code of the agent's."""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass

_XID = re.compile(r"NVRM: Xid \(PCI:([0-9a-f:.]+)[^)]*\): (\d+)")


def records() -> list[tuple[int, str]]:
    """All records of the ring: sequence number and the raw text behind the semicolon."""
    return [(int(head.split(",")[1]), text) for head, text in _raw()]


def _raw() -> Iterator[tuple[str, str]]:
    """The head and the text of each record, which a semicolon parts; without its dictionary."""
    fd = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
    try:
        while True:
            try:
                raw = os.read(fd, 8192)
            except BlockingIOError:
                return
            except BrokenPipeError:
                continue  # overwritten meanwhile; the next read gives the oldest that is left
            head, _, text = raw.decode("ascii", "backslashreplace").partition(";")
            yield head, text.partition("\n")[0]
    finally:
        os.close(fd)


@dataclass(frozen=True)
class XidLine:
    seq: int
    address: str
    code: int
    text: str


def xids(after: int = -1) -> list[XidLine]:
    """The driver's Xid lines behind the record ``after``."""
    return [
        XidLine(seq, match[1], int(match[2]), text)
        for seq, text in records()
        if seq > after and (match := _XID.match(text))
    ]


def last() -> int:
    """The number of the newest record; -1 for an empty ring."""
    return max((seq for seq, _ in records()), default=-1)


def of_the_driver() -> list[str]:
    """The records in which NVIDIA's driver or its modules speak, as /dev/kmsg gives them."""
    return [
        f"{head};{text}"
        for head, text in _raw()
        if re.search(r"NVRM|nvidia|nvlink|nvswitch|Xid|NVLink|UVM", text, re.IGNORECASE)
    ]
