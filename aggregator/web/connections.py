"""The page's connections, limited so that no client can use them up for the others.

asyncio's own server accepts without end and gives a TLS handshake a minute. A client that opens
connections and sends no request would take every file that this process may open (1,300 such
connections were enough with 1,200 files). Then no agent could connect, and the API server could not
be reached. Where the limit is reached, the connection that has been idle for longest gives way to
the new one; no connection is closed in the middle of an answer.

A TLS connection of asyncio's own costs 300 KiB before the client has sent a byte. Its memory stays
until the next garbage collection if the handshake fails. So TLS begins with the client's first
bytes, reads through a small buffer, and leaves no reference cycle behind.
"""

import asyncio
import asyncio.sslproto
import logging
import socket
import ssl as tls
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.web_protocol import RequestPayloadError

from aggregator.ingest.os_limits import WEB_CONNECTIONS, why_not

log = logging.getLogger("sickbay.web")

#: Seconds from a connection's opening to the end of its first request's headers, TLS included.
HEADERS_WITHIN = 10.0
#: Seconds that a connection may stay open between two requests: longer than browsers' own pause.
KEEP_ALIVE = 75.0
#: Requests in progress when the server closes have this long (seconds).
_GRACE = 2.0
#: Seconds for an answer that is no event stream, a slow reader's included.
ANSWER_WITHIN = 60.0
#: One address may have this share of the event streams: a proxy has many people behind it.
STREAMS_SHARE = 0.8
#: Bytes that are read from a TLS connection at once: one record. asyncio's own 256 KiB would be
#: resident for each connection, and requests to the page are short.
TLS_BUFFER = 16 * 1024
_SWEEP_EVERY = 1.0
#: Seconds to wait where a connection can't be accepted (for example where no file is left).
_ACCEPT_AGAIN = 0.5


@dataclass(slots=True, eq=False)
class Connection:
    """One accepted connection. Times are monotonic seconds.

    ``answering``: requests that are being answered. ``since``: when the connection was opened, or
    when the request began that is being answered, or when the last one ended. ``task``: connects
    it, its TLS handshake included.
    """

    address: str
    opened: float
    since: float
    requested: bool = False
    answering: int = 0
    streaming: bool = False
    transport: asyncio.BaseTransport | None = None
    task: "asyncio.Task[None] | None" = None

    def close(self) -> None:
        """Close at once, regardless of its state."""
        if isinstance(self.transport, asyncio.WriteTransport):
            self.transport.abort()
        elif self.task is not None:
            self.task.cancel()

    @property
    def busy(self) -> bool:
        """Whether a request is being answered; a slow reader's answer is in the buffer."""
        transport = self.transport
        unsent = isinstance(transport, asyncio.WriteTransport) and transport.get_write_buffer_size()
        return bool(self.answering or unsent)

    def is_overdue(self, now: float) -> bool:
        if self.busy:
            return not self.streaming and now - self.since >= ANSWER_WITHIN
        return not self.requested and now - self.opened >= HEADERS_WITHIN


class ConnectionTable:
    """The connections that are open. ``most`` at once; ``now`` is monotonic seconds."""

    def __init__(self, now: Callable[[], float], *, most: int = WEB_CONNECTIONS) -> None:
        self._now = now
        self._most = most
        self._open: dict[object, Connection] = {}
        #: Connections closed in favour of another, overdue, or refused, by reason.
        self.ended: Counter[str] = Counter()

    @property
    def count(self) -> int:
        return len(self._open)

    def streams(self, address: str) -> int:
        """Event streams that are open to this address."""
        return sum(one.streaming and one.address == address for one in self._open.values())

    def add(self, protocol: object, address: str) -> Connection | None:
        """The new connection, or None where all others are being answered, and it is refused."""
        if len(self._open) >= self._most and not self._make_room():
            self.ended["refused"] += 1
            return None
        now = self._now()
        connection = self._open[protocol] = Connection(address, now, now)
        return connection

    def remove(self, protocol: object) -> None:
        self._open.pop(protocol, None)

    def begin(self, protocol: object) -> None:
        """The connection's request is complete and is answered from now on."""
        connection = self._open.get(protocol)
        if connection is not None:
            connection.requested = True
            connection.answering += 1
            connection.since = self._now()

    def begin_stream(self, protocol: object, most: int) -> bool:
        """The answer is an event stream, which may last. Returns False if its address has its
        share.

        ``most``: event streams of all addresses together.
        """
        connection = self._open.get(protocol)
        if connection is None:
            return True
        if self.streams(connection.address) >= max(1, int(most * STREAMS_SHARE)):
            return False
        connection.streaming = True
        return True

    def end(self, protocol: object) -> None:
        """The answer is complete."""
        connection = self._open.get(protocol)
        if connection is not None:
            connection.answering -= 1
            connection.streaming = False
            connection.since = self._now()

    def sweep(self) -> None:
        """Close overdue connections."""
        now = self._now()
        for protocol, connection in list(self._open.items()):
            if connection.is_overdue(now):
                self._close(protocol, connection, "overdue")

    def close_idle(self) -> None:
        """Close what a stop left open: TLS waits for the client's end of it for half a minute."""
        for connection in list(self._open.values()):
            if not connection.busy:
                connection.close()

    def _make_room(self) -> bool:
        """Close the longest idle connection of the address that has the most idle ones."""
        idle = [(key, one) for key, one in self._open.items() if not one.busy]
        if not idle:
            return False
        of_address = Counter(one.address for _, one in idle)
        key, victim = min(idle, key=lambda pair: (-of_address[pair[1].address], pair[1].since))
        self._close(key, victim, "evicted")
        return True

    def _close(self, protocol: object, connection: Connection, why: str) -> None:
        self.ended[why] += 1
        self.remove(protocol)
        connection.close()


class _Tracked(asyncio.Protocol):
    """aiohttp's protocol of one connection, with a callback for its loss."""

    def __init__(
        self,
        inner: web.RequestHandler,
        made: Callable[[asyncio.BaseTransport], None],
        lost: Callable[[], None],
    ) -> None:
        self._inner = inner
        self._made = made
        self._lost = lost

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._made(transport)
        self._inner.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        self._inner.data_received(data)

    def eof_received(self) -> None:
        self._inner.eof_received()

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._inner.connection_lost(exc)
        self._lost()


class _Tls(asyncio.sslproto.SSLProtocol):
    """asyncio's TLS with a small buffer to read into."""

    max_size = TLS_BUFFER


async def _open_tls(
    accepted: socket.socket, protocol: asyncio.Protocol, context: tls.SSLContext
) -> asyncio.Transport:
    """Wait for the client's first bytes, then do the handshake. Raises OSError.

    ``protocol`` is connected when this returns. The transport is the one below TLS: that of TLS
    can't be aborted once aiohttp has closed it twice (CPython 3.11 to 3.13).
    """
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(accepted, readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(accepted)
    if not accepted.recv(1, socket.MSG_PEEK):
        raise ConnectionResetError
    shaken = loop.create_future()
    shell = _Tls(
        loop, protocol, context, shaken, server_side=True, ssl_handshake_timeout=int(HEADERS_WITHIN)
    )
    transport, _ = await loop.connect_accepted_socket(lambda: shell, accepted)
    try:
        await shaken
    except BaseException:
        transport.abort()
        raise
    return transport


class LimitedSite(web.BaseSite):
    """The equivalent of aiohttp's TCPSite and UnixSite, with a table of its connections."""

    def __init__(
        self,
        runner: web.AppRunner,
        table: ConnectionTable,
        address: str,
        ssl_context: tls.SSLContext | None = None,
    ) -> None:
        """``address``: ``host:port``, ``[v6]:port`` or ``unix:/path``."""
        super().__init__(runner, ssl_context=ssl_context)
        self._table = table
        self._address = address
        self._sockets: list[socket.socket] = []
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def name(self) -> str:
        return self._address

    async def start(self) -> None:
        """Listen. Raises OSError."""
        await super().start()
        loop = asyncio.get_running_loop()
        # asyncio binds the addresses, and the sockets' duplicates are ours to accept from.
        host, _, port = self._address.rpartition(":")
        server = await (
            loop.create_unix_server(
                asyncio.Protocol, self._address.removeprefix("unix:"), start_serving=False
            )
            if self._address.startswith("unix:")
            else loop.create_server(
                *(asyncio.Protocol, host.strip("[]"), int(port)),
                start_serving=False,
                reuse_address=True,
            )
        )
        self._server = server
        for bound in server.sockets:
            mine = socket.fromfd(bound.fileno(), bound.family, bound.type)
            mine.setblocking(False)
            mine.listen(self._backlog)
            self._sockets.append(mine)
            self._spawn(self._accept_all(mine), "web accept")
        self._spawn(self._sweep(), "web sweep")

    async def stop(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for one in self._sockets:
            one.close()
        await super().stop()

    async def _accept_all(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, peer = await loop.sock_accept(listening)
            except OSError as error:
                log.warning("no connection can be accepted", extra={"error": str(error)})
                await asyncio.sleep(_ACCEPT_AGAIN)
                continue
            self._take(accepted, str(peer[0]) if peer else "")

    def _take(self, accepted: socket.socket, address: str) -> None:
        server = self._runner.server
        assert server is not None
        protocol = server()
        connection = self._table.add(protocol, address)
        if connection is None:
            accepted.close()
            return
        connection.task = self._spawn(
            self._connect(accepted, protocol, connection), "web connection"
        )

    async def _connect(
        self, accepted: socket.socket, protocol: web.RequestHandler, connection: Connection
    ) -> None:
        def made(transport: asyncio.BaseTransport) -> None:
            connection.transport = transport

        tracked = _Tracked(protocol, made, lambda: self._table.remove(protocol))
        try:
            if self._ssl_context is None:
                loop = asyncio.get_running_loop()
                await loop.connect_accepted_socket(lambda: tracked, accepted)
            else:
                connection.transport = await _open_tls(accepted, tracked, self._ssl_context)
        except OSError as error:  # a handshake that fails, or a client that leaves
            # Its frames hold the connection and its future, which holds it.
            error.__traceback__ = None
        finally:
            # A cancelled task holds this frame, which holds the connection.
            connection.task = None
            if connection.transport is None:
                accepted.close()
                self._table.remove(protocol)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_EVERY)
            self._table.sweep()

    def _spawn(self, work: Any, name: str) -> "asyncio.Task[None]":
        task: asyncio.Task[None] = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


class WebListenError(Exception):
    """The page's address can't be listened on; the text gives the reason and the next step."""

    def __init__(self, address: str) -> None:
        super().__init__(f'can\'t listen on "{address}" (listen.web): {why_not(address)}')


class _MalformedRequests(logging.Filter):
    """Keeps requests that are no HTTP out of the log: the library quotes their headers there, so
    tokens and cookies too, and any client could fill it. The client's answer has the mistake.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        return not isinstance(error, (HttpProcessingError, RequestPayloadError))


_MALFORMED = _MalformedRequests()


def runner_of(app: web.Application) -> web.AppRunner:
    """Serves the app to strangers."""
    logging.getLogger("aiohttp.server").addFilter(_MALFORMED)
    return web.AppRunner(
        app, access_log=None, shutdown_timeout=_GRACE, keepalive_timeout=KEEP_ALIVE
    )


async def listen(
    runner: web.AppRunner, table: ConnectionTable, address: str, ssl: tls.SSLContext | None
) -> str:
    """Listen on the address of a `LimitedSite`. Returns it with its port.

    Raises WebListenError.
    """
    await runner.setup()
    try:
        await LimitedSite(runner, table, address, ssl).start()
    except OSError as error:
        await runner.cleanup()
        raise WebListenError(address) from error
    if address.startswith("unix:"):
        return address
    return f"{address.rpartition(':')[0]}:{runner.addresses[0][1]}"
