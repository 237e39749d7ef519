"""A site's own command for each step, as an argument list, bounded in time and recorded in the log.

The log has the program and the key of the configuration that names it, never its arguments: a site
may have put a password there. Commands run again after a crash or a failure, so they must be
idempotent; docs/local.md states this.
"""

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from aggregator.cluster.guarded_program import ProgramStopped, run_guarded
from aggregator.cluster.port import Guard, Unreachable
from aggregator.runtime.command_output import last_text
from aggregator.runtime.node_name import expect_one_node
from aggregator.runtime.text import truncate

log = logging.getLogger("sickbay.local")

#: Characters of a value: of one that is too long for Linux no command could ever be begun. A node
#: whose reason is a pasted log could then not be released.
_LONGEST = 4000
#: Bytes. The output is kept in memory until the command ends, and no command needs that much.
_TOO_MUCH = 16 * 1024 * 1024


class SiteCommandFailed(Unreachable):
    """The command did not exit with 0 in its time; it is tried again."""

    @property
    def was_begun(self) -> bool:
        return not isinstance(self.__cause__, OSError | ValueError)


@dataclass(frozen=True, slots=True)
class Finished:
    """How a command ended; ``output`` is the end of its stdout and stderr."""

    program: str
    code: int
    output: str

    @property
    def in_words(self) -> str:
        return f"{self.program} exited with {self.code}: {self.output}".removesuffix(": ")


async def run_command(
    argv: Sequence[str], *, key: str, values: Mapping[str, str], limit: float, guard: Guard
) -> None:
    """Run it to its success. Raises `SiteCommandFailed`, also where it exits with other than 0."""
    finished = await finish_command(argv, key=key, values=values, limit=limit, guard=guard)
    if finished.code != 0:
        raise SiteCommandFailed(finished.in_words)


async def finish_command(
    argv: Sequence[str],
    *,
    key: str,
    values: Mapping[str, str],
    limit: float,
    guard: Guard,
    secrets: Mapping[str, str] | None = None,
) -> Finished:
    """Run it, without a shell. ``{node}``, ``{reason}``, ``{action}`` in arguments are filled in,
    and are in the environment as SICKBAY_NODE and so on. ``key`` is where the configuration has
    it. ``secrets`` are in the environment alone. Raises `SiteCommandFailed` where it can't be
    run, or does not end within ``limit`` seconds or before ``guard`` is lost, and what ``guard``
    raises, where it was not begun.
    """
    node = values["node"]
    fields: dict[str, object] = {"command": key, "program": argv[0], "node": node}
    values = {name: truncate(text.replace("\0", ""), _LONGEST) for name, text in values.items()}
    filled = [_fill(word, values) for word in argv]
    environment = os.environ | {f"SICKBAY_{name.upper()}": text for name, text in values.items()}
    environment |= secrets or {}
    # A file and not a pipe: a process that the command leaves running must not keep us waiting. In
    # memory: a full disk must keep no node from being cordoned or released.
    with os.fdopen(os.memfd_create("command"), "w+b") as output:
        try:
            expect_one_node(node)
            code = await run_guarded(
                filled,
                environ=environment,
                limit=limit,
                guard=guard,
                output=output,
                errors=output,
                most=_TOO_MUCH,
            )
        except (OSError, ValueError) as error:  # ValueError: a NUL in an argument, or the name
            log.warning(
                "site command not started",
                extra={"event": "command.not_started", **(fields | {"error": str(error)})},
            )
            raise SiteCommandFailed(f"{argv[0]} can't be run: {error}") from error
        except ProgramStopped as stopped:
            extra = {"error": str(stopped), "output": last_text(output)}
            log.warning("site command stopped", extra=fields | extra)
            raise SiteCommandFailed(f"{argv[0]} {stopped}") from None
        text = last_text(output)
    log.info(
        "site command ended",
        extra={"event": "command.ended", **(fields | {"rc": code, "output": text})},
    )
    return Finished(argv[0], code, text)


def _fill(word: str, values: Mapping[str, str]) -> str:
    for name, text in values.items():
        word = word.replace("{" + name + "}", text)
    return word
