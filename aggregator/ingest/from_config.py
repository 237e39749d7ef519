"""Builds the parts that serve agents, from the configuration: identity, certificates, streams."""

from collections.abc import Callable
from typing import TypeAlias

import grpc

from aggregator.config.settings import Config
from aggregator.ingest.agent_streams import AgentStreams
from aggregator.ingest.checked_auth import CheckedAuthenticator, IsCurrent
from aggregator.ingest.deleted_pods import DeletedPods
from aggregator.ingest.identity import (
    Authenticator,
    Caller,
    CertificateAuthenticator,
    TrustingAuthenticator,
)
from aggregator.ingest.interfaces import EvidenceSink
from aggregator.ingest.jwks import Fetch, JwksCache
from aggregator.ingest.stats import IngestStats
from aggregator.ingest.stream import StreamConfig
from aggregator.ingest.tls import CertificateFiles
from aggregator.ingest.tokens import TokenAuthenticator
from aggregator.repairers.agent_orders import AgentOrders
from aggregator.version import VERSION
from sickbay.v1 import sickbay_pb2 as pb

_Context: TypeAlias = "grpc.aio.ServicerContext[pb.AgentMessage, pb.AggregatorMessage]"


def caller_of(context: _Context) -> Caller:
    """The credentials with which a call was opened."""
    pairs = context.invocation_metadata() or ()
    metadata = {str(key): value for key, value in pairs if isinstance(value, str)}
    certificate = {str(key): list(values) for key, values in context.auth_context().items()}
    return Caller(context.peer(), metadata, certificate)


def certificate_files(
    config: Config, stats: IngestStats, *, now: Callable[[], float], wall: Callable[[], float]
) -> CertificateFiles | None:
    """The listener's certificate, or None without TLS. Raises `aggregator.ingest.tls.TlsError`."""
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
    needed for ``identity.kind: token``. ``is_current`` returns whether a Node has the UID that its
    token names; without it the UID is not checked. ``probe_key`` is the secret by which probes are
    assigned. ``cluster_away`` returns whether the API server can't be reached now, ``among_others``
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
    """Proves agents' identities as the configuration sets. A gateway has no ``is_current``."""
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
    return CheckedAuthenticator(tokens, deleted_pods, is_current)
