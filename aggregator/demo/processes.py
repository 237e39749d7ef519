"""The demo's processes and its folder: all of it ends with the demo, however that ends."""

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from aggregator.demo.process_guard import ProcessGuard

#: Seconds that a process has to end in order, and its children after it.
_FAREWELL = 8.0
_LAST_CHILDREN = 3.0


class ChildEnded(Exception):
    """A process of the demo ended without an order to stop; the text has its last words."""


class ChildProcesses:
    """Use it as a context manager. ``folder`` is the demo's own, and goes with it.

    When this process is killed, its guard kills what was guarded and
    removes the folder.
    """

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="sickbay-demo-"))
        self._process_guard = ProcessGuard(self.folder, remove=True)
        self._members: list[tuple[str, subprocess.Popen[bytes], Path]] = []

    def start(
        self, name: str, argv: Sequence[str | Path], *, stdin: int = subprocess.DEVNULL
    ) -> "subprocess.Popen[bytes]":
        """Start a process in a session of its own: Ctrl-C at the terminal is ours to handle."""
        log = self.folder / f"{name}.log"
        with log.open("ab") as file:
            process = subprocess.Popen(
                argv,
                cwd=self.folder,
                stdin=stdin,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.guard(process.pid)
        self.adopt(name, process, log)
        return process

    def adopt(self, name: str, process: subprocess.Popen[bytes], log: Path) -> None:
        """See to the end of a process that another part has started, and guarded."""
        self._members.append((name, process, log))

    def guard(self, pid: int) -> None:
        """Have it killed if we are."""
        self._process_guard.guard(pid)

    def check(self) -> None:
        """Raise ChildEnded when one has ended."""
        for name, process, log in self._members:
            if process.poll() is not None:
                words = log.read_text(errors="replace")[-2000:]
                raise ChildEnded(
                    f"{name} ended with {process.returncode}. Its last words:\n{words}"
                )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        for name in ("SIGINT", "SIGTERM", "SIGHUP"):  # a second Ctrl-C must not cut this short
            signal.signal(signal.Signals[name], signal.SIG_IGN)
        for _, process, _ in reversed(self._members):
            _end(process)
        self._process_guard.close()
        # A last copy of an agent's state may have come after the guard's.
        shutil.rmtree(self.folder, ignore_errors=True)


def _end(process: subprocess.Popen[bytes]) -> None:
    """In order; by force when it does not listen; then the children that it left."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(_FAREWELL)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    if process.stdin is not None:
        with contextlib.suppress(OSError):
            process.stdin.close()
    _end_group(process.pid)


def _end_group(group: int) -> None:
    """A process that we started leads its session and group, so what is in it is its own."""
    if group == os.getpgid(0):
        return
    deadline = time.monotonic() + _LAST_CHILDREN
    with contextlib.suppress(ProcessLookupError, PermissionError):
        while time.monotonic() < deadline:
            os.killpg(group, 0)
            time.sleep(0.02)
        os.killpg(group, signal.SIGKILL)
