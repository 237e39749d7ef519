"""Accepts a request only with the identity and the right that its path needs.

Open to all are the probes, the log-in and the page's static files.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from aiohttp import web

from aggregator.access.gate import METRICS, READ, AccessGate
from aggregator.access.identity import AccessRefused, RequestFacts, UserIdentity
from aggregator.access.oidc_log_in import OidcLogIn
from aggregator.access.oidc_provider import ProviderAway
from aggregator.cluster.words import KUBERNETES, ClusterWords
from aggregator.runtime.rate_limited_log import RateLimitedLog
from aggregator.web.forwarded_client import VerifyReplica, accept, address_of, certificate_of
from aggregator.web.same_origin import ACTION_HEADER, foreign_because

log = logging.getLogger("sickbay.access")

_OPEN = frozenset(
    {"/healthz", "/readyz", "/login", "/logout", "/login/oidc", "/login/oidc/callback"}
)
_IDENTITY: web.RequestKey[UserIdentity] = web.RequestKey("sickbay.identity", UserIdentity)
_READING = frozenset({"GET", "HEAD"})


@dataclass(frozen=True, slots=True)
class PageAccess:
    """Access control as the page needs it. Without ``gate`` all may read, and none may act.

    ``verify_replica`` is None where no other replica passes requests on, ``oidc`` where nobody
    logs in by OpenID Connect. ``tokens``: whether a token can prove an identity.
    """

    gate: AccessGate | None = None
    verify_replica: VerifyReplica | None = None
    oidc: OidcLogIn | None = None
    tokens: bool = True

    @property
    def actions(self) -> bool:
        return self.gate is not None and self.gate.actions


class AccessGuard:
    """``now`` is monotonic seconds; ``words``: those of the cluster."""

    def __init__(
        self, access: PageAccess, *, now: Callable[[], float], words: ClusterWords = KUBERNETES
    ) -> None:
        self._access = access
        self._session = ""
        if access.oidc is not None:
            self._session = session_name(secure=access.oidc.page.startswith("https:"))
        self._now = now
        self._words = words
        self._sparingly = RateLimitedLog()

    async def admit(self, request: web.Request) -> None:
        """Return for a request that may be answered. Raises AccessRefused."""
        with self._noted(request):
            await accept(request, self._access.verify_replica)
        path = request.path
        if path in _OPEN or path.startswith("/static/"):
            return
        if request.method not in _READING:
            # Its handler checks the right to the action; no other route takes such a method.
            return
        gate = self._access.gate
        if gate is None or gate.anonymous:
            return
        with self._noted(request):
            rights = (READ, METRICS) if path == "/metrics" else (READ,)
            request[_IDENTITY] = await gate.require(self.facts(request), *rights)

    @contextmanager
    def _noted(self, request: web.Request) -> Iterator[None]:
        """A refusal within is logged."""
        try:
            yield
        except AccessRefused as refused:
            self.note(request, refused)
            raise

    async def identity(self, request: web.Request) -> UserIdentity | None:
        """The identity behind an admitted request; None where it presents none, or an invalid one
        that it does not need.
        """
        found = request.get(_IDENTITY)
        gate = self._access.gate
        if found is not None or gate is None:
            return found
        try:
            return await gate.identify(self.facts(request))
        except AccessRefused:
            return None

    async def still_allowed(self, request: web.Request) -> bool:
        """Whether an admitted request would be admitted now, for answers that last."""
        try:
            await self.admit(request)
        except AccessRefused:
            return False
        return True

    async def actor(self, request: web.Request) -> UserIdentity:
        """The person behind an action, who requested it through this site. Raises AccessRefused."""
        gate = self._access.gate
        if gate is None or not gate.actions:
            raise AccessRefused(
                403,
                "actions_off",
                "this page is read only",
                f"To act: {self._words.read_only}. "
                "access.actions: true of the configuration allows actions here.",
            )
        with self._noted(request):
            identity = await gate.require(self.facts(request))
            expect_own_site(request, identity)
        return identity

    def facts(self, request: web.Request) -> RequestFacts:
        """The proofs that the request presents."""

        def header(name: str) -> Sequence[str]:
            return request.headers.getall(name, [])

        return RequestFacts(
            address=address_of(request),
            token=bearer(request),
            cookie=request.cookies.get(cookie_name(request), ""),
            session=request.cookies.get(self._session, "") if self._session else "",
            certificate=certificate_of(request),
            header=header,
        )

    def end_session(self, request: web.Request, response: web.Response) -> None:
        """End the session by OpenID Connect that the browser has, and have it forget the cookie."""
        oidc = self._access.oidc
        if oidc is None:
            return
        if cookie := request.cookies.get(self._session, ""):
            try:
                oidc.sessions.end(cookie)
            except ProviderAway as error:
                self.note(request, AccessRefused(503, "oidc_unusable", str(error), ""))
        response.del_cookie(self._session, path="/", secure=oidc.page.startswith("https:"))

    def note(self, request: web.Request, refused: AccessRefused) -> None:
        """Log it, at most once in a while for each reason: clients may try without end."""
        fields = self._sparingly(refused.reason, self._now())
        if fields is None:
            return
        log.warning(
            "a request was refused",
            extra={
                "event": "access.refused",
                "reason": refused.reason,
                "error": refused.error,
                "path": request.path[:200],
                "address": address_of(request),
                **fields,
            },
        )

    def log_log_in(self, request: web.Request, user: str, how: str) -> None:
        """A person has logged in."""
        log.info(
            "a person logged in",
            extra={
                "event": "access.logged_in",
                "user": user,
                "how": how,
                "address": address_of(request),
            },
        )


def cookie_name(request: web.Request) -> str:
    """A browser takes a name with __Host- from this very host by TLS alone."""
    return "__Host-sickbay-token" if request.secure else "sickbay-token"


def session_name(*, secure: bool) -> str:
    """Of the cookie of a session by OpenID Connect. ``secure``: the page's address is https."""
    return "__Host-sickbay-session" if secure else "sickbay-session"


def set_cookie(
    response: web.Response,
    name: str,
    value: str,
    *,
    secure: bool,
    samesite: str = "Strict",
    max_age: int | None = None,
) -> None:
    """A cookie that no script can read."""
    response.set_cookie(
        name, value, path="/", secure=secure, httponly=True, samesite=samesite, max_age=max_age
    )


def bearer(request: web.Request) -> str:
    """The token of the Authorization header; empty without one."""
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def expect_own_site(request: web.Request, identity: UserIdentity) -> None:
    """Raises AccessRefused for an action that another site may have sent by a person's browser."""
    why = foreign_because(request.headers)
    if not why and identity.ambient and ACTION_HEADER not in request.headers:
        why = f"the header {ACTION_HEADER} is missing"
    if why:
        raise AccessRefused(
            403,
            "foreign_site",
            f"this request is not the page's own: {why}",
            f"Send {ACTION_HEADER}: 1 with a cookie or a client certificate; a bearer token in the "
            "Authorization header needs none.",
        )
