"""A site's own command for each step, as an argument list, bounded in time and recorded in the log.

Commands run again after a crash or a failure, so they must be idempotent; docs/local.md says so.
"""

import asyncio
import contextlib
import logging
import os
import signal
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import IO

from aggregator.quarantine.cluster import Unreachable

log = logging.getLogger("sickbay.local")

_MOST_OUTPUT = 2000


class CommandFailed(Unreachable):
    """The command did not exit with 0 in its time; it is tried again."""


@dataclass(frozen=True, slots=True)
class Finished:
    """How a command ended; ``output`` is the end of what it wrote on stdout and stderr."""

    code: int
    output: str


async def run_command(argv: Sequence[str], *, values: Mapping[str, str], limit: float) -> None:
    """Run it to its success. Raises `CommandFailed`, also where it exits with other than 0."""
    finished = await finish_command(argv, values=values, limit=limit)
    if finished.code != 0:
        said = f": {finished.output}" if finished.output else ""
        raise CommandFailed(f"{argv[0]} exited with {finished.code}{said}")


async def finish_command(
    argv: Sequence[str], *, values: Mapping[str, str], limit: float
) -> Finished:
    """Run it, without a shell. ``{node}``, ``{reason}``, ``{action}`` in arguments are filled in,
    and stand in the environment as SICKBAY_NODE and so on. Raises `CommandFailed` where it can't
    be run, or does not end within ``limit`` seconds.
    """
    values = {name: text.replace("\0", "") for name, text in values.items()}
    filled = [_fill(word, values) for word in argv]
    environment = os.environ | {f"SICKBAY_{name.upper()}": text for name, text in values.items()}
    # A file and not a pipe: what the command leaves running must not keep us waiting.
    with tempfile.TemporaryFile() as output:
        try:
            process = await asyncio.create_subprocess_exec(
                *filled,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:  # ValueError: a NUL in an argument
            log.warning("command", extra={"argv": filled, "error": str(error)})
            raise CommandFailed(f"{argv[0]} can't be run: {error}") from error
        try:
            async with asyncio.timeout(limit):
                await process.wait()
        except TimeoutError:
            extra = {"argv": filled, "error": "out of time", "output": _end_of(output)}
            log.warning("command", extra=extra)
            raise CommandFailed(f"{argv[0]} did not end within {limit:g} s") from None
        finally:
            # Too late, or we are told to end: it runs again, and must not run beside itself.
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
        text = _end_of(output)
    log.info("command", extra={"argv": filled, "rc": process.returncode, "output": text})
    return Finished(process.returncode or 0, text)


def _end_of(output: IO[bytes]) -> str:
    size = output.seek(0, os.SEEK_END)
    output.seek(max(0, size - _MOST_OUTPUT))
    return output.read(_MOST_OUTPUT).decode(errors="replace").strip()


def _fill(word: str, values: Mapping[str, str]) -> str:
    for name, text in values.items():
        word = word.replace("{" + name + "}", text)
    return word
