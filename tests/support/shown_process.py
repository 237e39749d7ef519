"""A program for the tests of the fork server: it tells what it was started with, as JSON.

Its arguments are its exit code, and the variable to tell. It ends once its standard input does.
"""

import atexit
import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.support.fork_server import Main, Program

SHOWN = Program(f"{__name__}:load", (sys.executable, "-m", __name__), "show")


def load() -> Main:
    return main


def main(arguments: Sequence[str]) -> None:
    command, code, variable = arguments
    shown = {
        "command": command,
        "cwd": str(Path.cwd()),
        "files": sorted(map(int, os.listdir("/proc/self/fd")))[:-1],  # noqa: PTH208  # numbers
        "interruptible": signal.getsignal(signal.SIGINT) is signal.default_int_handler,
        "leads_session": os.getsid(0) == os.getpid(),
        "pid": os.getpid(),
        "variable": os.environ.get(variable),
    }
    print(json.dumps(shown), flush=True)
    sys.stdin.read()
    atexit.register(print, "at exit")
    print("the end", file=sys.stderr)
    sys.exit(int(code))


if __name__ == "__main__":
    main(sys.argv[1:])
