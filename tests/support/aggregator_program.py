"""``sickbay-aggregator run`` and ``sickbay`` as tests start them (`fork_server.start_program`)."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.support.fork_server import Main, Program

_PROGRAM = str(Path(sys.executable).parent / "sickbay-aggregator")
AGGREGATOR = Program(f"{__name__}:load", (_PROGRAM,), "run")
#: Any of its commands.
AGGREGATOR_COMMANDS = Program(f"{__name__}:load", (_PROGRAM,))
SICKBAY = Program(
    f"{__name__}:load_cli", (sys.executable, "-c", "from aggregator.cli.main import main; main()")
)


def load() -> Main:
    """Import what the program imports, as it does; its main function."""
    from aggregator.daemon_cli import entry
    from aggregator.ingest import grpc_env
    from aggregator.runtime.imports import imports_without_collections

    with imports_without_collections():
        import aggregator.daemon_cli.main

        with grpc_env.grpc_environment(os.environ):
            import grpc  # noqa: F401 - before anything else imports it

        import aggregator.app
        import aggregator.composition.controller_parts  # noqa: F401

    from aggregator.policy.defaults import read_policy

    read_policy()  # the shipped texts, which it keeps: a quarter of a start
    return entry.main


def load_cli() -> Main:
    """Import what the commands import; its main function, in a process for one command alone."""
    from aggregator.cli.main import main
    from aggregator.runtime.imports import imports_without_collections

    with imports_without_collections():
        import aiohttp  # noqa: F401

        import aggregator.alerts.routes
        import aggregator.cli.command_line
        import aggregator.cluster.kubernetes.cluster
        import aggregator.config.settings  # noqa: F401

    def run(arguments: Sequence[str]) -> None:
        sys.argv[1:] = arguments
        main()

    return run
