"""A hook that runs a command of the site: an argument list, no shell.

Exit code 0: done. 75 (EX_TEMPFAIL of sysexits.h): not yet, run it again. Any other: it has failed,
and is tried again too. The command is ended, with its children, when its time or the drain is over.
"""

from collections.abc import Mapping, Sequence

from aggregator.cluster.local.commands import SiteCommandFailed, finish_command
from aggregator.cluster.port import ClusterError, Guard
from aggregator.quarantine.drain.hooks import HookAnswer, HookResult

_NOT_YET = 75


class CommandHook:
    """Implements `Hook`."""

    def __init__(self, argv: Sequence[str]) -> None:
        self._argv = argv

    async def call(self, values: Mapping[str, str], *, limit: float, guard: Guard) -> HookAnswer:
        try:
            key = f"drain.{values['hook']}.command"
            finished = await finish_command(
                self._argv, key=key, values=values, limit=limit, guard=guard
            )
        except SiteCommandFailed as error:
            return HookAnswer(HookResult.FAILED, str(error))
        except ClusterError as error:
            return HookAnswer(HookResult.LATER, str(error))
        if finished.code == 0:
            return HookAnswer(HookResult.DONE, finished.output)
        if finished.code == _NOT_YET:
            return HookAnswer(HookResult.LATER, finished.output)
        return HookAnswer(HookResult.FAILED, finished.in_words)
