"""Bearer tokens, verified by the API server: service accounts, OIDC, webhooks, as it is set up."""

import hashlib
import secrets
from collections.abc import Callable, Sequence

from aggregator.access.identity import AccessRefused, RequestFacts, UserIdentity, unavailable
from aggregator.access.review_budget import ALLOWED_FOR, REFUSED_FOR, ReviewBudget
from aggregator.cluster.port import ClusterError
from aggregator.cluster.users import AccessReviews, User
from aggregator.runtime.shared_answers import SharedAnswers

#: Bytes of a token; the API server itself takes no longer header.
MAX_TOKEN = 16_384


class TokenReviewAuthenticator:
    """Implements `RequestAuthenticator`.

    ``now`` is monotonic seconds; ``audiences`` as for a TokenReview. Tokens are remembered by a
    keyed hash alone, so that a dump of the memory's tables has none.
    """

    def __init__(
        self, reviews: AccessReviews, *, audiences: Sequence[str], now: Callable[[], float]
    ) -> None:
        self._reviews = reviews
        self._audiences = tuple(audiences)
        self._key = secrets.token_bytes(32)
        self._budget = ReviewBudget(now)
        self._cache: SharedAnswers[User | None] = SharedAnswers(
            now, lasts=lambda user, _: REFUSED_FOR if user is None else ALLOWED_FOR
        )

    async def authenticate(self, facts: RequestFacts) -> UserIdentity | None:
        token = facts.token or facts.cookie
        if not token:
            return None
        user = await self._user(token, facts.address)
        if user is None:
            raise invalid_token()
        return UserIdentity(user, "token", ambient=not facts.token)

    async def _user(self, token: str, address: str) -> User | None:
        if len(token) > MAX_TOKEN or not token.isascii() or not token.isprintable():
            return None
        key = hashlib.blake2b(token.encode(), key=self._key, digest_size=32).digest()
        if not self._cache.known(key) and not self._budget.spend(address):
            raise AccessRefused(
                503,
                "too_many_tokens",
                "too many new tokens have come from your address in the last seconds",
                "Try again in a few seconds.",
            )
        try:
            return await self._cache.get(
                key, lambda: self._reviews.review_token(token, self._audiences)
            )
        except ClusterError as error:
            raise unavailable(error) from error


def invalid_token() -> AccessRefused:
    return AccessRefused(
        401,
        "invalid_token",
        "the token is not valid: it has expired, was made for another audience or cluster, or its "
        "account is gone",
        "Make a new one, such as: kubectl create token ACCOUNT --duration=1h",
    )
