"""Reports about one node: its transitions, and how long each stage took."""

from collections.abc import Mapping

from attrs import define

from aggregator.clock import Clocks
from aggregator.events import EventKind, EventSink, Transition
from aggregator.quarantine.state.node import NodeState
from aggregator.quarantine.state.stage_times import StageTimes


@define(eq=False, slots=False, kw_only=True)
class NodeReports:
    _event_sink: EventSink
    _clocks: Clocks
    stages: StageTimes

    def emit_event(
        self,
        node_state: NodeState,
        kind: EventKind,
        summary: str,
        details: Mapping[str, str] | None = None,
        *,
        incident: str = "",
    ) -> None:
        """Emit an event about the node, of its quarantine's incident where none is named."""
        quarantine, wanted = node_state.quarantine, node_state.decision.wanted
        if not incident and quarantine is not None:
            incident = quarantine.spec.incident
        if not incident and wanted is not None:
            incident = wanted.spec.incident
        self._event_sink.record_event(
            Transition(
                at=self._clocks.wall(),
                kind=kind,
                node=node_state.node,
                summary=f"{node_state.node}: {summary}",
                incident=incident,
                details=dict(details or {}),
            )
        )
