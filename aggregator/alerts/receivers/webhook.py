"""The signed generic webhook: the neutral alerts as JSON, as docs/alerts.md describes."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aggregator.alerts.alert import group
from aggregator.alerts.http_channel import PLAIN, Exchange, HttpOptions, post
from aggregator.alerts.message import Message, section
from aggregator.alerts.webhook import WebhookResponse, body, headers
from aggregator.configfile.section import SectionDataclass
from aggregator.configfile.values import HttpUrl, OrdinaryPath
from aggregator.runtime.secret_file import read_secret


@dataclass(frozen=True, slots=True)
class WebhookOptions(SectionDataclass):
    """``secret_file`` signs every request."""

    url: HttpUrl
    """Where alerts are posted, http or https."""
    secret_file: OrdinaryPath
    """Its content signs every request (HMAC)."""
    http: HttpOptions = PLAIN


class WebhookReceiver:
    """Implements `Receiver`."""

    def __init__(self, url: str, secret_file: Path, http: HttpOptions = PLAIN) -> None:
        self._url = url
        self._secret_file = secret_file
        self._http = http

    async def deliver(self, message: Message, exchange: Exchange) -> WebhookResponse:
        secret = await exchange.thread.run(read_secret, self._secret_file)
        content = body(message.id, message.attempt, render(message))
        signed = headers(message.id, content, secret, exchange.wall())
        return await post(exchange, self._url, content, self._http, signed, documented=True)


def render(message: Message) -> list[Mapping[str, Any]]:
    """The alerts of the document, silent agents as one."""
    return [
        alert.to_json() | {"documentation": section(message, alert)}
        for alert in group(message.alerts)
    ]
