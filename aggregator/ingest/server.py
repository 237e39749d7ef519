"""The gRPC server that agents connect to.

grpc's C core rejects calls beyond `max_pending_requests` (1,000 by default) and its hard limit
(3,000) while they wait to be taken up: 5,000 agents that came at once gave 25,000 rejections. Those
two arguments are not public, so a test guards them.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import TypeAlias

import grpc

from aggregator.config.settings import Config
from aggregator.ingest.ack_pacing import AckPacer
from aggregator.ingest.current_node_auth import CurrentNodeAuthenticator, IsCurrent
from aggregator.ingest.deleted_pods import DeletedPods
from aggregator.ingest.identity import (
    Authenticator,
    Caller,
    CertificateAuthenticator,
    TrustingAuthenticator,
)
from aggregator.ingest.interfaces import EvidenceSink
from aggregator.ingest.jwks import Fetch, JwksCache
from aggregator.ingest.live_pod_auth import LivePodAuthenticator
from aggregator.ingest.os_limits import ListenError, connections_allowed, descriptor_warning
from aggregator.ingest.probe_key import load_probe_key, probe_key_file
from aggregator.ingest.stats import IngestStats, RateLimitedLog
from aggregator.ingest.stream import Stream, StreamConfig
from aggregator.ingest.stream_table import StreamTable
from aggregator.ingest.tls import CertificateFiles
from aggregator.ingest.tokens import TokenAuthenticator
from aggregator.ingest.unknown_method import UnknownMethods
from aggregator.repairers.agent_orders import AgentOrders
from aggregator.version import VERSION
from sickbay.v1 import sickbay_pb2 as pb
from sickbay.v1 import sickbay_pb2_grpc

log = logging.getLogger(__name__)

#: A whole snapshot of the largest node that `codec` takes; grpc answers a larger one with
#: RESOURCE_EXHAUSTED before it is read.
MAX_MESSAGE = 4 * 1024 * 1024
EXPECTED_STREAMS = 10_000
#: Seconds between checks of time-dependent state (silence, expiry).
TICK = 1.0
STOP_WITHIN = 5.0

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
#: Calls at once on one connection: an agent has one, a replica two. Simulated agents share
#: connections, and are accepted only where no proof of identity is required.
STREAMS_PER_CONNECTION = 8


_Context: TypeAlias = "grpc.aio.ServicerContext[pb.AgentMessage, pb.AggregatorMessage]"


class IngestServer:
    """Serves the agents' streams. ``tls`` None is plaintext."""

    def __init__(
        self,
        address: str,
        *,
        tls: CertificateFiles | None,
        require_client_certificate: bool,
        authenticator: Authenticator,
        intake: EvidenceSink,
        rules: StreamConfig,
        stats: IngestStats,
        shared_connections: bool = False,
        connections: int | None = None,
        probe_key: bytes = b"",
        deleted_pods: DeletedPods | None = None,
    ) -> None:
        """``shared_connections``: many agents may share one connection, as simulated ones do.

        ``deleted_pods``: the streams of these pods end (default: none does).

        ``connections`` is the most that are accepted, by default as many as this process's open
        files allow. ``probe_key`` is the secret by which probes are assigned to nodes.
        """
        self._address = address
        self._connections = connections
        self._shared_connections = shared_connections
        self._tls = tls
        self._require_client_certificate = require_client_certificate
        #: Told by `KubeCluster.follow_agent_pods`.
        self.deleted_pods = deleted_pods or DeletedPods(now=rules.now)
        self._rules = rules
        self.stats = stats
        self.table = StreamTable(intake, stats, rules, probe_key=probe_key)
        self.orders = rules.orders
        self.orders.connect(self.table)
        self._gateway = _AgentGateway(self.table, authenticator, intake, rules, stats)
        self._also: list[Callable[[grpc.aio.Server], None]] = []
        self._server: grpc.aio.Server | None = None
        self._ticking: asyncio.Task[None] | None = None
        #: The port that is listened on, once started (the system's choice for port 0).
        self.port = 0

    def add_service(self, register: Callable[[grpc.aio.Server], None]) -> None:
        """Serve another service on the same listener. Before `start`."""
        self._also.append(register)

    async def start(self) -> None:
        """Listen. Raises `ListenError` or `aggregator.ingest.tls.TlsError`, both for people."""
        warning = descriptor_warning(EXPECTED_STREAMS)
        if warning:
            log.warning("the limit of open files is low", extra={"detail": warning})
        server = grpc.aio.server(options=[*OPTIONS, *self._connection_options()])
        sickbay_pb2_grpc.add_AgentGatewayServicer_to_server(self._gateway, server)
        for register in self._also:
            register(server)
        server.add_generic_rpc_handlers((UnknownMethods(VERSION),))
        try:
            if self._tls is None:
                self.port = server.add_insecure_port(self._address)
            else:
                credentials = self._tls.credentials(
                    require_client_certificate=self._require_client_certificate
                )
                self.port = server.add_secure_port(self._address, credentials)
        except RuntimeError:
            raise ListenError(self._address) from None
        await server.start()
        self._server = server
        self._ticking = asyncio.get_running_loop().create_task(self._tick())
        log.info(
            "listening for agents",
            extra={"event": "ingest.listening", "address": self._address, "port": self.port},
        )

    def _connection_options(self) -> list[tuple[str, int]]:
        """As many connections as leave files to open for the API server and the page."""
        options = [
            ("grpc.max_allowed_incoming_connections", self._connections or connections_allowed())
        ]
        if not self._shared_connections:
            options.append(("grpc.max_concurrent_streams", STREAMS_PER_CONNECTION))
        return options

    async def stop(self) -> None:
        """Close every stream, so that its agent reconnects elsewhere at once; then the listener."""
        if self._server is None or self._ticking is None:
            return
        self._ticking.cancel()
        self.table.close_all("the aggregator stops; come back with backoff")
        await self._server.stop(STOP_WITHIN)
        self._server = None

    async def _tick(self) -> None:
        told = ""
        while True:
            await asyncio.sleep(TICK)
            self.table.tick()
            self.table.end_deleted(self.deleted_pods)
            trouble = self.certificate_trouble()
            if trouble and not told:
                log.error(
                    "agents and other replicas turn away",
                    extra={"event": "ingest.certificate_unusable", "error": trouble},
                )
            told = trouble

    def certificate_trouble(self) -> str:
        """Why agents and other replicas refuse this listener's certificate; empty if they accept
        it.
        """
        return self._tls.trouble() if self._tls is not None else ""

    def certificate_expiries(self) -> Mapping[str, float]:
        """When each certificate of this listener ends, wall clock seconds, by its purpose."""
        return self._tls.expiries() if self._tls is not None else {}


class _AgentGateway(sickbay_pb2_grpc.AgentGatewayServicer):
    """The service: each call is a `Stream`."""

    def __init__(
        self,
        table: StreamTable,
        authenticator: Authenticator,
        intake: EvidenceSink,
        rules: StreamConfig,
        stats: IngestStats,
    ) -> None:
        self._table = table
        self._authenticator = authenticator
        self._intake = intake
        self._rules = rules
        self._stats = stats
        self._sparingly = RateLimitedLog()
        self._ack_pacer = AckPacer()

    async def Connect(  # type: ignore[override]  # noqa: N802  # the read and write calls of grpc.aio
        self,
        _: object,
        context: _Context,
    ) -> None:
        self._stats.opened += 1
        # Created elsewhere: this call's frame would otherwise be kept as long as the stream.
        ending = await self._stream(context).serve()
        if ending.code is not grpc.StatusCode.OK:
            # The call would keep the error that `abort` raises, whose frames keep the call: each
            # refused call stayed until a collection, which took 0.3 s when they were thousands.
            context.set_code(ending.code)
            context.set_details(str(ending))

    def _stream(self, context: _Context) -> Stream:
        return Stream(
            context,
            caller=lambda: _caller(context),
            rules=self._rules,
            authenticator=self._authenticator,
            intake=self._intake,
            streams=self._table,
            stats=self._stats,
            sparingly=self._sparingly,
            ack_pacer=self._ack_pacer,
        )


def _caller(context: _Context) -> Caller:
    pairs = context.invocation_metadata() or ()
    metadata = {str(key): value for key, value in pairs if isinstance(value, str)}
    certificate = {str(key): list(values) for key, values in context.auth_context().items()}
    return Caller(context.peer(), metadata, certificate)


def build(
    config: Config,
    intake: EvidenceSink,
    *,
    name: str,
    keys: JwksCache | None = None,
    is_current: IsCurrent | None = None,
    cluster_away: Callable[[], bool],
    among_others: Callable[[], str],
    orders: AgentOrders,
    now: Callable[[], float],
    wall: Callable[[], float],
) -> IngestServer:
    """The server that ``config`` asks for. Raises `aggregator.ingest.tls.TlsError`.

    ``name`` is this aggregator's, as sent to agents. ``keys`` (`open_keys`) verify tokens, and are
    needed for ``identity.kind: token``. ``is_current`` tells whether a Node has the UID that its
    token names; without it the UID is not checked. ``cluster_away`` says whether the API server
    can't be reached now, ``among_others`` this replica's own address where there are others (empty:
    there are none). ``orders`` go to agents by its streams. ``now`` is monotonic seconds, ``wall``
    seconds since the epoch.
    """
    stats = IngestStats()
    deleted_pods = DeletedPods(now=now)
    tls, files = config.listen.tls, None
    if tls is not None:
        files = CertificateFiles(
            tls.cert_file,
            tls.key_file,
            tls.client_ca_file,
            verified_by=config.shards.ca_file,
            stats=stats,
            now=now,
            wall=wall,
        )
        files.check()
    return IngestServer(
        config.listen.grpc,
        tls=files,
        require_client_certificate=config.identity.kind == "certificate",
        authenticator=_authenticator(config, keys, is_current, deleted_pods, wall),
        intake=intake,
        rules=StreamConfig(
            name=name,
            version=VERSION,
            heartbeat=config.agents.heartbeat,
            silent_after=config.agents.silent_after,
            now=now,
            wall=wall,
            cluster_away=cluster_away,
            among_others=among_others,
            orders=orders,
        ),
        stats=stats,
        shared_connections=config.identity.kind == "insecure-trust-hello",
        probe_key=load_probe_key(probe_key_file(config)),
        deleted_pods=deleted_pods,
    )


def open_keys(config: Config, fetch: Fetch, *, now: Callable[[], float]) -> JwksCache:
    """The cluster's published keys, beginning with those on disk."""
    keys = JwksCache(fetch, config.identity.keys_cache, now=now)
    keys.load()
    return keys


def _authenticator(
    config: Config,
    keys: JwksCache | None,
    is_current: IsCurrent | None,
    deleted_pods: DeletedPods,
    wall: Callable[[], float],
) -> Authenticator:
    identity = config.identity
    if identity.kind == "certificate":
        return CertificateAuthenticator()
    if identity.kind == "insecure-trust-hello":
        return TrustingAuthenticator(anywhere=config.listen.insecure_plaintext)
    if keys is None:
        raise ValueError("identity.kind token needs keys")
    tokens = TokenAuthenticator(
        keys,
        audience=identity.audience,
        service_account=identity.service_account,
        issuer=identity.issuer,
        now=wall,
    )
    of_live_pods = LivePodAuthenticator(tokens, deleted_pods)
    return (
        of_live_pods if is_current is None else CurrentNodeAuthenticator(of_live_pods, is_current)
    )
