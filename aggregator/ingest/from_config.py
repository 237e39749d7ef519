"""The listener with the agents' service, each call of which is a `Stream` of this process."""

import asyncio
from collections.abc import Callable
from typing import TypeAlias

import grpc

from aggregator.config.settings import Config
from aggregator.ingest.agent_streams import AgentStreams
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
from aggregator.ingest.listener import AgentListener
from aggregator.ingest.live_pod_auth import LivePodAuthenticator
from aggregator.ingest.stats import IngestStats
from aggregator.ingest.stream import StreamConfig
from aggregator.ingest.tls import CertificateFiles
from aggregator.ingest.tokens import TokenAuthenticator
from aggregator.repairers.agent_orders import AgentOrders
from aggregator.version import VERSION
from sickbay.v1 import sickbay_pb2 as pb
from sickbay.v1 import sickbay_pb2_grpc

_Context: TypeAlias = "grpc.aio.ServicerContext[pb.AgentMessage, pb.AggregatorMessage]"


class IngestServer(AgentListener):
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
        """The arguments of `AgentListener` and of `AgentStreams`."""
        super().__init__(
            address,
            tls=tls,
            require_client_certificate=require_client_certificate,
            shared_connections=shared_connections,
            connections=connections,
        )
        self.streams = AgentStreams(
            authenticator=authenticator,
            intake=intake,
            rules=rules,
            stats=stats,
            probe_key=probe_key,
            deleted_pods=deleted_pods,
        )
        self.stats = stats
        self.table = self.streams.table
        self.deleted_pods = self.streams.deleted_pods
        self.orders = rules.orders
        self.add_service(_AgentGateway(self.streams).register)
        self._ticking: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Listen. Raises `ListenError` or `aggregator.ingest.tls.TlsError`, both for people."""
        await super().start()
        self._ticking = asyncio.get_running_loop().create_task(self.streams.run())

    async def stop(self) -> None:
        """Close every stream, so that its agent reconnects elsewhere at once; then the listener."""
        if self._ticking is not None:
            self._ticking.cancel()
        self.streams.close()
        await super().stop()


class _AgentGateway(sickbay_pb2_grpc.AgentGatewayServicer):
    """The service: each call is a `Stream`."""

    def __init__(self, streams: AgentStreams) -> None:
        self._streams = streams

    def register(self, server: grpc.aio.Server) -> None:
        sickbay_pb2_grpc.add_AgentGatewayServicer_to_server(self, server)

    async def Connect(  # type: ignore[override]  # noqa: N802  # the read and write calls of grpc.aio
        self,
        _: object,
        context: _Context,
    ) -> None:
        # Created elsewhere: this call's frame would otherwise be kept as long as the stream.
        ending = await self._streams.stream(context, lambda: caller_of(context)).serve()
        if ending.code is not grpc.StatusCode.OK:
            # The call would keep the error that `abort` raises, whose frames keep the call: each
            # refused call stayed until a collection, which took 0.3 s when they were thousands.
            context.set_code(ending.code)
            context.set_details(str(ending))


def caller_of(context: _Context) -> Caller:
    """The credentials with which a call was opened."""
    pairs = context.invocation_metadata() or ()
    metadata = {str(key): value for key, value in pairs if isinstance(value, str)}
    certificate = {str(key): list(values) for key, values in context.auth_context().items()}
    return Caller(context.peer(), metadata, certificate)


def certificate_files(
    config: Config, stats: IngestStats, *, now: Callable[[], float], wall: Callable[[], float]
) -> CertificateFiles | None:
    """The listener's certificate; None without TLS. Raises `aggregator.ingest.tls.TlsError`."""
    tls = config.listen.tls
    if tls is None:
        return None
    files = CertificateFiles(
        tls.cert_file,
        tls.key_file,
        tls.client_ca_file,
        verified_by=config.replicas.ca_file,
        stats=stats,
        now=now,
        wall=wall,
    )
    files.check()
    return files


def controller_streams(
    config: Config,
    intake: EvidenceSink,
    stats: IngestStats,
    deleted_pods: DeletedPods,
    *,
    name: str,
    keys: JwksCache | None = None,
    is_current: IsCurrent | None = None,
    probe_key: bytes,
    cluster_away: Callable[[], bool],
    among_others: Callable[[], str],
    orders: AgentOrders,
    now: Callable[[], float],
    wall: Callable[[], float],
) -> AgentStreams:
    """The streams of a controller, whose evidence goes to ``intake``.

    ``name`` is this aggregator's, as sent to agents. ``keys`` (`open_keys`) verify tokens, and are
    needed for ``identity.kind: token``. ``is_current`` tells whether a Node has the UID that its
    token names; without it the UID is not checked. ``probe_key`` is the secret by which probes are
    assigned. ``cluster_away`` says whether the API server can't be reached now, ``among_others``
    this replica's own address where there are others (empty: there are none). ``orders`` go to
    agents by its streams. ``now`` is monotonic seconds, ``wall`` seconds since the epoch.
    """
    authenticator = make_authenticator(config, keys, deleted_pods, wall, is_current)
    return AgentStreams(
        authenticator=authenticator,
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
        probe_key=probe_key,
        deleted_pods=deleted_pods,
    )


def open_keys(config: Config, fetch: Fetch, *, now: Callable[[], float]) -> JwksCache:
    """The cluster's published keys, beginning with those on disk."""
    keys = JwksCache(fetch, config.identity.keys_cache, now=now)
    keys.load()
    return keys


def make_authenticator(
    config: Config,
    keys: JwksCache | None,
    deleted_pods: DeletedPods,
    wall: Callable[[], float],
    is_current: IsCurrent | None = None,
) -> Authenticator:
    """Proves agents' identities as the configuration says. A gateway has no ``is_current``."""
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
