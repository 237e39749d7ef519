"""A program that acts: begun after its guard's last check, bounded in time, ended with it."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Mapping, Sequence
from typing import IO

from aggregator.cluster.port import Guard
from aggregator.runtime.command_output import wait_for_end

#: Bytes. The output is kept in memory until the program ends, and no program of ours needs that
#: much.
TOO_MUCH = 256 * 1024 * 1024


class ProgramStopped(Exception):
    """It was ended, with its children; the text continues the program's name."""


async def run_guarded(
    argv: Sequence[str],
    *,
    environ: Mapping[str, str],
    limit: float,
    guard: Guard,
    output: IO[bytes],
    errors: IO[bytes],
    most: int = TOO_MUCH,
    grace: float = 0.0,
) -> int:
    """Its exit code. No shell runs.

    With ``grace`` it gets SIGTERM first, so that a launcher can end its processes elsewhere, and as
    many seconds to end; and what it leaves running at its own end is killed, too.

    Raises `ProgramStopped` where it does not end within ``limit`` seconds or before ``guard`` is
    lost, or writes more than ``most`` bytes; OSError and ValueError where it can't be begun; and
    what ``guard`` raises.
    """
    await guard()
    process = await asyncio.create_subprocess_exec(
        *argv,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=output,
        stderr=errors,
        env=dict(environ),
        start_new_session=True,  # a Ctrl-C at a terminal reaches us alone
    )
    try:
        async with asyncio.timeout(limit):
            ended = await wait_for_end(process, output, most, refused=guard.lost)
    except TimeoutError:
        raise ProgramStopped(f"did not end within {limit:g} s") from None
    finally:
        # Its time is over, or we stop: the program runs again, and must not run twice at once.
        if process.returncode is None or grace:
            # It is shielded: a second interruption must not leave the program running.
            await asyncio.shield(_end_group(process, grace))
    if not ended:
        why = guard.lost() or f"it wrote more than {most // 2**20} MiB"
        raise ProgramStopped(f"was ended: {why}")
    return process.returncode or 0


async def _end_group(process: asyncio.subprocess.Process, grace: float) -> None:
    """End the program, and each process of its group."""
    if grace and process.returncode is None:
        _signal(process.pid, signal.SIGTERM)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace):
                await process.wait()
    _signal(process.pid, signal.SIGKILL)
    await process.wait()


def _signal(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)
