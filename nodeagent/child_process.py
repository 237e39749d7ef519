"""A program, exec'd, whose lines are read as they come: a question or a few, or one that is kept.

Never forked from within (the agent runs gRPC), no thread, and no waiting: a child that hangs in
the kernel is left to hang while the agent continues, and is reaped in the moment that it ends.
"""

import asyncio
import fcntl
import os
import signal
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from nodeagent.interpreter import bytecode_of, light_python

__all__ = ["ChildProcess", "python", "signal_name"]

_SCRIPTS = Path(__file__).with_name("sources")
_READ = 65536
_PIPE = 65536  # bytes that a new pipe takes without a reader
_LINE_LIMIT = 65536  # a child that never ends its line is cut, not collected
_LAST_WORDS = 500
_REAP_SECONDS = (0.002, 1.0)  # between polls of a child whose output ended: first, and most


def signal_name(number: int) -> str:
    """The name of the signal that ended a process."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def python(script: str, *arguments: str) -> list[str]:
    """The command line for a script among the sources."""
    return [*light_python(), str(_SCRIPTS / script), *arguments]


def python_compiled(script: str, *arguments: str) -> list[str]:
    """The same for a script that is started each minute, and does not read its ``__file__``.

    Python compiles a program that it runs at each start, and keeps bytecode only of modules.
    """
    return [*light_python(), bytecode_of(str(_SCRIPTS / script)), *arguments]


class ChildProcess:
    """One running child. ``ended`` is done when it is gone and reaped.

    ``on_line`` is called with each line of its output (standard error too), in the event loop.
    ``listens``: it reads what ``send`` gives it. Raises OSError when the program cannot be started.
    """

    def __init__(
        self,
        command: Sequence[str],
        on_line: Callable[[str], None],
        *,
        line_limit: int = _LINE_LIMIT,
        listens: bool = False,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_line = on_line
        self._line_limit = line_limit
        self._rest = b""
        self.last_words = ""
        self.ended: asyncio.Future[int] = self._loop.create_future()
        library_path = {k: v for k, v in os.environ.items() if k == "LD_LIBRARY_PATH"}
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE if listens else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            bufsize=0,
            cwd="/",  # holds no filesystem busy
            env=library_path,
            process_group=0,  # Ctrl-C in a terminal is the agent's to handle
        )
        assert self._process.stdout is not None
        self._output = self._process.stdout.fileno()
        os.set_blocking(self._output, False)
        self._loop.add_reader(self._output, self._readable)

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, text: bytes) -> bool:
        """Write to the child without waiting; whether it has taken all of it."""
        pipe = self._process.stdin
        assert pipe is not None
        try:
            os.set_blocking(pipe.fileno(), False)
            if len(text) > _PIPE:  # the files of 40 InfiniBand ports
                fcntl.fcntl(pipe.fileno(), fcntl.F_SETPIPE_SZ, len(text))
            return pipe.write(text) == len(text)
        except (OSError, ValueError):  # it has ended, or its input has
            return False

    def end_input(self) -> None:
        """Send no more. A child that reads to the end of its input ends with its work."""
        assert self._process.stdin is not None
        self._process.stdin.close()

    def kill(self) -> None:
        """Send the child SIGKILL. In state D it stays until its system call returns."""
        self._process.kill()

    def hang_up(self) -> None:
        """Stop reading. A child that watches for this ends by itself, and is reaped then."""
        output = self._process.stdout
        if output is not None and not output.closed:
            self._stop_reading()
            self._reap(_REAP_SECONDS[0])

    async def close(self, patience: float = 1.0) -> bool:
        """Kill the child and wait a moment.

        False if it could not end: the kernel will end it later.
        """
        self.kill()
        await asyncio.wait([self.ended], timeout=patience)
        self._stop_reading()
        return self.ended.done()

    def _readable(self) -> None:
        try:
            chunk = os.read(self._output, _READ)
        except BlockingIOError:
            return
        if not chunk:
            self._stop_reading()
            self._reap(_REAP_SECONDS[0])
            return
        *lines, rest = (self._rest + chunk).split(b"\n")
        self._rest = rest[-self._line_limit :]
        for line in lines:
            text = line.decode("utf-8", "replace")
            self.last_words = text[-_LAST_WORDS:]
            self._on_line(text)

    def _reap(self, pause: float) -> None:
        """Its output has ended, so its exit is a matter of moments (files close first)."""
        code = self._process.poll()
        if code is None:
            self._loop.call_later(pause, self._reap, min(2 * pause, _REAP_SECONDS[1]))
        elif not self.ended.done():
            self.ended.set_result(code)

    def _stop_reading(self) -> None:
        output = self._process.stdout
        if output is not None and not output.closed:
            self._loop.remove_reader(self._output)
            output.close()
        if self._process.stdin is not None:
            self.end_input()
