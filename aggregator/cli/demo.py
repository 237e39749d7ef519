"""`sickbay demo`, as a part of the command line."""

import argparse
import sys

from aggregator.cli.arguments import Subcommands
from aggregator.cli.errors import UsageError


def add_to(commands: Subcommands, group: str) -> None:
    """Add the command."""
    text = "see what sickbay does: this machine's agent, simulated nodes, injected faults"
    demo = commands.add(group, "demo", text, _demo)
    demo.add_argument("--once", action="store_true", help="end after the story")
    demo.add_argument("--nodes", type=node_count, default=40, metavar="N", help="default: 40")


def node_count(text: str) -> int:
    """The number of simulated nodes: the story needs 20, and its page shows 1000."""
    if not text.isdecimal() or not 20 <= int(text) <= 1000:
        raise argparse.ArgumentTypeError(f"{text}: expected 20 to 1000")
    return int(text)


def _demo(options: argparse.Namespace) -> None:
    from aggregator.demo import command, local

    if lacking := command.missing():
        raise UsageError(lacking)

    def run() -> None:
        local.run(count=options.nodes, once=options.once)

    sys.exit(command.present(run, once=options.once))
