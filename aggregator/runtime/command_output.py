"""The output of a command that is run for a site: a file, and no pipe, with a bound on its size.

A process that the command leaves running keeps a pipe open, and would keep its reader waiting.
"""

import asyncio
import os
from collections.abc import Callable
from typing import IO

#: Seconds between two checks of whether it may continue.
_POLL = 0.25
_MOST_SHOWN = 2000


async def wait_for_end(
    process: asyncio.subprocess.Process,
    output: IO[bytes],
    most: int,
    *,
    refused: Callable[[], object] = bool,
) -> bool:
    """Wait until the process has ended. False: it still runs, with more than ``most`` bytes, or
    ``refused`` has returned true.
    """
    ending = asyncio.ensure_future(process.wait())
    try:
        while not ending.done():
            await asyncio.wait({ending}, timeout=_POLL)
            if ending.done():
                break
            if refused() or os.fstat(output.fileno()).st_size > most:
                return False
    finally:
        ending.cancel()
    return True


def last_text(output: IO[bytes]) -> str:
    """The end of the output, for people."""
    size = output.seek(0, os.SEEK_END)
    output.seek(max(0, size - _MOST_SHOWN))
    return output.read(_MOST_SHOWN).decode(errors="replace").strip()
