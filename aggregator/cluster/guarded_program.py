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
) -> int:
    """Its exit code. No shell runs.

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
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(limit):
            ended = await wait_for_end(process, output, most, refused=guard.lost)
    except TimeoutError:
        raise ProgramStopped(f"did not end within {limit:g} s") from None
    finally:
        # Its time is over, or we stop: the program runs again, and must not run twice at once.
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    if not ended:
        why = guard.lost() or f"it wrote more than {most // 2**20} MiB"
        raise ProgramStopped(f"was ended: {why}")
    return process.returncode or 0
