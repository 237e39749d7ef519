"""The command line `sickbay`.

Exit codes: 0; 1 for a command that failed (out of reach, refused, not there); 2 for a command line
that makes no sense.
"""

import os
import sys
from argparse import Namespace
from collections.abc import Sequence
from contextlib import nullcontext

from aggregator.cli.errors import CommandFailed, UsageError
from aggregator.cli.text_table import printable
from aggregator.runtime.imports import collect_seldom_until_exit
from sickbay.extras import explain_missing
from sickbay.process import interruptible, open_streams

OK, FAILED, USAGE = 0, 1, 2
INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command of the command line, and exit.

    ``arguments`` None: those of this process, which is for this command alone.
    """
    if arguments is None:
        open_streams()
        collect_seldom_until_exit()
    with interruptible() if arguments is None else nullcontext():
        from aggregator.cli.command_line import parser_for
        from aggregator.cli.command_words import own_words, refusal
        from aggregator.cli.completion import COMPLETE, answer

    parser = parser_for(sys.argv[0], os.environ)
    words = sys.argv[1:] if arguments is None else list(arguments)
    if words[:1] == [COMPLETE]:
        # No command of the parser: its words are those of an unfinished command line.
        answer(parser, words[1:])
        sys.exit(OK)
    problem = refusal(words)
    if problem:
        parser.error(problem)
    options = Namespace(extra="cli")
    try:
        options = parser.parse_args(own_words(words))
        options.command(options)
        sys.stdout.flush()
    except (UsageError, CommandFailed) as error:
        print(f"sickbay: {printable(str(error))}", file=sys.stderr)
        sys.exit(USAGE if isinstance(error, UsageError) else FAILED)
    except ModuleNotFoundError as error:
        text = explain_missing(error, program="sickbay", extra=options.extra)
        if text is None:
            raise
        print(text, file=sys.stderr)
        sys.exit(USAGE)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except OSError as error:
        # Python would report it again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):  # the reader, for example head, has closed the pipe
            sys.exit(OK)
        print(f"sickbay: the answer can't be written: {error}", file=sys.stderr)
        sys.exit(FAILED)
    sys.exit(OK)
