"""Ports that the system chooses, and that stay ours while no server listens on them."""

import socket
from types import TracebackType
from typing import Self


class ReservedPort:
    """A free port of 127.0.0.1, kept from all other programs until `close`.

    The socket is bound and never listens. On Linux a server with SO_REUSEADDR (every Go server)
    can listen beside it, while the system gives the port neither to another bind(0) nor to an
    outgoing connection. So a server that was killed gets its own port back.
    """

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind(("127.0.0.1", 0))
        self.number: int = self._socket.getsockname()[1]

    def close(self) -> None:
        """Let go of the port."""
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
