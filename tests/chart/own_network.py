"""Runs a program in a network namespace of its own: `python -m tests.chart.own_network COMMAND...`

The manifests have fixed ports, which another run on this machine may use. Needs root; without it
the exit status is 77, as of a test that is skipped.
"""

import os
import shutil
import sys
from pathlib import Path

SKIPPED = 77


def main(command: list[str]) -> None:
    """Replaces this process by the command, or ends it where that is not possible."""
    if os.geteuid() != 0 or shutil.which("unshare") is None or shutil.which("ip") is None:
        print("skipped: a network namespace needs root, unshare and ip", file=sys.stderr)
        sys.exit(SKIPPED)
    line = 'ip link set lo up && ip address add 192.0.2.1/32 dev lo && exec "$@"'
    os.execvp("unshare", ["unshare", "--net", "sh", "-c", line, "sh", *command])


def is_own() -> bool:
    """Whether this process has a network of its own: loopback is all there is."""
    configured = {path.name for path in Path("/proc/sys/net/ipv4/conf").iterdir()}
    return configured <= {"all", "default", "lo"}


if __name__ == "__main__":
    main(sys.argv[1:])
