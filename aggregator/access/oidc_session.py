"""The log-in by OpenID Connect after it has succeeded: a signed cookie, and the rights of its user.

The cookie is signed with a key that follows from the client's secret: all replicas have the same
one and share no state, and another secret ends every session. It holds the user's name and those of
their groups that the configuration names. So a group that is removed from the configuration counts
no more at once. A group that the issuer takes from the person counts until the session ends.
"""

import hashlib
import hmac
import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import jwt
from jwt.types import Options

from aggregator.access.identity import AccessRefused, Authorizer, RequestFacts, UserIdentity
from aggregator.access.oidc_provider import ProviderAway
from aggregator.cluster.users import Access, User
from aggregator.runtime.recent import Recent

#: How identities of these sessions are named in logs and answers.
HOW = "oidc"
#: Before a user's name: it can be none of Kubernetes' or of sickbay's own.
PREFIX = "oidc:"
#: Seconds from the begin of a log-in to its end.
BEGUN_FOR = 600.0
#: Bytes of a cookie: browsers keep no longer one, its name and attributes included.
LONGEST = 3800
#: Sessions that were logged out and are remembered until they would have ended.
_MOST_ENDED = 10_000
_ALGORITHM = "HS256"
_SESSION, _BEGUN = "sickbay-session", "sickbay-log-in"


class SignedCookies:
    """Signs and reads cookies. ``secret`` reads the client's secret, and raises ProviderAway;
    ``client`` names issuer and client; ``wall`` is seconds since the epoch.
    """

    def __init__(
        self, secret: Callable[[], str], *, client: str, wall: Callable[[], float]
    ) -> None:
        self._secret = secret
        self._info = f"sickbay: cookies of the page: {client}".encode()
        self._wall = wall

    def sign(self, purpose: str, content: Mapping[str, Any], seconds: float) -> str:
        """Raises ProviderAway."""
        until = self._wall() + seconds
        claims = {**content, "aud": purpose, "exp": until}
        return jwt.encode(claims, self._key(), _ALGORITHM)

    def read(self, purpose: str, text: str) -> Mapping[str, Any] | None:
        """The content, or None for a cookie that is forged, of another purpose, or over. Raises
        ProviderAway.
        """
        if not text or len(text) > LONGEST:
            return None
        # The caller's clock counts, so expiry is checked here and not by the library.
        options: Options = {"verify_exp": False, "require": ["aud", "exp"]}
        try:
            found: Mapping[str, Any] = jwt.decode(
                text, self._key(), algorithms=[_ALGORITHM], audience=purpose, options=options
            )
        except (jwt.PyJWTError, ValueError, TypeError):
            return None
        until = found["exp"]
        return found if isinstance(until, int | float) and self._wall() < until else None

    def _key(self) -> bytes:
        return hmac.digest(self._secret().encode(), self._info, hashlib.sha256)


class BegunLogIns:
    """The cookie of a log-in that is under way, with which the issuer's answer is compared."""

    def __init__(self, cookies: SignedCookies) -> None:
        self._cookies = cookies

    def begin(self, path: str) -> tuple[str, Mapping[str, Any]]:
        """The cookie and its content: new state, nonce and verifier. Raises ProviderAway."""
        content = {
            "path": path,
            "state": secrets.token_urlsafe(32),
            "nonce": secrets.token_urlsafe(32),
            "verifier": secrets.token_urlsafe(48),
        }
        cookie = self._cookies.sign(_BEGUN, content, BEGUN_FOR)
        if len(cookie) > LONGEST:  # quotes are longer in JSON
            content["path"] = "/"
            cookie = self._cookies.sign(_BEGUN, content, BEGUN_FOR)
        return cookie, content

    def read(self, cookie: str) -> Mapping[str, Any] | None:
        """The content, or None without a log-in under way. Raises ProviderAway."""
        return self._cookies.read(_BEGUN, cookie)


class OidcSessions:
    """Implements `RequestAuthenticator`: reads the session of a browser.

    ``known``: the groups that the configuration names; ``lasts``: seconds of a session.
    """

    def __init__(self, cookies: SignedCookies, *, known: Collection[str], lasts: float) -> None:
        self._cookies = cookies
        self._known = frozenset(known)
        self._lasts = lasts
        self._ended: Recent[str, None] = Recent(_MOST_ENDED)

    def begin(self, user: str, groups: Sequence[str]) -> str:
        """The cookie of a new session. Raises ProviderAway, and AccessRefused where browsers would
        not keep it.
        """
        content = {"sub": user, "groups": list(groups), "jti": secrets.token_urlsafe(16)}
        cookie = self._cookies.sign(_SESSION, content, self._lasts)
        if len(cookie) > LONGEST:
            raise AccessRefused(
                403,
                "too_many_groups",
                f"the names of your {len(groups)} groups are too long for a cookie",
                "An administrator gives roles to fewer groups, or to one with a shorter name, in "
                "access.oidc.",
            )
        return cookie

    def end(self, cookie: str) -> None:
        """Log out: the cookie is refused from now on, by this process. Raises ProviderAway."""
        found = self._cookies.read(_SESSION, cookie)
        if found is not None:
            self._ended[str(found.get("jti"))] = None

    async def authenticate(self, facts: RequestFacts) -> UserIdentity | None:
        if facts.token or not facts.session:
            return None
        try:
            found = self._cookies.read(_SESSION, facts.session)
        except ProviderAway as error:
            raise AccessRefused(
                503, "oidc_unusable", f"your log-in can't be verified: {error}", "Try again later."
            ) from error
        if found is None or found.get("jti") in self._ended:
            raise AccessRefused(
                401, "invalid_session", "your log-in has ended", "Log in again to go on."
            )
        groups = tuple(one for one in found["groups"] if one in self._known)
        return UserIdentity(User(PREFIX + str(found["sub"]), groups), HOW, ambient=True)


class OidcRoles:
    """Implements `Authorizer`: by groups for sessions, by ``others`` for all other identities.

    ``viewers`` and ``operators`` are groups of the issuer: a viewer reads, an operator does all
    that the page offers.
    """

    def __init__(
        self, viewers: Collection[str], operators: Collection[str], others: Authorizer | None
    ) -> None:
        self._viewers = frozenset(viewers)
        self._operators = frozenset(operators)
        self._others = others

    async def allows(self, identity: UserIdentity, access: Access) -> bool:
        if identity.how != HOW:
            return self._others is not None and await self._others.allows(identity, access)
        groups = identity.user.groups
        if not self._operators.isdisjoint(groups):
            return True
        return access.reads and not self._viewers.isdisjoint(groups)
