"""Delivers one webhook's alerts in order, and retries each until the receiver accepts it. Each
webhook has a sender of its own, so a receiver that is away delays no other.
"""

import asyncio
import logging
import random
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp

from aggregator.alerts.outbox import AlertOutbox, OutboxError, PendingDelivery
from aggregator.alerts.webhook import (
    Delivery,
    Retry,
    WebhookResponse,
    body,
    classify_response,
    headers,
)
from aggregator.clock import Clocks
from aggregator.events import EventKind
from aggregator.runtime.worker_thread import WorkerThread

log = logging.getLogger("sickbay.alerts")

_MOST_SECRET = 4096
_OUTBOX_AGAIN = 5.0


@dataclass(frozen=True, slots=True)
class WebhookTarget:
    """Where alerts go. ``name`` is for people and metrics, ``key`` identifies it in the outbox.

    ``kinds`` are the transitions that it receives; ``timeout`` in seconds is for one attempt.
    """

    name: str
    key: str
    url: str = field(repr=False)
    secret_file: Path
    kinds: frozenset[EventKind]
    timeout: float = 10.0


@dataclass(frozen=True, slots=True)
class BatchWait:
    """Seconds that an alert waits for others to share its POST, and one of a grouped kind."""

    linger: float = 0.5
    grouped: float = 10.0


@dataclass(slots=True)
class DeliveryStats:
    """Counted since the start: alerts delivered and dead, attempts that failed."""

    delivered: int = 0
    dead: int = 0
    failed_attempts: int = 0


class SecretError(Exception):
    """The secret can't be read now. The text never holds it."""


class WebhookSender:
    """`run` until cancelled. `wake` it when something was accepted."""

    def __init__(
        self,
        webhook: WebhookTarget,
        *,
        outbox: AlertOutbox,
        thread: WorkerThread,
        session: aiohttp.ClientSession,
        clocks: Clocks,
        rng: random.Random,
        retry: Retry,
        patience: BatchWait,
    ) -> None:
        self._webhook = webhook
        self._outbox = outbox
        self._thread = thread
        self._session = session
        self._clocks = clocks
        self._rng = rng
        self._retry = retry
        self._patience = patience
        self._some = asyncio.Event()
        self.tally = DeliveryStats()
        self._attempt_failure = ""
        self._outbox_failure = ""

    @property
    def problem(self) -> str:
        """Why the outbox can't be used, or why the last attempt failed; empty unless one of them
        holds.
        """
        return self._outbox_failure or self._attempt_failure

    def wake(self) -> None:
        self._some.set()

    async def run(self) -> None:
        while True:
            try:
                await self._one()
            except OutboxError as error:
                self._outbox_failure = f"alerts can't be read: {error}"
                log.warning("the alerts' outbox can't be used", extra={"error": str(error)})
                await asyncio.sleep(_OUTBOX_AGAIN)

    async def _one(self) -> None:
        """Deliver one POST to its end, or wait until one is due."""
        self._some.clear()
        old = self._clocks.earliest() - self._retry.give_up
        expired = await self._thread.run(self._outbox.expire, self._webhook.key, old)
        if expired:
            self.tally.dead += expired
            name = self._webhook.name
            log.error("alerts are too old to be told", extra={"webhook": name, "alerts": expired})
        found = await self._thread.run(
            self._outbox.next,
            self._webhook.key,
            self._clocks.latest(),
            linger=self._patience.linger,
            grouped_linger=self._patience.grouped,
        )
        self._outbox_failure = ""
        if isinstance(found, PendingDelivery):
            await self._see_through(found)
            return
        try:
            async with asyncio.timeout(found):
                await self._some.wait()
        except TimeoutError:
            return

    async def _see_through(self, delivery: PendingDelivery) -> None:
        wait = self._until(delivery.next_at) if delivery.attempts else 0.0
        while True:
            await asyncio.sleep(wait)
            # A receiver refuses a request signed with a time other than its own, see
            # docs/alerts.md.
            doubted = self._clocks.doubt()
            answer = await self._post(delivery)
            if answer.verdict is Delivery.TAKEN:
                self._attempt_failure = ""
                self.tally.delivered += delivery.size
                await self._settle(delivery, "")
                return
            self._attempt_failure = answer.because
            self.tally.failed_attempts += 1
            if answer.verdict is Delivery.NEVER and not doubted:
                await self._give_up(delivery, answer.because)
                return
            if self._clocks.earliest() - delivery.first_at >= self._retry.give_up:
                await self._give_up(delivery, f"not taken in time; last: {answer.because}")
                return
            pause = self._retry.pause(delivery.attempts + 1, self._rng)
            pause = max(pause, answer.retry_after or 0.0)
            self.log_result(delivery, answer.because, pause)
            next_at, wait = self._clocks.latest() + pause, pause
            delivery = await self._thread.run(self._outbox.again, delivery, next_at)

    def _until(self, next_at: float) -> float:
        """Seconds; bounded, because the wall clock may have been set back meanwhile."""
        return min(max(0.0, next_at - self._clocks.latest()), max(self._retry.backoff.most, 3600.0))

    async def _give_up(self, delivery: PendingDelivery, because: str) -> None:
        self.tally.dead += delivery.size
        log.error(
            "alerts are given up: the receiver will not take them",
            extra={
                "webhook": self._webhook.name,
                "delivery": delivery.id,
                "alerts": delivery.size,
                "because": because,
            },
        )
        await self._settle(delivery, because)

    async def _settle(self, delivery: PendingDelivery, because: str) -> None:
        """Make the end durable. Until that succeeds no further POST is sent, or this one would be
        sent twice.
        """
        while True:
            try:
                if because:
                    now = self._clocks.wall()
                    await self._thread.run(self._outbox.dead_letter, delivery, because, now)
                else:
                    await self._thread.run(self._outbox.done, delivery)
            except OutboxError as error:
                self._outbox_failure = f"the delivery can't be recorded in the outbox: {error}"
                await asyncio.sleep(_OUTBOX_AGAIN)
            else:
                self._outbox_failure = ""
                return

    def log_result(self, delivery: PendingDelivery, because: str, pause: float) -> None:
        log.warning(
            "a webhook does not take alerts",
            extra={
                "webhook": self._webhook.name,
                "delivery": delivery.id,
                "attempt": delivery.attempts + 1,
                "because": because,
                "again_in": round(pause, 1),
            },
        )

    async def _post(self, delivery: PendingDelivery) -> WebhookResponse:
        try:
            secret = await self._thread.run(read_secret, self._webhook.secret_file)
            content = body(delivery)
            now = self._clocks.wall()
            async with self._session.post(
                self._webhook.url,
                data=content,
                headers=headers(delivery.id, content, secret, now),
                allow_redirects=False,
                timeout=aiohttp.ClientTimeout(total=self._webhook.timeout),
            ) as response:
                return classify_response(response.status, response.headers, now)
        except SecretError as error:
            return WebhookResponse(Delivery.AGAIN, str(error))
        except TimeoutError:
            return WebhookResponse(Delivery.AGAIN, f"no answer within {self._webhook.timeout:g} s")
        except (aiohttp.ClientError, OSError, ssl.SSLError, ValueError) as error:
            return WebhookResponse(Delivery.AGAIN, words_of(error))


def read_secret(path: Path) -> bytes:
    """The secret as it is now, because it rotates. Raises `SecretError`."""
    try:
        with path.open("rb") as file:
            secret = file.read(_MOST_SECRET + 1).rstrip()
    except OSError as error:
        raise SecretError(f"secret_file {path} can't be read: {error.strerror}") from None
    if not secret or len(secret) > _MOST_SECRET:
        what = "is empty" if not secret else f"is longer than {_MOST_SECRET} bytes"
        raise SecretError(f"secret_file {path} {what}; expected the shared secret")
    return secret


def name_of(url: str) -> str:
    """A webhook's name: its host and port. The rest of its URL is often a secret."""
    parts = urlsplit(url)
    return parts.netloc.rpartition("@")[2]


def words_of(error: Exception) -> str:
    """Some of aiohttp's errors hold the whole URL, which must not be logged."""
    if isinstance(error, aiohttp.ClientConnectorCertificateError):  # is one of the next, too
        return f"its certificate is not trusted: {error.certificate_error}"
    if isinstance(error, aiohttp.ClientConnectorError):
        return f"can't be reached: {error.os_error or type(error).__name__}"
    return f"can't be reached: {type(error).__name__}"
