"""The shared part of all acts on a node: the guard, reads, the write of the status, events."""

from collections.abc import Mapping

from aggregator.clock import Clocks
from aggregator.cluster.port import Cluster, ClusterError, Quarantine, QuarantineStatus
from aggregator.events import EventKind, EventSink, Transition
from aggregator.policy.rules import Policy
from aggregator.quarantine.actions.act_guard import ActGuards
from aggregator.quarantine.actions.announcer import Announcer
from aggregator.quarantine.actions.mark_writer import MarkWriter
from aggregator.quarantine.state.node import NodeState
from aggregator.quarantine.state.stage_times import StageTimes


class NodeActions:
    """For one node at a time; the controller runs many nodes at once."""

    def __init__(
        self,
        *,
        cluster: Cluster,
        guards: ActGuards,
        announcer: Announcer,
        event_sink: EventSink,
        clocks: Clocks,
        policy: Policy,
        stages: StageTimes,
    ) -> None:
        self._cluster = cluster
        self._event_sink = event_sink
        self._clocks = clocks
        self._policy = policy
        self.words = cluster.words
        self._guards = guards
        #: Whether we are the controller at this moment.
        self.may_act = guards.may_act
        self.guard = guards.guard
        self.announcer = announcer
        self.mark_writer = MarkWriter(cluster, clocks.now)
        self.stages = stages

    async def look_at_node(self, node_state: NodeState) -> None:
        """Read the node, as the watches only hinted at a change."""
        node_state.work.begin_read()
        try:
            node_state.take_node(await self._cluster.read_node(node_state.node))
        except ClusterError:
            node_state.work.request_read()
            raise

    async def reread(self, node_state: NodeState) -> Quarantine | None:
        """The object as it is now, and not as the watch last reported it."""
        before = node_state.node_summary.quarantine
        quarantine = await self._cluster.read_quarantine(node_state.node)
        if quarantine is None:
            if node_state.node_summary.quarantine is not None:
                node_state.own_quarantine_view().miss()
        else:
            node_state.take_read(quarantine, self._policy, self._clocks.now(), before=before)
        return quarantine

    async def write_status(
        self, node_state: NodeState, quarantine: Quarantine, status: QuarantineStatus
    ) -> Quarantine:
        written = await self._cluster.write_quarantine_status(quarantine, status)
        node_state.wrote(written)
        return written

    def emit_event(
        self,
        node_state: NodeState,
        kind: EventKind,
        summary: str,
        details: Mapping[str, str] | None = None,
    ) -> None:
        """Emit an event about the node."""
        quarantine = node_state.node_summary.quarantine
        incident = quarantine.spec.incident if quarantine is not None else ""
        if not incident and node_state.decision.wanted is not None:
            incident = node_state.decision.wanted.spec.incident
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
