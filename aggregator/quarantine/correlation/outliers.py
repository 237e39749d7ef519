"""Compares the nodes' measurements, and gives a node whose part deviates for long its evidence.

The evidence is level evidence in the aggregator's own name (check `CHECK`), which rules may be
about. Too small a sample of a pool has no finding (docs/decisions/0016).
"""

from aggregator.health.model import Component, Measurements, Status
from aggregator.policy.outliers.fleet import Outlier, OutlierChange
from aggregator.policy.outliers.measures import CHECK, MEASURES
from aggregator.quarantine.correlation.measurements import (
    MeasurementTracker,
    NodeEvidence,
    component,
)
from aggregator.quarantine.state.registry import NodeRegistry


class OutlierTracker(MeasurementTracker[Outlier]):
    check = CHECK
    over = "as the others of the pool again"

    def __init__(self, registry: NodeRegistry, evidence: NodeEvidence) -> None:
        self._measurements = registry.fleet.measurements
        super().__init__(self._measurements, registry.fleet, evidence)
        self._registry = registry

    def on_measurements(self, node: str, measured: Measurements, at: float) -> None:
        if measured.series and measured.known == 0:
            self._measurements.begin(node)  # within a stream, after a resync
        if self._measurements.size(node) != measured.known:
            return  # the node was forgotten within this stream: its next one begins anew
        pool = self._registry.pool_of(node)
        self._measurements.move(node, pool)
        changes: list[OutlierChange] = []
        if measured.series:
            self._measurements.add_series(node, pool, measured.series)
            changes += self._measurements.restore(node, self.findings_in_quarantine(node), at)
        self._measurements.update(node, measured.values, measured.absent)
        changes += self._measurements.evaluate(node, at)
        self.report(node, changes, at)

    def silent(self, node: str) -> None:
        """The node's agent has left: its last values are no measurements."""
        self._measurements.drop_values(node)

    def evidence_of(self, found: Outlier, at: float) -> Component:
        del at
        series = found.series
        measure = MEASURES[series.measure]
        value = "not measured now" if found.value is None else f"{found.value} {measure.unit}"
        text = f"{measure.what} of {series.component}: {value}"
        if found.of:
            text += (
                f"; the median of {found.of} on {found.nodes} nodes is {found.median}, "
                f"MAD {found.mad}"
            )
        return Component(CHECK, component(series), Status.FAILED, series.measure, text, found.since)
