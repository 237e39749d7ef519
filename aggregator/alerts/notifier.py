"""Alerts that people must receive, from an outbox that outlives the process.

`record_event` is called on the event loop and only queues; a thread makes the alert durable some
milliseconds later. Alerts that a crash in between loses are derived again by the next process where
they still hold.
"""

import asyncio
import logging
import random
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import aiohttp

from aggregator.alerts.alert import (
    DECIDED_WITHIN,
    Alert,
    Resolution,
    alert_of,
    decision_of,
    dedup_key,
    resolves,
)
from aggregator.alerts.batch import Exemption
from aggregator.alerts.next_step import Advisor, no_advice
from aggregator.alerts.outbox import AlertHold, AlertOutbox, Item
from aggregator.alerts.overview import AlertOverview, DeadDelivery, RouteState
from aggregator.alerts.routes import (
    NO_CONTEXT,
    Contexts,
    Owners,
    Router,
    RouteTarget,
    group_of,
    no_owner,
    targets_of,
)
from aggregator.alerts.sender import DeliveryStats, RouteSender
from aggregator.alerts.settings import AlertSettings
from aggregator.alerts.store import OutboxStore
from aggregator.alerts.webhook import Retry
from aggregator.clock import Clocks
from aggregator.events import EventKind, Transition
from aggregator.runtime.backoff import Backoff
from aggregator.runtime.database import DatabaseError
from aggregator.runtime.tasks import keep_up
from aggregator.runtime.worker_thread import WorkerThread

log = logging.getLogger("sickbay.alerts")

#: Transitions that may wait in memory while the outbox can't be written; later ones are lost.
MOST_WAITING = 10_000
BATCH = 500
DEFAULT_RETRY = Retry()
_BACKOFF = Backoff(first=0.4, most=15.0)
_CLOSE_WITHIN = 5.0
#: Seconds between two readings of the outbox while nothing waits.
_POLL_EVERY = 30.0
_MOST_DEAD_SHOWN = 50
#: Seconds after the start, until which agents report and evidence is derived again, and then
#: between two readings of the alerts that last. Two must find one to be over: its end may be late.
_SETTLED = 900.0
_ENDS_EVERY = 60.0
#: Seconds after the start, within which the exemptions of nodes are known.
_EXEMPTIONS_WITHIN = 60.0
#: Seconds for which another replica, of another configuration, may yet send alerts on its routes.
_OTHERS_ROUTES = 3600.0


class Notifier:
    """An `EventSink` that sends alerts by ``settings``, from the outbox in ``store``.

    Without routes the store is never opened. ``context`` and ``advise`` know the nodes; ``is_over``
    whether an alert that lasts, by kind, node and incident, is over; ``replica`` is our own name,
    where several share the outbox.
    """

    def __init__(
        self,
        store: OutboxStore,
        settings: AlertSettings,
        *,
        clocks: Clocks,
        rng: random.Random,
        context: Contexts = lambda _node: NO_CONTEXT,
        owners: Owners = no_owner,
        advise: Advisor = no_advice,
        is_over: Callable[[str, str, str], bool] = lambda _kind, _node, _incident: False,
        replica: str = "",
        retry: Retry = DEFAULT_RETRY,
        targets: Sequence[RouteTarget] | None = None,
    ) -> None:
        self.targets = list(targets_of(settings) if targets is None else targets)
        #: Alerts since the start that were never made durable.
        self.lost = 0
        self._router = Router(self.targets, settings, context, owners, advise)
        self._outbox = AlertOutbox(store, replica)
        self._clocks = clocks
        self._rng = rng
        self._retry = retry
        self._thread = WorkerThread("alerts-outbox")
        self._queue: deque[Item] = deque()
        self._some = asyncio.Event()
        self._closing = False
        self._is_over = is_over
        self._ends_due = clocks.now() + _SETTLED
        self._over: set[tuple[str, str, str]] = set()
        self._failure = ""
        self._bugs: dict[str, str] = {}
        self._lost_logged = 0
        self._depths: Mapping[str, int] = {}
        self._dead: tuple[DeadDelivery, ...] = ()
        self._dead_counts: Mapping[str, int] = {}
        self._newest_dead = (0, 0)
        self._session: aiohttp.ClientSession | None = None
        self._senders: Mapping[str, RouteSender] = {}
        self._writer: asyncio.Task[None] | None = None
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begin to deliver the alerts that wait from before, and those that are recorded."""
        if not self.targets:
            return
        # Verified TLS by the system's trust; no proxies and no .netrc from the environment.
        self._session = aiohttp.ClientSession(
            cookie_jar=aiohttp.DummyCookieJar(), auto_decompress=False
        )
        self._senders = {
            target.key: RouteSender(
                target,
                outbox=self._outbox,
                thread=self._thread,
                session=self._session,
                clocks=self._clocks,
                rng=self._rng,
                retry=self._retry,
            )
            for target in self.targets
        }
        self._writer = self._kept_up("its outbox", self._write)
        self._tasks = [
            self._kept_up(target.title, self._senders[target.key].run) for target in self.targets
        ]

    def _kept_up(self, what: str, work: Callable[[], Awaitable[None]]) -> asyncio.Task[None]:
        note = partial(self._bugs.__setitem__, what)
        return asyncio.create_task(keep_up(f"alerts: {what}", work, note), name=what)

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
        self.lost += len(self._queue)
        self._queue.clear()
        self._log_lost()
        try:
            async with asyncio.timeout(1):
                await self._thread.run(self._outbox.close)
        except TimeoutError:
            log.warning("the alerts' outbox does not answer")
        self._thread.stop()

    def record_event(self, transition: Transition) -> None:
        """Queue the event for each route that matches it. Never blocks and never raises."""
        if not self.targets:
            return
        alert = alert_of(transition) if self._router.wants(transition.kind) else None
        over = resolves(transition)
        requested = transition.kind is EventKind.REQUESTED
        if alert is None and over is None and not requested and decision_of(transition) is None:
            return
        if self._closing or len(self._queue) >= MOST_WAITING:
            self.lost += alert is not None
            return
        self._queue.append(self._item(transition, alert))
        self._some.set()

    def _item(self, transition: Transition, alert: Alert | None) -> Item:
        topic, over = dedup_key(transition), resolves(transition)
        exempt = None
        if transition.kind is EventKind.REQUESTED:  # people may have changed it
            exempt = self._exemption(transition.node)
        targets: list[RouteTarget] = []
        hold = None
        if alert is not None:
            alert = self._router.labelled(alert)
            targets = self._router.targets(alert)
            hold = self._hold(alert)
        decision = decision_of(transition)
        if alert is None or not targets:
            return Item(topic, None, over, (), exempt=exempt, decision=decision)
        return Item(
            topic,
            alert,
            over,
            tuple(target.key for target in targets),
            {target.key: group_of(target, alert) for target in targets if target.group_by},
            frozenset(target.key for target in targets if target.resolved),
            hold,
            exempt,
            decision,
        )

    def _exemption(self, node: str) -> Exemption:
        now = self._clocks.earliest()
        until = self._router.node_exempt_until(node, now)
        return Exemption(node, until, lambda alert: self._router.silence(alert, now))

    def _hold(self, alert: Alert) -> AlertHold | None:
        now = self._clocks.earliest()
        hold = self._router.hold(alert, now)
        if hold is None and alert.kind == EventKind.INCIDENT_OPENED:
            return AlertHold(now + DECIDED_WITHIN, "decision")
        return hold

    def depth(self) -> Mapping[str, int]:
        """How many alerts wait for each route, by its name."""
        waiting = {target.key: 0 for target in self.targets} | dict(self._depths)
        for item in self._queue:
            for key in item.routes if item.alert is not None else ():
                waiting[key] += 1
        return {target.name: waiting[target.key] for target in self.targets}

    def tallies(self) -> Mapping[str, DeliveryStats]:
        """The outcomes of the deliveries, by the route's name."""
        names = {target.key: target.name for target in self.targets}
        return {names[key]: sender.tally for key, sender in self._senders.items()}

    def overview(self) -> AlertOverview:
        """Every route, and the newest dead letters, as they were read last."""
        depths = self.depth()
        routes = []
        for target in self.targets:
            sender = self._senders.get(target.key)
            tally = sender.tally if sender is not None else DeliveryStats()
            routes.append(
                RouteState(
                    name=target.name,
                    kind=target.kind,
                    receiver=target.receiver_name,
                    waiting=depths[target.name],
                    delivered=tally.delivered,
                    failed_attempts=tally.failed_attempts,
                    given_up=tally.dead,
                    dead=self._dead_counts.get(target.key, 0),
                    problem=sender.problem if sender is not None else "",
                    durations=tally.durations,
                )
            )
        return AlertOverview(tuple(routes), self._dead)

    @property
    def problem(self) -> str:
        """Why alerts aren't delivered, for page and metrics; empty when they are."""
        for bug in self._bugs.values():
            if bug:
                return bug
        if self._failure:
            return f"alerts are not kept: {self._failure}"
        titles = {target.key: target.title for target in self.targets}
        found = [(titles[key], sender.problem) for key, sender in self._senders.items()]
        return "; ".join(f"{title}: {problem}" for title, problem in found if problem)

    # -- writing -------------------------------------------------------------------

    async def _write(self) -> None:
        failures = 0
        begun = False
        while not (self._closing and not self._queue):
            try:
                if not begun:
                    await self._begin()
                    begun = True
                elif self._clocks.now() >= self._ends_due and not self._closing:
                    await self._end_forgotten()
                elif self._queue:
                    await self._accept()
                else:
                    await self._watch()
            except DatabaseError as error:
                failures += 1
                if not self._failure:
                    log.warning(
                        "alerts can't be kept",
                        extra={"event": "alerts.not_kept", "error": str(error)},
                    )
                self._failure = str(error)
                if self._closing:
                    return
                await asyncio.sleep(_BACKOFF.pause(failures, self._rng))
            else:
                failures = 0
                self._failure = ""

    async def _begin(self) -> None:
        now = self._clocks.latest()
        before = now - _OTHERS_ROUTES if self._outbox.shared else float("inf")
        keys = [target.key for target in self.targets]
        gone = await self._thread.run(self._outbox.keep_only, keys, before)
        if gone:
            log.warning("alerts for routes that are no longer configured", extra={"count": gone})
        held = await self._thread.run(self._outbox.held)
        unknown = AlertHold(now + _EXEMPTIONS_WITHIN, "exempt")  # until the node's are read
        holds = {
            number: self._router.hold(alert, now) or (unknown if alert.node else None)
            for number, alert in held
        }
        if holds:
            await self._thread.run(self._outbox.hold, holds)
        await self._read_outbox_state()

    async def _accept(self) -> None:
        batch = [self._queue[i] for i in range(min(BATCH, len(self._queue)))]
        times = self._clocks.latest(), self._clocks.earliest()
        _, dropped = await self._thread.run(self._outbox.accept, batch, *times)
        for _ in batch:
            self._queue.popleft()
        self._log_lost()
        if dropped:
            log.error(
                "old alerts were dropped: too many wait",
                extra={"event": "alerts.dropped", "count": dropped},
            )
        for sender in self._senders.values():
            sender.wake()
        self._depths = await self._thread.run(self._outbox.depths)

    def _log_lost(self) -> None:
        """Those that the outbox was away for, since the last time."""
        lost = self.lost - self._lost_logged
        if lost:
            log.error("alerts were lost", extra={"event": "alerts.lost", "count": lost})
            self._lost_logged += lost

    async def _end_forgotten(self) -> None:
        """End the alerts that are over, and whose end did not come; and exemptions likewise."""
        self._ends_due = self._clocks.now() + _ENDS_EVERY
        before = self._over
        self._over = {
            one for one in await self._thread.run(self._outbox.unended) if self._is_over(*one)
        }
        for kind, node, incident in sorted(self._over & before):
            summary = f"{node or 'the fleet'}: this is over; its end was not recorded"
            kinds, at = frozenset({EventKind(kind)}), self._clocks.wall()
            over = Resolution(node, kinds, incident, at=at, summary=summary)
            self._queue.append(Item("", None, over, ()))
        for node in await self._thread.run(self._outbox.exempt_nodes):
            self._queue.append(Item("", None, None, (), exempt=self._exemption(node)))

    async def _watch(self) -> None:
        """Wait until there is a transition to store; counts undelivered alerts now and then."""
        self._some.clear()  # nothing is queued: no await lies between that read and this line
        try:
            async with asyncio.timeout(1.0 if any(self._depths.values()) else _POLL_EVERY):
                await self._some.wait()
        except TimeoutError:
            await self._read_outbox_state()

    async def _read_outbox_state(self) -> None:
        """The alerts that wait, and those that were given up."""
        self._depths = await self._thread.run(self._outbox.depths)
        newest = await self._thread.run(self._outbox.newest_dead)
        if newest == self._newest_dead:
            return  # they may be megabytes, and are read each second while an alert waits
        self._dead_counts = await self._thread.run(self._outbox.dead_count)
        names = {target.key: target.name for target in self.targets}
        letters = await self._thread.run(self._outbox.dead_letters, _MOST_DEAD_SHOWN)
        self._dead = tuple(
            replace(one, route=names.get(one.route, "a route that is no longer configured"))
            for one in letters
        )
        self._newest_dead = newest
