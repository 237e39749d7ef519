"""Commands of ``sickbay-agent`` as tests start them (`fork_server.start_program`)."""

import os
import sys
from pathlib import Path

from tests.support.fork_server import Main, Program

_PROGRAM = (sys.executable, "-m", "nodeagent.cli")
AGENT = Program(f"{__name__}:load_agent", _PROGRAM, "run")
#: An agent with the address of an aggregator: others do without gRPC.
AGENT_WITH_UPLINK = Program(f"{__name__}:load_agent_with_uplink", _PROGRAM, "run")
SIMULATOR = Program(f"{__name__}:load_simulator", _PROGRAM, "simulate")
#: Commands that are soon over.
AGENT_COMMANDS = Program(
    f"{__name__}:load_commands", (str(Path(sys.executable).with_name("sickbay-agent")),)
)


def load_agent() -> Main:
    """Import what the program imports, in its order; its main function."""
    from nodeagent import cli, python_tls

    python_tls.leave_out()
    import nodeagent.agent  # noqa: F401

    return cli.main


def load_agent_with_uplink() -> Main:
    main = load_agent()
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # as the program's own, before gRPC is loaded
    import nodeagent.uplink.uplink  # noqa: F401

    return main


def load_simulator() -> Main:
    from nodeagent import cli

    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    import nodeagent.simulate.command  # noqa: F401

    return cli.main


def load_commands() -> Main:
    """Most of what the commands import, each some of it."""
    from nodeagent import cli
    from nodeagent.terminal import arguments, collect, list_checks, one_shot, report  # noqa: F401

    return cli.main
