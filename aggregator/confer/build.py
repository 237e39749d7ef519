"""Puts both ends together, as the configuration has it."""

import random
from collections.abc import Callable
from pathlib import Path

from aggregator.confer.badges import AUDIENCE, Badges
from aggregator.confer.client import Credentials, Speaker
from aggregator.confer.server import CouncilService
from aggregator.config import Config
from aggregator.ingest.keys import KeyStore
from aggregator.ingest.tokens import TokenAuthenticator
from aggregator.quarantine.conferring import Conferring
from aggregator.shards.council import Shards


def build(
    config: Config,
    conferring: Conferring,
    shards: Shards,
    *,
    keys: KeyStore,
    cluster_away: Callable[[], bool],
    now: Callable[[], float],
    wall: Callable[[], float],
    rng: random.Random,
) -> tuple[CouncilService, Speaker]:
    """Both ends: the first's `register` is for `IngestServer.also`, the second is to be run.

    ``keys`` are the cluster's published ones (`ingest.server.open_keys`). ``cluster_away`` says
    whether the API server can't be reached now. ``now`` is monotonic seconds, ``wall`` seconds
    since the epoch.
    """
    tls = config.listen.tls
    asked_for_ours = tls is not None and config.identity.kind == "certificate"
    return (
        service(
            conferring,
            keys,
            service_account=config.shards.service_account,
            issuer=config.identity.issuer,
            plaintext=tls is None,
            cluster_away=cluster_away,
            wall=wall,
        ),
        speaker(
            conferring,
            shards,
            token_file=config.shards.token_file,
            ca_file=config.shards.ca_file,
            pair=(tls.cert_file, tls.key_file) if tls is not None and asked_for_ours else None,
            now=now,
            rng=rng,
        ),
    )


def service(
    conferring: Conferring,
    keys: KeyStore,
    *,
    service_account: str,
    issuer: str,
    plaintext: bool,
    cluster_away: Callable[[], bool],
    wall: Callable[[], float],
) -> CouncilService:
    """The leader's end: give its `register` to `IngestServer.also`.

    ``service_account`` is the aggregators' own ("namespace:name"), ``issuer`` as for agents; empty:
    the one that the API server publishes. ``plaintext``: the listener speaks no TLS.
    """
    tokens = TokenAuthenticator(
        keys,
        audience=AUDIENCE,
        service_account=service_account,
        issuer=issuer,
        now=wall,
        key="shards.service_account",
    )
    badges = Badges(tokens, wall=wall, plaintext=plaintext)
    return CouncilService(conferring, badges, cluster_away=cluster_away)


def speaker(
    conferring: Conferring,
    shards: Shards,
    *,
    token_file: Path,
    ca_file: Path | None,
    pair: tuple[Path, Path] | None,
    now: Callable[[], float],
    rng: random.Random,
) -> Speaker:
    """The other end, to be run for as long as the aggregator is.

    ``ca_file`` None: without TLS, on loopback. ``pair``: certificate and key, where the listeners
    want a certificate of their clients (``identity.kind: certificate``).
    """
    credentials = Credentials(token_file=token_file, ca_file=ca_file, pair=pair)
    return Speaker(conferring, shards, credentials, now=now, rng=rng)
