"""A person's confirmation before an action that can't be undone."""

import sys
from typing import TextIO

from aggregator.cli.errors import CommandFailed, UsageError
from aggregator.cli.text_table import printable


def require_terminal(what: str, *, dry_run: bool = True, stdin: TextIO | None = None) -> None:
    """Raise UsageError where no person can answer: a script must not wait for one.

    ``dry_run``: whether the command has this option.
    """
    if not (stdin or sys.stdin).isatty():
        other = ", or --dry-run to see what it would do" if dry_run else ""
        raise UsageError(
            f"{what} requires a confirmation, and stdin is no terminal; add --yes{other}"
        )


def confirm(question: str, *, stdin: TextIO | None = None, stderr: TextIO | None = None) -> None:
    """Write the question to stderr; anything except "yes" or "y" is a no. Raises CommandFailed for
    a no.
    """
    written = stderr or sys.stderr
    written.write(f'{printable(question)}\nGo on? Type "yes": ')
    written.flush()
    answer = (stdin or sys.stdin).readline()
    if answer.strip().lower() not in {"y", "yes"}:
        raise CommandFailed("not confirmed: nothing was written")
