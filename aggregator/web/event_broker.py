"""Sends transitions, as they happen, to every open event stream.

An `EventSink`: recording never blocks and never raises. A subscriber that reads too slowly loses
transitions and gets their number; of ticks ("the fleet has changed") it gets only the latest.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Iterable
from typing import Self

import msgspec

from aggregator.events import EventKind, Transition
from aggregator.history.dedup import newest_first
from aggregator.web import models, node_view

#: Transitions that a slow subscriber may fall behind by.
QUEUE = 256
#: Transitions that are remembered, for reconnecting subscribers and for the page's "lately".
REMEMBERED = 500
#: Event streams at once: a page that a person watches has one.
MOST_STREAMS = 700


class TooManyStreams(Exception):
    """As many streams are open as are allowed."""


class Subscription:
    """One reader's place in the event stream. Use it as a context manager; then `next` until None.

    ``node``: only events about this node; empty: all events.
    """

    def __init__(self, node: str, leave: "Callable[[Subscription], None]") -> None:
        self.node = node
        #: Whether all events since the last one of this reader could be sent.
        self.resumed = False
        self._leave = leave
        self._frames: deque[bytes] = deque()
        self._tick: bytes | None = None
        self._missed = 0
        self._closed = False
        self._news = asyncio.Event()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._leave(self)

    async def next(self, timeout: float) -> bytes | None:  # noqa: ASYNC109 - a beat is due then
        """The next frames, empty when none came within ``timeout`` seconds, or None at the end."""
        if not self._pending():
            try:
                async with asyncio.timeout(timeout):
                    await self._news.wait()
            except TimeoutError:
                return b""
        self._news.clear()
        if self._closed:
            return None
        return self._take()

    def push(self, message: bytes) -> None:
        """One transition's frame; dropped and counted when the reader is too far behind."""
        if len(self._frames) >= QUEUE:
            self._missed += 1
        else:
            self._frames.append(message)
        self._news.set()

    def tick(self, message: bytes) -> None:
        """Replaces a tick that was not read yet."""
        self._tick = message
        self._news.set()

    def close(self) -> None:
        """End it, because the server stops."""
        self._closed = True
        self._news.set()

    def _pending(self) -> bool:
        return bool(self._frames or self._tick or self._missed or self._closed)

    def _take(self) -> bytes:
        parts = list(self._frames)
        self._frames.clear()
        if self._missed:
            parts.append(frame("missed", models.Missed(transitions=self._missed)))
            self._missed = 0
        if self._tick is not None:
            parts.append(self._tick)
            self._tick = None
        return b"".join(parts)


class EventBroker:
    """The fan-out. ``epoch`` distinguishes this process's event ids from another's."""

    def __init__(self, *, epoch: int, most: int = MOST_STREAMS) -> None:
        #: Transitions since the start, by kind.
        self.counts: Counter[EventKind] = Counter()
        self.epoch = epoch
        #: Event streams at once.
        self.most = most
        #: The number of the latest transition.
        self.latest = 0
        self._ring: deque[tuple[int, Transition]] = deque(maxlen=REMEMBERED)  # with their numbers
        self._past: tuple[Transition, ...] = ()
        self._subscriptions: set[Subscription] = set()
        self._noted = asyncio.Event()
        self._closed = False

    @property
    def streams(self) -> int:
        """How many are open now."""
        return len(self._subscriptions)

    @property
    def nodes(self) -> frozenset[str]:
        """The nodes that subscribers watch."""
        return frozenset(one.node for one in self._subscriptions if one.node)

    def record_event(self, transition: Transition) -> None:
        """Send it to each subscriber. Never blocks; never raises."""
        self.counts[transition.kind] += 1
        self.latest += 1
        self._ring.append((self.latest, transition))
        readers = [one for one in self._subscriptions if one.node in {"", transition.node}]
        if readers:  # else a storm would render hundreds for nobody
            message = self._message(self.latest, transition)
            for one in readers:
                one.push(message)
        self._noted.set()

    def prime(self, past: Iterable[Transition]) -> None:
        """The history's transitions at the start, newest first: they go before all that were
        recorded since.
        """
        self._past = (*past, *self._past)

    def recent(self, node: str = "", limit: int = 50) -> list[Transition]:
        """The latest transitions, newest first, of this node or of all."""
        noted = merged((one for _, one in reversed(self._ring)), self._past)
        wanted = [one for one in noted if node in {"", one.node}]
        return newest_first(wanted)[:limit]

    def subscribe(self, node: str = "", last: str = "") -> Subscription:
        """Open a stream. ``last`` is the id of the last event that its reader had.

        Raises TooManyStreams.
        """
        if self._closed or len(self._subscriptions) >= self.most:
            raise TooManyStreams(f"{len(self._subscriptions)} event streams are open")
        one = Subscription(node, self._subscriptions.discard)
        after = self._after(last)
        if after is not None:
            one.resumed = True
            for number, transition in self._ring:
                if number > after and node in {"", transition.node}:
                    one.push(self._message(number, transition))
        self._subscriptions.add(one)
        self._noted.set()  # a waiting reader of the fleet now has a subscriber
        return one

    def tick(self, tick: models.Tick, *, node: str = "") -> None:
        """The fleet has changed, or this node: notify the subscribers."""
        message = frame("fleet", tick)
        for one in self._subscriptions:
            if one.node == node:
                one.tick(message)

    async def noted(self) -> None:
        """Return once a transition was recorded, or a subscriber has come, since the last call."""
        await self._noted.wait()
        self._noted.clear()

    def close(self) -> None:
        """End every stream; no further stream can be opened."""
        self._closed = True
        for one in tuple(self._subscriptions):
            one.close()

    def _message(self, number: int, transition: Transition) -> bytes:
        return frame("transition", node_view.event(transition), f"{self.epoch}.{number}")

    def _after(self, last: str) -> int | None:
        """The number to resume after, or None when it is not ours or no longer remembered."""
        epoch, _, number = last.partition(".")
        if epoch != str(self.epoch) or not number.isdecimal() or len(number) > 20:
            return None
        oldest = self._ring[0][0] if self._ring else self.latest + 1
        return int(number) if oldest - 1 <= int(number) <= self.latest else None


def frame(name: str, data: models.Shape, ident: str = "") -> bytes:
    """One server-sent event. JSON holds no raw newline, so that data is one line."""
    head = f"id: {ident}\n" if ident else ""
    return f"{head}event: {name}\ndata: ".encode() + msgspec.json.encode(data) + b"\n\n"


def merged(one: Iterable[Transition], other: Iterable[Transition]) -> list[Transition]:
    """All of ``one``, then those of ``other`` that it lacks."""
    found = list(one)
    known = set(map(_identity, found))
    return [*found, *(each for each in other if _identity(each) not in known)]


def _identity(one: Transition) -> tuple[float, str, str, str]:
    # Databases keep times to the microsecond.
    return (round(one.at, 3), one.kind, one.node, one.summary)
