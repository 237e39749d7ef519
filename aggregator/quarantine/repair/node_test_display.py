"""Shows the tests of new and idle nodes: to the page and the metrics, and as a Node's condition."""

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet

from aggregator.cluster.port import NodesAndPods
from aggregator.quarantine.decide.new_nodes import (
    condition_of,
    has_passed,
    needs_a_person,
    why_over,
    why_untested,
)
from aggregator.quarantine.decide.repair import RepairMode
from aggregator.quarantine.repair.node_test_state import WatchedNode
from aggregator.quarantine.repair.protocol import RepairSettings
from aggregator.quarantine.state.fleet import FleetState, NodeTestView
from aggregator.quarantine.state.registry import NodeRegistry


class NodeTestDisplay:
    """Decides nothing. ``may_act`` tells whether we are the controller at this moment."""

    def __init__(
        self,
        *,
        cluster: NodesAndPods,
        settings: RepairSettings,
        node_registry: NodeRegistry,
        fleet: FleetState,
        may_act: Callable[[], bool],
    ) -> None:
        self._cluster = cluster
        self._mode = settings.rules.mode
        self._rules = settings.rules.new_nodes
        self._registry = node_registry
        self._fleet = fleet
        self._may_act = may_act
        #: The nodes that are shown as new ones.
        self._untested: AbstractSet[str] = frozenset()

    def show(self, watched: Mapping[str, WatchedNode], done: Mapping[str, NodeTestView]) -> None:
        """Give the page and the metrics the state of our own nodes. ``done``: the latest tests of
        nodes that are not watched any more.
        """
        self._fleet.node_tests = {**done} | {
            name: self._view_of(one)
            for name, one in watched.items()
            if self._may_act() and (one.tainted or one.requested or one.test is not None)
        }
        self._show_untested()

    def show_ends(
        self, watched: Mapping[str, WatchedNode], done: Mapping[str, NodeTestView]
    ) -> None:
        """The same where no test is wanted any more, and those under way are ended."""
        self._fleet.node_tests = {**done} | {
            name: NodeTestView(one.test, tainted=False, held=one.failure or one.held)
            for name, one in watched.items()
            if one.test is not None and self._may_act()
        }

    async def write_end(self, name: str, watched: WatchedNode) -> None:
        """The condition of a test that was ended so, in any mode."""
        told = condition_of(watched.test, tainted=False, rules=self._rules)
        if told is not None:
            await self._cluster.write_test_condition(name, node_uid=watched.uid, condition=told)

    def _view_of(self, watched: WatchedNode) -> NodeTestView:
        test, boot = watched.test, watched.boot_id
        over = watched.tainted and needs_a_person(test, boot, self._rules)
        # The first look after the test's end has not yet told why a person has to go on.
        why = why_over(test, boot, self._rules) if over else ""
        return NodeTestView(
            test,
            tainted=watched.tainted,
            held=watched.problem or watched.failure or watched.held or why,
            requested=watched.requested,
            passed=watched.tainted and has_passed(test, boot, self._rules),
            needs_person=over or (watched.tainted and bool(watched.problem)),
        )

    def _show_untested(self) -> None:
        """The line about each node of ours that has the startup taint."""
        lines = {
            name: why_untested(view.test, view.held, needs_person=view.needs_person)
            for name, view in self._fleet.node_tests.items()
            if view.tainted and not view.passed
        }
        for name in self._untested | lines.keys():
            node_state = self._registry.known(name)
            if node_state is not None:
                node_state.cluster.set_untested(lines.get(name, ""))
        self._untested = lines.keys()

    async def write_condition(self, name: str, watched: WatchedNode) -> None:
        """Bring the Node's condition up to date."""
        told = condition_of(watched.test, tainted=watched.tainted, rules=self._rules)
        if told is None or told == watched.said or watched.problem:
            return
        if self._mode is not RepairMode.REPAIR:
            return
        await self._cluster.write_test_condition(name, node_uid=watched.uid, condition=told)
        watched.said = told
