"""The gRPC listener: agents connect to it, and other replicas.

grpc's C core rejects calls beyond `max_pending_requests` (1,000 by default) and its hard limit
(3,000) while they wait to be taken up: 5,000 agents that came at once gave 25,000 rejections. Those
two arguments are not public, so a test guards them.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping

import grpc
from attrs import define, field

from aggregator.ingest.os_limits import ListenError, connections_allowed, descriptor_warning
from aggregator.ingest.tls import CertificateFiles, TlsError
from aggregator.ingest.unknown_method import UnknownMethods
from aggregator.version import VERSION

log = logging.getLogger(__name__)

#: A whole snapshot of the largest node that `codec` takes; grpc answers a larger one with
#: RESOURCE_EXHAUSTED before it is read.
MAX_MESSAGE = 4 * 1024 * 1024
EXPECTED_STREAMS = 10_000
#: Seconds between checks of the certificate.
TICK = 1.0
STOP_WITHIN = 5.0
#: Calls that are served when the port is closed may go on for this long: for ever.
_ON_AND_ON = 1e9
#: Before a port that could not be opened again is tried once more.
_TRY_AGAIN = 1.0

OPTIONS: list[tuple[str, int]] = [
    ("grpc.server.max_pending_requests", 20_000),
    ("grpc.server.max_pending_requests_hard_limit", 40_000),
    ("grpc.max_receive_message_length", MAX_MESSAGE),
    # Two aggregators on one port would share its agents at random; the second must fail instead.
    ("grpc.so_reuseport", 0),
    # Finds agents whose machine vanished. Every 60 s costs 1.7 % of a core at 10,000 streams. Each
    # of these pings costs the agent more than the heartbeat that caused it.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.keepalive_permit_without_calls", 1),
    # Of TLS, for the messages that we send. Each connection has a buffer of one: 8 KiB less for
    # every agent than with the default of 16 KiB, measured; a message to an agent still fits into
    # one.
    ("grpc.tsi.max_frame_size", 4096),
    # Agents may ping as often as they like; the rate of their messages is bounded elsewhere.
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.http2.max_ping_strikes", 0),
    # For a connection that never makes a call. 10,000 agents at once take 12 s to greet.
    ("grpc.server_handshake_timeout_ms", 60_000),
    ("grpc.max_connection_idle_ms", 120_000),
]
#: Calls at once on one connection: an agent has one, a replica too. Simulated agents share
#: connections, and are accepted only where no proof of identity is required.
STREAMS_PER_CONNECTION = 8


Register = Callable[[grpc.aio.Server], None]


@define(eq=False, repr=False, slots=False)
class AgentListener:
    """``tls`` None is plaintext. Services are added before `start`.

    ``shared_connections``: many agents may share one connection, as simulated ones do.
    ``connections`` is the most that are accepted, by default as many as this process's open files
    allow.
    """

    _address: str
    _tls: CertificateFiles | None = field(kw_only=True)
    _require_client_certificate: bool = field(kw_only=True)
    _shared_connections: bool = field(default=False, kw_only=True)
    _connections: int | None = field(default=None, kw_only=True)

    def __attrs_post_init__(self) -> None:
        self._services: list[Register] = []
        #: The one that listens; None: the port is closed, or not opened yet.
        self._server: grpc.aio.Server | None = None
        self._starting: asyncio.Task[None] | None = None
        #: Of earlier ones, the calls that were served when their port was closed go on.
        self._closed: dict[grpc.aio.Server, asyncio.Task[None]] = {}
        self._checking: asyncio.Task[None] | None = None
        #: The port that is listened on, once started (the system's choice for port 0).
        self.port = 0

    def add_service(self, register: Register) -> None:
        """Serve another service on this listener. Before `start`."""
        self._services.append(register)

    async def start(self) -> None:
        """Listen. Raises `ListenError` or `aggregator.ingest.tls.TlsError`, both for people."""
        warning = descriptor_warning(EXPECTED_STREAMS)
        if warning:
            log.warning("the limit of open files is low", extra={"detail": warning})
        await self._listen()
        self._checking = asyncio.get_running_loop().create_task(self._check_certificate())
        log.info(
            "listening for agents",
            extra={"event": "ingest.listening", "address": self._address, "port": self.port},
        )

    async def _listen(self) -> None:
        server = grpc.aio.server(options=[*OPTIONS, *self._connection_options()])
        for register in self._services:
            register(server)
        server.add_generic_rpc_handlers((UnknownMethods(VERSION),))
        address = self._address
        if self.port and address.endswith(":0"):  # the same one again
            address = f"{address[:-1]}{self.port}"
        try:
            if self._tls is None:
                self.port = server.add_insecure_port(address)
            else:
                credentials = self._tls.credentials(
                    require_client_certificate=self._require_client_certificate
                )
                self.port = server.add_secure_port(address, credentials)
        except RuntimeError:
            raise ListenError(self._address) from None
        self._server = server
        self._starting = asyncio.get_running_loop().create_task(server.start())
        # The caller may be cancelled, and a server that is interrupted in its start can't be ended.
        await asyncio.shield(self._starting)

    def close_port(self) -> None:
        """Refuse connections from now on. Calls that are served go on."""
        server, self._server = self._server, None
        if server is not None:
            ending = asyncio.get_running_loop().create_task(server.stop(_ON_AND_ON))
            self._closed[server] = ending
            ending.add_done_callback(lambda _: self._closed.pop(server, None))

    async def open_port(self) -> None:
        """Take connections again after `close_port`, as soon as that is possible."""
        reported = ""
        while self._server is None and self._checking is not None:
            try:
                await self._listen()
            except (ListenError, TlsError) as error:
                if str(error) != reported:
                    log.warning(
                        "the port for agents can't be opened again",
                        extra={"error": str(error)},
                    )
                reported = str(error)
                await asyncio.sleep(_TRY_AGAIN)

    def _connection_options(self) -> list[tuple[str, int]]:
        """As many connections as leave files to open for the API server and the page."""
        options = [
            ("grpc.max_allowed_incoming_connections", self._connections or connections_allowed())
        ]
        if not self._shared_connections:
            options.append(("grpc.max_concurrent_streams", STREAMS_PER_CONNECTION))
        return options

    async def stop(self) -> None:
        """Stop listening. The streams should have ended before."""
        if self._checking is None:
            return
        self._checking.cancel()
        self._checking = None
        if self._starting is not None:
            await self._starting
        listening, self._server = self._server, None
        ending = list(self._closed.values())
        servers = [*self._closed, *([] if listening is None else [listening])]
        await asyncio.gather(*(server.stop(STOP_WITHIN) for server in servers), *ending)

    async def _check_certificate(self) -> None:
        reported = ""
        while True:
            await asyncio.sleep(TICK)
            trouble = self.certificate_trouble()
            if trouble and not reported:
                log.error(
                    "agents and other replicas turn away",
                    extra={"event": "ingest.certificate_unusable", "error": trouble},
                )
            reported = trouble

    def certificate_trouble(self) -> str:
        """Why agents and other replicas refuse this listener's certificate; empty if they accept
        it.
        """
        return self._tls.trouble() if self._tls is not None else ""

    def certificate_expiries(self) -> Mapping[str, float]:
        """When each certificate of this listener ends, wall clock seconds, by its purpose."""
        return self._tls.expiries() if self._tls is not None else {}
