"""Runs a site's test of one group: an argument list, no shell, its own process group, a time limit.

At the limit, and when the search is interrupted, the command gets SIGTERM: a launcher
such as mpirun or srun then ends its processes on the nodes. Processes that are left are killed: one
would disturb the next test.
"""

import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from aggregator.bisection.model import GroupOutcome
from aggregator.cluster.guarded_program import ProgramStopped, run_guarded
from aggregator.cluster.port import UNGUARDED
from aggregator.runtime.command_output import last_text

#: Seconds for the command to end after SIGTERM.
GRACE = 10.0
#: The exit codes that are a verdict.
_VERDICTS = {0: GroupOutcome.PASSED, 1: GroupOutcome.FAILED}


@dataclass(frozen=True, slots=True)
class GroupRun:
    """How a run ended. ``message``: the reason for no verdict, or empty. ``output`` is its end."""

    outcome: GroupOutcome
    seconds: float
    message: str
    output: str


class GroupCommand:
    """``argv`` with ``{nodes}`` (with commas) or ``{nodes_file}`` (one a line) in it."""

    def __init__(self, argv: Sequence[str], *, limit: float, grace: float = GRACE) -> None:
        self._argv = tuple(argv)
        self._limit = limit
        self._grace = grace

    async def run(self, nodes: Sequence[str]) -> GroupRun:
        """Test the nodes. Cancelled, it ends the command first."""
        begun = time.monotonic()
        code, why = None, ""
        with tempfile.TemporaryDirectory(prefix="sickbay-bisect-") as folder:
            listed = Path(folder) / "nodes"
            listed.write_text("".join(f"{node}\n" for node in nodes))
            argv = self._filled(nodes, listed)
            with (Path(folder) / "output").open("w+b") as output:
                try:
                    code = await run_guarded(
                        argv,
                        environ=os.environ,
                        limit=self._limit,
                        guard=UNGUARDED,
                        output=output,
                        errors=output,
                        grace=self._grace,
                    )
                except OSError as error:
                    why = f"{argv[0]} can't be run: {error.strerror}"
                except ProgramStopped as error:
                    why = f"it {error}"
                text = last_text(output)
        outcome = GroupOutcome.INCONCLUSIVE
        if code is not None:
            outcome = _VERDICTS.get(code, outcome)
            if outcome is GroupOutcome.INCONCLUSIVE:
                why = f"signal {-code}" if code < 0 else f"exit code {code}"
        return GroupRun(outcome, time.monotonic() - begun, why, text)

    def _filled(self, nodes: Sequence[str], listed: Path) -> list[str]:
        names = ",".join(nodes)
        return [
            word.replace("{nodes}", names).replace("{nodes_file}", str(listed))
            for word in self._argv
        ]
