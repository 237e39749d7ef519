"""The part of repairs that each release needs, whether any begins or not.

Whether an order may still act on the node, a release reads from its Quarantine, which has the
operations of the node.
"""

from dataclasses import replace

from aggregator.clock import Clocks
from aggregator.cluster.port import RepairState, RepairStatus
from aggregator.policy.repairs import TEST
from aggregator.quarantine.decide.repair import is_busy, malformed
from aggregator.quarantine.repair.attempt_end import AttemptEnds
from aggregator.quarantine.repair.attempts import MOST_TEXT, busy_attempt
from aggregator.quarantine.repair.before_release import TestsBeforeRelease
from aggregator.quarantine.repair.leftovers import RepairLeftovers
from aggregator.quarantine.repair.outcome import AttemptOutcome
from aggregator.quarantine.repair.status_writer import RepairStatusWriter
from aggregator.quarantine.repair.suppressed import SuppressedRepairs
from aggregator.quarantine.repair.unsent_orders import UnsentOrders
from aggregator.quarantine.state.node import NodeState


class RepairsAtRelease:
    """Begins nothing."""

    def __init__(
        self,
        *,
        tests: TestsBeforeRelease,
        status: RepairStatusWriter,
        leftovers: RepairLeftovers,
        ends: AttemptEnds,
        unsent: UnsentOrders,
        suppressed: SuppressedRepairs,
        clocks: Clocks,
    ) -> None:
        self._tests = tests
        self._status = status
        self._leftovers = leftovers
        self._ends = ends
        self._unsent = unsent
        self._suppressed = suppressed
        self._clocks = clocks

    def holds(self, node_state: NodeState) -> bool:
        """Whether the node has to pass a test before it is released by recovery."""
        return self._tests.hold(node_state)

    def note(self, node_state: NodeState) -> None:
        """The node is about to be released by recovery: report it where the rules require a
        test.
        """
        quarantine, text = node_state.quarantine, self._tests.untested(node_state)
        if quarantine is not None and text:
            self._suppressed.report(node_state, quarantine, TEST, text)

    async def withdraw(self, node_state: NodeState) -> None:
        """The node is released: people's requests end, and an order that may act is cancelled."""
        quarantine = node_state.quarantine
        if quarantine is not None:
            await self._status.end_requests(node_state, quarantine)
        if quarantine is None or not is_busy(quarantine.status.repair):
            return
        if malformed(quarantine.status.repair or RepairStatus()):
            return
        attempt = busy_attempt(quarantine)
        outcome = await self._leftovers.withdraw(node_state, quarantine, attempt)
        if outcome is not None:
            if self._unsent.has(node_state, attempt):
                outcome = AttemptOutcome(RepairState.CANCELLED, "its order was not sent")
            at = round(self._clocks.wall(), 3)
            message = (outcome.text or attempt.message)[:MOST_TEXT]
            ended = replace(attempt, state=outcome.state, ended_at=at, message=message)
            self._ends.announce(node_state, ended, outcome.text)
            await self._status.end_with_release(node_state, attempt, ended)
