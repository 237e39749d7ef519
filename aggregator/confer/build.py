"""Makes both ends of what the configuration gives."""

import random
from collections.abc import Callable
from pathlib import Path

from aggregator.confer.badges import AUDIENCE, Badges
from aggregator.confer.client import Credentials, Speaker
from aggregator.confer.server import CouncilService
from aggregator.ingest.keys import KeyStore
from aggregator.ingest.tokens import TokenAuthenticator
from aggregator.quarantine.conferring import Conferring
from aggregator.shards.council import Shards


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
    return CouncilService(conferring, badges, cluster_away=cluster_away, now=wall)


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
