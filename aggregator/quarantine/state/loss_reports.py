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
        self._reported: dict[str, dict[str, float]] = {}
        self._pruned = float("-inf")

    def due(self, node: str, losses: Iterable[Lost], now: float) -> list[Lost]:
        """Those of ``losses`` to report now (monotonic seconds), one of each source."""
        recent = {
            source: at for source, at in self._reported.get(node, {}).items() if now - at < EVERY
        }
        found = []
        for loss in losses:
            if loss.source not in recent and len(recent) < MOST_SOURCES:
                recent[loss.source] = now
                found.append(loss)
        if recent:
            self._reported[node] = recent
            self._prune(now)
        else:
            self._reported.pop(node, None)
        return found

    def _prune(self, now: float) -> None:
        if now - self._pruned >= EVERY:
            self._pruned = now
            self._reported = {
                node: recent
                for node, recent in self._reported.items()
                if any(now - at < EVERY for at in recent.values())
            }
