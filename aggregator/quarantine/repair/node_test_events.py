"""The events about the tests of new and idle nodes, and what mode observe would have done."""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet

from attrs import define, field

from aggregator.cluster.port import RepairState
from aggregator.events import EventKind, EventSink, Transition
from aggregator.policy.repairs import TEST
from aggregator.quarantine.decide.new_nodes import how_to_take, needs_a_person, why_over
from aggregator.quarantine.decide.node_tests import BY_HAND, IDLE, NEW_NODE, NodeTest, as_details
from aggregator.quarantine.repair.node_test_state import NodeTestContext, WatchedNode

_IN_WORDS: Mapping[RepairState, str] = {
    RepairState.SUCCEEDED: "passed",
    RepairState.FAILED: "failed",
    RepairState.CANCELLED: "was ended",
}


@define(eq=False, slots=False, kw_only=True)
class NodeTestEvents:
    """Counts the tests that have ended, too."""

    _shared: NodeTestContext
    _event_sink: EventSink
    #: The Nodes whose test mode observe has reported, by uid.
    _observed: set[str] = field(init=False, factory=set)
    #: Whether mode observe has reported that idle nodes would be tested.
    idle_reported: bool = field(init=False, default=False)

    def keep_observed(self, uids: AbstractSet[str]) -> None:
        """Forget the Nodes that are gone."""
        self._observed &= uids

    def emit_suppressed(self, name: str, uid: str) -> None:
        """Mode observe orders no test of this new node: report it once."""
        if uid in self._observed:
            return
        self._observed.add(uid)
        rules = self._shared.rules
        text = (
            f"{TEST} {rules.profile} of the new node would be ordered, and its taint {rules.taint} "
            "be removed when it passes (repair.mode is observe)"
        )
        self._emit(name, EventKind.REPAIR_SUPPRESSED, text, {"repair": TEST, "reason": NEW_NODE})

    def emit_idle_suppressed(self, name: str, profile: str) -> None:
        """Mode observe orders no test of idle nodes: report it of the first alone."""
        if self.idle_reported:
            return
        self.idle_reported = True
        text = (
            f"{TEST} {profile} of the idle node would be ordered, and of other idle "
            "nodes too, without further reports (repair.mode is observe)"
        )
        self._emit(name, EventKind.REPAIR_SUPPRESSED, text, {"repair": TEST, "reason": IDLE})

    def emit_refused(self, name: str, test: NodeTest) -> None:
        """A person's request was refused, so that its test has ended before it began."""
        self._shared.fleet.stages.note_test(BY_HAND, test.state.value)
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
        self._shared.fleet.stages.note_test(reason, test.state.value)
        reply = f": {test.message}" if test.message else ""
        words = _IN_WORDS.get(test.state, "gave no verdict about it")
        opened = passed and rules.remove_taint and not test.reason
        removed = f"; the taint {rules.taint} is removed" if opened else ""
        self._emit(
            name,
            EventKind.REPAIR_ENDED,
            f"test {test.profile} of the {node_kind(test)} {words}{reply}{removed}",
            {**details, **as_details(test), "outcome": test.state.value},
        )
        if watched.tainted and not test.reason and needs_a_person(test, watched.boot_id, rules):
            why = why_over(test, watched.boot_id, rules)
            text = (
                f"the new node keeps its taint {rules.taint}: {why}. Repair it and reboot it, or "
                f"test it again: sickbay test {name}. To take it as it is: "
                f"{how_to_take(name, rules)}"
            )
            self._emit(name, EventKind.NEW_NODE_HELD, text, as_details(test))

    def _emit(self, name: str, kind: EventKind, text: str, details: Mapping[str, str]) -> None:
        self._event_sink.record_event(
            Transition(self._shared.clocks.wall(), kind, name, text, details=details)
        )


def node_kind(test: NodeTest) -> str:
    """The words for the node that the test is of."""
    if test.reason != IDLE:
        return "new node"
    return "node in service" if test.request else "idle node"
