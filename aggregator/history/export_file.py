"""A file of ``history export``, read as the database is: a node at a time, never as a whole.

A month of a fleet is gigabytes, and several replicas' files may have been concatenated. So the file
is scanned once, for where each line begins, and then read in the order of a replay.
"""

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from aggregator.configfile.regular_file import MOST, require_regular_file
from aggregator.history.replay_codec import RecordError, from_line

#: By node, time and where the line begins: a greeting stays before its base.
_Place = tuple[str, float, int]


class ExportFile:
    """The file as it is now. ``node``: only rows of this node; empty means all. Raises
    RecordError.
    """

    def __init__(self, file: Path, node: str = "") -> None:
        self._file = file
        #: The time of the last line, of any node.
        self.last = 0.0
        self._places: list[_Place] = []
        with self._opened() as opened:
            self._scan(opened, node)
        self._places.sort()

    def rows(self) -> Iterator[Mapping[str, Any]]:
        """Every row, by node and then by time. Raises RecordError."""
        with self._opened() as opened:
            for _, _, begin in self._places:
                opened.seek(begin)
                row = from_line(opened.readline(MOST), f"{self._file}, byte {begin}")
                assert row is not None  # an empty line has no entry
                yield row

    def _scan(self, opened: BinaryIO, node: str) -> None:
        begin = number = 0
        while line := opened.readline(MOST):
            number += 1
            where = f"{self._file}:{number}"
            if len(line) == MOST:
                raise RecordError(
                    f"{where}: longer than {MOST >> 20} MiB, which no line of ours is"
                )
            row = from_line(line, where)
            if row is not None:
                self.last = max(self.last, row["at"])
                if node in ("", row["node"]):
                    self._places.append((sys.intern(row["node"]), row["at"], begin))
            begin += len(line)

    def _opened(self) -> BinaryIO:
        try:
            return require_regular_file(self._file).open("rb")
        except OSError as error:
            expected = "expected a file of 'sickbay-aggregator history export'"
            text = f"{self._file} can't be read: {error.strerror}; {expected}"
            raise RecordError(text) from error
