"""A front proxy that has authenticated the person, by OIDC for example, and names them in headers.

The headers count only on a connection whose client certificate is the proxy's. On any other
connection they are a forgery or a mistake, and the request is refused: an answer as somebody else
would hide that.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from aggregator.access.client_certificate import (
    CaCertificates,
    common_names,
    expect_current,
    presented,
)
from aggregator.access.identity import AccessRefused, RequestFacts, UserIdentity
from aggregator.cluster.users import User

#: Characters of a user's or a group's name, and groups of one user.
_MOST_NAME, _MOST_GROUPS = 256, 512
#: Kubernetes' own users and groups, such as system:masters: a group claim must not name one.
_RESERVED = "system:"


@dataclass(frozen=True, slots=True)
class ProxyHeaders:
    """The names of the headers. Groups come in several headers, or in one with commas."""

    user: str
    groups: str


class FrontProxyAuthenticator:
    """Implements `RequestAuthenticator`. ``names``: the CNs of proxies' certificates.

    ``wall`` is seconds since the epoch.
    """

    def __init__(
        self,
        authorities: CaCertificates,
        *,
        names: Sequence[str],
        headers: ProxyHeaders,
        wall: Callable[[], float],
    ) -> None:
        self._authorities = authorities
        self._names = frozenset(names)
        self._headers = headers
        self._wall = wall

    async def authenticate(self, facts: RequestFacts) -> UserIdentity | None:
        users = facts.header(self._headers.user)
        groups = facts.header(self._headers.groups)
        if not users and not groups:
            return None
        self._expect_proxy(facts)
        if len(users) != 1 or not _is_name(users[0]):
            raise AccessRefused(
                401,
                "invalid_proxy_header",
                f"the front proxy has to name one user in {self._headers.user}, and none of "
                f"{_RESERVED}",
                "Have the proxy replace the header that a client sends.",
            )
        found = [one.strip() for value in groups for one in value.split(",")]
        named = tuple(dict.fromkeys(one for one in found if _is_name(one)))[:_MOST_GROUPS]
        user = User(users[0], (*named, "system:authenticated"))
        return UserIdentity(user, "front-proxy", ambient=True)

    def _expect_proxy(self, facts: RequestFacts) -> None:
        certificate = presented(facts)
        if (
            certificate is None
            or not self._authorities.issued(certificate)
            or self._names.isdisjoint(common_names(certificate))
        ):
            raise AccessRefused(
                401,
                "forged_proxy_header",
                f"{self._headers.user} and {self._headers.groups} are the front proxy's, and this "
                "connection has not presented its client certificate",
                "Leave these headers out. A proxy presents a certificate that "
                "access.front_proxy.ca_file signed, with a CN of access.front_proxy.names.",
            )
        expect_current(certificate, self._wall())


def _is_name(text: str) -> bool:
    """Whether a proxy may name it: never what Kubernetes grants rights to by itself."""
    return 0 < len(text) <= _MOST_NAME and text.isprintable() and not text.startswith(_RESERVED)
