"""The log-in: a form that takes a token and keeps it in a cookie of the browser.

The cookie is the token itself, so that replicas share no state and a log-in ends with the token.
Scripts can't read it, other sites can't send it, and it never leaves TLS where there is TLS.
"""

from collections.abc import Callable
from urllib.parse import parse_qs

from aiohttp import web
from attrs import define

from aggregator.access.gate import READ
from aggregator.access.identity import AccessRefused, RequestFacts
from aggregator.access.oidc_session import LONGEST
from aggregator.web.access_guard import (
    AccessGuard,
    PageAccess,
    cookie_name,
    session_name,
    set_cookie,
)
from aggregator.web.forwarded_client import address_of
from aggregator.web.same_origin import foreign_because

#: Bytes of the form.
_FORM = 32 * 1024

#: Renders the form: status; and by name error, hint, the path to return to, whether to load the
#: page again at once (``again``), and whether the browser has a log-in (``known``).
Render = Callable[..., web.Response]


@define(eq=False, repr=False, slots=False)
class LogIn:
    """The routes /login and /logout, and the answer to a browser that is not logged in."""

    _access: PageAccess
    _guard: AccessGuard
    _render: Render

    async def form(self, request: web.Request) -> web.Response:
        """GET /login."""
        path = safe_path(request.query.get("next", ""))
        return self._respond(200, "", "", path, known=_known(request))

    def challenge(self, request: web.Request, refused: AccessRefused) -> web.Response:
        """The form instead of a page that needs an identity.

        A link of another site comes without the cookie (SameSite=Strict). The form's page then
        loads the address once more, which is a request of this site.
        """
        absent = refused.reason == "no_credentials"
        again = absent and request.headers.get("Sec-Fetch-Site") == "cross-site"
        error, hint = ("", "") if absent else (refused.error, refused.hint)
        path, known = safe_path(request.path_qs), _known(request)
        response = self._respond(refused.status, error, hint, path, again=again, known=known)
        if "fragment" in request.query:
            # An open page refreshes itself. If this answer removed the cookie, then the reload
            # that follows would come without it, and its form would give no reason.
            return response
        if refused.reason == "invalid_session":
            self._guard.end_session(request, response)
        if refused.reason == "invalid_token":
            response.del_cookie(cookie_name(request), path="/", secure=request.secure)
        return response

    async def log_in(self, request: web.Request) -> web.Response:
        """POST /login: a form with ``token`` and ``next``."""
        gate = self._access.gate
        why = foreign_because(request.headers)
        if why or gate is None:
            hint = "Open the page, and log in there."
            return self._respond(403, f"this log-in is not the page's own: {why}", hint, "/")
        if (request.content_length or 0) > _FORM:
            return self._respond(413, "the token is too long", "", "/")
        # aiohttp's own parser raises for a form that a browser would not send.
        fields = parse_qs((await request.read()).decode("ascii", "replace"))
        token, path = (fields.get(name, [""])[0] for name in ("token", "next"))
        token, path = token.strip(), safe_path(path)
        if not token or len(token) > LONGEST or not token.isascii() or not token.isprintable():
            error = "the token is too long for a cookie" if len(token) > LONGEST else "no token"
            return self._respond(400, error, "Paste a token.", path)
        try:
            facts = RequestFacts(address=address_of(request), token=token)
            identity = await gate.require(facts, READ)
        except AccessRefused as refused:
            self._guard.note(request, refused)
            return self._respond(refused.status, refused.error, refused.hint, path)
        response = web.Response(status=303, headers={"Location": path})
        self._guard.end_session(request, response)
        set_cookie(response, cookie_name(request), token, secure=request.secure)
        self._guard.log_log_in(request, identity.name, identity.how)
        return response

    async def log_out(self, request: web.Request) -> web.Response:
        """POST /logout: forget the cookie."""
        why = foreign_because(request.headers)
        if why:
            return self._respond(403, f"this log-out is not the page's own: {why}", "", "/")
        response = web.Response(status=303, headers={"Location": "/login"})
        response.del_cookie(cookie_name(request), path="/", secure=request.secure)
        self._guard.end_session(request, response)
        return response

    def refuse(self, refused: AccessRefused, path: str) -> web.Response:
        """The form after a log-in by OpenID Connect that failed."""
        return self._respond(refused.status, refused.error, refused.hint, path)

    def _respond(
        self,
        status: int,
        error: str,
        hint: str,
        path: str,
        *,
        again: bool = False,
        known: bool = False,
    ) -> web.Response:
        response = self._render(status, error=error, hint=hint, path=path, again=again, known=known)
        # With no-referrer a browser sends "Origin: null" with the form.
        response.headers["Referrer-Policy"] = "same-origin"
        if status == 401:
            response.headers["WWW-Authenticate"] = 'Bearer realm="sickbay"'
        return response


def _known(request: web.Request) -> bool:
    """Whether the browser has a log-in, be it valid or not."""
    sessions = (session_name(secure=secure) for secure in (False, True))
    return any(name in request.cookies for name in (cookie_name(request), *sessions))


def safe_path(path: str) -> str:
    """The path on this site to return to; "/" for anything that may lead elsewhere."""
    fine = path.startswith("/") and not path.startswith(("//", "/\\", "/login", "/logout"))
    return path if fine and path.isprintable() and path.isascii() and len(path) < 2000 else "/"
