"""Handles the agents' events: connected, evidence, disconnected. Ingest's `EvidenceSink`."""

import asyncio
import logging
import math
from collections.abc import Awaitable
from dataclasses import replace
from typing import Protocol

from attrs import define, field

from aggregator.events import EventKind, EvidenceRecording
from aggregator.health.model import Delta, Hello, Measurements, Snapshot
from aggregator.policy.rules import Policy
from aggregator.quarantine.actions.node_actions import NodeReports
from aggregator.quarantine.correlation.trackers import FleetTrackers
from aggregator.quarantine.decide.release_checks import state_of_gpus
from aggregator.quarantine.reconcile.work_queue import WorkQueue
from aggregator.quarantine.state.node import NodeState
from aggregator.quarantine.state.registry import NodeRegistry
from aggregator.runtime.recent import Recent

log = logging.getLogger("sickbay.quarantine")

#: The objections to a node's release are checked again this long after its checks changed
#: (seconds).
RELEASE_SOON = 1.0
#: An agent may report a loss with each message: one of each source in this time (seconds).
LOSSES_EVERY = 60.0


class AgentLine(Protocol):
    """The way back to an agent: the part of ingest's `AgentConnection` that is used here."""

    def close(self, reason: str) -> None: ...


@define(eq=False, repr=False, slots=False, kw_only=True)
class AgentEventHandler:
    """Ingest's `EvidenceSink`. ``silent_after`` is in seconds. Without ``recording`` no history has
    the evidence.
    """

    _registry: NodeRegistry = field(alias="node_registry")
    _queue: WorkQueue
    _reports: NodeReports
    _policy: Policy
    _silent_after: float
    _trackers: FleetTrackers
    _recording: EvidenceRecording | None

    def __attrs_post_init__(self) -> None:
        self._network_tracker = self._trackers.network
        self._measurements = self._trackers.measurements
        #: When a loss was last reported (monotonic), by node and source.
        self._losses: Recent[tuple[str, str], float] = Recent()
        self._lines: dict[str, AgentLine] = {}
        self._hellos: dict[str, Hello] = {}
        #: Nodes that two agents claim, or did: their evidence since then was not recorded.
        self._unrecorded: set[str] = set()

    def on_refusal(self, node: str, reason: str) -> None:
        """An authenticated stream was refused at its Hello: its node is as good as silent."""
        agent = self._registry.node_state(node).agent
        agent.refused = reason
        agent.note_attempt(self._reports.clocks.now())

    def on_connect(self, hello: Hello, line: AgentLine) -> None:
        """An authenticated stream has sent Hello; its snapshot follows.

        Until that is accepted the node has not reported, however often its agent reconnects.
        """
        node_state = self._registry.node_state(hello.node)
        agent, is_new = node_state.agent, node_state.agent.health is None
        agent.connect(hello, self._reports.clocks.now())
        if is_new:
            self._network_tracker.renew(node_state)
        self._registry.count(node_state.node)
        for tracker in self._measurements:
            tracker.on_connect(hello.node)
        meta = node_state.cluster.meta
        listed = meta is None or hello.node_uid in ("", meta.uid)
        if not listed or _may_be_back(node_state, hello.node_uid):
            self._queue.add_for_read(node_state)  # the list may be old: a read decides
        self._lines[hello.node], self._hellos[hello.node] = line, hello
        if agent.conflict:
            self._unrecorded.add(hello.node)
        if self._recording is not None and hello.node not in self._unrecorded:
            self._recording.record_hello(hello)

    def on_evidence(
        self, node: str, evidence: Snapshot | Delta, at: float
    ) -> Awaitable[None] | None:
        """Fold the evidence. A positive sign is acknowledged when durable."""
        node_state = self._registry.node_state(node)
        health = node_state.agent.health
        if health is None or node not in self._lines:
            return _never()  # rejected, and its stream has not ended yet
        node_state.agent.last_seen = at
        before = state_of_gpus(health) if node_state.release_held else None
        if isinstance(evidence, Snapshot):
            health.snapshot(evidence)
            self._registry.count(node_state.node)
            if node_state.agent.accept_snapshot():
                self._reports.emit_event(node_state, EventKind.AGENT_BACK, "its agent is back")
        else:
            health.delta(evidence)
            self._reports.stages.note_faults(evidence.faults, at)
        signs = bool(evidence.cleared or evidence.gone)
        node_read = self._queue.view and node_state.cluster.meta is not None
        node_state.cluster.take_signs(evidence.cleared, node_read=node_read)
        if evidence.faults and _may_be_back(node_state, node_state.agent.claimed):
            node_state.work.needs_read = True
        for lost in evidence.lost:
            key = node, lost.source
            if at - self._losses.get(key, -math.inf) >= LOSSES_EVERY:
                self._losses[key] = at
                text = f"evidence lost ({lost.source}): {lost.message}"
                details = {"source": lost.source}
                self._reports.emit_event(node_state, EventKind.EVIDENCE_LOST, text, details)
        if isinstance(evidence, Snapshot) or evidence.components or evidence.gone:
            self._network_tracker.on_evidence(node, evidence)
        if before is not None and state_of_gpus(health) != before:
            node_state.hasten_release_check(RELEASE_SOON)
        for tracker in self._measurements if evidence.cleared else ():
            tracker.on_cleared(node, evidence.cleared, at)
        self._queue.evaluate(node_state, at if isinstance(evidence, Delta) else None)
        self._record_evidence(node_state, evidence, at)
        if not signs:
            return None
        durable: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        node_state.work.waiters = (*node_state.work.waiters, durable)
        if not node_read:  # the overrides may be unknown here
            self._queue.add(node_state)
        return durable

    def evaluation_cost(self, node: str) -> float:
        """Seconds that evaluating the node took since the last call."""
        node_state = self._registry.known(node)
        return node_state.work.take_evaluation_cost() if node_state is not None else 0.0

    def _record_evidence(
        self, node_state: NodeState, evidence: Snapshot | Delta, at: float
    ) -> None:
        """Record for history, except while two agents alternate: each swap would write rows.

        The evidence is still evaluated; once there is one agent again recording resumes from a new
        base.
        """
        if node_state.agent.conflict:
            self._unrecorded.add(node_state.node)
        elif node_state.node in self._unrecorded:
            self._record_base(node_state, at)
        elif self._recording is not None:
            self._recording.record_message(node_state.node, evidence, at)

    def _record_base(self, node_state: NodeState, at: float) -> None:
        hello, health = self._hellos.get(node_state.node), node_state.agent.health
        if hello is None or health is None or not health.has_snapshot:
            return  # its next snapshot is the base: an unnamed component was healthy
        self._unrecorded.discard(node_state.node)
        if self._recording is not None:
            snapshot = Snapshot(tuple(health.components.all()), tuple(health.faults.values()))
            self._recording.restart_node(hello, snapshot, at)

    def on_measurements(self, node: str, measured: Measurements, at: float) -> None:
        """Compare the node's measurements with those of the others."""
        if node in self._lines:
            health = self._registry.node_state(node).agent.health
            if measured.series and health is not None:
                series = health.components.with_these_names(measured.series)
                measured = replace(measured, series=series)
            for tracker in self._measurements:
                tracker.on_measurements(node, measured, at)

    def digest(self, node: str) -> int | None:
        node_state = self._registry.known(node)
        health = node_state.agent.health if node_state is not None else None
        return health.digest() if health is not None else None

    def on_heartbeat(self, node: str, at: float) -> None:
        self._registry.node_state(node).agent.last_seen = at

    def on_order_end(self, node: str) -> None:
        """Its agent has reported the end of an order: the repair need not wait for its next
        poll.
        """
        node_state = self._registry.known(node)
        if node_state is not None and node_state.quarantine is not None:
            node_state.hasten_repair()
            self._queue.add(node_state)

    def on_disconnect(self, node: str, line: AgentLine, reason: str) -> None:
        if self._lines.get(node) is not line:
            return
        del self._lines[node], self._hellos[node]
        node_state = self._registry.node_state(node)
        node_state.agent.attached = False
        if node_state.agent.was_received:
            node_state.agent.last_seen = self._reports.clocks.now()
        else:  # no report now: an agent that is refused at each attempt falls silent
            node_state.agent.refused = f"no snapshot of it was accepted: {reason}"
        node_state.work.refuse_waiters()
        self._network_tracker.silent(node)
        for tracker in self._measurements:
            tracker.silent(node)
        if self._recording is not None and node not in self._unrecorded:
            self._recording.record_disconnect(node)
        # Two agents that push each other out do so every few seconds: ingest logs them.
        level = logging.DEBUG if node_state.agent.conflict else logging.INFO
        log.log(
            level,
            "agent detached",
            extra={"event": "agent.detached", "node": node, "reason": reason},
        )

    def reject(self, node_state: NodeState) -> None:
        """The node is another Node than its agent's: end the stream, and discard its evidence."""
        whose = f" with UID {node_state.agent.claimed}" if node_state.agent.claimed else ""
        text = f"its agent reported for another Node of this name{whose}, which is gone"
        node_state.discard_evidence(self._policy, self._reports.clocks.now())
        self._registry.count(node_state.node)
        node_state.work.refuse_waiters()
        self._network_tracker.silent(node_state.node)
        for tracker in self._measurements:
            tracker.forget_node(node_state.node)
        self._reports.emit_event(node_state, EventKind.AGENT_CONFLICT, f"{text}: refused")
        line = self._lines.pop(node_state.node, None)
        self._hellos.pop(node_state.node, None)
        if line is not None:
            line.close(text)

    def on_conflict(self, node: str, detail: str) -> None:
        """Two agents claim the node (``detail``: which), still do, or do no more (empty).

        Reported once: the two push each other out every few seconds, each time from another port.
        """
        if not detail and self._registry.known(node) is None:
            self._unrecorded.discard(node)
            return  # it was forgotten meanwhile
        node_state = self._registry.node_state(node)
        if detail and not node_state.agent.conflict:
            self._reports.emit_event(node_state, EventKind.AGENT_CONFLICT, detail)
        node_state.agent.conflict = detail
        if not detail and node in self._unrecorded:
            if node in self._lines:
                self._record_base(node_state, self._reports.clocks.now())
            else:
                self._unrecorded.discard(node)
                if self._recording is not None:
                    self._recording.forget_node(node)  # its next Hello begins anew
        self._queue.add(node_state)

    def note_silence(self, node_state: NodeState, now: float) -> None:
        """Report, once, that an agent has been gone for too long, or that it is not understood."""
        agent = node_state.agent
        if agent.is_fresh or agent.last_seen is None or agent.silent:
            return
        if now - agent.last_seen >= self._silent_after:
            agent.silent = True
            text = "its agent is silent"
            if agent.refused:
                text = f"its agent is not understood ({agent.refused})"
            elif agent.attached:
                text = "its agent is attached, but has sent no snapshot"
            text = f"{text}; failing checks stay in force"
            self._reports.emit_event(node_state, EventKind.AGENT_SILENT, text)


def _may_be_back(node_state: NodeState, node_uid: str) -> bool:
    """Whether an agent with this Node UID (empty: it proves none) belongs to a quarantined node
    that was gone, or that is another Node than the one that was marked.
    """
    quarantine = node_state.quarantine
    if quarantine is None:
        return False
    return node_state.cluster.node_gone or (
        bool(quarantine.status.node_uid) and (node_uid not in ("", quarantine.status.node_uid))
    )


def _never() -> Awaitable[None]:
    """A future that never ends, for evidence without acknowledgement; the stream cancels it."""
    return asyncio.get_running_loop().create_future()
