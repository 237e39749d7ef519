"""Cuts between replicas: their relays go by proxies, which can drop all bytes of one gateway.

Agents, pages and the API server are reached directly, so that nothing else is cut. A gateway is
known by the process at the other end of its connection.
"""

import contextlib
import socket
import threading
from collections.abc import Callable, Iterable

import psutil


class RelayCuts:
    """``pids`` gives the process of each replica that runs, by its name; others have none."""

    def __init__(self, pids: Callable[[], dict[str, int]]) -> None:
        self._pids = pids
        self._cut: frozenset[str] = frozenset()
        self._listeners: list[socket.socket] = []
        self._sockets: dict[socket.socket, str] = {}
        self._lock = threading.Lock()

    def before(self, host: str, port: int) -> int:
        """A port of ``host`` that leads to ``port`` of it."""
        listener = socket.create_server((host, 0))
        self._listeners.append(listener)
        threading.Thread(target=self._accept, args=(listener, (host, port)), daemon=True).start()
        made: int = listener.getsockname()[1]
        return made

    def cut(self, gateways: Iterable[str]) -> None:
        """From now on drop all bytes of these gateways' relays, without an end of a connection."""
        self._cut = frozenset(gateways)

    def heal(self) -> None:
        """New connections work again. Those that lost bytes are over."""
        cut, self._cut = self._cut, frozenset()
        with self._lock:
            lost = [one for one, name in self._sockets.items() if name in cut]
        for one in lost:
            _end(one)

    def close(self) -> None:
        for listener in self._listeners:
            _end(listener)
            listener.close()
        with self._lock:
            for one in self._sockets:
                _end(one)

    def _accept(self, listener: socket.socket, target: tuple[str, int]) -> None:
        while True:
            try:
                here, address = listener.accept()
            except OSError:
                return  # closed
            name = self._name_of(address[1])
            try:
                there = socket.create_connection(target)
            except OSError:
                here.close()
                continue
            with self._lock:
                self._sockets |= {here: name, there: name}
            for source, sink in ((here, there), (there, here)):
                threading.Thread(target=self._pump, args=(source, sink, name), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, name: str) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                if name not in self._cut:
                    sink.sendall(data)
        _end(sink)
        with self._lock:
            self._sockets.pop(source, None)
        source.close()

    def _name_of(self, port: int) -> str:
        """The replica from whose process a connection comes, by its local port."""
        for name, pid in self._pids().items():
            with contextlib.suppress(psutil.Error):
                if any(
                    one.laddr.port == port and one.status != psutil.CONN_LISTEN
                    for one in psutil.Process(pid).net_connections(kind="tcp")
                ):
                    return name
        return ""


def _end(one: socket.socket) -> None:
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
