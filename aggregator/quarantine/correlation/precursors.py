"""Compares the error counters of all nodes, and gives the node of a rising one its evidence.

The evidence is level evidence in the aggregator's own name (check `CHECK`), which rules may be
about.
"""

from aggregator.health.model import Cleared, Component, Measurements, Status
from aggregator.policy.precursors.counters import CHECK, COUNTERS
from aggregator.policy.precursors.fleet import FleetCounters, Precursor, PrecursorChange
from aggregator.quarantine.correlation.measurements import (
    NodeEvidence,
    OpenFindings,
    component,
    ends_component,
    findings_in_quarantine,
)
from aggregator.quarantine.state.fleet import FleetState

#: Seconds between two reads of a node's findings for those that are over.
_EXPIRE_EVERY = 3600.0
_DAY = 86400.0


class PrecursorTracker:
    """Implements `MeasurementTracker`."""

    def __init__(self, fleet: FleetState, evidence: NodeEvidence) -> None:
        self._fleet = fleet
        self._evidence = evidence
        self._counters = FleetCounters()
        self._findings = OpenFindings(CHECK, "no further error for a week", evidence)
        #: When a node's open findings were last checked for their end.
        self._checked_at: dict[str, float] = {}

    def on_connect(self, node: str) -> None:
        """A new stream of the node: its series are numbered anew."""
        self._counters.begin(node)

    def on_measurements(self, node: str, measured: Measurements, at: float) -> None:
        """Take the values, and compare their rises. ``at`` is monotonic seconds."""
        if self._counters.size(node) != measured.known:
            return  # the node was forgotten within this stream: its next one begins anew
        changes: list[PrecursorChange] = []
        if measured.series:
            self._counters.add_series(node, measured.series, at)
            changes += self._restore(node, at)
        changes += self._counters.update(node, measured.values, at)
        if self._findings.of(node) and at - self._checked_at.get(node, at) >= _EXPIRE_EVERY:
            self._checked_at[node] = at
            changes += self._counters.expire(node, at)
        self._report(node, changes, at)

    def on_cleared(self, node: str, signs: tuple[Cleared, ...], at: float) -> None:
        """Positive signs that an agent has sent."""
        for sign in signs:
            if ends_component(sign):
                self._report(node, self._counters.dismiss(node, sign.component), at)

    def silent(self, node: str) -> None:
        """The node's agent has left: its counters stay as they were."""

    def forget_node(self, node: str) -> None:
        """The node is gone."""
        self._counters.forget(node)
        self._findings.forget(node)
        self._checked_at.pop(node, None)

    def _restore(self, node: str, at: float) -> list[PrecursorChange]:
        """Another process found them, and a quarantine rests on them."""
        restored = findings_in_quarantine(self._fleet, node, CHECK)
        if not restored:
            return []
        self._counters.restore(node, restored, at)
        known, found = self._findings.of(node), self._counters.findings(node)
        new = (one for one in found if component(one.series) not in known)
        return [PrecursorChange(one.series, one) for one in new]

    def _report(self, node: str, changes: list[PrecursorChange], at: float) -> None:
        found = [(s, evidence(one, at) if one is not None else None) for s, one in changes]
        self._findings.report(node, found, at)
        if self._findings.of(node):
            self._checked_at.setdefault(node, at)
        else:
            self._checked_at.pop(node, None)


def evidence(found: Precursor, at: float) -> Component:
    """The evidence of a finding: the rise, the fleet's rate, since when, and what may follow."""
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
