"""Compares the error counters of all nodes, and gives the node of a rising one its evidence.

The evidence is level evidence in the aggregator's own name (check `CHECK`), which rules may be
about.
"""

from aggregator.health.model import Component, Measurements, Status
from aggregator.policy.precursors.counters import CHECK, COUNTERS
from aggregator.policy.precursors.fleet import FleetCounters, Precursor, PrecursorChange
from aggregator.quarantine.correlation.measurements import (
    MeasurementTracker,
    NodeEvidence,
    component,
)
from aggregator.quarantine.state.fleet import FleetState

#: Seconds between two reads of a node's findings for those that are over.
_EXPIRE_EVERY = 3600.0
_DAY = 86400.0


class PrecursorTracker(MeasurementTracker[Precursor]):
    check = CHECK
    over = "no further error for a week"

    def __init__(self, fleet: FleetState, evidence: NodeEvidence) -> None:
        self._counters = FleetCounters()
        super().__init__(self._counters, fleet, evidence)
        #: When a node's open findings were last checked for their end.
        self._checked_at: dict[str, float] = {}

    def on_measurements(self, node: str, measured: Measurements, at: float) -> None:
        if self._counters.size(node) != measured.known:
            return  # the node was forgotten within this stream: its next one begins anew
        changes: list[PrecursorChange] = []
        if measured.series:
            self._counters.add_series(node, measured.series, at)
            changes += self._counters.restore(node, self.findings_in_quarantine(node), at)
        changes += self._counters.update(node, measured.values, at)
        if node not in self._open:
            self._checked_at.pop(node, None)
        elif at - self._checked_at.setdefault(node, at) >= _EXPIRE_EVERY:
            self._checked_at[node] = at
            changes += self._counters.expire(node, at)
        self.report(node, changes, at)

    def forget_node(self, node: str) -> None:
        super().forget_node(node)
        self._checked_at.pop(node, None)

    def evidence_of(self, found: Precursor, at: float) -> Component:
        """The rise, the fleet's rate, since when, and what may follow."""
        series = found.series
        counter = COUNTERS[series.measure]
        # Counts come modulo 2^31, which a storm of corrected errors passes each day.
        total = f", {found.value} in all" if found.value >= found.rises else ""
        text = (
            f"{counter.what} of {series.component}: {found.rises} more within "
            f"{_span(at - found.since)}{total}; the {found.others} others of its kind "
            f"have such a rise every {1 / found.others_rate:,.0f} days; {counter.follows}"
        )
        return Component(CHECK, component(series), Status.FAILED, series.measure, text, found.since)


def _span(seconds: float) -> str:
    if seconds < 2 * 3600:
        return f"{max(1, round(seconds / 60))} min"
    return f"{round(seconds / 3600)} h" if seconds < 2 * _DAY else f"{round(seconds / _DAY)} days"
