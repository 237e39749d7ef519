"""A hook that is a command of the site's: an argument list, no shell.

Exit code 0: done. 75 (EX_TEMPFAIL of sysexits.h): not yet, ask again. Any other: it has failed, and
is tried again too. It is ended, with its children, when its time is over or the drain is.
"""

from collections.abc import Mapping, Sequence

from aggregator.local.commands import CommandFailed, finish_command
from aggregator.quarantine.hooking import HookAnswer, Said

_NOT_YET = 75


class CommandHook:
    """Implements `Hook`."""

    def __init__(self, argv: Sequence[str]) -> None:
        self._argv = argv

    async def ask(self, values: Mapping[str, str], *, limit: float) -> HookAnswer:
        try:
            key = f"drain.{values['hook']}.command"
            finished = await finish_command(self._argv, key=key, values=values, limit=limit)
        except CommandFailed as error:
            return HookAnswer(Said.FAILED, str(error))
        if finished.code == 0:
            return HookAnswer(Said.DONE, finished.output)
        if finished.code == _NOT_YET:
            return HookAnswer(Said.LATER, finished.output)
        said = f": {finished.output}" if finished.output else ""
        text = f"{self._argv[0]} exited with {finished.code}{said}"
        return HookAnswer(Said.FAILED, text)
