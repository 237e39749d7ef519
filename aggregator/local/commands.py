"""A site's own command for each step, as an argument list, bounded in time and recorded in the log.

Commands run again after a crash or a failure, so they must be idempotent; docs/local.md says so.
"""

import asyncio
import logging
import os
from collections.abc import Mapping, Sequence

from aggregator.quarantine.cluster import Unreachable

log = logging.getLogger("sickbay.local")

_MOST_OUTPUT = 2000


class CommandFailed(Unreachable):
    """The command did not exit with 0 in its time; it is tried again."""


async def run_command(argv: Sequence[str], *, values: Mapping[str, str], limit: float) -> None:
    """Run it, without a shell. ``{node}``, ``{reason}``, ``{action}`` in arguments are filled in,
    and stand in the environment as SICKBAY_NODE and so on. Raises `CommandFailed`.
    """
    filled = [_fill(word, values) for word in argv]
    environment = os.environ | {f"SICKBAY_{name.upper()}": text for name, text in values.items()}
    try:
        process = await asyncio.create_subprocess_exec(
            *filled,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
    except OSError as error:
        raise CommandFailed(f"{filled[0]} can't be run: {error.strerror}") from error
    try:
        async with asyncio.timeout(limit):
            output, _ = await process.communicate()
    except TimeoutError:
        os.killpg(process.pid, 9)
        await process.wait()
        raise CommandFailed(f"{filled[0]} did not end within {limit:g} s") from None
    text = output.decode(errors="replace")[-_MOST_OUTPUT:].strip()
    log.info("command", extra={"argv": filled, "rc": process.returncode, "output": text})
    if process.returncode != 0:
        raise CommandFailed(f"{filled[0]} exited with {process.returncode}: {text}")


def _fill(word: str, values: Mapping[str, str]) -> str:
    for name, text in values.items():
        word = word.replace("{" + name + "}", text)
    return word
