"""Handles the agents' events: connected, evidence, disconnected. Ingest's `EvidenceSink`."""

import asyncio
import logging
from collections.abc import Awaitable
from typing import Protocol

from aggregator.clock import Clocks
from aggregator.events import EventKind, EvidenceRecording
from aggregator.health.model import Delta, Hello, Measurements, Snapshot
from aggregator.policy.rules import Policy
from aggregator.quarantine.actions.cordon import NodeActions
from aggregator.quarantine.correlation.network import NetworkTracker
from aggregator.quarantine.correlation.outliers import OutlierTracker
from aggregator.quarantine.reconcile.evaluate import NodeEvaluator
from aggregator.quarantine.reconcile.work_queue import WorkQueue
from aggregator.quarantine.state.loss_reports import LossReports
from aggregator.quarantine.state.node import NodeState
from aggregator.quarantine.state.registry import NodeRegistry
from aggregator.replicas.membership.view import Ownership

log = logging.getLogger("sickbay.quarantine")


class AgentLine(Protocol):
    """The way back to an agent: the part of ingest's `AgentConnection` that is used here."""

    def redirect(self, address: str, reason: str) -> None: ...

    def resync(self, reason: str) -> None: ...

    def close(self, reason: str) -> None: ...


class AgentEventHandler:
    """Ingest's `EvidenceSink`. ``silent_after`` is in seconds."""

    def __init__(
        self,
        *,
        node_registry: NodeRegistry,
        evaluator: NodeEvaluator,
        queue: WorkQueue,
        acts: NodeActions,
        policy: Policy,
        clocks: Clocks,
        silent_after: float,
        network_tracker: NetworkTracker,
        outliers: OutlierTracker,
        evidence_recording: EvidenceRecording,
        shards: Ownership,
    ) -> None:
        self._registry = node_registry
        self._evaluator = evaluator
        self._queue = queue
        self._acts = acts
        self._policy = policy
        self._clocks = clocks
        self._silent_after = silent_after
        self._network_tracker = network_tracker
        self._outliers = outliers
        self._evidence_recording = evidence_recording
        self._shards = shards
        self._losses = LossReports()
        self._lines: dict[str, AgentLine] = {}
        self._hellos: dict[str, Hello] = {}
        #: Nodes that two agents claim, or did: their evidence since then was not recorded.
        self._untaken: set[str] = set()

    def owner_address(self, node: str) -> str:
        """Where the node's agent belongs, "host:port"; empty: here, or it can't be told now."""
        return self._shards.owner_address(node)

    def on_refusal(self, node: str, reason: str) -> None:
        """An authenticated stream was refused at its Hello: its node is as good as silent."""
        if self.owner_address(node):
            return  # its own replica reports it
        agent = self._registry.case(node).agent
        agent.refuse(reason)
        agent.note_attempt(self._clocks.now())

    def on_connect(self, hello: Hello, line: AgentLine) -> None:
        """An authenticated stream said Hello; its snapshot follows.

        Until that is accepted the node has not reported, however often its agent reconnects.
        """
        case = self._registry.case(hello.node)
        agent, is_new = case.agent, case.agent.health is None
        agent.connect(hello, self._clocks.now())
        if is_new:
            self._network_tracker.renew(case)
        self._registry.count(case)
        self._outliers.on_connect(hello.node)
        meta = case.cluster.meta
        listed = meta is None or hello.node_uid in ("", meta.uid)
        if not listed or _may_be_back(case, hello.node_uid):
            self._queue.add_for_read(case)  # the list may be old: a read decides
        self._lines[hello.node], self._hellos[hello.node] = line, hello
        if agent.conflict:
            self._untaken.add(hello.node)
        if hello.node not in self._untaken:
            self._evidence_recording.record_hello(hello)

    def on_evidence(
        self, node: str, evidence: Snapshot | Delta, at: float
    ) -> Awaitable[None] | None:
        """Fold the evidence and evaluate. A positive sign is acknowledged when durable."""
        case = self._registry.case(node)
        health = case.agent.health
        if health is None or node not in self._lines:
            return _never()  # rejected, and its stream has not ended yet
        case.agent.note_message(at)
        if isinstance(evidence, Snapshot):
            health.snapshot(evidence)
            self._registry.count(case)
            self._note_back(case)
            signs = bool(evidence.cleared or evidence.gone)
        else:
            health.delta(evidence)
            signs = bool(evidence.cleared or evidence.gone)
        unread = case.cluster.unread or case.work.ours is False  # (it has just become ours, say)
        node_read = self._queue.view and case.cluster.meta is not None and not unread
        if signs and unread:
            case.work.request_read()  # another replica may have written the overrides: read
        case.cluster.take_signs(evidence.cleared, node_read=node_read)
        if evidence.faults and _may_be_back(case, case.agent.claimed):
            case.work.request_read()
        for lost in self._losses.due(node, evidence.lost, at) if evidence.lost else ():
            text = f"evidence lost ({lost.source}): {lost.message}"
            self._acts.emit_event(case, EventKind.EVIDENCE_LOST, text, {"source": lost.source})
        self._network_tracker.on_evidence(node, evidence)
        if evidence.cleared:
            self._outliers.on_cleared(node, evidence.cleared, at)
        self._evaluator.evaluate_node(case)
        self._take_down(case, evidence, at)
        needless = node_read and not self._queue.has_work(case)
        if not signs or (needless and self._shards.may_act(node)):
            return None  # (else the overrides may be unknown here: the next owner does it)
        durable: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        case.work.add_waiter(durable)
        self._queue.add(case)
        return durable

    def _note_back(self, case: NodeState) -> None:
        """Its agent's snapshot was accepted."""
        if case.agent.accept_snapshot():
            self._acts.emit_event(case, EventKind.AGENT_BACK, "its agent is back")

    def _take_down(self, case: NodeState, evidence: Snapshot | Delta, at: float) -> None:
        """Record for history, except while two agents alternate: each swap would write rows.

        The evidence is still evaluated; once there is one agent again recording goes on from a new
        base.
        """
        if case.agent.conflict:
            self._untaken.add(case.node)
        elif case.node in self._untaken:
            self._take_down_anew(case, at)
        else:
            self._evidence_recording.record_message(case.node, evidence, at)

    def _take_down_anew(self, case: NodeState, at: float) -> None:
        hello, health = self._hellos.get(case.node), case.agent.health
        if hello is None or health is None or not health.has_snapshot:
            return  # its next snapshot is the base: an unnamed component was healthy
        self._untaken.discard(case.node)
        told = Snapshot(tuple(health.components.all()), tuple(health.faults.values()))
        self._evidence_recording.restart_node(hello, told, at)

    def on_measurements(self, node: str, told: Measurements, at: float) -> None:
        """Compare the node's measurements with those of the others."""
        if node in self._lines:
            self._outliers.on_measurements(node, told, at)

    def digest(self, node: str) -> int | None:
        case = self._registry.known(node)
        health = case.agent.health if case is not None else None
        return health.digest() if health is not None else None

    def on_heartbeat(self, node: str, at: float) -> None:
        self._registry.case(node).agent.note_message(at)

    def on_command_result(self, node: str, command_id: str, *, ok: bool, message: str) -> None:
        log.info(
            "answer to a command",
            extra={"node": node, "command": command_id, "ok": ok, "text": message},
        )

    def on_disconnect(self, node: str, line: AgentLine, reason: str) -> None:
        if self._lines.get(node) is not line:
            return
        del self._lines[node], self._hellos[node]
        case = self._registry.case(node)
        case.agent.disconnect()
        if case.agent.was_heard:
            case.agent.note_message(self._clocks.now())
        else:  # no report now: an agent that is refused at each attempt falls silent
            case.agent.refuse(f"no snapshot of it was accepted: {reason}")
        case.work.refuse_waiters()
        self._network_tracker.silent(node)
        self._outliers.silent(node)
        if node not in self._untaken:
            self._evidence_recording.record_disconnect(node)
        if not self._shards.owns(node):
            self.hand_over(case)
        # Two agents that push each other out do so every few seconds: ingest logs them.
        level = logging.DEBUG if case.agent.conflict else logging.INFO
        log.log(level, "agent detached", extra={"node": node, "reason": reason})

    def send_home(self, case: NodeState, reason: str) -> None:
        """Another replica owns the node: its agent is told which, and its reports are rejected."""
        line, home = self._lines.get(case.node), self.owner_address(case.node)
        if line is not None and home:
            line.redirect(home, reason)

    def start_over(self, case: NodeState) -> None:
        """Discard all evidence on a node of ours, which another replica may have had meanwhile.

        An agent that is still connected is to send all of it again: `ask_again`.
        """
        line, hello = self._lines.get(case.node), self._hellos.get(case.node)
        self.hand_over(case)
        if line is not None and hello is not None:
            case.agent.restart(hello, self._clocks.now())
            self._registry.count(case)

    def ask_again(self, case: NodeState) -> None:
        """Have an agent whose evidence was discarded send all of it again."""
        line = self._lines.get(case.node)
        if line is not None and not case.agent.was_heard:
            line.resync("this replica may have been taken for dead meanwhile")

    def hand_over(self, case: NodeState) -> None:
        """Discard the evidence of the agent of a node that is another replica's now."""
        case.work.refuse_waiters()
        case.hand_over(self._policy, self._clocks.now())
        self._registry.count(case)
        self._network_tracker.silent(case.node)
        self._network_tracker.drop_finding(case.node)
        if not self._shards.owns(case.node):
            self._outliers.forget_node(case.node)
        self._evaluator.evaluate_node(case)

    def reject(self, case: NodeState) -> None:
        """The node is another Node than its agent's: end the stream, and discard its evidence."""
        whose = f" with UID {case.agent.claimed}" if case.agent.claimed else ""
        text = f"its agent spoke for another Node of this name{whose}, which is gone"
        case.drop_ownership(self._policy, self._clocks.now())
        self._registry.count(case)
        case.work.refuse_waiters()
        self._network_tracker.silent(case.node)
        self._outliers.forget_node(case.node)
        self._acts.emit_event(case, EventKind.AGENT_CONFLICT, f"{text}: not heard")
        line = self._lines.pop(case.node, None)
        self._hellos.pop(case.node, None)
        if line is not None:
            line.close(text)

    def on_conflict(self, node: str, detail: str) -> None:
        """Two agents claim the node (``detail``: which), still do, or do no more (empty).

        Reported once: the two push each other out every few seconds, each time from another port.
        """
        if not detail and self._registry.known(node) is None:
            self._untaken.discard(node)
            return  # it was forgotten meanwhile
        case = self._registry.case(node)
        if detail and not case.agent.conflict:
            self._acts.emit_event(case, EventKind.AGENT_CONFLICT, detail)
        case.agent.set_conflict(detail)
        if not detail and node in self._untaken:
            if node in self._lines:
                self._take_down_anew(case, self._clocks.now())
            else:
                self._untaken.discard(node)
                self._evidence_recording.forget_node(node)  # its next Hello begins anew
        self._queue.add(case)

    def note_silence(self, case: NodeState, now: float) -> None:
        """Report, once, that an agent has been gone for too long, or that it is not understood."""
        agent = case.agent
        if agent.is_fresh or agent.last_heard is None or agent.silent:
            return
        if now - agent.last_heard >= self._silent_after:
            agent.note_silence()
            text = "its agent is silent"
            if agent.refused:
                text = f"its agent is not understood ({agent.refused})"
            elif agent.attached:
                text = "its agent is attached, but has sent no snapshot"
            self._acts.emit_event(
                case, EventKind.AGENT_SILENT, f"{text}; its last failing checks stay in force"
            )


def _may_be_back(case: NodeState, node_uid: str) -> bool:
    """Whether an agent with this Node UID (empty: it proves none) tells of a quarantined node
    that was gone, or that is another Node than the one that was marked.
    """
    quarantine = case.node_summary.quarantine
    if quarantine is None:
        return False
    return case.cluster.node_gone or (
        bool(quarantine.status.node_uid) and (node_uid not in ("", quarantine.status.node_uid))
    )


def _never() -> Awaitable[None]:
    """A future that never ends, for evidence without acknowledgement; the stream cancels it."""
    return asyncio.get_running_loop().create_future()
