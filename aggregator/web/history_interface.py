"""The page's queries to history. `aggregator.history` implements it; losing it loses no
evaluation.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from aggregator.events import EventKind, Transition


class HistoryReader(Protocol):
    """Reads transitions back, and keeps the fleet's counts."""

    @property
    def problem(self) -> str:
        """Why, and since when, no transition can be written now; empty: they can."""
        ...

    async def recent(
        self, node: str = "", since: float = 0.0, limit: int = 200, until: float = math.inf
    ) -> list[Transition]:
        """The newest ``limit`` transitions from ``since`` to ``until`` (wall clock seconds, both
        included), newest first.

        An empty ``node`` means all of them, including the fleet's own. Raises `OSError` when the
        database can't be read now: the page then reports that and shows what is in memory.
        """
        ...

    async def of_incident(self, incident: str, limit: int = 200) -> list[Transition]:
        """The newest transitions of this incident, newest first. Raises `OSError` as `recent`."""
        ...

    async def of_kinds(
        self, kinds: Iterable[EventKind], since: float, until: float
    ) -> list[Transition]:
        """The newest transitions of these kinds, newest first. Raises `OSError` as `recent`."""
        ...

    async def first_of_kinds(self, kinds: Iterable[EventKind], since: float) -> list[Transition]:
        """The first transition of these kinds of each node, at or after ``since``. Raises
        `OSError` as `recent`.
        """
        ...

    async def begins(self) -> list[float]:
        """The time of the oldest row (wall clock seconds), if there is one. Raises `OSError` as
        `recent`.
        """
        ...

    def record_counts(self, counts: Mapping[str, int]) -> None:
        """Queue how many nodes are in each state now. Never blocks and never raises."""
        ...

    async def counts(self, since: float) -> list[tuple[float, Mapping[str, Any]]]:
        """The recorded counts since then (wall clock seconds), oldest first, each with its time.
        Raises `OSError` as `recent`.
        """
        ...
