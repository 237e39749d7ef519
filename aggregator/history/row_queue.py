"""Rows that wait to be written, and about how many bytes they have."""

from collections import deque
from itertools import islice
from typing import Any


class RowQueue:
    """The oldest first. ``bytes``: of all that wait, as they were given."""

    def __init__(self) -> None:
        self._rows: deque[tuple[dict[str, Any], int]] = deque()
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._rows)

    def append(self, row: dict[str, Any], size: int) -> None:
        """``size``: bytes, kept until the row leaves, because to find them takes a walk."""
        self._rows.append((row, size))
        self.bytes += size

    def oldest(self, most: int) -> list[dict[str, Any]]:
        """Up to ``most`` of them; they stay."""
        return [row for row, _ in islice(self._rows, most)]

    def drop(self, count: int) -> None:
        """Take the oldest ``count`` away."""
        for _ in range(count):
            self.bytes -= self._rows.popleft()[1]

    def clear(self) -> None:
        self._rows.clear()
        self.bytes = 0
