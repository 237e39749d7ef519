"""The process that forks for each start of a program (fork_server.py).

    python -m tests.support.fork_server_main tests.support.aggregator_program:load [LISTENER]

Its standard input is a socket. Each message on it is one start: JSON, and file descriptors for a
pipe that is told the exit code, standard input, output and errors. The answer is the pid. Others
connect to LISTENER, the descriptor of a socket, and send the same. It ends when its standard input
does.

A forked process ends as Python does, but leaves its objects to the system: to destroy those of the
aggregator, most of which it shares with the server, takes 0.07 s of a processor.
"""

import atexit
import contextlib
import importlib
import json
import os
import select
import signal
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

#: Bytes of a message, at most, and descriptors with it.
_MESSAGE, _FILES = 1 << 18, 4


class _Server:
    def __init__(self, owner: socket.socket, listener: socket.socket | None) -> None:
        self._owner = owner
        self._listener = listener
        self._events = select.poll()
        self._channels: dict[int, socket.socket] = {}
        #: By the descriptor that shows a process's end: its pid, and the pipe that is told.
        self._running: dict[int, tuple[int, int]] = {}
        self._follow(owner)
        if listener is not None:
            self._events.register(listener, select.POLLIN)

    def serve(self) -> list[str] | None:
        """In the server: None, once no start can come. In each forked process: its arguments."""
        while True:
            for file, _ in self._events.poll():
                if file in self._running:
                    self._tell_end(file)
                elif self._listener is not None and file == self._listener.fileno():
                    self._follow(self._listener.accept()[0])
                else:
                    channel = self._channels[file]
                    message, files = _receive(channel)
                    if message:
                        start = json.loads(message)
                        pid = os.fork()
                        if pid == 0:
                            _become(start, files[1:])
                            return list(start["arguments"])
                        self._started(pid, channel, files)
                    elif channel is self._owner:
                        return None
                    else:
                        self._leave(channel)

    def _follow(self, channel: socket.socket) -> None:
        self._channels[channel.fileno()] = channel
        self._events.register(channel, select.POLLIN)

    def _leave(self, channel: socket.socket) -> None:
        self._events.unregister(channel)
        del self._channels[channel.fileno()]
        channel.close()

    def _started(self, pid: int, channel: socket.socket, files: Sequence[int]) -> None:
        with contextlib.suppress(BrokenPipeError):  # it has ended meanwhile
            channel.send(str(pid).encode())
        for each in files[1:]:
            os.close(each)
        shows_end = os.pidfd_open(pid)
        self._running[shows_end] = pid, files[0]
        self._events.register(shows_end, select.POLLIN)

    def _tell_end(self, shows_end: int) -> None:
        pid, told = self._running.pop(shows_end)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        with contextlib.suppress(BrokenPipeError):  # no test waits for it
            os.write(told, str(code).encode())
        os.close(told)
        self._events.unregister(shows_end)
        os.close(shows_end)

    def forget_files(self) -> None:
        for each in (*self._channels.values(), *([self._listener] if self._listener else [])):
            each.detach()


def _receive(channel: socket.socket) -> tuple[bytes, Sequence[int]]:
    """No message once the other end is closed."""
    try:
        message, files, *_ = socket.recv_fds(channel, _MESSAGE, _FILES)
    except ConnectionError:  # it was killed before it had read an answer
        return b"", ()
    return message, files


def _become(start: Mapping[str, Any], files: Sequence[int]) -> None:
    """Give this forked process the files and the surroundings of one that is started so."""
    for number, file in enumerate(files):
        os.dup2(file, number)
    os.closerange(len(files), os.sysconf("SC_OPEN_MAX"))
    if start["new_session"]:
        os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(start["cwd"])
    os.environ.clear()
    os.environ.update(start["environment"])


class _End:
    """The last that a forked process does, after all that others have registered with atexit."""

    code: int | None = None

    def leave(self) -> None:
        if self.code is not None:
            with contextlib.suppress(OSError, ValueError):  # as of a closed pipe: Python reports it
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(self.code)

    @contextlib.contextmanager
    def known(self) -> Iterator[None]:
        """Keep the exit code. A process that Ctrl-C ends has none: it ends by the signal."""
        try:
            yield
        except SystemExit as end:
            known = 0 if end.code is None else end.code
            self.code = known if isinstance(known, int) else 1
            raise
        except Exception:
            self.code = 1
            raise
        self.code = 0


def main() -> None:
    end = _End()
    atexit.register(end.leave)  # the first, which is called last
    # Ctrl-C at the terminal is for the tests. The server ends with them.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    module, _, load = sys.argv[1].partition(":")
    run = getattr(importlib.import_module(module), load)()
    owner = socket.socket(fileno=os.dup(sys.stdin.fileno()))
    listener = socket.socket(fileno=int(sys.argv[2])) if sys.argv[2:] else None
    server = _Server(owner, listener)
    arguments = server.serve()
    if arguments is not None:
        server.forget_files()  # which are closed
        with end.known():
            run(arguments)


if __name__ == "__main__":
    main()
