"""Which reports of lost evidence become transitions: each source of a node once a minute.

An agent may report a loss with every message, with other texts and other sources each time:
reported one by one they would fill history, alerts and memory.
"""

from collections.abc import Iterable

from aggregator.health.model import Lost

#: Seconds in which the same source of one node is reported once.
EVERY = 60.0
#: Sources of one node that are distinguished in that time; more of them are reported as one.
MOST_SOURCES = 8


class LossReports:
    """Remembers the reports of the last minute, and uses no memory for nodes without losses."""

    def __init__(self) -> None:
        self._told: dict[str, dict[str, float]] = {}
        self._pruned = float("-inf")

    def due(self, node: str, losses: Iterable[Lost], now: float) -> list[Lost]:
        """Those of ``losses`` to report now (monotonic seconds), one of each source."""
        told = {source: at for source, at in self._told.get(node, {}).items() if now - at < EVERY}
        found = []
        for loss in losses:
            if loss.source not in told and len(told) < MOST_SOURCES:
                told[loss.source] = now
                found.append(loss)
        if told:
            self._told[node] = told
            self._prune(now)
        else:
            self._told.pop(node, None)
        return found

    def _prune(self, now: float) -> None:
        if now - self._pruned >= EVERY:
            self._pruned = now
            self._told = {
                node: told
                for node, told in self._told.items()
                if any(now - at < EVERY for at in told.values())
            }
