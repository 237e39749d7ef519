"""E-mail by SMTP: plain text, because a text part shows no node's name as HTML."""

import asyncio
import logging
import socket
import ssl
from dataclasses import dataclass
from datetime import UTC, datetime
from email.message import EmailMessage
from email.utils import format_datetime
from hashlib import blake2b
from typing import Annotated, Literal

import aiosmtplib
from pydantic import Field

from aggregator.alerts.http_channel import Exchange, HttpOptions, tls_context
from aggregator.alerts.message import Message, headline
from aggregator.alerts.plain_text import plain_text
from aggregator.alerts.templates import BUILT_IN, MessageTemplate, TemplateOptions
from aggregator.alerts.webhook import Delivery, WebhookResponse
from aggregator.configfile.section import SectionDataclass
from aggregator.configfile.values import Address, EmailAddress, MaybePath
from aggregator.runtime.secret_file import read_password
from aggregator.runtime.text import visible

log = logging.getLogger("sickbay.alerts")

_MOST_SUBJECT = 200
_MOST_TEMPLATE = 100_000
_MOST_SHOWN = 200


@dataclass(frozen=True, slots=True)
class EmailOptions(SectionDataclass):
    """``smarthost`` is ``host:port``. ``tls``: by STARTTLS, from the first byte, or none."""

    smarthost: Address
    """``HOST:PORT``."""
    sender: EmailAddress
    """An address, without a display name."""
    to: Annotated[tuple[EmailAddress, ...], Field(strict=False, min_length=1)]
    """A list of addresses."""
    tls: Literal["starttls", "tls", "none"] = "starttls"
    """``starttls``, ``tls`` (from the first byte) or ``none``."""
    username: str = ""
    """With ``password_file``."""
    password_file: MaybePath = None
    """Its content is the password."""
    ca_file: MaybePath = None
    """The CA of the server's certificate. Not set: the system's."""
    cert_file: MaybePath = None
    """A client certificate, with ``key_file``."""
    key_file: MaybePath = None
    """The key of ``cert_file``."""
    template: TemplateOptions = BUILT_IN


class EmailReceiver:
    """Implements `Receiver`. ``timeout`` is in seconds, for each step of the protocol."""

    def __init__(self, options: EmailOptions, timeout: float) -> None:
        self._options = options
        self._timeout = timeout
        self._template = MessageTemplate(options.template)

    async def deliver(self, message: Message, exchange: Exchange) -> WebhookResponse:
        options = self._options
        password = None
        if options.password_file is not None:
            password = await exchange.thread.run(read_password, options.password_file)
        mail = await exchange.thread.run(render, message, options, self._template, exchange.wall())
        context = None if options.tls == "none" else await exchange.thread.run(self._tls)
        host, _, port = options.smarthost.rpartition(":")
        client = aiosmtplib.SMTP(
            hostname=host.strip("[]"),
            port=int(port),
            # Without it the full name is looked up, in a thread that is waited for at the end.
            local_hostname=socket.gethostname(),
            username=options.username or None,
            password=password,
            timeout=self._timeout,
            use_tls=options.tls == "tls",
            start_tls=options.tls == "starttls",
            tls_context=context,
        )
        try:
            await client.connect()
            refused, _ = await client.send_message(mail)
            # Its answer is not waited for: a server that hangs now would get the mail again.
            if isinstance(client.transport, asyncio.WriteTransport):
                client.transport.write(b"QUIT\r\n")
        except aiosmtplib.SMTPException as error:
            return response_of(error)
        finally:
            client.close()
        for address, answer in refused.items():  # the others have the mail
            words = visible(answer.message, _MOST_SHOWN)
            log.warning(
                "a mail server refused one of several addresses",
                extra={"event": "alerts.address_refused", "address": address, "because": words},
            )
        return WebhookResponse(Delivery.DELIVERED, "the mail was accepted")

    def _tls(self) -> ssl.SSLContext:
        return tls_context(tls_files(self._options))


def tls_files(options: EmailOptions) -> HttpOptions:
    """The files of its TLS."""
    return HttpOptions(
        ca_file=options.ca_file, cert_file=options.cert_file, key_file=options.key_file
    )


def response_of(error: aiosmtplib.SMTPException) -> WebhookResponse:
    """A permanent reply to the message itself refuses it; any other failure is tried again.

    A login, a sender or a certificate that is refused is the configuration's, which people fix.
    """
    code = getattr(error, "code", 0)
    words = visible(str(getattr(error, "message", "") or error), _MOST_SHOWN)
    if isinstance(error, aiosmtplib.SMTPRecipientsRefused):
        refused = error.recipients
        codes = {one.code for one in refused}
        words = visible("; ".join(str(one.message) for one in refused), _MOST_SHOWN)
        code = max(codes, default=0)
    if isinstance(error, aiosmtplib.SMTPDataError) and 500 <= code < 600:
        return WebhookResponse(Delivery.DROP, f"SMTP {code}: {words}")
    what = f"SMTP {code}" if code else type(error).__name__
    return WebhookResponse(Delivery.RETRY, f"{what}: {words}" if words else what)


def render(
    message: Message, options: EmailOptions, template: MessageTemplate, now: float
) -> EmailMessage:
    """The mail. Each attempt has the same Message-ID, so that a mailbox shows it once."""
    mail = EmailMessage()
    title = template.title(message) or headline(message, _MOST_SUBJECT)
    mail["Subject"] = visible(title, _MOST_SUBJECT)
    mail["From"] = options.sender
    mail["To"] = ", ".join(options.to)
    mail["Date"] = format_datetime(datetime.fromtimestamp(now, UTC))
    mail["Message-ID"] = _message_id(message.id, options.sender)
    mail["X-Sickbay-Delivery"] = visible(message.id, _MOST_SUBJECT)
    mail["Auto-Submitted"] = "auto-generated"
    thread = _thread(message, options.sender)
    if thread:
        mail["References"] = thread
    text = template.text(message)[:_MOST_TEMPLATE] or plain_text(message)
    mail.set_content(text, charset="utf-8", cte="quoted-printable")
    return mail


def _thread(message: Message, sender: str) -> str:
    """The mail that announced what ends here, so that a mailbox shows both as one thread."""
    for alert in message.alerts:
        if alert.ending is not None and alert.ending.delivery not in ("", message.id):
            return _message_id(alert.ending.delivery, sender)
    return ""


def _message_id(delivery: str, sender: str) -> str:
    digest_ = blake2b(delivery.encode(), digest_size=16).hexdigest()
    return f"<{digest_}@{sender.rpartition('@')[2]}>"
