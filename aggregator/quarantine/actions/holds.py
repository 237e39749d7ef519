"""A node's desired state as far as limits let it be, its proposal, and the report of its hold."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from attrs import define

from aggregator.cluster.port import Action, Quarantine
from aggregator.events import EventKind
from aggregator.quarantine.actions.node_actions import NodeActions
from aggregator.quarantine.admission.record_writer import AdmissionRecordWriter
from aggregator.quarantine.correlation.common_cause import CommonCauseTracker
from aggregator.quarantine.correlation.followers import EvictionMemory
from aggregator.quarantine.decide.admission import Proposal, stopped
from aggregator.quarantine.decide.held import Held
from aggregator.quarantine.decide.intent import OURS, DesiredState, is_overridden
from aggregator.quarantine.decide.maintenance import is_stale
from aggregator.quarantine.state.fleet import UNREAD_STATUS
from aggregator.quarantine.state.node import NodeState
from aggregator.quarantine.state.quarantine_view import MARKED
from aggregator.quarantine.state.registry import NodePools, NodeRegistry

NO_NODE = "the cluster has no node of this name"


@define(eq=False, repr=False, slots=False, kw_only=True)
class NodeHolds:
    _acts: NodeActions

    def spares(self, node_state: NodeState, wanted: DesiredState) -> bool:
        """Whether no quarantine may begin: the node does not exist, or another party is at work."""
        return self.is_nowhere(node_state, wanted) or self.leave_alone(node_state, wanted)

    def is_nowhere(self, node_state: NodeState, wanted: DesiredState) -> bool:
        """Whether the cluster has no such node: it is held then, counts for no limit, and is looked
        for again, for it may come (back).
        """
        if node_state.cluster.node_gone:
            self.hold(node_state, Held("no-node", "not found", NO_NODE), wanted.spec.action)
        return node_state.cluster.node_gone

    def leave_alone(self, node_state: NodeState, wanted: DesiredState) -> bool:
        """Whether another party is at work on the node: it is held then, and checked again."""
        if not node_state.cluster.maintained:
            return False
        reason = node_state.cluster.maintained
        limit = "stale-mark" if is_stale(reason) else "maintenance"
        self.hold(node_state, Held(limit, "others", reason), wanted.spec.action)
        return True

    def hold(
        self, node_state: NodeState, held: Held, action: Action, *, reports: bool = True
    ) -> None:
        """Show why the action is not carried out now, and report it once."""
        self._acts.stages.note_hold(node_state.node)
        before = node_state.decision.hold
        since = before.since if before is not None else self._acts.clocks.wall()
        node_state.set_hold(replace(held, since=since))
        if not reports or (before is not None and before.limit == held.limit):
            return
        details = {"limit": held.limit, "value": held.value}
        if held.cause:
            details["cause"] = held.cause
        self._acts.emit_event(node_state, EventKind.HELD, f"{action} {held.text}", details)

    async def leave_foreign(self, node_state: NodeState) -> None:
        """Another installation has the node in quarantine: we neither act on that nor undo it, and
        report that where we want one, too.

        An admission here for the same node was not begun, and gives its place back.
        """
        node_state.work.needs_read = False
        entry = self._acts.record_writer.record.entries.get(node_state.node)
        if entry is not None:
            await self._acts.record_writer.withdraw(entry)
        quarantine, wanted = node_state.quarantine, node_state.decision.wanted
        if quarantine is None or wanted is None or wanted.in_force is Action.OBSERVE:
            node_state.set_hold(None)
            return
        text = f"it is in quarantine by the sickbay in namespace {quarantine.foreign}"
        held = Held("installation", quarantine.foreign, text)
        self.hold(node_state, held, wanted.spec.action)

    def hold_stopped(self, node_state: NodeState) -> None:
        """The stop switch keeps a quarantine in force from continuing; report that.

        Nodes that are marked already and only not drained get no event each: the stop itself is
        reported.
        """
        quarantine, held = node_state.quarantine, stopped(self._acts.switch.reason)
        if quarantine is not None:
            reports = quarantine.status.phase not in MARKED
            self.hold(node_state, held, quarantine.spec.action, reports=reports)

    def hold_unread(self, node_state: NodeState, quarantine: Quarantine) -> None:
        """Report that part of its status, which a later version may have written, stops it."""
        text = (
            "part of its Quarantine's status can't be read, and is left as it is: a later version "
            f"may have written it ({quarantine.unread})"
        )
        held = Held(UNREAD_STATUS, ", ".join(sorted(quarantine.unread_fields)), text)
        self.hold(node_state, held, quarantine.spec.action)

    def unhold_resumed(self, node_state: NodeState) -> None:
        """The stop is over, or the status can be read: neither holds a quarantine in force."""
        known = node_state.decision.hold
        if known is None:
            return
        quarantine = node_state.quarantine
        resumed = known.limit == "stop" and quarantine is not None and not self._acts.switch.reason
        read = known.limit == UNREAD_STATUS and (quarantine is None or not quarantine.unread)
        if resumed or read:
            node_state.set_hold(None)

    def unhold(self, node_state: NodeState) -> None:
        """No limit holds the desired action any more; a stop may still keep it from being begun."""
        known = node_state.decision.hold
        if known is not None and not (known.limit == "stop" and self._acts.switch.reason):
            node_state.set_hold(None)


@define(eq=False, repr=False, slots=False, kw_only=True)
class Proposals:
    _holds: NodeHolds
    _record_writer: AdmissionRecordWriter
    _causes: CommonCauseTracker
    _evictions: EvictionMemory
    _pools: NodePools
    _registry: NodeRegistry

    def wanted_now(self, node_state: NodeState) -> DesiredState | None:
        """The node's desired state. A shared cause turns no existing cordon into a drain."""
        wanted, quarantine = node_state.decision.wanted, node_state.quarantine
        if quarantine is None or quarantine.unread or quarantine.spec.requester != OURS:
            return wanted
        if (
            wanted is None
            or is_overridden(quarantine.spec)  # a person has decided on the action
            or wanted.spec.action.strength <= quarantine.spec.action.strength
        ):
            self._holds.unhold(node_state)
            return wanted
        suspects = self._causes.drain_suspects(node_state)
        proposal = replace(self.propose(node_state, wanted), suspects=suspects)
        held = self._record_writer.escalation_hold(proposal) or self.fabric_hold(node_state)
        if held is None:
            self._holds.unhold(node_state)
            return wanted
        self._holds.hold(node_state, held, wanted.spec.action)
        return replace(wanted, spec=replace(wanted.spec, action=quarantine.spec.action))

    def repair_hold(self, node_state: NodeState) -> Held | None:
        """The reason against a repair of the node's evidence as an act on this node alone."""
        wanted = node_state.decision.wanted
        if wanted is None:
            return None  # its evidence is over, and it has failed a test of its own
        return self._record_writer.repair_hold(self.propose(node_state, wanted))

    def propose(self, node_state: NodeState, wanted: DesiredState) -> Proposal:
        return self._proposal(node_state.node, node_state, wanted.spec.incident)

    def preview(self, nodes: Iterable[str]) -> Mapping[str, Held]:
        """By node, the hold of each that would be held; the ``nodes`` are in the order in which
        their quarantines would be requested. The others would be admitted.

        It uses the same function as a real proposal, against the present record, and admits no
        node. Common causes may explain only nodes whose state is known here.
        """
        proposals = []
        for node in nodes:
            node_state = self._registry.known(node)
            reported = node_state is not None and node_state.agent.health is not None
            proposals.append(self._proposal(node, node_state if reported else None))
        return self._record_writer.preview(proposals)

    def _proposal(self, node: str, known: NodeState | None, incident: str = "") -> Proposal:
        pool, policy_pool = self._registry.pool_of(node), self._pools.name_of(node)
        suspects = self._causes.suspects(known) if known is not None else ()
        unsettled = self._causes.unsettled(known) if known is not None else ""
        return Proposal(node, incident, pool, suspects, unsettled, policy_pool)

    def fabric_hold(self, node_state: NodeState) -> Held | None:
        """The reason that holds it while the fabric may be the cause of its fault."""
        return self._evictions.hold(node_state) or self._causes.fabric_hold(node_state)
