"""Rights, as the API server knows them: SubjectAccessReviews, remembered for a short time."""

from collections.abc import Callable

from aggregator.access.identity import AccessRefused, UserIdentity, unavailable
from aggregator.access.review_budget import ALLOWED_FOR, REFUSED_FOR
from aggregator.cluster.port import ClusterError
from aggregator.cluster.users import Access, AccessReviews, User
from aggregator.runtime.byte_budget import Budgets
from aggregator.runtime.shared_answers import SharedAnswers

#: Reviews of rights to one node that grant nothing, by user: at once, and in a second. Each is a
#: request to the API server that goes before evictions, and a reader may name any node.
REFUSED_BURST, _REFUSED_RATE = 100.0, 4.0


class SubjectAccessAuthorizer:
    """Implements `Authorizer`. ``now`` is monotonic seconds."""

    def __init__(self, reviews: AccessReviews, *, now: Callable[[], float]) -> None:
        self._reviews = reviews
        self._now = now
        self._refused = Budgets(burst=REFUSED_BURST, rate=_REFUSED_RATE)
        self._cache: SharedAnswers[bool] = SharedAnswers(
            now, lasts=lambda allowed, _: ALLOWED_FOR if allowed else REFUSED_FOR
        )

    async def allows(self, identity: UserIdentity, access: Access) -> bool:
        user = identity.user
        try:
            return await self._cache.get((user, access), lambda: self._review(user, access))
        except ClusterError as error:
            raise unavailable(error) from error

    async def _review(self, user: User, access: Access) -> bool:
        bounded = access.name and not access.namespace  # not the one stop switch
        # Spent before the answer is known: other reviews begin while this one waits.
        if bounded and not self._refused.spend(user.name, 1, self._now()):
            raise AccessRefused(
                503,
                "too_many_reviews",
                "too many rights to single nodes have been reviewed for you in the last seconds",
                "Try again in a few seconds.",
            )
        allowed = await self._reviews.review_access(user, access)
        if bounded and allowed:
            self._refused.spend(user.name, -1, self._now())
        return allowed
