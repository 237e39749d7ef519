"""A reboot by Slurm: `scontrol reboot`, which waits for jobs and for slurmd's return.

The boot that the node's agent reports proves it, once Slurm's own state shows that it is over.
"""

from aggregator.cluster.port import ClusterError, Conflict, Guard, NotFound, Refused
from aggregator.cluster.reboots import NodeReboots, RebootState
from aggregator.quarantine.repair.protocol import AnswerState, RepairAnswer, RepairOrder
from aggregator.repairers.object_answers import answer_of


class SlurmRepairer:
    """Implements `Repairer`. An order that is sent again finds its reboot."""

    sends_twice = True

    def __init__(self, reboots: NodeReboots) -> None:
        self._reboots = reboots

    async def order(self, order: RepairOrder, guard: Guard) -> RepairAnswer:
        try:
            await self._reboots.order(order.node, order.operation, guard=guard)
        except Conflict as error:
            return RepairAnswer(AnswerState.NOT_SENT, str(error))
        except ClusterError as error:
            return answer_of(error, sent=True)
        return RepairAnswer(AnswerState.TAKEN)

    async def read_outcome(self, order: RepairOrder) -> RepairAnswer:
        try:
            found = await self._reboots.progress(order.node, order.operation)
        except ClusterError as error:
            return RepairAnswer(AnswerState.TAKEN, str(error))
        failed = found.state is RebootState.FAILED
        return RepairAnswer(AnswerState.FAILED if failed else AnswerState.TAKEN, found.text)

    async def cancel(self, order: RepairOrder) -> bool:
        try:
            return await self._reboots.cancel(order.node, order.operation)
        except (NotFound, Refused):
            return False

    async def is_over(self, order: RepairOrder) -> bool:
        """Whether Slurm has finished: before that it holds the node for a reboot."""
        try:
            found = await self._reboots.progress(order.node, order.operation)
        except ClusterError:
            return False
        return found.state in (RebootState.DONE, RebootState.NONE)
