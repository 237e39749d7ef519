"""A repair by a program of the site: an argument list, no shell.

Exit code 0: taken, or done where no node proves it. 75 (EX_TEMPFAIL of sysexits.h): nothing was
ordered, run it again. Any other: it has failed, and nothing was ordered. A program that does not
end in its time leaves the outcome unknown.

A test has the exit codes of `sickbay-agent test`: 0 passed, 1 failed. Any other, and a program that
was ended, give no verdict about the node.
"""

from collections.abc import Sequence

from attrs import define, field

from aggregator.cluster.local.commands import SiteCommandFailed, finish_command
from aggregator.cluster.port import UNGUARDED, Guard, Unreachable
from aggregator.policy.repairs import TEST
from aggregator.quarantine.repair.protocol import AnswerState, RepairAnswer, RepairOrder
from aggregator.repairers.sent_once import SentOnce

_NOT_YET = 75
_TEST_FAILED = 1


@define(eq=False, repr=False, slots=False)
class CommandRepairer(SentOnce):
    """Implements `Repairer`. ``sends_twice``: the site declares that a second call with the same
    operation is harmless. ``limit``: seconds for one call. ``cancel`` takes the order back.
    """

    _argv: Sequence[str]
    _cancel: Sequence[str] = field(kw_only=True)
    _limit: float = field(kw_only=True)
    sends_twice: bool = field(kw_only=True)

    async def order(self, order: RepairOrder, guard: Guard) -> RepairAnswer:
        return await self._run(self._argv, order, guard)

    async def cancel(self, order: RepairOrder) -> bool:
        if not self._cancel:
            return False
        answer = await self._run(self._cancel, order, UNGUARDED)
        if answer.state is AnswerState.NOT_SENT:
            raise Unreachable(answer.text)
        return answer.state is AnswerState.DONE

    async def _run(self, argv: Sequence[str], order: RepairOrder, guard: Guard) -> RepairAnswer:
        key = f"repair.repairers.{order.repair}.command"
        limit = min(self._limit, order.lasts)
        try:
            finished = await finish_command(
                argv, key=key, values=order.values(), limit=limit, guard=guard
            )
        except SiteCommandFailed as error:
            if not error.was_begun:
                return RepairAnswer(AnswerState.NOT_SENT, str(error))
            ended = AnswerState.INCONCLUSIVE if order.repair == TEST else AnswerState.UNSURE
            return RepairAnswer(ended, str(error))
        if finished.code == 0:
            return RepairAnswer(AnswerState.DONE, finished.output)
        if finished.code == _NOT_YET:
            return RepairAnswer(AnswerState.NOT_SENT, finished.in_words)
        no_verdict = order.repair == TEST and finished.code != _TEST_FAILED
        state = AnswerState.INCONCLUSIVE if no_verdict else AnswerState.FAILED
        return RepairAnswer(state, finished.in_words)
