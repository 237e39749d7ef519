"""Rights, as the API server knows them: SubjectAccessReviews, remembered for a short time."""

from collections.abc import Callable

from aggregator.access.identity import UserIdentity, unavailable
from aggregator.access.review_budget import ALLOWED_FOR, REFUSED_FOR
from aggregator.cluster.port import ClusterError
from aggregator.cluster.users import Access, AccessReviews
from aggregator.runtime.shared_answers import SharedAnswers


class SubjectAccessAuthorizer:
    """Implements `Authorizer`. ``now`` is monotonic seconds."""

    def __init__(self, reviews: AccessReviews, *, now: Callable[[], float]) -> None:
        self._reviews = reviews
        self._cache: SharedAnswers[bool] = SharedAnswers(
            now, lasts=lambda allowed, _: ALLOWED_FOR if allowed else REFUSED_FOR
        )

    async def allows(self, identity: UserIdentity, access: Access) -> bool:
        user = identity.user
        try:
            return await self._cache.get(
                (user, access), lambda: self._reviews.review_access(user, access)
            )
        except ClusterError as error:
            raise unavailable(error) from error
