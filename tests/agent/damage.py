"""Damage to the files and logs that tests give the agent."""

from functools import cache
from pathlib import Path

import pytest
from hypothesis import strategies as st

from nodeagent.terminal.kmsg_file import decode_file
from nodeagent.terminal.log_file.file_type import HEAD, why_not_text

#: The kernel knows no speed of a loopback device and says "invalid argument".
REFUSED = Path("/sys/class/net/lo/speed")


def fill(root: Path, files: dict[str, bytes | str | None]) -> None:
    """Make each file below ``root``: its content, or "refused", "gone", "folder", or none."""
    for name, what in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(what, bytes):
            path.write_bytes(what)
        elif what == "refused":
            path.symlink_to(REFUSED)
        elif what == "gone":
            path.symlink_to(path.with_name("nowhere"))
        elif what is not None:
            path.mkdir()


@cache
def _edits(size: int, most: int) -> st.SearchStrategy[list[tuple[int, int, bytes]]]:
    """Where, the number of bytes that are lost there, and the bytes that take their place.

    One draw for all of them, because each draw of a test has a cost of its own.
    """
    number = st.integers(1, most)
    edit = st.tuples(st.integers(0, size), st.integers(0, 40), st.binary(max_size=40))

    @st.composite
    def edits(draw: st.DrawFn) -> list[tuple[int, int, bytes]]:
        return [draw(edit) for _ in range(draw(number))]

    return edits()


def decodes_damaged(raw: bytes, log: Path, data: st.DataObject, *, most: int) -> None:
    """Overwrite, cut out and double bytes of ``raw``, ``most`` times, and decode the result."""
    damaged = bytearray(raw)
    for at, length, new in data.draw(_edits(len(raw), most)):
        damaged[at : at + length] = new
    log.write_bytes(damaged)
    if why_not_text(bytes(damaged[:HEAD])):  # the damage is the first bytes of a compressed file
        with pytest.raises(OSError, match="expected text"):
            decode_file(log)
        return
    for fault in decode_file(log):
        assert fault["code"]
        assert len(fault["message"]) <= 512
