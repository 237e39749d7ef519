"""Alerts that people must receive, through webhooks, from an outbox that outlives the process.

`record_event` is called on the event loop and only queues; a thread makes the alert durable some
milliseconds later. Alerts that a crash in between loses are derived again by the next process where
they still hold.
"""

import asyncio
import logging
import random
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Annotated

import aiohttp
from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

from aggregator.alerts.alert import DEFAULT_KINDS, alert_of, dedup_key, resolves
from aggregator.alerts.outbox import AlertOutbox, Item, OutboxError
from aggregator.alerts.sender import BatchWait, DeliveryStats, WebhookSender, WebhookTarget, name_of
from aggregator.alerts.webhook import Retry
from aggregator.clock import Clocks
from aggregator.configfile.section import SectionDataclass
from aggregator.configfile.values import Duration, HttpUrl, OrdinaryPath
from aggregator.events import FORMER_NAMES, EventKind, Transition
from aggregator.runtime.backoff import Backoff
from aggregator.runtime.worker_thread import WorkerThread

log = logging.getLogger("sickbay.alerts")

#: Transitions that may wait in memory while the outbox can't be written; later ones are lost.
MOST_WAITING = 10_000
BATCH = 500
DEFAULT_RETRY = Retry()
DEFAULT_PATIENCE = BatchWait()
_BACKOFF = Backoff(first=0.4, most=15.0)
_CLOSE_WITHIN = 5.0


def _current_kind(value: object) -> object:
    kind = FORMER_NAMES.get(value) if isinstance(value, str) else None
    if kind is not None:
        raise PydanticCustomError(
            "value",
            "{old} has another name now; expected {new}",
            {"old": f'"{value}"', "new": kind.value},
        )
    return value


Kind = Annotated[EventKind, Field(strict=False), BeforeValidator(_current_kind)]
Kinds = Annotated[tuple[Kind, ...], Field(strict=False)]


@dataclass(slots=True)
class AlertCounters:
    """Counted since the start.

    ``repeated``: sent before, and not ended since. ``lost``: never made durable. ``dropped``: the
    oldest of a webhook that let too many pile up.
    """

    accepted: int = 0
    repeated: int = 0
    lost: int = 0
    dropped: int = 0


@dataclass(frozen=True, slots=True)
class WebhookConfig(SectionDataclass):
    """Where alerts are posted. ``timeout`` is in seconds.

    The content of ``secret_file``, stripped of whitespace at the end, signs every request.
    ``kinds`` are the transitions that it receives; None: all that are alerts.
    """

    url: HttpUrl
    secret_file: OrdinaryPath
    kinds: Kinds | None = None
    timeout: Duration = 10.0


class Notifier:
    """An `EventSink` that sends to ``webhooks``. ``path`` is the outbox; without webhooks no file
    is made.
    """

    def __init__(
        self,
        path: Path,
        webhooks: Sequence[WebhookConfig],
        *,
        clocks: Clocks,
        rng: random.Random,
        retry: Retry = DEFAULT_RETRY,
        patience: BatchWait = DEFAULT_PATIENCE,
    ) -> None:
        self.webhooks = _webhooks(webhooks)
        self.counters = AlertCounters()
        self._outbox = AlertOutbox(path)
        self._clocks = clocks
        self._rng = rng
        self._retry = retry
        self._patience = patience
        self._thread = WorkerThread("alerts-outbox")
        self._queue: deque[Item] = deque()
        self._some = asyncio.Event()
        self._closing = False
        self._failure = ""
        self._depths: Mapping[str, int] = {}
        self._session: aiohttp.ClientSession | None = None
        self._couriers: list[WebhookSender] = []
        self._writer: asyncio.Task[None] | None = None
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begin to deliver the alerts that wait from before, and those that are recorded."""
        if not self.webhooks:
            return
        # Verified TLS by the system's trust; no proxies and no .netrc from the environment.
        self._session = aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar())
        self._couriers = [
            WebhookSender(
                webhook,
                outbox=self._outbox,
                thread=self._thread,
                session=self._session,
                clocks=self._clocks,
                rng=self._rng,
                retry=self._retry,
                patience=self._patience,
            )
            for webhook in self.webhooks
        ]
        self._writer = asyncio.create_task(self._write(), name="alerts")
        self._tasks = [
            asyncio.create_task(courier.run(), name=f"webhook {webhook.name}")
            for courier, webhook in zip(self._couriers, self.webhooks, strict=True)
        ]

    async def close(self) -> None:
        """Make durable the alerts that wait in memory, and leave their delivery to the next
        process.
        """
        self._closing = True
        self._some.set()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        if self._writer is not None:
            await asyncio.wait({self._writer}, timeout=_CLOSE_WITHIN)
            if not self._writer.done():
                self._writer.cancel()
                await asyncio.wait({self._writer})
        if self._session is not None:
            await self._session.close()
        if self._queue:
            self.counters.lost += len(self._queue)
            log.error("alerts were lost at the end", extra={"count": len(self._queue)})
            self._queue.clear()
        try:
            async with asyncio.timeout(1):
                await self._thread.run(self._outbox.close)
        except TimeoutError:
            log.warning("the alerts' outbox does not answer")
        self._thread.stop()

    def record_event(self, transition: Transition) -> None:
        """Queue the event for each webhook that asks for its kind. Never blocks and never
        raises.
        """
        if not self.webhooks:
            return
        keys = tuple(hook.key for hook in self.webhooks if transition.kind in hook.kinds)
        alert = alert_of(transition) if keys else None
        over = resolves(transition)
        if alert is None and over is None:
            return
        if self._closing or len(self._queue) >= MOST_WAITING:
            self.counters.lost += alert is not None
            return
        self._queue.append(Item(dedup_key(transition), alert, over, keys))
        self._some.set()

    def depth(self) -> Mapping[str, int]:
        """How many alerts wait for each webhook, by its name."""
        waiting = {webhook.key: 0 for webhook in self.webhooks} | dict(self._depths)
        for item in self._queue:
            for key in item.webhooks if item.alert is not None else ():
                waiting[key] += 1
        return {webhook.name: waiting[webhook.key] for webhook in self.webhooks}

    def tallies(self) -> Mapping[str, DeliveryStats]:
        """The outcomes of the deliveries, by the webhook's name."""
        both = zip(self.webhooks, self._couriers, strict=False)
        return {webhook.name: courier.tally for webhook, courier in both}

    @property
    def problem(self) -> str:
        """Why alerts aren't delivered, for page and metrics; empty when they are."""
        ended = [task for task in (self._writer, *self._tasks) if task is not None and task.done()]
        if ended and not self._closing:
            return f"alerts: {ended[0].get_name()} has failed; restart, and report it"
        if self._failure:
            return f"alerts are not kept: {self._failure}"
        both = zip(self.webhooks, self._couriers, strict=False)
        found = [
            f"webhook {hook.name}: {courier.problem}" for hook, courier in both if courier.problem
        ]
        return "; ".join(found)

    # -- writing -------------------------------------------------------------------

    async def _write(self) -> None:
        failures = 0
        begun = False
        while not (self._closing and not self._queue):
            try:
                if not begun:
                    await self._begin()
                    begun = True
                elif self._queue:
                    await self._accept()
                else:
                    await self._watch()
            except OutboxError as error:
                failures += 1
                if not self._failure:
                    log.warning("alerts can't be kept", extra={"error": str(error)})
                self._failure = str(error)
                if self._closing:
                    return
                await asyncio.sleep(_BACKOFF.pause(failures, self._rng))
            else:
                failures = 0
                self._failure = ""

    async def _begin(self) -> None:
        gone = await self._thread.run(
            self._outbox.keep_only, [webhook.key for webhook in self.webhooks]
        )
        if gone:
            log.warning("alerts for webhooks that are no longer configured", extra={"count": gone})
        self._depths = await self._thread.run(self._outbox.depths)

    async def _accept(self) -> None:
        batch = [self._queue[i] for i in range(min(BATCH, len(self._queue)))]
        new, dropped = await self._thread.run(self._outbox.accept, batch, self._clocks.latest())
        for _ in batch:
            self._queue.popleft()
        self.counters.accepted += new
        self.counters.repeated += sum(1 for item in batch if item.alert is not None) - new
        if dropped:
            self.counters.dropped += dropped
            log.error("old alerts were dropped: too many wait", extra={"count": dropped})
        for courier in self._couriers:
            courier.wake()
        self._depths = await self._thread.run(self._outbox.depths)

    async def _watch(self) -> None:
        """Wait until there is a transition to store; counts undelivered alerts now and then."""
        self._some.clear()  # nothing is queued: no await lies between that read and this line
        try:
            async with asyncio.timeout(1.0 if any(self._depths.values()) else None):
                await self._some.wait()
        except TimeoutError:
            self._depths = await self._thread.run(self._outbox.depths)


def _webhooks(addresses: Sequence[WebhookConfig]) -> list[WebhookTarget]:
    """The webhooks with names and keys that tell them apart; a key stays while its URL does."""
    names: dict[str, int] = {}
    urls: dict[str, int] = {}
    made = []
    for address in addresses:
        name = name_of(address.url)
        names[name] = names.get(name, 0) + 1
        urls[address.url] = urls.get(address.url, 0) + 1
        which = f"{address.url}\x1f{urls[address.url]}".encode()
        made.append(
            WebhookTarget(
                name=name if names[name] == 1 else f"{name}#{names[name]}",
                key=blake2b(which, digest_size=6).hexdigest(),
                url=address.url,
                secret_file=address.secret_file,
                kinds=DEFAULT_KINDS if address.kinds is None else frozenset(address.kinds),
                timeout=address.timeout,
            )
        )
    return made
