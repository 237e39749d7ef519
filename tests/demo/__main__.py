"""`python -m tests.demo local | cluster`: see what sickbay does. Ctrl-C leaves nothing behind."""

import argparse
import contextlib
import signal
import sys
from collections.abc import Sequence
from types import FrameType

from tests.controlplane.plane import PlaneError
from tests.controlplane.toolchain import NoControlPlane
from tests.demo import cluster, local
from tests.demo.news import NotSeen
from tests.demo.processes import ChildEnded
from tests.demo.terminal import NobodyListens, say


def main(argv: Sequence[str]) -> int:
    """0 after the story or Ctrl-C, 1 when it went wrong, 2 for what cannot be had here."""
    arguments = _parser().parse_args(argv)
    tell = local.run if arguments.where == "local" else cluster.run
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    try:
        tell(count=arguments.nodes, once=arguments.once)
    except KeyboardInterrupt:
        with contextlib.suppress(NobodyListens):
            say("\nended; nothing is left of it")
        return 0 if not arguments.once else 130
    except NobodyListens:
        return 0
    except (NoControlPlane, PlaneError) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 2
    except (NotSeen, ChildEnded, TimeoutError) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.demo", description=__doc__)
    parser.add_argument(
        "where",
        choices=("local", "cluster"),
        help="local: this machine alone; cluster: a real kube-apiserver of the tests",
    )
    parser.add_argument("--once", action="store_true", help="end after the story")
    parser.add_argument(
        "--nodes", type=_nodes, default=40, metavar="N", help="simulated nodes (40)"
    )
    return parser


def _nodes(text: str) -> int:
    if not text.isdigit() or not 20 <= int(text) <= 1000:
        raise argparse.ArgumentTypeError(f"{text}: expected 20 to 1000")
    return int(text)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
