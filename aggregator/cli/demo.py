"""`sickbay demo`, as a part of the command line."""

import argparse
import sys

from aggregator.cli.arguments import Subcommands
from aggregator.cli.errors import UsageError


def add_to(commands: Subcommands, group: str) -> None:
    """Add the command."""
    text = "watch sickbay at work: this machine's agent, simulated nodes, injected faults"
    demo = commands.add(group, "demo", text, _demo)
    demo.flag("--once", "end after the story")
    demo.value("--nodes", "N", "simulated nodes, 10 to 1000 (default: 40)", node_count, 40)


def node_count(text: str, least: int = 10) -> int:
    """The number of simulated nodes: in ``least`` the limits admit all that a story needs."""
    if not text.isdecimal() or not least <= int(text) <= 1000:
        why = "in a smaller fleet the shipped limits hold the story's later nodes"
        raise argparse.ArgumentTypeError(f"{text}: expected {least} to 1000; {why}")
    return int(text)


def _demo(options: argparse.Namespace) -> None:
    from aggregator.demo import command, local

    if lacking := command.missing():
        raise UsageError(lacking)

    def run() -> None:
        local.run(count=options.nodes, once=options.once)

    sys.exit(command.present(run, once=options.once))
