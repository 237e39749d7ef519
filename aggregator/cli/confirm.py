"""A person's confirmation before an action that can't be undone."""

import argparse
import sys
from typing import TextIO

from aggregator.cli.errors import CommandFailed, UsageError
from aggregator.cli.text_table import printable


def confirm_effect(options: argparse.Namespace, what: str, effect: str) -> None:
    """Show the effect of an action, if it has one to confirm, and ask unless --yes or --dry-run
    says otherwise. ``what``: the action, for a script that can't be asked.
    """
    if effect and (options.yes or options.dry_run):
        print(printable(effect), file=sys.stderr)
    elif effect:
        require_terminal(what)
        confirm(effect)


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
