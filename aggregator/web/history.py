"""What the page asks of history. `aggregator.history` gives it; losing it loses no judgement."""

import math
from typing import Protocol

from aggregator.quarantine.ledger import Transition


class HistoryReader(Protocol):
    """Reads transitions back."""

    @property
    def problem(self) -> str:
        """Why, and since when, none can be written now; empty: they can."""
        ...

    async def recent(
        self, node: str = "", since: float = 0.0, limit: int = 200, until: float = math.inf
    ) -> list[Transition]:
        """The newest ``limit`` transitions from ``since`` to ``until`` (wall clock seconds, both
        included), newest first.

        An empty ``node`` means all of them, the fleet's own too. Raises `OSError` when the
        database can't be read now: the page then says so and shows what is in memory.
        """
        ...
