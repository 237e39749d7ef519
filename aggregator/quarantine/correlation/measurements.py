"""What the trackers share that compare measurements of the nodes and give these evidence."""

from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

from aggregator.health.model import Cleared, Component, MeasuredSeries, Measurements, Status
from aggregator.quarantine.state.fleet import FleetState

F = TypeVar("F")
F_co = TypeVar("F_co", covariant=True)

#: The signs by which a whole component is over: a person reports it, or another part has replaced
#: it.
_ENDS_ALL = ("operator", "replaced")


class NodeEvidence(Protocol):
    """`OwnEvidence`, as the trackers use it."""

    def record(self, node: str, component: Component) -> bool:
        """Give the node evidence in our own name. False: its agent has not reported yet."""


class Comparison(Protocol[F_co]):
    """The measurements of all nodes, and the findings in them."""

    def begin(self, node: str) -> None:
        """A new stream of the node: its series are numbered anew."""

    def dismiss(self, node: str, component: str) -> Sequence[tuple[MeasuredSeries, F_co | None]]:
        """The component's findings end."""
        ...

    def forget(self, node: str) -> None:
        """The node is gone."""


class MeasurementTracker(Generic[F]):
    """One comparison. ``at`` is monotonic seconds.

    ``check``: of the evidence; ``over``: why a finding has ended.
    """

    check = ""
    over = ""

    def __init__(self, compared: Comparison[F], fleet: FleetState, evidence: NodeEvidence) -> None:
        self._compared = compared
        self._fleet = fleet
        self._evidence = evidence
        #: The evidence of each open finding, by node and component: a part's model may have another
        #: name in a later stream.
        self._open: dict[str, dict[str, Component]] = {}

    def evidence_of(self, found: F, at: float) -> Component:
        """The evidence of a finding."""
        raise NotImplementedError

    def on_connect(self, node: str) -> None:
        """A new stream of the node: its series are numbered anew."""
        self._compared.begin(node)

    def on_measurements(self, node: str, measured: Measurements, at: float) -> None:
        """Take the values, and evaluate the node by them."""
        raise NotImplementedError

    def on_cleared(self, node: str, signs: tuple[Cleared, ...], at: float) -> None:
        """Positive signs that an agent has sent."""
        for sign in signs:
            if not sign.code and sign.how in _ENDS_ALL:
                self.report(node, self._compared.dismiss(node, sign.component), at)

    def silent(self, node: str) -> None:
        """The node's agent has left: its values stay as they were."""

    def forget_node(self, node: str) -> None:
        """The node is gone."""
        self._compared.forget(node)
        self._open.pop(node, None)

    def report(
        self, node: str, changes: Sequence[tuple[MeasuredSeries, F | None]], at: float
    ) -> None:
        """Give the evidence of findings that have begun; None: the finding is over."""
        findings = self._open.get(node, {})
        if not (changes or findings):
            return  # nearly every node at nearly every message
        for series, found in changes:
            name = component(series)
            if found is not None:
                findings[name] = self.evidence_of(found, at)
            elif findings.pop(name, None) is not None:
                over = Component(self.check, name, Status.OK, "", self.over, at)
                self._evidence.record(node, over)
        for one in findings.values():  # again, for the node's evidence may have been discarded
            self._evidence.record(node, one)
        if findings:
            self._open[node] = findings
        else:
            self._open.pop(node, None)

    def findings_in_quarantine(self, node: str) -> set[tuple[str, str]]:
        """The findings (measure, component) that the node's quarantine rests on."""
        summary = self._fleet.node_summaries.get(node)
        quarantine = summary.quarantine if summary is not None else None
        items = quarantine.spec.evidence if quarantine is not None else ()
        found = (one for one in items if one.code.partition(":")[0] == self.check)
        names = (one.component.partition(" ") for one in found if not one.cleared)
        return {(measure, name) for measure, _, name in names}


def component(series: MeasuredSeries) -> str:
    """The component of the evidence: a part may deviate in several measurements."""
    return f"{series.measure} {series.component}"
