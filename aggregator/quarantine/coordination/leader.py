"""The leader's side: takes each replica's reports, feeds them to the counts, and answers.

Other replicas' reports go into the same counts as our own agents' evidence, so that common causes,
triangulation and admission come out as if there were only one replica.
"""

import asyncio
from collections import deque
from collections.abc import Callable

from aggregator.clock import Clocks
from aggregator.cluster.port import ClusterError
from aggregator.quarantine.admission.record_writer import AdmissionRecordWriter
from aggregator.quarantine.coordination.follower import BEAT
from aggregator.quarantine.correlation.common_cause import CommonCauseTracker
from aggregator.quarantine.correlation.network import NetworkTracker
from aggregator.quarantine.decide.admission import Held
from aggregator.quarantine.decide.replica_messages import (
    AdmissionDecision,
    AdmissionRequest,
    Answer,
    FleetFindings,
    KeepAlive,
    LeaderFindings,
    NodeReport,
    ReportBatch,
    Said,
    rebase_findings_ages,
    rebase_outlook_ages,
    rebase_report_ages,
)
from aggregator.quarantine.decide.uncertainty import Uncertainty
from aggregator.quarantine.state.fleet import FleetState
from aggregator.quarantine.state.registry import NodeRegistry
from aggregator.quarantine.state.remote import RemoteNodes
from aggregator.replicas.membership.view import Ownership, is_responding

#: Bounds on one replica's nodes and open questions; a peer above them is no replica of ours. Of
#: 100,000 nodes two replicas have somewhat more or less than half each.
MOST_NODES = 200_000
MOST_ASKED = 10_000
FINDINGS_A_MESSAGE = 400
#: Causes that are sent to followers; admission here goes by all of them.
MOST_CAUSES = 200


class NotLeader(Exception):
    """We do not lead, or the caller is no member: try again later."""


class ProtocolViolation(Exception):
    """A replica sent an invalid message. Its stream ends; others go on."""


class SessionClosed(Exception):
    """The stream is of no use any more; the text says why."""


class Leader:
    """``settled`` is called when a replica has reported all its nodes, or reports no more."""

    def __init__(
        self,
        *,
        shards: Ownership,
        node_registry: NodeRegistry,
        remote_nodes: RemoteNodes,
        cause_tracker: CommonCauseTracker,
        network_tracker: NetworkTracker,
        record_writer: AdmissionRecordWriter,
        fleet: FleetState,
        clocks: Clocks,
        settled: Callable[[], None],
    ) -> None:
        self._shards = shards
        self._registry = node_registry
        self._remote_nodes = remote_nodes
        self._cause_tracker = cause_tracker
        self._network_tracker = network_tracker
        self._record_writer = record_writer
        self._fleet = fleet
        self._clocks = clocks
        self._settled = settled
        self._sessions: dict[str, FollowerSession] = {}
        self.outlook = FleetFindings()
        network_tracker.tell_owner = self._tell_owner

    def open_session(self, name: str, epoch: str) -> "FollowerSession":
        """A replica has opened a stream. Raises `NotLeader`."""
        membership_view = self._shards.membership_view
        leader, member = membership_view.leader, membership_view.members.get(name)
        if leader is None or leader.name != membership_view.me:
            led = f"{leader.name} does" if leader is not None else "no leader is known"
            raise NotLeader(f"{membership_view.me} does not lead; {led}")
        if name == membership_view.me or member is None or member.epoch != epoch:
            raise NotLeader(f"{name} is not among the replicas that {membership_view.me} knows")
        earlier = self._sessions.pop(name, None)
        if earlier is not None:
            earlier.close("the replica has opened another stream")
        self._remote_nodes.leave_all(name, self._clocks.now())
        made = self._sessions[name] = FollowerSession(name, epoch, self, self._clocks)
        return made

    def end_session(self, session: "FollowerSession") -> None:
        if self._sessions.get(session.name) is session:
            del self._sessions[session.name]
            self._settled()

    def missing(self) -> str:
        """The replicas that have not reported all their nodes, in words; empty where all have."""
        membership_view, now = self._shards.membership_view, self._clocks.now()
        if len(membership_view.members) < 2:
            return ""
        names = [
            name
            for name, member in sorted(membership_view.members.items())
            if name != membership_view.me and not self._has_told(name, member.epoch, now)
        ]
        if not names:
            return ""
        have = "has" if len(names) == 1 else "have"
        return f"{', '.join(names)} {have} not told of all nodes"

    def _has_told(self, name: str, epoch: str, now: float) -> bool:
        session = self._sessions.get(name)
        if session is None or session.epoch != epoch or not session.complete:
            return False
        return is_responding(session.heard_at, now)

    def members_changed(self) -> None:
        """A replica that has left reports no more; its reports stand until new owners report."""
        members = self._shards.membership_view.members
        for name, session in list(self._sessions.items()):
            member = members.get(name)
            if member is None or member.epoch != session.epoch:
                session.close("it is not among the replicas any more")
        for name in self._remote_nodes.tellers() - members.keys():
            self._remote_nodes.leave_all(name, self._clocks.now())

    def close(self, reason: str) -> None:
        """We do not lead any more."""
        for session in list(self._sessions.values()):
            session.close(reason)
        self.outlook = FleetFindings()

    def find_causes(self, uncertainty: Uncertainty, reported: int) -> None:
        """Send the fleet's findings to all replicas, where they have changed."""
        causes = tuple(self._fleet.causes.values())[:MOST_CAUSES]
        network = tuple(self._fleet.network.values())[:MOST_CAUSES]
        self.outlook = FleetFindings(causes, network, reported, uncertainty)
        for session in self._sessions.values():
            session.wake_sender()

    # -- for the sessions -----------------------------------------------------------------

    def receive_report(self, name: str, report: NodeReport) -> bool:
        """Take a replica's report on a node; returns whether it counts."""
        node_state = self._registry.known(report.node)
        if self._shards.owns(report.node) and node_state is not None and node_state.agent.is_fresh:
            return False  # its agent reports to us
        told = rebase_report_ages(report, self._clocks.now())
        self._remote_nodes.apply_reports(name, told)
        self._cause_tracker.set_symptoms(told)
        self._network_tracker.set_report(told)
        return True

    def stop_hearing(self, name: str, node: str) -> None:
        if self._remote_nodes.teller(node) == name:
            self._remote_nodes.leave(node, self._clocks.now())

    def completed(self) -> None:
        self._settled()

    async def decide(self, ask: AdmissionRequest) -> AdmissionDecision:
        """Ask the record. The replica that asks sees for itself whether the entry stands."""
        if not self._shards.leads():
            text = f"{self._shards.membership_view.me}, which leads, may not act now: asked again"
            return AdmissionDecision(ask.number, Held("shards", "no leader", text))
        try:
            return AdmissionDecision(ask.number, await self._record_writer.propose(ask.proposal))
        except ClusterError as error:
            return AdmissionDecision(ask.number, failed=str(error) or "the record can't be used")

    def findings(self, nodes: list[str]) -> LeaderFindings:
        found = {node: self._network_tracker.finding(node) for node in nodes}
        return rebase_findings_ages(
            LeaderFindings({node: one for node, one in found.items() if one is not None}),
            self._clocks.now(),
        )

    def _tell_owner(self, node: str) -> None:
        session = self._sessions.get(self._remote_nodes.teller(node))
        if session is not None:
            session.found(node)


class FollowerSession:
    """One replica's stream. A transport calls `receive` and `next` until either raises, and `close`
    in the end.
    """

    def __init__(self, name: str, epoch: str, leader_role: Leader, clocks: Clocks) -> None:
        self.name = name
        self.epoch = epoch
        self.complete = False
        self.heard_at = clocks.now()
        self._leader_role = leader_role
        self._now = clocks.now
        self._nodes: set[str] = set()
        self._decided: deque[AdmissionDecision] = deque()
        self._asked: set[asyncio.Task[None]] = set()
        self._found: dict[str, None] = {}
        self._outlook: FleetFindings | None = None
        self._beat_at = clocks.now()
        self._stirred = asyncio.Event()
        self._lost = ""

    def wake_sender(self) -> None:
        self._stirred.set()

    def found(self, node: str) -> None:
        """There is a new finding of this node of theirs."""
        self._found[node] = None
        self._stirred.set()

    def receive(self, said: Said) -> None:
        """Take a message. Raises `ProtocolViolation`, and `SessionClosed` once closed."""
        if self._lost:
            raise SessionClosed(self._lost)
        self.heard_at = self._now()
        if isinstance(said, ReportBatch):
            self._hear_words(said)
        elif isinstance(said, AdmissionRequest):
            if len(self._asked) >= MOST_ASKED:
                raise ProtocolViolation(f"{self.name} asks more than {MOST_ASKED} things at once")
            task = asyncio.create_task(self._decide(said), name=f"admission for {self.name}")
            self._asked.add(task)
            task.add_done_callback(self._asked.discard)

    def _hear_words(self, words: ReportBatch) -> None:
        for node in words.gone:
            self._nodes.discard(node)
            self._leader_role.stop_hearing(self.name, node)
        for report in words.reports:
            if (
                self._leader_role.receive_report(self.name, report)
                and report.node not in self._nodes
            ):
                self._nodes.add(report.node)
                self.found(report.node)  # findings from before its first report to us
        if len(self._nodes) > MOST_NODES:
            raise ProtocolViolation(f"{self.name} speaks of more than {MOST_NODES} nodes")
        if words.complete and not self.complete:
            self.complete = True
            self._leader_role.completed()

    async def _decide(self, ask: AdmissionRequest) -> None:
        self._decided.append(await self._leader_role.decide(ask))
        self._stirred.set()

    async def next(self) -> Answer:
        """The next message to send; waits for it. Raises `SessionClosed`."""
        while True:
            now = self._now()
            if self._lost:
                raise SessionClosed(self._lost)
            answer = self._due(now)
            if answer is not None:
                self._beat_at = now + BEAT
                return answer
            self._stirred.clear()
            try:
                async with asyncio.timeout(max(0.0, self._beat_at - now)):
                    await self._stirred.wait()
            except TimeoutError:
                pass

    def _due(self, now: float) -> Answer | None:
        if self._decided:
            return self._decided.popleft()
        if self._outlook != self._leader_role.outlook:
            self._outlook = self._leader_role.outlook
            return rebase_outlook_ages(self._outlook, now)
        if self._found:
            nodes = list(self._found)[:FINDINGS_A_MESSAGE]
            for node in nodes:
                del self._found[node]
            answer = self._leader_role.findings(nodes)
            if answer.findings:
                return answer
            return self._due(now)
        return KeepAlive() if now >= self._beat_at else None

    def close(self, reason: str) -> None:
        """The stream has ended."""
        if self._lost:
            return
        self._lost = reason
        self._stirred.set()
        for task in self._asked:
            task.cancel()
        self._leader_role.end_session(self)
