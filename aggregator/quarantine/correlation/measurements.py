"""The trackers that compare measurements of the nodes. Each gives nodes evidence of its own."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from aggregator.health.model import Cleared, Component, MeasuredSeries, Measurements, Status
from aggregator.quarantine.state.fleet import FleetState

#: The signs by which a whole component is over: a person reports it, or another part has replaced
#: it.
_ENDS_ALL = ("operator", "replaced")


class NodeEvidence(Protocol):
    """`OwnEvidence`, as the trackers use it."""

    def record(self, node: str, component: Component) -> bool:
        """Give the node evidence in our own name. False: its agent has not reported yet."""


class MeasurementTracker(Protocol):
    """One comparison. ``at`` is monotonic seconds."""

    def on_connect(self, node: str) -> None:
        """A new stream of the node: its series are numbered anew."""

    def on_measurements(self, node: str, measured: Measurements, at: float) -> None:
        """Values of the node."""

    def on_cleared(self, node: str, signs: tuple[Cleared, ...], at: float) -> None:
        """Positive signs that an agent has sent."""

    def silent(self, node: str) -> None:
        """The node's agent has left."""

    def forget_node(self, node: str) -> None:
        """The node is gone."""


class OpenFindings:
    """The evidence that was given of each open finding, by node. ``over``: why one has ended."""

    def __init__(self, check: str, over: str, evidence: NodeEvidence) -> None:
        self._check = check
        self._over = over
        self._evidence = evidence
        #: By component: a part's model may have another name in a later stream.
        self._by_node: dict[str, dict[str, Component]] = {}

    def forget(self, node: str) -> None:
        self._by_node.pop(node, None)

    def of(self, node: str) -> Mapping[str, Component]:
        return self._by_node.get(node, {})

    def report(
        self, node: str, changes: Sequence[tuple[MeasuredSeries, Component | None]], at: float
    ) -> None:
        """Give the evidence of findings that have begun; None: the finding is over."""
        findings = self._by_node.get(node, {})
        if not (changes or findings):
            return  # nearly every node at nearly every message
        for series, found in changes:
            name = component(series)
            if found is not None:
                findings[name] = found
            elif findings.pop(name, None) is not None:
                over = Component(self._check, name, Status.OK, "", self._over, at)
                self._evidence.record(node, over)
        for found in findings.values():  # again, for the node's evidence may have been discarded
            self._evidence.record(node, found)
        if findings:
            self._by_node[node] = findings
        else:
            self._by_node.pop(node, None)


def component(series: MeasuredSeries) -> str:
    """The component of the evidence: a part may deviate in several measurements."""
    return f"{series.measure} {series.component}"


def ends_component(sign: Cleared) -> bool:
    """Whether the sign ends all findings of its component."""
    return not sign.code and sign.how in _ENDS_ALL


def findings_in_quarantine(fleet: FleetState, node: str, check: str) -> set[tuple[str, str]]:
    """The findings (measure, component) of a check that the node's quarantine rests on."""
    summary = fleet.node_summaries.get(node)
    quarantine = summary.quarantine if summary is not None else None
    if quarantine is None:
        return set()
    items = (item for item in quarantine.spec.evidence if not item.cleared)
    found = (item for item in items if item.code.partition(":")[0] == check)
    names = (item.component.partition(" ") for item in found)
    return {(measure, name) for measure, _, name in names}
