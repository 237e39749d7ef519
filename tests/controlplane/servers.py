"""Server processes: started with their log in a file, ended by pid, never left behind."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from aggregator.demo.process_guard import ProcessGuard
from aggregator.runtime.interning import EMPTY
from tests.controlplane.processes import stopped
from tests.controlplane.waiting import wait_until

#: The servers of tests are several, and live for minutes: garbage is collected seldom, for 120 MB
#: more of the API server, and one thread runs at a time. Several wake each other: an idle plane
#: took 3 % of a processor instead of 2 %.
FRUGAL = {"GOGC": "400", "GOMAXPROCS": "1"}


class PlaneError(RuntimeError):
    """The control plane's programs are there, but it doesn't work. Never a reason to skip."""


class Server:
    """One server process that can be started again with the same arguments."""

    def __init__(
        self,
        name: str,
        argv: Sequence[str | Path],
        folder: Path,
        process_guard: ProcessGuard,
        *,
        go: Mapping[str, str] = EMPTY,
    ) -> None:
        self.name = name
        self.argv = list(argv)
        self.log_path = folder / f"{name}.log"
        self.paused = False
        self._folder = folder
        self._process_guard = process_guard
        self._go = go
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The process id. Raises PlaneError if it was never started."""
        if self._process is None:
            raise PlaneError(f"{self.name} is not started")
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the process is there (a paused one is)."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start the process; its log is appended to."""
        if self.running:
            raise PlaneError(f"{self.name} runs already, pid {self.pid}")
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                self.argv,
                cwd=self._folder,
                # The developer's own settings are left out: ~/.kwok, ETCD_* and proxies.
                env={
                    "PATH": os.defpath,
                    "HOME": str(self._folder),
                    "TMPDIR": str(self._folder),
                    **self._go,
                },
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._process_guard.guard(self._process.pid)
        self.paused = False

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone. Does nothing if it isn't running."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self.paused = False

    def pause(self) -> None:
        """SIGSTOP: it holds its connections and gives no answer."""
        pid = self._alive().pid
        os.kill(pid, signal.SIGSTOP)
        # The signal is only on its way: a thread that runs on another core may answer one more
        # request.
        wait_until(lambda: stopped(pid), what=f"{self.name} to stop", every_s=0.001)
        self.paused = True

    def resume(self) -> None:
        """SIGCONT."""
        os.kill(self._alive().pid, signal.SIGCONT)
        self.paused = False

    def wait_ready(self, probe: Callable[[], bool], timeout_s: float) -> None:
        """Wait until `probe` is true. Raises PlaneError with the log's end if it can't be."""

        def ready() -> bool:
            if not self.running:
                raise PlaneError(f"{self.name} ended while it started.\n{self.log_tail()}")
            return probe()

        began = time.monotonic()
        try:
            wait_until(ready, what=f"{self.name} to be ready", timeout_s=timeout_s)
        except TimeoutError as error:
            took = time.monotonic() - began
            raise PlaneError(
                f"{self.name} not ready in {took:.0f} s.\n{self.log_tail()}"
            ) from error

    def log_tail(self, characters: int = 3000) -> str:
        """The end of its log, under its path."""
        text = self.log_path.read_text(encoding="utf-8", errors="replace")
        return f"-- the end of {self.log_path}:\n{text[-characters:]}"

    def _alive(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            raise PlaneError(f"{self.name} is not running")
        return self._process
