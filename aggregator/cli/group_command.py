"""Runs a site's test of one group: an argument list, no shell, its own process group, a time limit.

At the limit, and when the search is interrupted, the command gets SIGTERM: a launcher
such as mpirun or srun then ends its processes on the nodes. Processes that are left are killed.
"""

import asyncio
import contextlib
import os
import signal
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from aggregator.bisection.model import GroupOutcome
from aggregator.runtime.command_output import last_text, wait_for_end

#: Seconds for the command to end after SIGTERM.
GRACE = 10.0
#: Bytes of output on the disk of this machine.
_TOO_MUCH = 256 * 2**20
#: The exit codes that are a verdict.
_VERDICTS = {0: GroupOutcome.PASSED, 1: GroupOutcome.FAILED}


@dataclass(frozen=True, slots=True)
class GroupRun:
    """How a run ended. ``message``: the reason for no verdict, or empty. ``output`` is its end."""

    outcome: GroupOutcome
    code: int | None
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
        with tempfile.TemporaryDirectory(prefix="sickbay-bisect-") as folder:
            listed = Path(folder) / "nodes"
            listed.write_text("".join(f"{node}\n" for node in nodes))
            with (Path(folder) / "output").open("w+b") as output:
                code, trouble = await self._run(self._filled(nodes, listed), output)
                text = last_text(output)
        outcome = GroupOutcome.INCONCLUSIVE
        if not trouble and code is not None:
            outcome = _VERDICTS.get(code, outcome)
            if outcome is GroupOutcome.INCONCLUSIVE:
                trouble = f"signal {-code}" if code < 0 else f"exit code {code}"
        return GroupRun(outcome, code, time.monotonic() - begun, trouble, text)

    def _filled(self, nodes: Sequence[str], listed: Path) -> list[str]:
        names = ",".join(nodes)
        return [
            word.replace("{nodes}", names).replace("{nodes_file}", str(listed))
            for word in self._argv
        ]

    async def _run(self, argv: Sequence[str], output: IO[bytes]) -> tuple[int | None, str]:
        """The exit code, and why the run has no verdict."""
        try:
            process = await asyncio.create_subprocess_exec(
                *argv,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # a Ctrl-C at the terminal reaches us alone
            )
        except OSError as error:
            return None, f"{argv[0]} can't be run: {error.strerror}"
        trouble = ""
        try:
            async with asyncio.timeout(self._limit):
                if not await wait_for_end(process, output, _TOO_MUCH):
                    trouble = f"it wrote more than {_TOO_MUCH // 2**20} MiB"
        except TimeoutError:
            trouble = f"no end within {self._limit:g} s"
        finally:
            # It is shielded: a second interruption must not leave the command running.
            await asyncio.shield(_end_group(process, self._grace))
        return process.returncode, trouble


async def _end_group(process: asyncio.subprocess.Process, grace: float) -> None:
    """End the command and each process of its group; one that it has left behind would disturb the
    next test.
    """
    try:
        if process.returncode is None:
            _signal(process.pid, signal.SIGTERM)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(grace):
                    await process.wait()
    finally:
        _signal(process.pid, signal.SIGKILL)
    await process.wait()


def _signal(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)
