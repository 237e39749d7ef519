"""Hands out what happens, as it happens, to every open event stream.

A `Ledger`: noting never blocks and never raises. A subscriber who reads too slowly loses
transitions and is told how many; of ticks ("the fleet has changed") it gets the latest alone.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Self

import msgspec

from aggregator.quarantine.ledger import Kind, Transition
from aggregator.web import shapes, view

#: Transitions that a slow subscriber may fall behind by.
QUEUE = 256
#: Transitions that are remembered, for who comes back and for the page's "lately".
REMEMBERED = 500


class TooManyStreams(Exception):
    """As many streams are open as may be."""


class Subscription:
    """One reader's place in the feed. Use it as a context manager; then `next` until None.

    ``node``: only what is about this node; empty: everything.
    """

    def __init__(self, node: str, leave: "Callable[[Subscription], None]") -> None:
        self.node = node
        #: Whether all that happened since the last event of this reader could be given.
        self.resumed = False
        self._leave = leave
        self._frames: deque[bytes] = deque()
        self._tick: bytes | None = None
        self._missed = 0
        self._closed = False
        self._news = asyncio.Event()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._leave(self)

    async def next(self, timeout: float) -> bytes | None:  # noqa: ASYNC109 - a beat is due then
        """The next frames, empty when nothing came within ``timeout`` seconds; None at the end."""
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
        """End it: the server is going."""
        self._closed = True
        self._news.set()

    def _pending(self) -> bool:
        return bool(self._frames or self._tick or self._missed or self._closed)

    def _take(self) -> bytes:
        parts = list(self._frames)
        self._frames.clear()
        if self._missed:
            parts.append(frame("missed", shapes.Missed(transitions=self._missed)))
            self._missed = 0
        if self._tick is not None:
            parts.append(self._tick)
            self._tick = None
        return b"".join(parts)


class Feed:
    """The fan-out. ``epoch`` tells this process's event ids from those of another."""

    def __init__(self, *, epoch: int, most: int = 200) -> None:
        #: Transitions since the start, by kind.
        self.counts: Counter[Kind] = Counter()
        self._epoch = epoch
        self._most = most
        self._number = 0
        self._ring: deque[tuple[int, Transition, bytes]] = deque(maxlen=REMEMBERED)
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
        """The nodes that some subscriber looks at."""
        return frozenset(one.node for one in self._subscriptions if one.node)

    def note(self, transition: Transition) -> None:
        """Tell everybody. Never blocks; never raises."""
        self._number += 1
        self.counts[transition.kind] += 1
        message = frame("transition", view.event(transition), self._ident(self._number))
        self._ring.append((self._number, transition, message))
        for one in self._subscriptions:
            if one.node in {"", transition.node}:
                one.push(message)
        self._noted.set()

    def prime(self, past: Iterable[Transition]) -> None:
        """What history knew at the start, newest first: it comes after all that was noted since."""
        self._past = tuple(past)

    def recent(self, node: str = "", limit: int = 50) -> list[Transition]:
        """What happened lately, newest first, of this node or of all."""
        noted = [one for _, one, _ in reversed(self._ring)]
        known = set(map(_identity, noted))
        noted += [one for one in self._past if _identity(one) not in known]
        return [one for one in noted if node in {"", one.node}][:limit]

    def subscribe(self, node: str = "", last: str = "") -> Subscription:
        """Open a stream. ``last`` is the id of the last event that its reader had.

        Raises TooManyStreams.
        """
        if self._closed or len(self._subscriptions) >= self._most:
            raise TooManyStreams(f"{len(self._subscriptions)} event streams are open")
        one = Subscription(node, self._subscriptions.discard)
        after = self._after(last)
        if after is not None:
            one.resumed = True
            for number, transition, message in self._ring:
                if number > after and node in {"", transition.node}:
                    one.push(message)
        self._subscriptions.add(one)
        self._noted.set()  # whoever looks at the fleet for the streams has somebody to look for
        return one

    def tick(self, tick: shapes.Tick, *, node: str = "") -> None:
        """The fleet has changed, or this node: those who look at it are told."""
        message = frame("fleet", tick)
        for one in self._subscriptions:
            if one.node == node:
                one.tick(message)

    async def noted(self) -> None:
        """Return once something was noted, or somebody has come, since the last call."""
        await self._noted.wait()
        self._noted.clear()

    def close(self) -> None:
        """End every stream; none can be opened any more."""
        self._closed = True
        for one in tuple(self._subscriptions):
            one.close()

    def _ident(self, number: int) -> str:
        return f"{self._epoch}.{number}"

    def _after(self, last: str) -> int | None:
        """The number to resume after; None when it is not ours or no longer remembered."""
        epoch, _, number = last.partition(".")
        if epoch != str(self._epoch) or not number.isdecimal():
            return None
        oldest = self._ring[0][0] if self._ring else self._number + 1
        return int(number) if oldest - 1 <= int(number) <= self._number else None


def frame(name: str, data: shapes.Shape, ident: str = "") -> bytes:
    """One server-sent event. JSON holds no raw newline, so that data is one line."""
    head = f"id: {ident}\n" if ident else ""
    return f"{head}event: {name}\ndata: ".encode() + msgspec.json.encode(data) + b"\n\n"


def _identity(one: Transition) -> tuple[float, str, str, str]:
    return (round(one.at, 3), one.kind, one.node, one.summary)
