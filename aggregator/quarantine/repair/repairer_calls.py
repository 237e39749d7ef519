"""The calls of an operation's repairer, of a repair and of a node's test: order, outcome, end."""

import contextlib
from collections.abc import Mapping

from attrs import define

from aggregator.cluster.port import Conflict, Guard, RepairState, Unreachable
from aggregator.quarantine.repair.attempts import PROVED_BY_NODE
from aggregator.quarantine.repair.protocol import (
    AnswerState,
    ConfiguredRepairer,
    RepairAnswer,
    RepairOrder,
)
from aggregator.runtime.recent import Recent

#: An order that its process could not send within this long of writing it is not sent (seconds):
#: the process was paused, and another one may have gone on.
SEND_WITHIN = 20.0
#: An operation that has ended waits this long beyond its deadline (seconds) for the removal of what
#: its order left in the cluster. Then its end is written without that.
REMOVE_WITHIN = 300.0
#: Operations whose details are kept.
_MOST_DETAILS = 1000
_ENDS: Mapping[AnswerState, RepairState] = {
    AnswerState.DONE: RepairState.SUCCEEDED,
    AnswerState.FAILED: RepairState.FAILED,
    AnswerState.INCONCLUSIVE: RepairState.INCONCLUSIVE,
}


def end_state(kind: str, answer: RepairAnswer) -> RepairState | None:
    """The state in which the answer ends an operation, if it ends it.

    Where the Node is the proof, a repairer's word that the repair is done ends nothing.
    """
    if answer.state is AnswerState.DONE and kind in PROVED_BY_NODE:
        return None
    return _ENDS.get(answer.state)


@define(eq=False, repr=False, slots=False)
class RepairerCalls:
    """Remembers what repairers have reported of operations until these end."""

    _repairers: Mapping[str, ConfiguredRepairer]

    def __attrs_post_init__(self) -> None:
        #: The repairer's details in addition to the text, by operation, for the event of its end.
        self._details: Recent[str, Mapping[str, str]] = Recent(_MOST_DETAILS)

    async def order(self, order: RepairOrder, guard: Guard) -> RepairAnswer:
        """Send the order. Raises what its guard raised: then it was not sent. The caller knows that
        the kind has a repairer.
        """
        return self._keep(order, await self._repairers[order.repair].repairer.order(order, guard))

    async def outcome(self, order: RepairOrder) -> RepairAnswer:
        """How far the order has come; a kind without a repairer now is under way."""
        entry = self._repairers.get(order.repair)
        if entry is None:  # the configuration has lost it since
            return RepairAnswer(AnswerState.TAKEN)
        return self._keep(order, await entry.repairer.read_outcome(order))

    async def take_back(self, order: RepairOrder) -> bool:
        """As `Repairer.cancel`."""
        entry = self._repairers.get(order.repair)
        return entry is not None and await entry.repairer.cancel(order)

    async def cancel(self, order: RepairOrder) -> bool:
        """The same where no later try follows, so that it raises nothing."""
        with contextlib.suppress(Unreachable, Conflict):
            return await self.take_back(order)
        return False

    def note_end(self, kind: str, node: str, operation: str) -> Mapping[str, str]:
        """The end is durable. Returns the details that the repairer reported."""
        entry = self._repairers.get(kind)
        if entry is not None and entry.note_end is not None:
            entry.note_end(node, operation)
        return self._details.pop(operation, {})

    def _keep(self, order: RepairOrder, answer: RepairAnswer) -> RepairAnswer:
        if answer.details:
            self._details[order.operation] = answer.details
        return answer
