"""Builds both ends from the configuration."""

import random
from collections.abc import Callable
from pathlib import Path

from aggregator.ingest.jwks import JwksCache
from aggregator.ingest.tokens import TokenAuthenticator
from aggregator.quarantine.coordination.coordinator import Coordinator
from aggregator.relay.auth import AUDIENCE, ReplicaAuthenticator
from aggregator.replicas.membership.view import Ownership
from aggregator.replicas.rpc.client import LeaderClient, ReplicaCredentials
from aggregator.replicas.rpc.server import CoordinationService


def service(
    coordinator: Coordinator,
    keys: JwksCache,
    *,
    service_account: str,
    issuer: str,
    plaintext: bool,
    cluster_away: Callable[[], bool],
    wall: Callable[[], float],
) -> CoordinationService:
    """The leader's end: give its `register` to `IngestServer.add_service`.

    ``service_account`` is the aggregators' own ("namespace:name"), ``issuer`` as for agents; empty:
    the one that the API server publishes. ``plaintext``: the listener speaks no TLS.
    """
    replica_auth = authenticator(
        keys, service_account=service_account, issuer=issuer, plaintext=plaintext, wall=wall
    )
    return CoordinationService(coordinator, replica_auth, cluster_away=cluster_away, now=wall)


def authenticator(
    keys: JwksCache,
    *,
    service_account: str,
    issuer: str,
    plaintext: bool,
    wall: Callable[[], float],
) -> ReplicaAuthenticator:
    """Verifies other replicas' tokens; arguments as for `service`."""
    tokens = TokenAuthenticator(
        keys,
        audience=AUDIENCE,
        service_account=service_account,
        issuer=issuer,
        now=wall,
        key="shards.service_account",
    )
    return ReplicaAuthenticator(tokens, wall=wall, plaintext=plaintext)


def speaker(
    coordinator: Coordinator,
    shards: Ownership,
    *,
    token_file: Path,
    ca_file: Path | None,
    pair: tuple[Path, Path] | None,
    now: Callable[[], float],
    rng: random.Random,
) -> LeaderClient:
    """The other end, to be run for as long as the aggregator runs.

    ``ca_file`` None: without TLS, on loopback. ``pair``: certificate and key, where the listeners
    require a certificate of their clients (``identity.kind: certificate``).
    """
    credentials = ReplicaCredentials(token_file=token_file, ca_file=ca_file, pair=pair)
    return LeaderClient(coordinator, shards, credentials, now=now, rng=rng)
