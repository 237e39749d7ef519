"""Starts the process that ends other processes when their starter is gone."""

import subprocess
import sys
from pathlib import Path
from typing import IO

_PROGRAM = Path(__file__).with_name("process_guard_main.py")


class ProcessGuard:
    """The process that ends our processes if we can't; see process_guard_main.py."""

    def __init__(self, folder: Path, *, remove: bool) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", _PROGRAM, folder if remove else ""],
            stdin=subprocess.PIPE,
            # Its own session: a Ctrl-C at the terminal is ours to handle, in our order.
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        """The guard's own process id."""
        return self._process.pid

    def guard(self, pid: int) -> None:
        """Have this process killed when we are gone."""
        self._pipe.write(f"{pid}\n".encode())
        self._pipe.flush()

    def close(self) -> None:
        """Kill everything guarded that still runs, remove the folder, end."""
        self._pipe.close()
        self._process.wait()

    @property
    def _pipe(self) -> IO[bytes]:
        assert self._process.stdin is not None
        return self._process.stdin
