"""`python -m tests.controlplane build | path | up`: the control plane from a terminal."""

import argparse
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from tests.controlplane import binaries
from tests.controlplane.plane import ControlPlane, PlaneError
from tests.controlplane.toolchain import NoControlPlane
from tests.controlplane.versions import programs, tools


def main(argv: Sequence[str]) -> int:
    """Run one command; returns the exit status (2: it can't be done here)."""
    arguments = _parser().parse_args(argv)
    try:
        if arguments.command == "build":
            return _build(arguments.program)
        if arguments.command == "path":
            print(binaries.program(arguments.program))
            return 0
        return _up(arguments)
    except (NoControlPlane, PlaneError) as error:
        print(f"controlplane: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    names = [*programs(), *tools()]
    parser = argparse.ArgumentParser(prog="python -m tests.controlplane", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    build = commands.add_parser("build", help="build what is missing")
    build.add_argument("program", nargs="*", metavar="PROGRAM", help=f"only: {', '.join(names)}")
    path = commands.add_parser("path", help="print a program's path, building it if need be")
    path.add_argument("program", metavar="PROGRAM", help=", ".join(names))
    up = commands.add_parser("up", help="start a cluster; Ctrl-C ends it and leaves nothing behind")
    up.add_argument("--nodes", type=int, default=0, metavar="N", help="create N nodes of 8 GPUs")
    up.add_argument("--folder", type=Path, help="keep logs and data here (empty or new)")
    return parser


def _build(names: list[str]) -> int:
    for name, path in binaries.ensure(names or None).items():
        print(f"{name}\t{path}")
    return 0


def _up(arguments: argparse.Namespace) -> int:
    signal.signal(signal.SIGTERM, _interrupt)
    began = time.monotonic()
    plane = ControlPlane(folder=arguments.folder)
    with plane:
        plane.create_nodes(arguments.nodes)
        took = time.monotonic() - began
        print(f"# ready in {took:.1f} s; logs in {plane.folder}; Ctrl-C ends it")
        print(f"export KUBECONFIG={plane.kubeconfig}", flush=True)
        while True:
            for server in plane.servers.values():
                if not server.running:
                    raise PlaneError(f"{server.name} ended.\n{server.log_tail()}")
            time.sleep(1)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
