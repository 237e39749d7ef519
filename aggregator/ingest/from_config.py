"""Builds the parts that serve agents, from the configuration: identity, certificates, streams."""

from collections.abc import Callable
from typing import TypeAlias

import grpc

from aggregator.config.settings import Config
from aggregator.ingest.checked_auth import CheckedAuthenticator, IsCurrent
from aggregator.ingest.deleted_pods import DeletedPods
from aggregator.ingest.identity import (
    Authenticator,
    Caller,
    CertificateAuthenticator,
    TrustingAuthenticator,
)
from aggregator.ingest.jwks import Fetch, JwksCache
from aggregator.ingest.stats import IngestStats
from aggregator.ingest.tls import CertificateFiles
from aggregator.ingest.tokens import TokenAuthenticator
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
