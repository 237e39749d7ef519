"""Compares the nodes' measurements, and gives a node whose part deviates for long its evidence.

The evidence is level evidence in the aggregator's own name (check `CHECK`), which rules may be
about. Too small a sample of a pool has no finding (docs/decisions/0016).
"""

from attrs import define, field

from aggregator.health.model import Cleared, Component, Measurements, Status
from aggregator.policy.outliers.fleet import Outlier, OutlierChange
from aggregator.policy.outliers.measures import CHECK, MEASURES
from aggregator.quarantine.correlation.measurements import (
    NodeEvidence,
    OpenFindings,
    component,
    ends_component,
    findings_in_quarantine,
)
from aggregator.quarantine.state.registry import NodeRegistry


@define(eq=False, repr=False, slots=False, kw_only=True)
class OutlierTracker:
    """Implements `MeasurementTracker`."""

    _registry: NodeRegistry = field(alias="node_registry")
    _evidence: NodeEvidence
    _findings: OpenFindings = field(init=False)

    def __attrs_post_init__(self) -> None:
        over = "as the others of the pool again"
        self._findings = OpenFindings(CHECK, over, self._evidence)
        self._measurements = self._registry.fleet.measurements

    def on_connect(self, node: str) -> None:
        """A new stream of the node: its series are numbered anew."""
        self._measurements.begin(node)

    def on_measurements(self, node: str, measured: Measurements, at: float) -> None:
        """Take the values, and evaluate the node by them. ``at`` is monotonic seconds."""
        if measured.series and measured.known == 0:
            self._measurements.begin(node)  # within a stream, after a resync
        if self._measurements.size(node) != measured.known:
            return  # the node was forgotten within this stream: its next one begins anew
        pool = self._registry.pool_of(node)
        self._measurements.move(node, pool)
        changes: list[OutlierChange] = []
        if measured.series:
            self._measurements.add_series(node, pool, measured.series)
            changes += self._measurements.restore(
                node, findings_in_quarantine(self._registry.fleet, node, CHECK), at
            )
        self._measurements.update(node, measured.values, measured.absent)
        changes += self._measurements.evaluate(node, at)
        self._report(node, changes, at)

    def on_cleared(self, node: str, signs: tuple[Cleared, ...], at: float) -> None:
        """Positive signs that an agent has sent."""
        for sign in signs:
            if ends_component(sign):
                self._report(node, self._measurements.dismiss(node, sign.component), at)

    def silent(self, node: str) -> None:
        """The node's agent has left: its last values are no measurements."""
        self._measurements.drop_values(node)

    def forget_node(self, node: str) -> None:
        """The node is gone, or another replica's."""
        self._measurements.forget(node)
        self._findings.forget(node)

    def _report(self, node: str, changes: list[OutlierChange], at: float) -> None:
        found = [(series, evidence(one) if one is not None else None) for series, one in changes]
        self._findings.report(node, found, at)


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
