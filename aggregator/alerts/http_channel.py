"""A POST to a receiver: TLS, headers, proxy, bounded in time and size, and never redirected."""

import json
import ssl
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import aiohttp
from pydantic import Field

from aggregator.alerts.redaction import secrets_of, without_secrets
from aggregator.alerts.webhook import Delivery, WebhookResponse, classify_response
from aggregator.configfile.section import SectionDataclass
from aggregator.configfile.values import HttpUrl, MaybePath
from aggregator.runtime.secret_file import SecretError, read_secret, read_token
from aggregator.runtime.text import visible
from aggregator.runtime.worker_thread import WorkerThread
from aggregator.tls.client_context import CaFileError, client_context

#: Bytes of an answer that are read, and characters that are shown.
_MOST_ANSWER = 2_000
_MOST_SHOWN = 200
#: Characters of a header's value that may be a key; "gpu" is none.
_LEAST_KEY = 12
#: Of the 4xx, those that refuse this body. Any other may be a credential or a service that is fixed
#: later.
_REFUSED = frozenset({400, 413, 415, 422})


@dataclass(frozen=True, slots=True)
class HttpOptions(SectionDataclass):
    """How a receiver is reached. The files are read at each attempt."""

    headers: Annotated[Mapping[str, str], Field(strict=False)] = field(default_factory=dict)
    """Further headers by name, such as ``{X-Scope-OrgID: gpu}``."""
    bearer_token_file: MaybePath = None
    """Its content is sent as ``Authorization: Bearer``."""
    ca_file: MaybePath = None
    """The CA of the server's certificate. Not set: the system's."""
    cert_file: MaybePath = None
    """A client certificate, with ``key_file``."""
    key_file: MaybePath = None
    """The key of ``cert_file``."""
    proxy: HttpUrl | None = None
    """``http://HOST:PORT``. Proxies of the environment are not used."""


PLAIN = HttpOptions()


@dataclass(frozen=True, slots=True)
class Exchange:
    """The parts for one attempt. ``wall`` is wall clock seconds, for signatures and dates."""

    session: aiohttp.ClientSession
    thread: WorkerThread
    wall: Callable[[], float]


def compact_json(document: object) -> bytes:
    """A body."""
    return json.dumps(document, separators=(",", ":")).encode()


async def post(
    exchange: Exchange,
    url: str,
    body: bytes,
    options: HttpOptions,
    headers: Mapping[str, str],
    *,
    documented: bool = False,
    secrets: Sequence[str] = (),
) -> WebhookResponse:
    """The receiver's answer. Raises SecretError, and the errors of aiohttp.

    ``documented``: evaluated by its status alone, as docs/alerts.md has it for the generic webhook.
    ``secrets`` are those of the body: as the URL and the token, they are hidden in the answer.
    """
    sent = {"Content-Type": "application/json", "User-Agent": "sickbay-aggregator", **headers}
    sent |= options.headers
    hidden = [*secrets, *(one for one in options.headers.values() if len(one) >= _LEAST_KEY)]
    if options.bearer_token_file is not None:
        token = await exchange.thread.run(read_token, options.bearer_token_file)
        sent["Authorization"] = f"Bearer {token}"
        hidden.append(token)
    tls: ssl.SSLContext | bool = True
    if options.ca_file is not None or options.cert_file is not None:
        tls = await exchange.thread.run(tls_context, options)
    async with exchange.session.post(
        url, data=body, headers=sent, allow_redirects=False, ssl=tls, proxy=options.proxy
    ) as response:
        answer = classify_response(response.status, response.headers, exchange.wall())
        if answer.verdict is Delivery.DELIVERED or documented:
            return answer
        answer = _patient(response.status, answer)
        return await _with_words(response, answer, secrets_of(url, hidden))


def _patient(status: int, answer: WebhookResponse) -> WebhookResponse:
    if answer.verdict is not Delivery.DROP or status in _REFUSED:
        return answer
    return WebhookResponse(Delivery.RETRY, answer.because)


async def _with_words(
    response: aiohttp.ClientResponse, answer: WebhookResponse, secrets: Sequence[str]
) -> WebhookResponse:
    """The receiver's own words help people; they are bounded, made harmless, and hold no secret:
    logs, pages and dead letters have them.
    """
    body = (await response.content.read(_MOST_ANSWER)).decode(errors="replace")
    words = visible(without_secrets(body, secrets), _MOST_SHOWN)
    if not words or response.content_type == "text/html":
        return answer
    return WebhookResponse(answer.verdict, f"{answer.because}: {words}", answer.retry_after)


def tls_context(options: HttpOptions) -> ssl.SSLContext:
    """The CA and the client certificate as they are now. Raises SecretError."""
    try:
        if options.ca_file is not None:
            context = client_context(options.ca_file)
        else:
            context = ssl.create_default_context()
        if options.cert_file is not None:
            # An empty passphrase: OpenSSL would read one from the terminal, and wait.
            context.load_cert_chain(options.cert_file, options.key_file, password="")
    except CaFileError as error:
        raise SecretError(f"ca_file: {error}") from None
    except (OSError, ssl.SSLError) as error:
        where = f"cert_file {options.cert_file}"
        why = getattr(error, "strerror", None) or type(error).__name__
        text = f"{where} can't be used: {why}; expected a certificate and its key, in PEM"
        raise SecretError(text) from None
    return context


def read_url(path: Path) -> str:
    """The URL in a file: receivers' URLs contain their secret. Raises `SecretError`."""
    text = read_secret(path, "url_file").decode("ascii", "replace")
    if not _is_url(text):
        raise SecretError(f"url_file {path} holds no URL; expected one line: https://HOST/...")
    return text


def _is_url(text: str) -> bool:
    if not text.isascii() or not text.isprintable() or " " in text:
        return False
    try:
        parts = urlsplit(text)
        return parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a bracket that is not closed, a port beyond 65,535
        return False


def words_of(error: Exception) -> str:
    """Some of aiohttp's errors hold the whole URL, which must not be logged."""
    if isinstance(error, aiohttp.ClientConnectorCertificateError):  # is one of the next, too
        return f"its certificate is not trusted: {error.certificate_error}"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message}"
    if isinstance(error, aiohttp.ClientConnectorError):
        return f"can't be reached: {error.os_error or type(error).__name__}"
    return f"can't be reached: {type(error).__name__}"
