"""One test or repair at a time on a node, by the agent or by ``sickbay-agent test``."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

__all__ = ["LOCK", "lock_file"]

#: In run_dir.
LOCK = "repair.lock"


@contextlib.contextmanager
def lock_file(run_dir: Path) -> Iterator[bool]:
    """Whether this process alone runs one now. The kernel frees the lock when the process ends."""
    run_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    fd = os.open(run_dir / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(fd)
