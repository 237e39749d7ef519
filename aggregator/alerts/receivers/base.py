"""The protocol that each receiver implements."""

from typing import Protocol

from aggregator.alerts.http_channel import Exchange
from aggregator.alerts.message import Message
from aggregator.alerts.webhook import WebhookResponse


class Receiver(Protocol):
    """Renders a message and sends it, once. It keeps no state: the outbox has it all."""

    async def deliver(self, message: Message, exchange: Exchange) -> WebhookResponse:
        """The receiver's answer. May raise SecretError, TimeoutError, and the errors of aiohttp
        and of sockets; the sender bounds it in time.
        """
        ...
