"""The choice of the idle nodes that are tested next."""

from collections.abc import Mapping

from attrs import define, field

from aggregator.quarantine.decide.admission_record import IDLE_TEST
from aggregator.quarantine.decide.idle_nodes import IdleCandidate, IdleNodeRules, choose, waits_for
from aggregator.quarantine.repair.node_test_checks import NodeTestChecks
from aggregator.quarantine.repair.node_test_state import POLL_EVERY, NodeTestContext, WatchedNode
from aggregator.quarantine.state.node import NodeState

#: An idle node whose test did not begin is checked again this much later (seconds).
_IDLE_AGAIN = 600.0
#: The beginning of why a test waits for the limit of the fleet.
_HELD = "held by repair.idle_nodes."


@define(eq=False, repr=False, slots=False, kw_only=True)
class IdleNodeChoice:
    """Searches all nodes in memory, as nearly none of them is due."""

    _shared: NodeTestContext
    _checks: NodeTestChecks
    #: Until when an idle node is not checked again.
    _again: dict[str, float] = field(init=False, factory=dict)
    #: When idle nodes are looked through again; at once unless none was due.
    _choose_at: float = field(init=False, default=float("-inf"))

    def forget_old(self) -> None:
        """Forget the nodes that may be checked again."""
        now = self._shared.clocks.now()
        self._again = {name: at for name, at in self._again.items() if now < at}

    async def choose_due(
        self, idle: IdleNodeRules, watched: Mapping[str, WatchedNode]
    ) -> list[IdleCandidate]:
        """The nodes whose periodic test is due, as many as the fleet's limit has room for."""
        now = self._shared.clocks.now()
        if now < self._choose_at:
            return []
        tests_now = self._shared.record_writer.current_record().node_tests.values()
        runs = [one for one in tests_now if one.kind == IDLE_TEST]
        most, _, _ = idle.most(self._shared.registry.size().nodes)
        room = most - len(runs) - sum(one.chosen for one in watched.values())
        # A person's request that waits has a place, because it is polled less often than this runs.
        room -= sum(bool(one.requested) and one.held.startswith(_HELD) for one in watched.values())
        if room <= 0:
            return []
        candidates = []
        pause, earliest = self._shared.settings.rules.test_pause, self._shared.clocks.earliest()
        async for node_state in self._shared.registry.by_slices():
            name = node_state.node
            test = self._checks.last_test(name)
            if waits_for(test, idle, pause=pause, now=earliest):  # nearly all, so it is first
                continue
            if now < self._again.get(name, now) or not self._is_free(node_state, watched.get(name)):
                continue
            candidates.append(IdleCandidate(name, self._shared.registry.uid_of(name), test))
        if not candidates:
            self._choose_at = now + POLL_EVERY
        chosen = choose(candidates, room)
        for due in chosen:
            self._again[due.node] = now + _IDLE_AGAIN
        return chosen

    def _is_free(self, node_state: NodeState, known: WatchedNode | None) -> bool:
        """Whether memory has nothing against a periodic test of the node."""
        if known is not None:
            acts = known.tainted or known.chosen or known.is_running or known.busy is not None
            if acts or known.problem:
                return False
        name = node_state.node
        return self._shared.may_act() and not self._checks.against_state(name, node_state)
