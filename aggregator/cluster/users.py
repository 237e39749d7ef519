"""Users of the cluster and their rights, as the cluster itself answers for them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class User:
    """A user as an authenticator of the cluster names it. ``extra``: further facts that authorizers
    may read, such as the scopes of a token.
    """

    name: str
    groups: tuple[str, ...] = ()
    uid: str = ""
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()


@dataclass(frozen=True, slots=True)
class Access:
    """One right: a verb on a resource, or on ``path``, which is no resource's.

    An empty ``namespace`` is all of the cluster, an empty ``name`` all objects.
    """

    verb: str
    group: str = ""
    resource: str = ""
    namespace: str = ""
    name: str = ""
    path: str = ""

    @property
    def reads(self) -> bool:
        """Whether it changes nothing."""
        return self.verb in {"get", "list", "watch"}

    def __str__(self) -> str:
        if self.path:
            return f"{self.verb} {self.path}"
        where = f" in namespace {self.namespace}" if self.namespace else ""
        group = f".{self.group}" if self.group else ""
        return f"{self.verb} {self.resource}{group}{f' {self.name}' if self.name else ''}{where}"


class AccessReviews(Protocol):
    """The cluster's answers. Both raise `ClusterError` where there is no answer."""

    async def review_token(self, token: str, audiences: Sequence[str]) -> User | None:
        """The bearer of the token, or None for a token that is not valid.

        ``audiences``: one of them must be the token's; none: the API server's own.
        """

    async def review_access(self, user: User, access: Access) -> bool:
        """Whether the user has this right."""
