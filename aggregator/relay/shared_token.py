"""Verifies replicas where no API server issues tokens: all have one secret in a file."""

import hmac
import math
from collections.abc import Callable

from aggregator.ingest.identity import IdentityError, Refusal
from aggregator.relay.credentials import RelayConfigError

#: Characters: a shorter text could be guessed.
LEAST = 32


class SharedToken:
    """A `Verifier`. ``own`` reads our copy of the secret, again for each stream."""

    def __init__(self, own: Callable[[], str]) -> None:
        self._own = own

    async def verify_account(self, token: str) -> float:
        """It never expires. Raises `IdentityError`."""
        try:
            own = self._own()
        except RelayConfigError as error:
            raise IdentityError(Refusal.KEYS_UNAVAILABLE, str(error)) from error
        if len(own) < LEAST:
            text = f"replicas.token_file of the controller has fewer than {LEAST} characters"
            raise IdentityError(Refusal.KEYS_UNAVAILABLE, text)
        if not hmac.compare_digest(own.encode(), token.encode()):
            text = "replicas.token_file differs from the controller's"
            raise IdentityError(Refusal.BAD_TOKEN, text)
        return math.inf
