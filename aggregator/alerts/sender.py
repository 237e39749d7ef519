"""Delivers one route's alerts in order, and retries each until the receiver accepts it. Each
route has a sender of its own, so a receiver that is away delays no other.
"""

import asyncio
import contextlib
import dataclasses
import logging
import random

import aiohttp
from attrs import define, field

from aggregator.alerts.http_channel import Exchange, words_of
from aggregator.alerts.message import Message, alerts_of
from aggregator.alerts.outbox import AlertOutbox, PendingDelivery
from aggregator.alerts.routes import RouteTarget
from aggregator.alerts.webhook import Delivery, Retry, WebhookResponse
from aggregator.clock import Clocks
from aggregator.runtime.database import DatabaseError
from aggregator.runtime.histogram import REQUEST, Histogram
from aggregator.runtime.secret_file import SecretError
from aggregator.runtime.worker_thread import WorkerThread

log = logging.getLogger("sickbay.alerts")

_OUTBOX_AGAIN = 5.0
#: Seconds beyond an attempt's timeout for which a replica keeps a delivery to itself.
_LEASE_BEYOND = 30.0
#: Seconds between two readings of tables that other replicas write to.
_SHARED_EVERY = 15.0


@dataclasses.dataclass(slots=True)
class DeliveryStats:
    """Counted since the start: alerts delivered and dead, attempts that failed, and how long each
    attempt took.
    """

    delivered: int = 0
    dead: int = 0
    failed_attempts: int = 0
    durations: Histogram = dataclasses.field(default_factory=lambda: Histogram(REQUEST))


@define(eq=False, repr=False, slots=False)
class RouteSender:
    """`run` until cancelled. `wake` it when something was accepted."""

    _target: RouteTarget
    _outbox: AlertOutbox = field(kw_only=True)
    _thread: WorkerThread = field(kw_only=True)
    _session: aiohttp.ClientSession = field(kw_only=True)
    _clocks: Clocks = field(kw_only=True)
    _rng: random.Random = field(kw_only=True)
    _retry: Retry = field(kw_only=True)

    def __attrs_post_init__(self) -> None:
        self._exchange = Exchange(self._session, self._thread, self._clocks.wall)
        self._resend_at = 0.0
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
        """Deliver until cancelled."""
        while not _is_cancelled():
            try:
                await self._one()
            except DatabaseError as error:
                self._outbox_failure = f"alerts can't be read: {error}"
                log.warning(
                    "the alerts' outbox can't be used",
                    extra={"event": "alerts.outbox_unusable", "error": str(error)},
                )
                await asyncio.sleep(_OUTBOX_AGAIN)

    async def _one(self) -> None:
        """Deliver one message to its end, or wait until one is due."""
        self._some.clear()
        key = self._target.key
        old = self._clocks.earliest() - self._retry.give_up
        expired = await self._thread.run(self._outbox.expire, key, old)
        if expired:
            self.tally.dead += expired
            log.error(
                "alerts are too old to be sent",
                extra={"event": "alerts.expired", "route": self._target.name, "alerts": expired},
            )
        found = await self._thread.run(
            self._outbox.next,
            key,
            self._clocks.latest(),
            self._target.wait,
            lease=self._target.timeout + _LEASE_BEYOND,
        )
        self._outbox_failure = ""
        if isinstance(found, PendingDelivery):
            await self._deliver_to_end(found)
            return
        if self._outbox.shared:
            found = min(_SHARED_EVERY, _SHARED_EVERY if found is None else found)
        if self._target.resend:
            found = min(self._target.resend, self._target.resend if found is None else found)
            await self._send_lasting()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(found):
                await self._some.wait()

    async def _deliver_to_end(self, delivery: PendingDelivery) -> None:
        wait = self._until(delivery.next_at) if delivery.attempts else 0.0
        while True:
            await asyncio.sleep(wait)
            # A receiver refuses a request signed with a time other than its own, see
            # docs/alerts.md. The clock may move between the first check and the signature.
            doubted = self._clocks.doubt()
            answer = await self._attempt(delivery)
            doubted = doubted or self._clocks.doubt()
            if answer.verdict is Delivery.DELIVERED:
                self._attempt_failure = ""
                self.tally.delivered += delivery.size
                await self._settle(delivery, "")
                return
            if _is_cancelled():
                return
            self._attempt_failure = answer.because
            self.tally.failed_attempts += 1
            if answer.verdict is Delivery.DROP and not doubted:
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
            if self._outbox.shared:
                return  # the next attempt is any replica's

    async def _send_lasting(self) -> None:
        """Send the alerts that last again: the receiver keeps none over its restart."""
        now = self._clocks.now()
        if now < self._resend_at:
            return
        self._resend_at = now + self._target.resend
        alerts = await self._thread.run(self._outbox.lasting_alerts, self._target.key)
        if alerts:
            answer = await self._deliver(self._target.message("", 1, alerts))
            self._attempt_failure = "" if answer.verdict is Delivery.DELIVERED else answer.because

    def _until(self, next_at: float) -> float:
        """Seconds; bounded, because the wall clock may have been set back meanwhile."""
        return min(max(0.0, next_at - self._clocks.latest()), max(self._retry.backoff.most, 3600.0))

    async def _give_up(self, delivery: PendingDelivery, because: str) -> None:
        self.tally.dead += delivery.size
        log.error(
            "alerts are given up: the receiver will not take them",
            extra={
                "event": "alerts.given_up",
                "route": self._target.name,
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
            except DatabaseError as error:
                self._outbox_failure = f"the delivery can't be recorded in the outbox: {error}"
                await asyncio.sleep(_OUTBOX_AGAIN)
            else:
                self._outbox_failure = ""
                return

    def log_result(self, delivery: PendingDelivery, because: str, pause: float) -> None:
        log.warning(
            "a receiver does not take alerts",
            extra={
                "event": "alerts.attempt_failed",
                "route": self._target.name,
                "delivery": delivery.id,
                "attempt": delivery.attempts + 1,
                "because": because,
                "again_in": round(pause, 1),
            },
        )

    async def _attempt(self, delivery: PendingDelivery) -> WebhookResponse:
        try:
            alerts = await self._thread.run(alerts_of, delivery.alerts)
        except (ValueError, KeyError, TypeError) as error:
            return WebhookResponse(Delivery.DROP, f"its row can't be read: {error!r}")
        message = self._target.message(delivery.id, delivery.attempts + 1, alerts)
        return await self._deliver(message)

    async def _deliver(self, message: Message) -> WebhookResponse:
        began = self._clocks.now()
        try:
            return await deliver(self._target, message, self._exchange)
        finally:
            self.tally.durations.observe(self._clocks.now() - began)


def _is_cancelled() -> bool:
    """Whether the task was cancelled, also where a library has lost the exception.

    asyncio.wait_for of Python 3.11 returns a result that arrives with the cancellation.
    """
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def deliver(target: RouteTarget, message: Message, exchange: Exchange) -> WebhookResponse:
    """One attempt, bounded in time. Every failure is an answer."""
    try:
        async with asyncio.timeout(target.timeout):
            return await target.receiver.deliver(message, exchange)
    except SecretError as error:
        return WebhookResponse(Delivery.RETRY, str(error))
    except TimeoutError:
        return WebhookResponse(Delivery.RETRY, f"no answer within {target.timeout:g} s")
    except Exception as error:  # noqa: BLE001 - a library fails in any way, and a route must not end
        return WebhookResponse(Delivery.RETRY, words_of(error))
