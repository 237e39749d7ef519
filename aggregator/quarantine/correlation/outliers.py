"""Compares the nodes' measurements, and gives a node whose part deviates for long its evidence.

The evidence is level evidence in the aggregator's own name (check `CHECK`), which rules may be
about. Too small a sample of a pool has no finding (docs/decisions/0016).
"""

from attrs import define, field

from aggregator.health.model import Cleared, Component, MeasuredSeries, Measurements, Status
from aggregator.policy.outliers.fleet import Outlier, OutlierChange
from aggregator.policy.outliers.measures import CHECK, MEASURES
from aggregator.quarantine.correlation.measurements import (
    NodeEvidence,
    component,
    ends_component,
    findings_in_quarantine,
)
from aggregator.quarantine.state.fleet import FleetState
from aggregator.quarantine.state.registry import NodeRegistry


@define(eq=False, repr=False, slots=False, kw_only=True)
class OutlierTracker:
    """Implements `MeasurementTracker`."""

    _registry: NodeRegistry = field(alias="node_registry")
    _fleet: FleetState
    _evidence: NodeEvidence
    #: The evidence that was given of each open finding, by node.
    _findings: dict[str, dict[MeasuredSeries, Component]] = field(factory=dict, init=False)

    def on_connect(self, node: str) -> None:
        """A new stream of the node: its series are numbered anew."""
        self._fleet.measurements.begin(node)

    def on_measurements(self, node: str, measured: Measurements, at: float) -> None:
        """Take the values, and evaluate the node by them. ``at`` is monotonic seconds."""
        if measured.series and measured.known == 0:
            self._fleet.measurements.begin(node)  # within a stream, after a resync
        if self._fleet.measurements.size(node) != measured.known:
            return  # the node was forgotten within this stream: its next one begins anew
        pool = self._registry.pool_of(node)
        self._fleet.measurements.move(node, pool)
        changes: list[OutlierChange] = []
        if measured.series:
            self._fleet.measurements.add_series(node, pool, measured.series)
            changes += self._fleet.measurements.restore(
                node, findings_in_quarantine(self._fleet, node, CHECK), at
            )
        self._fleet.measurements.update(node, measured.values, measured.absent)
        changes += self._fleet.measurements.evaluate(node, at)
        self._report(node, changes, at)

    def on_cleared(self, node: str, signs: tuple[Cleared, ...], at: float) -> None:
        """Positive signs that an agent has sent."""
        for sign in signs:
            if ends_component(sign):
                self._report(node, self._fleet.measurements.dismiss(node, sign.component), at)

    def silent(self, node: str) -> None:
        """The node's agent has left: its last values are no measurements."""
        self._fleet.measurements.drop_values(node)

    def forget_node(self, node: str) -> None:
        """The node is gone, or another replica's."""
        self._fleet.measurements.forget(node)
        self._findings.pop(node, None)

    def _report(self, node: str, changes: list[OutlierChange], at: float) -> None:
        findings = self._findings.get(node)
        if not changes and not findings:
            return  # nearly every node at nearly every message
        findings = self._findings.setdefault(node, {})
        for series, outlier in changes:
            if outlier is not None:
                findings[series] = evidence(outlier)
            elif findings.pop(series, None) is not None:
                text = "as the others of the pool again"
                over = Component(CHECK, component(series), Status.OK, "", text, at)
                self._evidence.record(node, over)
        for found in findings.values():  # again, for the node's evidence may have been discarded
            self._evidence.record(node, found)
        if not findings:
            del self._findings[node]


def evidence(outlier: Outlier) -> Component:
    """The evidence of a finding."""
    series = outlier.series
    measure = MEASURES[series.measure]
    value = "not measured now" if outlier.value is None else f"{outlier.value} {measure.unit}"
    text = f"{measure.what} of {series.component}: {value}"
    if outlier.of:
        text += (
            f"; the median of {outlier.of} on {outlier.nodes} nodes is {outlier.median}, "
            f"MAD {outlier.mad}"
        )
    return Component(CHECK, component(series), Status.FAILED, series.measure, text, outlier.since)
