"""How replicas coordinate: one decides admission, common causes and triangulation, for all.

The leader by the membership view counts over all nodes and asks the record; the followers report on
their nodes (`follower`), ask before they quarantine, and go by the leader's answers. The leader
only proposes: the record decides, so each replica checks the record before it acts. A single
replica needs none of this.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace

from aggregator.clock import Clocks
from aggregator.cluster.port import ClusterError
from aggregator.events import EventSink
from aggregator.quarantine.admission.record_writer import AdmissionRecordWriter
from aggregator.quarantine.coordination.alerts import CoordinationAlerts
from aggregator.quarantine.coordination.follower import LeaderSession, LeaderSessionClosed, Reporter
from aggregator.quarantine.coordination.leader import FollowerSession, Leader, NotLeader
from aggregator.quarantine.correlation.common_cause import CommonCauseTracker
from aggregator.quarantine.correlation.network import NetworkTracker
from aggregator.quarantine.decide.admission import Held, Proposal
from aggregator.quarantine.decide.replica_messages import (
    Answer,
    FleetFindings,
    LeaderFindings,
    rebase_findings_ages,
    rebase_outlook_ages,
)
from aggregator.quarantine.decide.uncertainty import NO_UNCERTAINTY, Uncertainty
from aggregator.quarantine.state.fleet import FleetState
from aggregator.quarantine.state.node import NodeState
from aggregator.quarantine.state.registry import NodeRegistry
from aggregator.quarantine.state.remote import DirtyNodes, RemoteNodes
from aggregator.replicas.membership.view import Member, Ownership

#: The leader counts anew so often (seconds) where followers go by it.
TICK = 0.5
#: The same where there are no followers: time alone changes little.
_ALONE = 2.0
#: How many have reported is taken every so many ticks: each change is sent to all followers.
COUNT_EVERY = 4
#: A new leader blames no node for the network before so many seconds: agents whose replica is gone
#: are reconnecting to another, and no replica knows what they see.
TRIANGULATES_AFTER = 60.0
#: Nodes enqueued again before the event loop runs other tasks.
_SLICE = 50

log = logging.getLogger("sickbay.quarantine")


class Coordinator:
    """Implements `cordon.Admission` for this replica. ``again`` enqueues a node that was held."""

    def __init__(
        self,
        *,
        shards: Ownership,
        node_registry: NodeRegistry,
        remote_nodes: RemoteNodes,
        dirty_nodes: DirtyNodes,
        cause_tracker: CommonCauseTracker,
        network_tracker: NetworkTracker,
        record_writer: AdmissionRecordWriter,
        fleet: FleetState,
        event_sink: EventSink,
        clocks: Clocks,
        again: Callable[[NodeState], None],
    ) -> None:
        self._shards = shards
        self._registry = node_registry
        self._remote_nodes = remote_nodes
        self._cause_tracker = cause_tracker
        self._network_tracker = network_tracker
        self._record_writer = record_writer
        self._fleet = fleet
        self._clocks = clocks
        self._again = again
        self._coordination_alerts = CoordinationAlerts(event_sink, clocks)
        self._reporter = Reporter(
            node_registry=node_registry,
            cause_tracker=cause_tracker,
            network_tracker=network_tracker,
            owns=shards.owns,
            dirty_nodes=dirty_nodes,
            clocks=clocks,
        )
        self._leader_role = Leader(
            shards=shards,
            node_registry=node_registry,
            remote_nodes=remote_nodes,
            cause_tracker=cause_tracker,
            network_tracker=network_tracker,
            record_writer=record_writer,
            fleet=fleet,
            clocks=clocks,
            settled=self._uncertainty_changed,
        )
        self._leader_session: LeaderSession | None = None
        self._outlook: FleetFindings | None = None
        self._unreached: tuple[Member, str] | None = None
        self._leading = True
        self._network_from = float("-inf")
        self._known_uncertainty = NO_UNCERTAINTY
        self._reported = 0
        self._asking: asyncio.Task[None] | None = None
        self._members_changed = asyncio.Event()
        record_writer.set_uncertainty_source(self.uncertainty)
        shards.on_change(self._membership_changed)
        self._membership_changed()

    # -- who leads ---------------------------------------------------------------------------

    @property
    def leads(self) -> bool:
        """Whether we lead, by the last membership view: we take reports, and alert people."""
        return self._leading

    @property
    def leader(self) -> Member | None:
        """The replica to open a stream to, or None if we lead, or no leader is known."""
        leader = self._shards.membership_view.leader
        return None if leader is None or leader.name == self._shards.membership_view.me else leader

    def _membership_changed(self) -> None:
        self._members_changed.set()
        membership_view = self._shards.membership_view
        leader = membership_view.leader
        if leader is not None and leader.name == membership_view.me:
            self._lead()
        else:
            self._follow()
        if self._leader_session is not None and self._leader_session.leader != leader:
            self._leader_session.close(f"{self._leader_session.leader.name} does not lead any more")
            self._leader_session = None
        self._leader_role.members_changed()
        self._uncertainty_changed()

    def _lead(self) -> None:
        if self._leading:
            return
        self._leading = True
        self._network_from = self._clocks.now() + TRIANGULATES_AFTER
        self._remote_nodes.reported = 0
        self._outlook = None
        self._cause_tracker.lead()
        self._network_tracker.lead(self._network_from)
        log.info(
            "this replica leads",
            extra={"event": "replica.leads", "replica": self._shards.membership_view.me},
        )

    def _follow(self) -> None:
        if not self._leading:
            return
        self._leading = False
        self._leader_role.close("it does not lead any more")
        self._coordination_alerts.reset()
        self._cause_tracker.follow()
        self._network_tracker.follow()
        for node in self._remote_nodes.take_all():
            self._forget(node)

    def _forget(self, node: str) -> None:
        self._cause_tracker.drop_report(node)
        self._network_tracker.drop_report(node)

    # -- for the transport -------------------------------------------------------------------

    def open_session(self, name: str, epoch: str) -> FollowerSession:
        """A replica opens a session with us as the leader. Raises `NotLeader`."""
        self._members_changed.set()  # its reports may come before the view has it
        return self._leader_role.open_session(name, epoch)

    def report_to_leader(self, leader: Member) -> LeaderSession:
        """A stream to the leader is open. Raises `NotLeader` where it leads no more."""
        if self.leader != leader:
            raise NotLeader(f"{leader.name} does not lead any more")
        if self._leader_session is not None:
            self._leader_session.close("another stream was opened")
        self._outlook = self._unreached = None
        self._leader_session = LeaderSession(leader, self._reporter, self.receive_report)
        return self._leader_session

    def unreached(self, leader: Member, reason: str) -> None:
        """There is no stream to the leader; ``reason`` is for people."""
        self._unreached = (leader, reason)
        self._uncertainty_changed()

    def receive_report(self, leader_session: LeaderSession, answer: Answer) -> None:
        if leader_session is not self._leader_session:
            return
        now = self._clocks.now()
        if isinstance(answer, LeaderFindings):
            self._network_tracker.answered(rebase_findings_ages(answer, now).findings)
        elif isinstance(answer, FleetFindings):
            self._outlook = rebase_outlook_ages(answer, now)
            self._remote_nodes.reported = answer.reported
            self._cause_tracker.answered(self._outlook.causes)
            self._fleet.network = {one.subject: one for one in self._outlook.network}
            self._uncertainty_changed()

    # -- admission -----------------------------------------------------------------------------

    def uncertainty(self) -> Uncertainty:
        """Our gaps in knowledge of other replicas: by our own count where we lead, else the
        leader's.
        """
        membership_view = self._shards.membership_view
        if self._leading:
            early = self._clocks.now() < self._network_from
            text = (
                "the network's reachability is not judged yet: the leader is new" if early else ""
            )
            if (
                len(membership_view.members) < 2
            ):  # an earlier leader's findings are outdated here, too
                return Uncertainty(network=text)
            if not self._shards.leads():  # it was paused, say: another may lead by now
                return Uncertainty(
                    unsure="this replica's own place among the others is not certain"
                )
            return Uncertainty("", membership_view.differing, self._leader_role.missing(), text)
        outlook, silent = self._outlook, self._no_answer()
        if silent and self._unreached is not None and self._unreached[0] == self.leader:
            silent = f"{silent}: {self._unreached[1]}"
        if outlook is None or silent:
            return Uncertainty(
                "", membership_view.differing, silent or "the leader has not told anything yet"
            )
        theirs = outlook.uncertainty
        differing = membership_view.differing or theirs.differing
        return theirs if differing == theirs.differing else replace(theirs, differing=differing)

    def _no_answer(self) -> str:
        """Why the leader can't be asked; empty: it can."""
        leader_session, leader = self._leader_session, self.leader
        if leader is None:
            return "no replica is known to lead"
        if leader_session is None or leader_session.lost:
            return f"{leader.name}, which leads, is not reached"
        return ""

    def escalation_hold(self, proposal: Proposal) -> Held | None:
        silent = "" if self._leading else self._no_answer()
        return _unanswered(silent) if silent else self._record_writer.escalation_hold(proposal)

    def would_admit(self, proposal: Proposal) -> bool:
        return (self._leading or not self._no_answer()) and self._record_writer.would_admit(
            proposal
        )

    async def propose(self, proposal: Proposal) -> Held | None:
        if self._leading:
            if self._shards.leads():
                return await self._record_writer.propose(proposal)
            return _unanswered("this replica leads, and its own place is not certain")
        silent, leader_session = self._no_answer(), self._leader_session
        if silent or leader_session is None:
            return _unanswered(silent)
        self._record_writer.switch.begin_check()  # in parallel: the steps after admission need it
        try:
            decision = await leader_session.ask(proposal)
        except LeaderSessionClosed as lost:
            return _unanswered(str(lost))
        if decision.failed:
            raise ClusterError(decision.failed)
        if decision.held is not None:
            return decision.held
        return await self._record_writer.confirm_entry(proposal.node)

    # -- in time -------------------------------------------------------------------------------

    async def run(self) -> None:
        """Run the leader's work for the followers, for ever."""
        turn = 0
        while True:
            await self._next_turn()
            for node in self._remote_nodes.take_expired(self._clocks.now()):
                self._forget(node)
            if self._leading and len(self._shards.membership_view.members) > 1:
                if turn % COUNT_EVERY == 0:
                    self._reported = self._registry.size().reported
                turn += 1
                if self._is_certain():
                    self._cause_tracker.find_causes()
                uncertainty = self.uncertainty()
                self._leader_role.find_causes(uncertainty, self._reported)
                if self._shards.leads():
                    self._coordination_alerts.check_replicas(uncertainty)
            self._uncertainty_changed()

    async def _next_turn(self) -> None:
        """Wait; a replica that is alone, and leads, has nothing to do before it gets company."""
        self._members_changed.clear()
        if len(self._shards.membership_view.members) > 1:
            await asyncio.sleep(TICK)
        elif self._changes_in_time():
            await asyncio.sleep(_ALONE)
        else:
            await self._members_changed.wait()

    def _changes_in_time(self) -> bool:
        """Whether time alone may change what a replica without company knows of others."""
        early = self._clocks.now() < self._network_from
        return early or not self._leading or not self._remote_nodes.is_empty

    async def count_silence(self) -> None:
        """Count the silent agents, before each round."""
        if not self._leading or self._is_certain():
            await self._cause_tracker.count_silence()

    def go_round(self) -> None:
        """Changes by time alone, in each of the controller's rounds."""
        record = self._record_writer.record
        if self._leader_session is not None and not self._leader_session.lost:
            self._leader_session.note_silence()
        if not self._leading or self._is_certain():
            lasting = self._leading and bool(self._leader_role.missing())
            self._cause_tracker.go_round(record, lasting=lasting)
            self._network_tracker.go_round()

    def _is_certain(self) -> bool:
        """Whether replicas' reports, and their silence, can be relied on.

        A process that was paused finds all replicas silent on waking, before it knows that it does
        not lead any more. (Where the API server is away we do lead, and people are alerted.)
        """
        return self._shards.leads() or bool(self._shards.membership_view.frozen)

    def _uncertainty_changed(self) -> None:
        """Check nodes that were held for lack of knowledge again as soon as we have it."""
        uncertainty = self.uncertainty()
        if uncertainty == self._known_uncertainty:
            return
        self._known_uncertainty = uncertainty
        self._fleet.incomplete = uncertainty.unsure or uncertainty.missing
        if self._leading and len(self._shards.membership_view.members) > 1:
            self._leader_role.find_causes(uncertainty, self._reported)
        if self._registry.held() and (self._asking is None or self._asking.done()):
            self._asking = asyncio.create_task(self._ask_again(), name="ask again")

    async def _ask_again(self) -> None:
        held = [one for one in self._registry.held() if _held_by_shards(one)]
        for count, node_state in enumerate(held, 1):
            if _held_by_shards(node_state):
                self._again(node_state)
            if count % _SLICE == 0:
                await asyncio.sleep(0)

    def close(self) -> None:
        if self._asking is not None:
            self._asking.cancel()
        if self._leader_session is not None:
            self._leader_session.close("the aggregator stops")
        self._leader_role.close("the aggregator stops")


def _held_by_shards(node_state: NodeState) -> bool:
    return node_state.decision.hold is not None and node_state.decision.hold.limit == "shards"


def _unanswered(why: str) -> Held:
    return Held("shards", "no answer", f"{why}; asked again in a moment")
