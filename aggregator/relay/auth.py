"""Authenticates replicas: a token of the aggregators' own service account, verified offline, or,
without an API server, a secret that all have (`shared_token`).

The token's audience decides: a token for the API server, or an agent's, opens no stream here, and
one of these is refused elsewhere. The Introduction names the replica: all replicas are one program
under one account, so any of them could pose as any other, and gain no right.
"""

from collections.abc import Callable, Mapping
from typing import Protocol

from attrs import define, field

from aggregator.ingest.identity import LEEWAY, Caller, IdentityError, Refusal
from aggregator.ingest.identity import peer_is_local as is_local

#: The audience of a replica's token.
AUDIENCE = "sickbay-replicas"


class Verifier(Protocol):
    """`ingest.tokens.TokenAuthenticator`, for our audience and account."""

    async def verify_account(self, token: str) -> float: ...


@define(eq=False, repr=False, slots=False)
class ReplicaAuthenticator:
    """``wall`` is seconds since the epoch; ``plaintext``: the listener speaks no TLS."""

    _verifier: Verifier
    _wall: Callable[[], float] = field(kw_only=True)
    _plaintext: bool = field(default=False, kw_only=True)

    async def authenticate(self, peer: str, metadata: Mapping[str, str]) -> float:
        """Until when the caller is authenticated (seconds since the epoch). Raises
        `IdentityError`.
        """
        if self._plaintext and not is_local(peer):
            text = "replicas coordinate without TLS on one machine only"
            raise IdentityError(Refusal.NOT_LOOPBACK, text)
        return await self.renew(Caller(peer, metadata).bearer())

    async def renew(self, token: str) -> float:
        """The same, by a token alone."""
        return await self._verifier.verify_account(token)

    def has_expired(self, until: float) -> bool:
        return self._wall() >= until + LEEWAY
