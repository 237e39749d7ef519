"""Reports on the tests of new and of idle nodes: events, the page and the metrics, a Node's
condition, and evidence that a node has failed, in the aggregator's own name.
"""

from collections.abc import Container, Mapping
from collections.abc import Set as AbstractSet

from attrs import define, field

from aggregator.cluster.port import Guard, RepairState
from aggregator.events import EventKind, EventSink, Transition
from aggregator.quarantine.correlation.measurements import NodeEvidence
from aggregator.quarantine.decide.new_nodes import (
    condition_of,
    has_passed,
    how_to_take,
    needs_a_person,
    why_over,
    why_untested,
)
from aggregator.quarantine.decide.node_tests import (
    BY_HAND,
    IDLE,
    NEW_NODE,
    NodeTest,
    as_details,
    failure_evidence,
    has_failed,
    is_own_evidence,
)
from aggregator.quarantine.decide.repair import RepairMode
from aggregator.quarantine.repair.before_release import boot_of
from aggregator.quarantine.repair.node_test_state import NodeTestContext, WatchedNode
from aggregator.quarantine.state.fleet import NodeTestView
from aggregator.quarantine.state.node import NodeState

_IN_WORDS: Mapping[RepairState, str] = {
    RepairState.SUCCEEDED: "passed",
    RepairState.FAILED: "failed",
    RepairState.CANCELLED: "was ended",
}


@define(eq=False, repr=False, slots=False, kw_only=True)
class NodeTestReports:
    """Decides nothing. Counts the tests that have ended, too."""

    _shared: NodeTestContext
    _event_sink: EventSink
    #: Gives a node evidence in our own name.
    _evidence: NodeEvidence
    #: The nodes that are shown as new ones.
    _untested: AbstractSet[str] = field(init=False, factory=frozenset)

    def emit_refused(self, name: str, test: NodeTest) -> None:
        """A person's request was refused, so that its test has ended before it began."""
        self._shared.registry.fleet.stages.note_test(BY_HAND, test.state.value)
        details = {**as_details(test), "outcome": test.state.value}
        text = f"test {test.profile} of the {node_kind(test)} is {test.message}"
        self._emit(name, EventKind.REPAIR_ENDED, text, details)

    def emit_ordered(self, name: str, test: NodeTest, why: str) -> None:
        text = f"test {test.profile} of the {node_kind(test)} is ordered: {why}"
        self._emit(name, EventKind.REPAIR_ORDERED, text, as_details(test))

    def emit_end(
        self, name: str, watched: WatchedNode, test: NodeTest, details: Mapping[str, str]
    ) -> None:
        """The end is durable, with the removal of the taint. ``details``: by the repairer."""
        passed, rules = test.state is RepairState.SUCCEEDED, self._shared.rules
        reason = BY_HAND if test.request else test.reason or NEW_NODE
        self._shared.registry.fleet.stages.note_test(reason, test.state.value)
        reply = f": {test.message}" if test.message else ""
        words = _IN_WORDS.get(test.state, "gave no verdict about it")
        opened = passed and rules.remove_taint and not test.reason
        removed = f"; the taint {rules.taint} is removed" if opened else ""
        text = f"test {test.profile} of the {node_kind(test)} {words}{reply}{removed}"
        details = {**details, **as_details(test), "outcome": test.state.value}
        self._emit(name, EventKind.REPAIR_ENDED, text, details)
        if watched.tainted and not test.reason and needs_a_person(test, watched.boot_id, rules):
            why = why_over(test, watched.boot_id, rules)
            text = (
                f"the new node keeps its taint {rules.taint}: {why}. Repair it and reboot it, or "
                f"test it again: sickbay test {name}. To take it as it is: "
                f"{how_to_take(name, rules)}"
            )
            self._emit(name, EventKind.NEW_NODE_HELD, text, as_details(test))

    def _emit(self, name: str, kind: EventKind, text: str, details: Mapping[str, str]) -> None:
        at = self._shared.clocks.wall()
        self._event_sink.record_event(Transition(at, kind, name, text, details=details))

    # -- the page, and the Node -------------------------------------------------------------

    def show(self, watched: Mapping[str, WatchedNode]) -> None:
        """Give the page and the metrics the state of our own nodes."""
        self._shared.registry.fleet.node_tests = {
            name: self._view_of(one)
            for name, one in watched.items()
            if self._shared.may_act()
            and (one.tainted or one.requested or one.problem or one.test is not None)
        }
        self._show_untested()

    def _view_of(self, watched: WatchedNode) -> NodeTestView:
        test, boot = watched.test, watched.boot_id
        over = watched.tainted and needs_a_person(test, boot, self._shared.rules)
        # The first poll after the test's end has not yet recorded why a person has to act.
        why = why_over(test, boot, self._shared.rules) if over else ""
        return NodeTestView(
            test,
            tainted=watched.tainted,
            held=watched.problem or watched.failure or watched.held or why,
            requested=watched.requested,
            passed=watched.tainted and has_passed(test, boot, self._shared.rules),
            needs_person=over or (watched.tainted and bool(watched.problem)),
        )

    def _show_untested(self) -> None:
        """The line about each node of ours that has the startup taint."""
        lines = {
            name: why_untested(view.test, view.held, needs_person=view.needs_person)
            for name, view in self._shared.registry.fleet.node_tests.items()
            if view.tainted and not view.passed
        }
        for name in self._untested | lines.keys():
            node_state = self._shared.registry.known(name)
            if node_state is not None:
                node_state.cluster.untested = lines.get(name, "")
        self._untested = lines.keys()

    async def write_condition(self, name: str, watched: WatchedNode) -> None:
        """Bring the Node's condition up to date."""
        condition = condition_of(watched.test, tainted=watched.tainted, rules=self._shared.rules)
        if condition is None or condition == watched.shown or watched.problem:
            return
        if not (self._shared.ends or self._shared.settings.rules.mode is RepairMode.REPAIR):
            return
        guard = Guard(self._shared.record_writer.switch.check_place)
        await self._shared.cluster.write_test_condition(
            name, node_uid=watched.uid, condition=condition, guard=guard
        )
        watched.shown = condition

    # -- evidence ---------------------------------------------------------------------------

    def give_evidence(self, name: str, watched: WatchedNode | None) -> None:
        """Emit evidence that the node has failed its test, or that this is over; rules decide on
        it.

        Only while the node's agent reports: of a silent one the boot is not known.
        """
        node_state = self._shared.registry.known(name)
        if node_state is None or not node_state.agent.is_fresh or not self._shared.may_act():
            return
        if self._shared.ends:  # what is known of the node stays
            return
        in_force = _has_own_evidence(node_state)
        quarantine = node_state.quarantine
        status = quarantine.status if quarantine is not None else None
        test, tainted = (watched.test, watched.tainted) if watched is not None else (None, False)
        if not has_failed(test, boot_of(node_state), status, tainted=tainted):
            test = None
        if in_force is (test is None):
            self._evidence.record(name, failure_evidence(test, self._shared.clocks.now()))

    async def end_evidence_except(self, names: Container[str]) -> None:
        """Emit for each other node that a failed test is over, perhaps one of an earlier
        process.
        """
        async for node_state in self._shared.registry.by_slices():
            if node_state.node not in names:
                self.give_evidence(node_state.node, None)


def node_kind(test: NodeTest) -> str:
    """The words for the node that the test is of."""
    if test.reason != IDLE:
        return "new node"
    return "node in service" if test.request else "idle node"


def _has_own_evidence(node_state: NodeState) -> bool:
    """Whether a failed test is open evidence against the node, perhaps from before this process."""
    quarantine = node_state.quarantine
    items = quarantine.spec.evidence if quarantine is not None else ()
    return any(
        is_own_evidence(item.code)
        for incident in node_state.decision.incidents.values()
        for item in incident.in_force
    ) or any(is_own_evidence(item.code) and not item.cleared for item in items)
