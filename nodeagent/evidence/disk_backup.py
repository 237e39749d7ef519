"""The copy of the state on the node's disk, which may hang for ever: only children touch it.

Each is a fresh interpreter with a few lines, exec'd and never forked from a process that runs
gRPC's threads. One that hangs is left where it hangs.
"""

import asyncio
import contextlib
import os
import subprocess
from pathlib import Path

from nodeagent.interpreter import light_python

#: Run in a fresh interpreter, so that a disk in trouble holds that and not the agent.
_COPY = """
import os, sys
source, folder = sys.argv[1:]
with open(source, "rb") as file:
    content = file.read()
os.makedirs(folder, mode=0o700, exist_ok=True)
target = os.path.join(folder, os.path.basename(source))
fd = os.open(target + ".tmp", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
with os.fdopen(fd, "wb") as file:
    file.write(content)
    file.flush()
    os.fsync(fd)
os.rename(target + ".tmp", target)
"""

_READ = """
import sys
with open(sys.argv[1], "rb") as file:
    sys.stdout.buffer.write(file.read())
"""

#: A traceback's end is enough.
_WORDS = 4096


class BackupUnreadable(Exception):
    """The copy is there, perhaps, but cannot be read; the text is the reason."""


def read_copy(path: Path, *, patience: float = 5.0) -> bytes | None:
    """The copy's content, or None without a copy. Blocks ``patience`` seconds at most.

    Raises BackupUnreadable when the disk gives an error, or no answer, or no child can be started.
    """
    try:
        child = subprocess.Popen(
            (*light_python(), "-c", _READ, str(path)),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
    except OSError as error:  # the node is out of processes or memory: no reason to have no agent
        raise BackupUnreadable(f"its reader can't be started: {error}") from error
    try:
        content, complaint = child.communicate(timeout=patience)
    except subprocess.TimeoutExpired:
        _abandon(child)
        raise BackupUnreadable(f"the disk did not answer within {patience:g} s") from None
    if child.returncode == 0:
        return content
    reason = _last_line(complaint)
    if reason.startswith(("FileNotFoundError", "NotADirectoryError")):
        return None
    raise BackupUnreadable(reason or f"its reader ended with {child.returncode}")


class DiskBackup:
    """Copies the state file to the disk in a child process: rarely, one at a time, never awaited.

    ``changed`` requests a copy. It starts at most every ``interval`` seconds, and not while the
    earlier one still runs; then the next starts when that ends. One that fails is tried again.
    """

    def __init__(self, source: Path, folder: Path, *, interval: float = 30.0) -> None:
        self.problem = ""
        self._arguments = (str(source), str(folder))
        self._interval = interval
        self._child: subprocess.Popen[bytes] | None = None
        self._last_words = b""
        self._resting = False
        self._wanted = False
        self._closed = False

    @property
    def running(self) -> bool:
        """Whether a copy is under way (or hangs)."""
        return self._child is not None

    def changed(self) -> None:
        """The state file has changed. Needs a running event loop; returns at once."""
        self._wanted = True
        self._start_if_due()

    def close(self, patience: float = 2.0) -> None:
        """Make a last copy if one is wanted; a child that hangs is left to end by itself.

        It waits, because whoever ends a service ends its other processes with the first one.
        """
        self._resting = False
        self._start_if_due()
        self._closed = True
        if self._child is not None:
            # Standard output is closed when the child has written its last and has not quite ended.
            if self._child.stdout is not None and not self._child.stdout.closed:
                asyncio.get_running_loop().remove_reader(self._child.stdout)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._child.wait(patience)
            _forget(self._child)
            self._child = None

    def _start_if_due(self) -> None:
        if not self._wanted or self._resting or self._child is not None or self._closed:
            return
        self._wanted = False
        loop = asyncio.get_running_loop()
        try:
            child = subprocess.Popen(
                (*light_python(), "-c", _COPY, *self._arguments),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
        except OSError as error:
            self.problem = f"the copy of the state on disk cannot be made: {error}"
            self._wanted = True
            return
        self._child = child
        assert child.stdout is not None
        os.set_blocking(child.stdout.fileno(), False)
        loop.add_reader(child.stdout, self._read_output, child)
        self._resting = True
        loop.call_later(self._interval, self._rested)

    def _read_output(self, child: "subprocess.Popen[bytes]") -> None:
        """The child's last words, then the end of its output, which is its own end."""
        assert child.stdout is not None
        words = child.stdout.read(_WORDS)
        if words:
            self._last_words = (self._last_words + words)[-_WORDS:]
            return
        asyncio.get_running_loop().remove_reader(child.stdout)
        child.stdout.close()
        self._ended(child)

    def _ended(self, child: "subprocess.Popen[bytes]") -> None:
        if child.poll() is None:  # its output ended just before it does
            asyncio.get_running_loop().call_later(0.05, self._ended, child)
            return
        words, self._last_words = self._last_words, b""
        reason = _last_line(words) or f"status {child.returncode}"
        failed = f"no copy of the state in {self._arguments[1]}: {reason}"
        self.problem = failed if child.returncode else ""
        self._wanted |= bool(child.returncode)
        if not self._closed:
            self._child = None
            self._start_if_due()

    def _rested(self) -> None:
        self._resting = False
        self._start_if_due()


def _last_line(output: bytes) -> str:
    return output.decode(errors="replace").strip().rpartition("\n")[2]


def _abandon(child: "subprocess.Popen[bytes]") -> None:
    """Leave a child that may never end; the kill ends it as soon as the disk answers."""
    child.kill()
    _forget(child)


def _forget(child: "subprocess.Popen[bytes]") -> None:
    for pipe in (child.stdout, child.stderr):
        if pipe is not None:
            pipe.close()
    child.returncode = 0  # or its finaliser would complain that it still runs
