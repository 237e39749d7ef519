"""The routes of a log-in by OpenID Connect: to the issuer, and back from it.

Cookies are Secure with the prefix __Host- wherever the page's own address is https, even where a
proxy ends TLS. The session is SameSite=Strict; the log-in under way is Lax, because the issuer's
redirect is a navigation from another site.
"""

from collections.abc import Callable

from aiohttp import web

from aggregator.access.identity import AccessRefused
from aggregator.access.oidc_log_in import OidcLogIn
from aggregator.access.oidc_session import BEGUN_FOR
from aggregator.web.access_guard import AccessGuard, session_name, set_cookie
from aggregator.web.forwarded_client import address_of
from aggregator.web.login import safe_path

#: The form with an error: (refusal, the path to return to).
ShowRefusal = Callable[[AccessRefused, str], web.Response]
#: The page that leads on: (the path).
ShowLoggedIn = Callable[[str], web.Response]


class OidcRoutes:
    def __init__(
        self, oidc: OidcLogIn, guard: AccessGuard, refuse: ShowRefusal, lead_on: ShowLoggedIn
    ) -> None:
        self._oidc = oidc
        self._guard = guard
        self._refuse = refuse
        self._lead_on = lead_on
        self._secure = oidc.page.startswith("https:")
        prefix = "__Host-" if self._secure else ""
        self._begun_name = f"{prefix}sickbay-log-in"

    async def begin(self, request: web.Request) -> web.Response:
        """GET /login/oidc: to the issuer."""
        path = safe_path(request.query.get("next", ""))
        try:
            url, cookie = await self._oidc.begin(path)
        except AccessRefused as refused:
            return self._refused(request, refused, path)
        response = web.Response(status=303, headers={"Location": url})
        name, lasts = self._begun_name, int(BEGUN_FOR)
        set_cookie(response, name, cookie, secure=self._secure, samesite="Lax", max_age=lasts)
        return response

    async def finish(self, request: web.Request) -> web.Response:
        """GET /login/oidc/callback: back from the issuer."""
        cookie = request.cookies.get(self._begun_name, "")
        try:
            found = await self._oidc.finish(request.query, cookie, address_of(request))
        except AccessRefused as refused:
            response = self._refused(request, refused, "/")
        else:
            # A redirect would be a request of the issuer's site, to which no Strict cookie is sent.
            response = self._lead_on(safe_path(found.path))
            name = session_name(secure=self._secure)
            set_cookie(response, name, found.cookie, secure=self._secure)
            self._guard.log_log_in(request, found.user, "oidc")
        response.del_cookie(self._begun_name, path="/", secure=self._secure)
        return response

    def _refused(self, request: web.Request, refused: AccessRefused, path: str) -> web.Response:
        self._guard.note(request, refused)
        return self._refuse(refused, path)
