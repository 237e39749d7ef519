"""Shows the tests of new and idle nodes: to the page and the metrics, and as a Node's condition."""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet

from attrs import define, field

from aggregator.cluster.port import Guard
from aggregator.quarantine.decide.new_nodes import (
    condition_of,
    has_passed,
    needs_a_person,
    why_over,
    why_untested,
)
from aggregator.quarantine.decide.repair import RepairMode
from aggregator.quarantine.repair.node_test_state import NodeTestContext, WatchedNode
from aggregator.quarantine.state.fleet import NodeTestView


@define(eq=False, slots=False, kw_only=True)
class NodeTestDisplay:
    """Decides nothing."""

    _shared: NodeTestContext
    #: The nodes that are shown as new ones.
    _untested: AbstractSet[str] = field(init=False, factory=frozenset)

    def show(self, watched: Mapping[str, WatchedNode]) -> None:
        """Give the page and the metrics the state of our own nodes."""
        self._shared.fleet.node_tests = {
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
            for name, view in self._shared.fleet.node_tests.items()
            if view.tainted and not view.passed
        }
        for name in self._untested | lines.keys():
            node_state = self._shared.registry.known(name)
            if node_state is not None:
                node_state.cluster.set_untested(lines.get(name, ""))
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
