"""A TCP relay that counts the bytes on the wire between two processes.

TLS and HTTP/2 framing included; TCP's and IP's own headers are not.
"""

import socket
import threading


class Relay:
    """Listens on ``port`` and passes all bytes on to ``target`` (a port) of this machine."""

    def __init__(self, target: int) -> None:
        self.bytes = 0
        self._target = target
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                here, _ = self._listener.accept()
            except OSError:
                return  # closed
            try:
                there = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                here.close()  # no listener yet: the client will come again
                continue
            for pair in ((here, there), (there, here)):
                threading.Thread(target=self._pass_on, args=pair, daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            while chunk := source.recv(64 * 1024):
                with self._lock:
                    self.bytes += len(chunk)
                sink.sendall(chunk)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            return  # one side has gone; the other will see it
