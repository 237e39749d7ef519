"""A site's command, run to its end or its time limit by ``command_child``. Facts, no verdict."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nodeagent.child_process import ChildProcess, python
from nodeagent.dataclass import dataclass

__all__ = ["CommandProcess", "CommandStuck", "Outcome"]


#: Bytes: of standard output that are kept, and after which a program is ended.
KEPT = 4096
MOST = 4 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a run ended: exactly one of the first five is set, and the output until then.

    ``late`` is where it waited when its time was over ("S in do_nanosleep"), ``broken`` why it
    could not be run at all. ``out`` and ``err`` are the beginning of its output. ``left`` is how
    many processes it left behind, all ended; ``stuck`` is where one waits that could not be.
    """

    exit: int | None = None
    signal: int | None = None
    errno: int | None = None
    late: str | None = None
    flood: bool = False
    broken: str = ""
    out: str = ""
    err: str = ""
    left: int = 0
    stuck: str = ""


@dataclass(frozen=True, slots=True)
class CommandStuck:
    """An earlier run has left a process that cannot be ended, so there is no new one."""

    where: str


class CommandProcess:
    """One command, one run at a time. ``time_limit`` is in seconds; ``host_root`` is passed to it.

    ``kept`` are the bytes of its output that are kept, ``most`` those after which it is ended.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        time_limit: float,
        host_root: Path,
        kept: int = KEPT,
        most: int = MOST,
    ) -> None:
        self._arguments = (f"{time_limit:g}:{kept}:{most}", str(host_root), *command)
        # JSON writes one control character as six.
        self._line_limit = max(65536, 6 * kept + 65536)
        self._child: ChildProcess | None = None
        self._stuck = ""

    def stop(self) -> None:
        """End the run under way, if there is one, with all that it started."""
        if self._child is not None:
            self._child.hang_up()

    async def run(self) -> Outcome | CommandStuck:
        """Run it; takes at most the time limit and some two seconds, unless the kernel hangs."""
        if self._child is not None and not self._child.ended.done():
            return CommandStuck(self._stuck or "a process of an earlier run")
        line_read: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        def on_line(line: str) -> None:
            if not line_read.done():
                line_read.set_result(line)

        try:
            child = self._child = ChildProcess(
                python("command_child.py", *self._arguments),
                on_line,
                line_limit=self._line_limit,
            )
        except OSError as error:
            return Outcome(broken=f"no process can be started: {error.strerror}")
        try:
            either: set[asyncio.Future[Any]] = {line_read, child.ended}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            child.hang_up()
            raise
        if not line_read.done():
            words = f": {child.last_words}" if child.last_words else ""
            return Outcome(
                broken=f"the process that runs it ended with status {child.ended.result()}{words}"
            )
        try:
            outcome = Outcome(**json.loads(line_read.result()))
        except (ValueError, TypeError):  # a traceback instead of the one line
            return Outcome(
                broken=f"the process that runs it failed: {child.last_words or line_read.result()}"
            )
        self._stuck = outcome.stuck
        if not outcome.stuck:
            await asyncio.wait({child.ended})
        return outcome
