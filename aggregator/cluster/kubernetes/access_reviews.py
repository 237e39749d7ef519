"""TokenReviews and SubjectAccessReviews: who users are and what they may do, by the API server.

Shapes: https://kubernetes.io/docs/reference/kubernetes-api/authentication-resources/ and
https://kubernetes.io/docs/reference/kubernetes-api/authorization-resources/
"""

from collections.abc import Mapping, Sequence

import msgspec

from aggregator.cluster.kubernetes import paths
from aggregator.cluster.kubernetes.limiter import Priority
from aggregator.cluster.kubernetes.objects import Review, decode
from aggregator.cluster.kubernetes.rbac import attributes_of
from aggregator.cluster.kubernetes.transport import Transport, encode
from aggregator.cluster.port import UNGUARDED
from aggregator.cluster.users import Access, User

#: Seconds for one review: a person waits for it.
_DEADLINE = 5.0


class _UserInfo(msgspec.Struct, frozen=True):
    username: str = ""
    uid: str = ""
    groups: list[str] | None = None
    extra: dict[str, list[str]] | None = None


class _TokenStatus(msgspec.Struct, frozen=True):
    authenticated: bool = False
    user: _UserInfo | None = None
    audiences: list[str] | None = None


class _TokenReview(msgspec.Struct, frozen=True):
    status: _TokenStatus = _TokenStatus()


class KubeAccessReviews:
    """Implements `AccessReviews`."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def review_token(self, token: str, audiences: Sequence[str]) -> User | None:
        spec: dict[str, object] = {"token": token}
        if audiences:
            spec["audiences"] = list(audiences)
        body = await self._post(
            paths.TOKEN_REVIEWS, "authentication.k8s.io/v1", "TokenReview", spec
        )
        status = decode(body, _TokenReview).status
        user = status.user
        if not status.authenticated or user is None or not user.username:
            return None
        # An authenticator that knows no audiences names none, and its tokens are the API server's.
        if audiences and not set(audiences) & set(status.audiences or ()):
            return None
        extra = sorted((key, tuple(values)) for key, values in (user.extra or {}).items())
        return User(user.username, tuple(user.groups or ()), user.uid, tuple(extra))

    async def review_access(self, user: User, access: Access) -> bool:
        spec: dict[str, object] = {
            "user": user.name,
            "groups": list(user.groups),
            "uid": user.uid,
            "extra": {key: list(values) for key, values in user.extra},
            **attributes_of(access),
        }
        body = await self._post(
            paths.SUBJECT_ACCESS_REVIEWS, "authorization.k8s.io/v1", "SubjectAccessReview", spec
        )
        status = decode(body, Review).status
        return status.allowed and not status.denied

    async def _post(self, path: str, version: str, kind: str, spec: Mapping[str, object]) -> bytes:
        return await self._transport.request(
            "POST",
            path,
            Priority.READ,
            body=encode({"apiVersion": version, "kind": kind, "spec": spec}),
            deadline=_DEADLINE,
            guard=UNGUARDED,
        )
