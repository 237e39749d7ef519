"""`python -m tests.demo`: `sickbay demo` on a real kube-apiserver, or a real Slurm (--slurm).

Ctrl-C leaves nothing behind.
"""

import argparse
import sys
from collections.abc import Sequence
from functools import partial

from aggregator.cli.demo import node_count
from aggregator.demo import command
from tests.controlplane.plane import PlaneError
from tests.controlplane.toolchain import NoControlPlane
from tests.demo import cluster, slurm
from tests.demo.slurm import NoSlurm


def main(argv: Sequence[str]) -> int:
    """0 after the story or Ctrl-C, 1 when it went wrong, 2 for what cannot be had here."""
    arguments = _parser().parse_args(argv)
    try:
        if arguments.slurm:
            return command.present(lambda: slurm.run(once=arguments.once), once=arguments.once)
        return command.present(
            lambda: cluster.run(count=arguments.nodes, once=arguments.once), once=arguments.once
        )
    except (NoControlPlane, NoSlurm, PlaneError) as error:
        print(f"demo: {error}", file=sys.stderr)
        return command.USAGE


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.demo", description=__doc__)
    parser.add_argument("--once", action="store_true", help="end after the story")
    parser.add_argument("--slurm", action="store_true", help="4 nodes of a real Slurm")
    count = partial(node_count, least=20)
    parser.add_argument("--nodes", type=count, default=40, metavar="N", help="simulated nodes (40)")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
