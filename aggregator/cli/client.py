"""Asks the aggregator's API, with the standard library alone, because a command must start at
once.
"""

import http.client
import json
import ssl
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlencode, urlsplit
from urllib.request import HTTPSHandler, OpenerDirector, ProxyHandler, build_opener

from aggregator.cli.errors import CommandFailed, UsageError
from aggregator.cli.text_table import clean
from aggregator.tls.client_context import CaFileError, client_context

_LOOPBACK = {"localhost", "127.0.0.1", "::1"}
#: OpenSSL's X509_V_ERR_CERT_HAS_EXPIRED; HOSTNAME_MISMATCH and IP_ADDRESS_MISMATCH.
_EXPIRED = 10
_ANOTHER_NAME = {62, 64}


class Client:
    """One aggregator's API. ``timeout`` is in seconds, without any sign of life.

    Raises UsageError for an invalid address.
    """

    def __init__(self, url: str, *, ca_file: str = "", timeout: float = 10.0) -> None:
        try:
            parts = urlsplit(url)
            host, _ = parts.hostname or "", parts.port
        except ValueError as error:
            raise UsageError(f'--url: "{url}" is no address: {error}') from error
        if parts.scheme not in {"http", "https"} or not host:
            raise UsageError(f'--url: "{url}" is no address; expected http://HOST:PORT or https://')
        self.url = url.rstrip("/")
        self._timeout = timeout
        self._opener = _opener(host, ca_file)

    def get(self, *path: str, **query: object) -> Any:
        """The JSON at /api/v1/PATH. Raises CommandFailed, with what to do, and UsageError for a
        query that the API can't understand.
        """
        asked = {name: value for name, value in query.items() if value not in {None, ""}}
        where = "/".join(quote(part, safe="") for part in path)
        target = f"{self.url}/api/v1/{where}" + (f"?{urlencode(asked)}" if asked else "")
        with self._open(target) as response:
            try:
                return json.loads(response.read())
            except (ValueError, OSError, http.client.HTTPException) as error:
                raise CommandFailed(f"the response from {target} can't be read: {error}") from error

    def events(self, node: str = "") -> Iterator[tuple[str, Any]]:
        """The event stream: (name, data) as they come. Ends, or raises CommandFailed, when it
        breaks.

        The server sends an event every 10 s; ``timeout`` has to be longer.
        """
        query = f"?{urlencode({'node': node})}" if node else ""
        with self._open(f"{self.url}/api/v1/stream{query}") as response:
            name = ""
            while True:
                try:
                    line = response.readline().decode(errors="replace").rstrip("\n")
                except (OSError, http.client.HTTPException) as error:
                    raise CommandFailed(f"the stream broke: {error}") from error
                if not line and response.isclosed():
                    return
                key, _, value = line.partition(": ")
                if key == "event":
                    name = value
                elif key == "data":
                    yield name, json.loads(value)

    def _open(self, target: str) -> http.client.HTTPResponse:
        try:
            response: http.client.HTTPResponse = self._opener.open(target, timeout=self._timeout)
        except HTTPError as error:
            with error:
                kind = UsageError if error.code == HTTPStatus.BAD_REQUEST else CommandFailed
                raise kind(_said(error)) from error
        except (URLError, OSError, http.client.HTTPException) as error:
            cause = getattr(error, "reason", "") or error
            if isinstance(cause, ssl.SSLCertVerificationError):
                raise CommandFailed(_untrusted(self.url, cause)) from error
            reason = clean(cause)
            if isinstance(error, http.client.BadStatusLine):
                reason = "the server there does not speak HTTP"
                reason += "; is it https?" if self.url.startswith("http:") else ""
            raise CommandFailed(
                f"the aggregator at {self.url} can't be reached: {reason}\n"
                "  Where is it? Set --url or SICKBAY_URL. From outside the cluster: "
                "kubectl -n sickbay port-forward service/sickbay-page 8080"
            ) from error
        return response


def _untrusted(url: str, error: ssl.SSLCertVerificationError) -> str:
    """The server is there, and TLS does not trust its certificate."""
    if error.verify_code in _ANOTHER_NAME:
        do = "Ask by a name that is in its certificate: docs/install.md"
    elif error.verify_code == _EXPIRED:
        do = "The aggregator's must be renewed, or this machine's clock is ahead."
    else:
        do = "Set --ca-file or SICKBAY_CA_FILE to the CA that signed it: ca.crt of docs/install.md"
    return f"the aggregator at {url} is not believed: {clean(error.verify_message)}\n  {do}"


def _said(error: HTTPError) -> str:
    """The API's answer, or that the server is not this API."""
    try:
        problem = json.loads(error.read())
        return f"{problem['error']}\n  {problem['hint']}"
    except (ValueError, KeyError, TypeError, OSError):
        return f"{error.url} answered {error.code} {error.reason}: is this an aggregator's address?"


def _opener(host: str, ca_file: str) -> OpenerDirector:
    handlers: list[Any] = []
    if host in _LOOPBACK:
        handlers.append(ProxyHandler({}))  # a proxy can't reach this machine's loopback
    if ca_file:
        try:
            handlers.append(HTTPSHandler(context=client_context(Path(ca_file))))
        except CaFileError as error:
            raise UsageError(f"--ca-file: {error}") from error
    return build_opener(*handlers)
