"""The identity behind a request: the facts that prove it, and the refusal where they don't."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from aggregator.cluster.users import Access, User


@dataclass(frozen=True, slots=True)
class UserIdentity:
    """A proven user. ``how``: token, certificate, front-proxy, static-token or oidc.

    ``ambient``: the browser sends the proof by itself, with requests of other sites too. So an
    action needs a proof that the page itself requests it.
    """

    user: User
    how: str
    ambient: bool = False

    @property
    def name(self) -> str:
        return self.user.name


@dataclass(frozen=True, slots=True)
class RequestFacts:
    """The proof of a request. ``certificate``: the client's in DER, verified by TLS; None without.

    ``token``: of the Authorization header; ``cookie``: the token of a log-in; ``session``: that of
    a log-in by OpenID Connect. ``header`` gives the values of a header, by its name.
    """

    address: str = ""
    token: str = field(default="", repr=False)
    cookie: str = field(default="", repr=False)
    session: str = field(default="", repr=False)
    certificate: bytes | None = field(default=None, repr=False)
    header: Callable[[str], Sequence[str]] = field(default=lambda _: (), repr=False)


class AccessRefused(Exception):
    """The request is refused. ``status`` is 401, 403 or 503; ``hint`` is the next step.

    Neither text has a secret. ``reason`` is one word or two for logs.
    """

    def __init__(self, status: int, reason: str, error: str, hint: str) -> None:
        super().__init__(error)
        self.status = status
        self.reason = reason
        self.error = error
        self.hint = hint


class RequestAuthenticator(Protocol):
    """One way to prove an identity."""

    async def authenticate(self, facts: RequestFacts) -> UserIdentity | None:
        """The identity, or None without such a proof in the request.

        Raises AccessRefused for a proof that is not valid, or that can't be verified now.
        """
        ...


class Authorizer(Protocol):
    """Knows the rights of identities."""

    async def allows(self, identity: UserIdentity, access: Access) -> bool:
        """Whether it has the right. Raises AccessRefused (503) where that is not known now."""
        ...


def unavailable(error: Exception) -> AccessRefused:
    """The API server can't be reached: the request is neither allowed nor refused for good."""
    return AccessRefused(
        503,
        "api_unavailable",
        f"the API server can't answer whether you may see this: {error}",
        "Try again later. `sickbay` and `kubectl` with a kubeconfig use the API server directly.",
    )
