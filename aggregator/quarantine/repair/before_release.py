"""The test before a release by recovery: which nodes have to pass it, and what outdates it."""

from dataclasses import replace

from attrs import define

from aggregator.clock import Clocks
from aggregator.cluster.port import ClusterError, Quarantine
from aggregator.policy.repairs import TEST
from aggregator.quarantine.decide.intent import OURS
from aggregator.quarantine.decide.repair import RepairMode
from aggregator.quarantine.decide.repair_plan import is_emptied
from aggregator.quarantine.decide.verdicts import is_verified, outdates
from aggregator.quarantine.repair.protocol import RepairSettings
from aggregator.quarantine.repair.status_writer import NO_FIELD, RepairStatusWriter
from aggregator.quarantine.state.node import NodeState
from aggregator.runtime.recent import Recent

#: For this long (seconds) a read of the node's pods is valid, which shows that no test is due on
#: it.
_POLL_VALID = 60.0


@define(eq=False, repr=False, slots=False)
class TestsBeforeRelease:
    """Remembers of each node what its Quarantine can't know yet."""

    _settings: RepairSettings
    _clocks: Clocks
    _status: RepairStatusWriter

    def __attrs_post_init__(self) -> None:
        #: The uids of quarantines in which evidence is in force that outdates a test, by node.
        self._outdated: Recent[str, str] = Recent()
        #: Nodes that are in use: the quarantine's uid, why, and until when that counts (monotonic).
        self._in_use: Recent[str, tuple[str, str, float]] = Recent()

    def hold(self, node_state: NodeState) -> bool:
        """Whether the node has to pass a test before it is released by recovery."""
        quarantine = node_state.quarantine
        if quarantine is None or self._settings.off:
            return False
        self.note_evidence(node_state, quarantine)
        if not self._settings.verifies or self.why_none(node_state, quarantine):
            return False
        return not self._is_verified(node_state, quarantine)

    def is_what_holds(self, node_state: NodeState) -> bool:
        """Whether a test alone keeps a recovered node from its release."""
        recovered = node_state.agent.is_fresh and not node_state.acting
        return recovered and self.hold(node_state)

    def why_none(self, node_state: NodeState, quarantine: Quarantine) -> str:
        """Why the node is released without a test, in words; empty: it is tested."""
        if quarantine.spec.requester != OURS:
            return "a person's quarantine ends by their word"
        if not is_emptied(quarantine):
            return "the node has not been drained"
        if node_state.cluster.operator_requests.exempt(self._clocks.earliest()):
            return "people want it left alone"
        uid, why, until = self._in_use.get(node_state.node, ("", "", 0.0))
        return why if uid == quarantine.uid and self._clocks.now() < until else ""

    def untested(self, node_state: NodeState) -> str:
        """The text about a release by recovery without a test before it; empty: it has had one."""
        quarantine, rules = node_state.quarantine, self._settings.rules
        if quarantine is None or self._settings.off or not rules.verify:
            return ""
        if self._is_verified(node_state, quarantine):
            return ""
        why = self.why_none(node_state, quarantine)
        if not why and rules.mode is RepairMode.OBSERVE:
            return f"{TEST} {rules.verify} would come before its release (repair.mode is observe)"
        why = why or "it is in mode observe, or was made anew"
        return f"it is released without the test {rules.verify}: {why}"

    def note_use(self, quarantine: Quarantine, why: str) -> None:
        """The node, which was only cordoned, is in use: no test is due on it."""
        self._in_use[quarantine.node] = quarantine.uid, why, self._clocks.now() + _POLL_VALID

    def note_evidence(self, node_state: NodeState, quarantine: Quarantine) -> None:
        """Evidence in force outdates a test, also where it is over before the next step."""
        known = self._is_outdated(node_state, quarantine)
        if not known and is_in_force(node_state) and outdates(quarantine.status.repair):
            self._outdated[node_state.node] = quarantine.uid
            node_state.quarantine_view.repair_poll = self._clocks.now()

    async def write_evidence(self, node_state: NodeState, quarantine: Quarantine) -> bool:
        """Make it durable that evidence outdates the tests. Returns whether that was written."""
        before = quarantine.status.repair
        known = self._is_outdated(node_state, quarantine)
        if known and outdates(before):
            latest = max((one.began_at for one in before.attempts), default=0.0)
            at = round(max(self._clocks.latest(), latest), 3)
            after = replace(before, evidence_at=at, test_waits_since=0.0)
            written = await self._status.write(node_state, quarantine, after)
            if written.status.repair.evidence_at != at:
                raise ClusterError(NO_FIELD)
        self._outdated.pop(node_state.node, None)
        return known

    def _is_outdated(self, node_state: NodeState, quarantine: Quarantine) -> bool:
        return self._outdated.get(node_state.node) == quarantine.uid

    def _is_verified(self, node_state: NodeState, quarantine: Quarantine) -> bool:
        if self._is_outdated(node_state, quarantine):
            return False
        profile = self._settings.rules.verify
        return is_verified(quarantine.status.repair, profile, boot_of(node_state))


def is_in_force(node_state: NodeState) -> bool:
    """Whether the node's agent reports evidence in force. An incident that only waits for its
    evidence to stay away does not count: after a start that wait begins anew.
    """
    return node_state.agent.is_fresh and any(
        incident.action != "observe" and incident.in_force
        for incident in node_state.decision.incidents.values()
    )


def boot_of(node_state: NodeState) -> str:
    """The boot that the node's agent reports from; empty while none has."""
    return node_state.agent.health.boot_id if node_state.agent.health is not None else ""
