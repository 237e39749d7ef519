"""Requests from the aggregator's API, with the standard library alone, because a command must start
at once.
"""

import http.client
import socket
import ssl
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any, Protocol
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlencode, urlsplit
from urllib.request import (
    HTTPHandler,
    HTTPRedirectHandler,
    HTTPSHandler,
    OpenerDirector,
    ProxyHandler,
    Request,
    build_opener,
)

from aggregator.cli.errors import CommandFailed, Unreached, UsageError
from aggregator.cli.text_table import clean
from aggregator.runtime.interning import EMPTY
from aggregator.tls.client_context import CaFileError, client_context
from aggregator.version import VERSION
from sickbay.json_text import read_json

_LOOPBACK = {"localhost", "127.0.0.1", "::1"}
#: OpenSSL's X509_V_ERR_CERT_HAS_EXPIRED; HOSTNAME_MISMATCH and IP_ADDRESS_MISMATCH.
_EXPIRED = 10
_REDIRECTS = range(300, 400)
#: The error of a gateway that has no controller to pass a request on to.
_NO_CONTROLLER = "no controller\n"
_ANOTHER_NAME = {62, 64}


class Dialer(Protocol):
    """Makes the connections of a `Route`. ``trouble`` is why the last one ended; empty if unknown.

    `dial` raises Unreached.
    """

    trouble: str

    def dial(self, timeout: float) -> socket.socket: ...


@dataclass(frozen=True, slots=True)
class Route:
    """A way to the aggregator that is no address of this machine's network.

    ``name`` is for people. ``context``: the trusted authorities; None: the system's. ``tokens``
    are tried, in this order, where the aggregator requires its reader's identity.
    """

    name: str
    dialer: Dialer
    context: ssl.SSLContext | None = None
    tokens: Iterator[str] = field(default_factory=lambda: iter(()))


class _FieldMissing(CommandFailed, KeyError):
    """A KeyError too: a jsonpath that leads nowhere is empty."""

    __str__ = Exception.__str__


class _Object(dict[str, Any]):
    """An object of an answer. An older aggregator's lacks the fields that are new since."""

    def __missing__(self, name: str) -> Any:
        raise _FieldMissing(
            f'the answer has no "{name}": is the aggregator older than this program, {VERSION}?'
        )


read_answer = partial(read_json, object_pairs_hook=_Object)


class Client:
    """One aggregator's API. ``timeout`` is in seconds, without any sign of life.

    With ``route`` the address only names the server. ``token`` is sent with each request. Raises
    UsageError for an invalid address, and for a token that would be sent in plaintext.
    """

    def __init__(
        self,
        url: str,
        *,
        ca_file: str = "",
        token: str = "",
        timeout: float = 10.0,
        route: Route | None = None,
    ) -> None:
        try:
            parts = urlsplit(url)
            host, _ = parts.hostname or "", parts.port
        except ValueError as error:
            raise UsageError(f'--url: "{url}" is no address: {error}') from error
        if parts.scheme not in {"http", "https"} or not host:
            raise UsageError(f'--url: "{url}" is no address; expected http://HOST:PORT or https://')
        self.url = url.rstrip("/")
        if token and parts.scheme == "http" and host not in _LOOPBACK:
            text = f'"{url}" is plaintext, in which a token is not sent to another machine'
            raise UsageError(f"--url: {text}; expected https://")
        self._token = token
        self._timeout = timeout
        self._route = route
        #: Of the last event that was read: the next stream goes on after it.
        self._last_event = ""
        self._opener = _opener(host, _context(ca_file), route)

    def get(self, *path: str, **query: object) -> Any:
        """The JSON at /api/v1/PATH. Raises CommandFailed, with what to do, and UsageError for a
        query that the API can't understand.
        """
        given = {name: value for name, value in query.items() if value not in {None, ""}}
        where = "/".join(quote(part, safe="") for part in path)
        target = f"{self.url}/api/v1/{where}" + (f"?{urlencode(given)}" if given else "")
        with self._open(target) as response:
            try:
                found = read_answer(response.read())
            except (ValueError, OSError, http.client.HTTPException) as error:
                raise CommandFailed(f"the response from {target} can't be read: {error}") from error
        if not isinstance(found, _Object):
            raise CommandFailed(f"{target} answered no object: is this an aggregator's address?")
        return found

    def events(self, node: str = "") -> Iterator[tuple[str, Any]]:
        """The event stream: (name, data) as they come, after those of an earlier call. Ends, or
        raises CommandFailed, when it breaks.

        The server sends an event every 10 s; ``timeout`` has to be longer.
        """
        query = f"?{urlencode({'node': node})}" if node else ""
        last = {"Last-Event-ID": self._last_event} if self._last_event else {}
        with self._open(f"{self.url}/api/v1/stream{query}", last) as response:
            name = ident = ""
            while True:
                try:
                    line = response.readline().decode(errors="replace").rstrip("\n")
                    if not line and response.isclosed():
                        return
                    key, _, value = line.partition(": ")
                    data = read_answer(value) if key == "data" else None
                except (OSError, ValueError, http.client.HTTPException) as error:
                    raise CommandFailed(f"the stream broke: {error}") from error
                if key == "id":
                    ident = value
                elif key == "event":
                    name = value
                elif key == "data":
                    self._last_event = ident
                    yield name, data

    def _open(self, target: str, headers: Mapping[str, str] = EMPTY) -> http.client.HTTPResponse:
        proof = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        request = Request(target, headers={**proof, **headers})  # noqa: S310 - see the constructor
        try:
            response: http.client.HTTPResponse = self._opener.open(request, timeout=self._timeout)
        except HTTPError as error:
            with error:
                if error.code == HTTPStatus.UNAUTHORIZED and self._next_token():
                    return self._open(target, headers)
                text = _error_text(error)
                kind = UsageError if error.code == HTTPStatus.BAD_REQUEST else CommandFailed
                if text.startswith(_NO_CONTROLLER):
                    kind = Unreached
                raise kind(text) from error
        except (URLError, OSError, http.client.HTTPException) as error:
            cause = getattr(error, "reason", "") or error
            if isinstance(cause, ssl.SSLCertVerificationError):
                raise Unreached(_untrusted(self._name, cause)) from error
            reason = clean(getattr(cause, "strerror", None) or cause)
            if self._route is not None and self._route.dialer.trouble:
                reason = self._route.dialer.trouble
            elif isinstance(error, http.client.BadStatusLine):
                reason = "the server there does not use HTTP"
                reason += "; is it https?" if self.url.startswith("http:") else ""
            elif isinstance(cause, ssl.SSLError) and cause.reason == "WRONG_VERSION_NUMBER":
                reason = "the server there does not use TLS; is it http?"
            raise Unreached(
                f"the aggregator at {self._name} can't be reached: {reason}\n"
                "  Where is it? Set --kubeconfig or --context for its cluster, or its address: "
                "--url or SICKBAY_URL"
            ) from error
        return response

    def _next_token(self) -> bool:
        """Take another token, over TLS alone. Returns False if there is none."""
        if self._route is None or not self.url.startswith("https:"):
            return False
        self._token = next(self._route.tokens, "")
        return bool(self._token)

    @property
    def _name(self) -> str:
        return self.url if self._route is None else self._route.name


def _untrusted(url: str, error: ssl.SSLCertVerificationError) -> str:
    """The server is there, and TLS does not trust its certificate."""
    if error.verify_code in _ANOTHER_NAME:
        do = "Use a name that is in its certificate: docs/install.md"
    elif error.verify_code == _EXPIRED:
        do = "The aggregator's must be renewed, or this machine's clock is ahead."
    else:
        do = "Set --ca-file or SICKBAY_CA_FILE to the CA that signed it: ca.crt of docs/install.md"
    return f"the aggregator at {url} is not believed: {clean(error.verify_message)}\n  {do}"


def _error_text(error: HTTPError) -> str:
    """The API's answer, or that the server is not this API."""
    try:
        if error.code in _REDIRECTS:
            where = clean(error.headers.get("Location", ""))
            return (
                f"{error.url} leads to {where}, which is not followed\n  Is that a log-in's page?"
            )
        problem = read_json(error.read())
        then = "\n  Then: --token-file FILE or SICKBAY_TOKEN, with --url"
        more = then if error.code == HTTPStatus.UNAUTHORIZED else ""
        return f"{problem['error']}\n  {problem['hint']}{more}"
    except (ValueError, KeyError, TypeError, OSError, http.client.HTTPException):
        return f"{error.url} answered {error.code} {error.reason}: is this an aggregator's address?"


def _context(ca_file: str) -> ssl.SSLContext | None:
    if not ca_file:
        return None
    try:
        return client_context(Path(ca_file))
    except CaFileError as error:
        raise UsageError(f"--ca-file: {error}") from error


def _opener(host: str, context: ssl.SSLContext | None, route: Route | None) -> OpenerDirector:
    if route is not None:
        context = context or route.context or ssl.create_default_context()
        # No proxy: the way is made already.
        return build_opener(ProxyHandler({}), _Routed(route.dialer.dial, context), _Unmoved)
    handlers: list[Any] = [_Unmoved]
    if host in _LOOPBACK:
        handlers.append(ProxyHandler({}))  # a proxy can't reach this machine's loopback
    if context is not None:
        handlers.append(HTTPSHandler(context=context))
    return build_opener(*handlers)


class _Unmoved(HTTPRedirectHandler):
    """Follows no redirect: the token would go with it, to any server and in plaintext."""

    def redirect_request(self, *_: object) -> None:
        return None


class _RoutedConnection(http.client.HTTPConnection):
    """HTTP on a connection that ``dial`` makes, with TLS where there is a ``context``."""

    def __init__(self, host: str, *, dial: Any, context: Any = None, **arguments: Any) -> None:
        super().__init__(host, **arguments)
        self._dial = dial
        self._tls: ssl.SSLContext | None = context

    def connect(self) -> None:
        timeout = float(self.timeout or 10.0)
        made: socket.socket = self._dial(timeout)
        made.settimeout(timeout)
        self.sock = (
            made if self._tls is None else self._tls.wrap_socket(made, server_hostname=self.host)
        )


class _Routed(HTTPHandler, HTTPSHandler):
    """Requests of either scheme, on connections that ``dial`` makes."""

    def __init__(self, dial: Any, context: ssl.SSLContext) -> None:
        super().__init__()
        self._plain: Any = partial(_RoutedConnection, dial=dial)
        self._secure: Any = partial(_RoutedConnection, dial=dial, context=context)

    def http_open(self, req: Request) -> http.client.HTTPResponse:
        return self.do_open(self._plain, req)

    def https_open(self, req: Request) -> http.client.HTTPResponse:
        return self.do_open(self._secure, req)
