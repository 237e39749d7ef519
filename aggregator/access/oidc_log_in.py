"""A log-in by OpenID Connect, from its begin to the session, without HTTP of our own side."""

import hmac
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from attrs import define

from aggregator.access.identity import AccessRefused
from aggregator.access.oidc_claims import ClaimNames, ClaimRefused, check_claims, groups_of, user_of
from aggregator.access.oidc_provider import OidcProvider, ProviderAway
from aggregator.access.oidc_session import BegunLogIns, OidcSessions
from aggregator.access.review_budget import ReviewBudget
from aggregator.runtime.text import visible

log = logging.getLogger("sickbay.access")

#: On Kubernetes; a local cluster has others.
OTHER_WAYS = "Other ways to log in go on: a token, or `sickbay` with a kubeconfig."


@dataclass(frozen=True, slots=True)
class LoggedIn:
    """A log-in that succeeded: the session's cookie, the path to return to, and the user."""

    cookie: str = field(repr=False)
    path: str
    user: str


@define(eq=False, repr=False, slots=False, kw_only=True)
class OidcLogIn:
    """``other_ways`` is a hint. Both steps raise AccessRefused."""

    _provider: OidcProvider
    _begun: BegunLogIns
    sessions: OidcSessions
    _names: ClaimNames
    _groups: frozenset[str]
    _other_ways: str = OTHER_WAYS
    _now: Callable[[], float]

    def __attrs_post_init__(self) -> None:
        self._budget = ReviewBudget(self._now)

    @property
    def page(self) -> str:
        """The base URL by which browsers reach the page."""
        return self._provider.settings.page

    @property
    def label(self) -> str:
        """The issuer, for people."""
        return urlsplit(self._provider.settings.issuer).netloc

    async def begin(self, path: str) -> tuple[str, str]:
        """The issuer's address for the browser, and the cookie of the log-in under way."""
        try:
            cookie, content = self._begun.begin(path)
            url = await self._provider.authorization_url(
                state=content["state"], nonce=content["nonce"], verifier=content["verifier"]
            )
        except ProviderAway as error:
            raise self._away(error) from error
        return url, cookie

    async def finish(self, query: Mapping[str, str], cookie: str, address: str) -> LoggedIn:
        """``query``: the parameters of the redirect back; ``address``: the client's."""
        try:
            begun = self._begun.read(cookie)
            self._check_answer(query, begun)
            assert begun is not None
            if not self._budget.spend(address):
                raise AccessRefused(
                    503,
                    "too_many_log_ins",
                    "too many log-ins have come from your address in the last seconds",
                    "Try again in a few seconds.",
                )
            claims = await self._provider.claims(query["code"], begun["verifier"])
            client_id = self._provider.settings.client_id
            check_claims(claims, client_id=client_id, nonce=begun["nonce"])
            user = user_of(claims, self._names)
            groups = groups_of(claims, self._names, self._groups)
            if not groups:
                raise AccessRefused(
                    403,
                    "no_role",
                    f"{visible(user, 256)} may not read this page, because no group in the claim "
                    f'"{self._names.groups}" has a role here',
                    "An administrator adds a group to access.oidc.viewers or "
                    "access.oidc.operators. " + self._other_ways,
                )
            return LoggedIn(self.sessions.begin(user, groups), begun["path"], user)
        except ProviderAway as error:
            raise self._away(error) from error
        except ClaimRefused as error:
            raise AccessRefused(
                401,
                "invalid_id_token",
                f"the log-in at {self.label} proves nothing here: {error}",
                "Log in again. If it stays, compare access.oidc with the client at the issuer, and "
                "the clocks of both.",
            ) from error

    def _check_answer(self, query: Mapping[str, str], begun: Mapping[str, Any] | None) -> None:
        """Whether the issuer's answer is one to the log-in that this browser has begun."""
        state = query.get("state", "").encode(errors="replace")
        if begun is None or not hmac.compare_digest(state, str(begun["state"]).encode()):
            raise AccessRefused(
                400,
                "foreign_log_in",
                "this log-in was not begun in this browser, or took longer than ten minutes",
                f"Open {self.page}/login, and log in there.",
            )
        issuer = self._provider.settings.issuer
        if query.get("iss", issuer) != issuer:
            raise ClaimRefused("the answer is another issuer's")
        if "code" not in query:
            error = visible(query.get("error", "no code"), 100)
            more = visible(query.get("error_description", ""), 300)
            raise AccessRefused(
                401,
                "refused_by_issuer",
                f"{self.label} has not logged you in: {error}{f' ({more})' if more else ''}",
                self._other_ways,
            )

    def _away(self, error: ProviderAway) -> AccessRefused:
        log.warning(
            "a log-in by OpenID Connect failed",
            extra={"event": "access.oidc_unusable", "error": str(error)},
        )
        return AccessRefused(
            503,
            "oidc_unusable",
            f"the log-in at {self.label} can't be used now: {error}",
            f"Try again later. {self._other_ways}",
        )
