"""The services of Apprise: one URL for each of some 140, for those that have no receiver here.

https://appriseit.com/services/. The library is an extra (`sickbay[apprise]`) and is imported by a
configuration that names it alone. It blocks, so each receiver has a thread of its own.
"""

import logging
import re
from dataclasses import dataclass
from functools import partial
from typing import Any

from aggregator.alerts.alert import AlertState
from aggregator.alerts.http_channel import Exchange
from aggregator.alerts.message import Message, headline
from aggregator.alerts.plain_text import plain_text
from aggregator.alerts.redaction import secrets_of, without_secrets
from aggregator.alerts.templates import BUILT_IN, MessageTemplate, TemplateOptions
from aggregator.alerts.webhook import Delivery, WebhookResponse
from aggregator.configfile.section import SectionDataclass
from aggregator.configfile.values import OrdinaryPath
from aggregator.runtime.secret_file import SecretError, read_secret
from aggregator.runtime.text import visible
from aggregator.runtime.worker_thread import WorkerThread

MISSING = (
    "the library apprise is not installed; it belongs to the extra 'apprise': "
    "pip install 'sickbay[aggregator,apprise]' (docs/alerts.md#other-services)"
)
_LOGGER = "apprise"
_MOST_TITLE = 250
_MOST_SHOWN = 200
_BETWEEN = re.compile(r"[/:@?&=]+")
_LEAST_PART = 8
#: The levels of what the library logs about a failure.
_BAD = ("WARNING", "ERROR")
#: Apprise's own names of the kinds of a notification.
_KINDS = {"critical": "failure", "warning": "warning", "info": "info"}


@dataclass(frozen=True, slots=True)
class AppriseOptions(SectionDataclass):
    """``url_file`` holds one Apprise URL, which contains the service's secret."""

    url_file: OrdinaryPath
    """Its content is one Apprise URL."""
    template: TemplateOptions = BUILT_IN


class AppriseReceiver:
    """Implements `Receiver`."""

    def __init__(self, options: AppriseOptions, name: str) -> None:
        self._file = options.url_file
        self._template = MessageTemplate(options.template, escape)
        self._thread = WorkerThread(f"apprise-{name}")

    async def deliver(self, message: Message, exchange: Exchange) -> WebhookResponse:
        secret = await exchange.thread.run(read_secret, self._file, "url_file")
        url = secret.decode("utf-8", "replace")
        title = self._template.title(message) or escape(headline(message, _MOST_TITLE))
        text = self._template.text(message) or escape(plain_text(message))
        over = message.state is AlertState.RESOLVED
        kind = "success" if over else _KINDS[message.severity]
        return await self._thread.run_if_wanted(partial(_send, url, title, text, kind))


def escape(text: str) -> str:
    """Text in which services see no mention and no markup of a link: a blank without width follows
    each mark that begins one.
    """
    return text.replace("@", "@\u200b").replace("<", "<\u200b")


def problem(url: str) -> str:
    """Why the library can't use this URL; empty: it can. The text never holds it."""
    try:
        _service(url)
    except (SecretError, ModuleNotFoundError) as error:
        return str(error)
    return ""


def _service(url: str) -> tuple[Any, Any]:
    """The library's module and the service. Raises SecretError, and ModuleNotFoundError."""
    try:
        import apprise
    except ModuleNotFoundError as error:
        if error.name != _LOGGER:
            raise
        raise SecretError(MISSING) from None
    # Its log may hold parts of the URL: the answer has it, without them.
    logging.getLogger(_LOGGER).propagate = False
    # In memory: the library writes no file, and loads no plugin of a site.
    asset = apprise.AppriseAsset(
        app_id="sickbay", app_desc="", app_url="", async_mode=False, storage_mode="memory"
    )
    found = apprise.Apprise(asset=asset)
    if "\n" in url or not found.add(url) or len(found) != 1:
        raise SecretError("url_file holds no URL that Apprise knows; expected one, on one line")
    if "overflow=" not in url:
        found[0].overflow_mode = apprise.OverflowMode.TRUNCATE
    return apprise, found


def _send(url: str, title: str, text: str, kind: str) -> WebhookResponse:
    """One attempt. Blocks for as long as the service takes."""
    try:
        apprise, service = _service(url)
        done = service.notify(
            body=text, title=title, notify_type=kind, body_format=apprise.NotifyFormat.TEXT
        )
    except SecretError:
        raise
    except Exception as error:  # noqa: BLE001 - a plugin fails in any way, with the URL in its words
        return WebhookResponse(Delivery.RETRY, f"Apprise failed: {type(error).__name__}")
    if done:
        return WebhookResponse(Delivery.DELIVERED, "the service took it")
    logged = [entry for result in done.results for entry in result.logs()]
    errors = "; ".join(entry.message for entry in logged if entry.level in _BAD)
    # Many services have their token where others have a host.
    parts = [part for part in _BETWEEN.split(url.partition("://")[2]) if len(part) >= _LEAST_PART]
    words = visible(without_secrets(errors, secrets_of(url, parts)), _MOST_SHOWN)
    return WebhookResponse(Delivery.RETRY, words or "the service did not take it")
