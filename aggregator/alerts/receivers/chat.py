"""A chat that takes a message as JSON at a URL, which is its secret: Slack, Teams."""

from collections.abc import Callable, Mapping
from typing import Any

from aggregator.alerts.http_channel import Exchange, compact_json, post, read_url
from aggregator.alerts.message import Message
from aggregator.alerts.receivers.slack import SlackOptions
from aggregator.alerts.receivers.teams import TeamsOptions
from aggregator.alerts.templates import MessageTemplate
from aggregator.alerts.webhook import WebhookResponse

ChatOptions = SlackOptions | TeamsOptions
Render = Callable[[Message, MessageTemplate], Mapping[str, Any]]


class ChatReceiver:
    """Implements `Receiver`. ``escape``: as of `MessageTemplate`."""

    def __init__(
        self, options: ChatOptions, render: Render, escape: Callable[[str], str] = str
    ) -> None:
        self._options = options
        self._render = render
        self._template = MessageTemplate(options.template, escape)

    async def deliver(self, message: Message, exchange: Exchange) -> WebhookResponse:
        url = await exchange.thread.run(read_url, self._options.url_file)
        document = await exchange.thread.run(self._render, message, self._template)
        return await post(exchange, url, compact_json(document), self._options.http, {})
