"""The start of ``sickbay-aggregator``: it imports no library before it can report a missing one."""

import sys
from collections.abc import Sequence

from aggregator.runtime.imports import imports_without_collections
from sickbay.extras import USAGE, explain_missing
from sickbay.process import interruptible, open_streams


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command of the command line, and exit; 2 where a library is not installed."""
    open_streams()
    try:
        with interruptible(), imports_without_collections():
            from aggregator.daemon_cli.main import main as run

        run(arguments)
    except ModuleNotFoundError as error:
        text = explain_missing(error, program="sickbay-aggregator", extra="aggregator")
        if text is None:
            raise
        print(text, file=sys.stderr)
        sys.exit(USAGE)
