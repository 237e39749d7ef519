"""Who may speak to the API server next: lanes by priority over one token bucket.

The API server stays alive because we ask it little. What must not wait behind the rest goes first:
a release is never held up by evictions, and a lease waits for nobody. So that there is an order at
all, only so many requests are under way at a time: when a hundred nodes fail at once, their taints
go before the first of them is told of in an Event.
"""

import asyncio
import contextlib
import enum
import heapq
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

from aggregator.quarantine.cluster import Unreachable


class Lane(enum.IntEnum):
    """What a request is for, most urgent first."""

    LEASE = 0  # no limiter at all: a lease that waits is a lease that is lost
    RELEASE = 1
    RECORD = 2  # the admission record: all proposals of a moment wait for it together
    TAINT = 3
    READ = 4  # after the taints: what is begun is finished before the next is begun
    PHASE = 5  # what the next step of a quarantine waits for
    EVICTION = 6
    STATUS = 7
    EVENT = 8


class TokenBucket:
    """``rate`` tokens a second, ``burst`` at most. Pure: the time comes in.

    Invariant: from any moment on, within t seconds no more than burst + rate * t are taken.
    """

    def __init__(self, rate: float, burst: int, now: float) -> None:
        if rate <= 0 or burst < 1:
            raise ValueError(f"rate must be above 0 and burst 1 or more, not {rate} and {burst}")
        self._rate = rate
        self._burst = float(burst)
        self._tokens = float(burst)
        self._at = now

    def wait(self, now: float) -> float:
        """Seconds until a token is there; 0 when one is."""
        self._refill(now)
        if self._tokens >= 1.0:
            return 0.0
        # A microsecond more, as the clock's rounding must not leave a sleeper just short of it.
        return (1.0 - self._tokens) / self._rate + 1e-6

    def take(self, now: float) -> bool:
        """Take a token if one is there."""
        self._refill(now)
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True

    def _refill(self, now: float) -> None:
        if now > self._at:  # a clock that steps back gives nothing and takes nothing
            self._tokens = min(self._burst, self._tokens + (now - self._at) * self._rate)
            self._at = now


@dataclass(order=True, slots=True)
class _Waiter:
    lane: int
    turn: int
    go: asyncio.Future[None] = field(compare=False)


class Limiter:
    """Lets requests go in order of lane, then of arrival, as the bucket allows.

    ``at_once``: how many may be under way, if that is bounded. Releases are above it: requests that
    hang must not hold them up. ``clock`` and ``sleep`` belong together; a test gives both.
    """

    def __init__(
        self,
        *,
        qps: float,
        burst: int,
        at_once: int | None = None,
        clock: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._at_once = at_once
        self._under_way = 0
        self._room = asyncio.Event()
        self._clock = clock
        self._sleep = sleep
        self._bucket = TokenBucket(qps, burst, clock())
        self._waiting: list[_Waiter] = []
        self._turn = 0
        self._paused_until = clock()
        self._pump: asyncio.Task[None] | None = None

    @property
    def waiting(self) -> int:
        """How many requests stand in line."""
        return sum(not waiter.go.done() for waiter in self._waiting)

    @contextlib.asynccontextmanager
    async def turn(self, lane: Lane) -> AsyncIterator[None]:
        """Around a request: enters when it may be sent. Raises Unreachable when closed."""
        await self.acquire(lane)
        try:
            yield
        finally:
            self._end(lane)

    async def acquire(self, lane: Lane) -> None:
        """Return when the request may be sent. Raises Unreachable when the limiter is closed.

        It counts as under way until `turn` ends it.
        """
        if lane is Lane.LEASE:
            return
        now = self._clock()
        free = not self._waiting and now >= self._paused_until and not self._full(lane)
        if free and self._bucket.take(now):
            self._under_way += 1
            return
        self._turn += 1
        waiter = _Waiter(lane, self._turn, asyncio.get_running_loop().create_future())
        heapq.heappush(self._waiting, waiter)
        self._room.set()  # a release may go where the head of the line could not
        if self._pump is None or self._pump.done():
            self._pump = asyncio.create_task(self._let_go(), name="kube-limiter")
        try:
            await waiter.go
        except asyncio.CancelledError:
            if waiter.go.done() and not waiter.go.cancelled() and waiter.go.exception() is None:
                self._end(lane)  # it was let go, and did not hear of it
            raise

    def _end(self, lane: Lane) -> None:
        if lane is not Lane.LEASE:
            self._under_way -= 1
            self._room.set()

    def _full(self, lane: int) -> bool:
        if self._at_once is None or lane <= Lane.RELEASE:
            return False
        return self._under_way >= self._at_once

    def pause(self, seconds: float) -> None:
        """Nobody but a lease goes for so long: the server asked for it (Retry-After)."""
        self._paused_until = max(self._paused_until, self._clock() + seconds)

    def close(self) -> None:
        """End what waits: `acquire` raises Unreachable."""
        if self._pump is not None:
            self._pump.cancel()
        for waiter in self._waiting:
            if not waiter.go.done():
                waiter.go.set_exception(Unreachable("the connection to the cluster was closed"))
        self._waiting.clear()

    async def _let_go(self) -> None:
        while self._drop_gone():
            if self._full(self._waiting[0].lane):
                self._room.clear()
                await self._room.wait()
                continue
            now = self._clock()
            delay = max(self._paused_until - now, self._bucket.wait(now))
            if delay > 0:
                await self._sleep(delay)
                continue  # a pause may have come, and somebody more urgent
            self._bucket.take(now)
            self._under_way += 1
            heapq.heappop(self._waiting).go.set_result(None)

    def _drop_gone(self) -> bool:
        """Drop those who gave up at the head of the line; whether anybody is left."""
        while self._waiting and self._waiting[0].go.done():
            heapq.heappop(self._waiting)
        return bool(self._waiting)
