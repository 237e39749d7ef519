"""Who may speak to the API server next: lanes by priority over one token bucket.

The API server stays alive because we ask it little. What must not wait behind the rest goes first:
a release is never held up by evictions, and a lease waits for nobody. So that there is an order at
all, only so many requests are under way at a time: when a hundred nodes fail at once, their taints
go before the first of them is told of in an Event.

An order of those who wait is not enough for that. Whoever sends taints is busy: for moments none of
them waits, and all that trails behind those that are done would take the places, and then the time,
of those that are not. So while taints are under way what trails has a few places, and no more.
And so that a storm without an end starves nobody, now and then whoever has waited longest goes.
"""

import asyncio
import enum
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

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

    @property
    def trails(self) -> bool:
        """Whether it is for a node that is marked already: no job is placed there any more."""
        return self > Lane.READ


#: For so long after a taint (seconds) another is expected: the next ones are on their way to us.
HURRY = 0.05
#: Of the places one in so many is for what trails, while taints are under way.
SHARE = 16
#: One in so many that go is whoever has waited longest, whatever for.
FAIR = 64


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


@dataclass(slots=True, eq=False)
class _Waiter:
    lane: Lane
    turn: int
    go: asyncio.Future[None]


class Turn:
    """One request's. A class, and no generator: there are three for each node that fails."""

    __slots__ = ("_lane", "_limiter")

    def __init__(self, limiter: "Limiter", lane: Lane) -> None:
        self._limiter = limiter
        self._lane = lane

    async def __aenter__(self) -> None:
        await self._limiter.acquire(self._lane)

    async def __aexit__(self, *_: object) -> None:
        self._limiter.release(self._lane)


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
        self._few = None if at_once is None else max(1, at_once // SHARE)
        self._under_way = self._tainting = self._trailing = 0
        self._hurried_until = float("-inf")
        self._stirred = asyncio.Event()
        self._clock = clock
        self._sleep = sleep
        self._bucket = TokenBucket(qps, burst, clock())
        self._lines: dict[Lane, deque[_Waiter]] = {lane: deque() for lane in Lane}
        self._turn = 0
        self._unfair = 0
        self._paused_until = clock()
        self._pump: asyncio.Task[None] | None = None
        self._alarm: asyncio.Task[None] | None = None

    @property
    def waiting(self) -> int:
        """How many requests stand in line."""
        return sum(not one.go.done() for line in self._lines.values() for one in line)

    def turn(self, lane: Lane) -> "Turn":
        """Around a request: enters when it may be sent. Raises Unreachable when closed."""
        return Turn(self, lane)

    async def acquire(self, lane: Lane) -> None:
        """Return when the request may be sent. Raises Unreachable when the limiter is closed.

        It counts as under way until it is released.
        """
        if lane is Lane.LEASE:
            return
        now = self._clock()
        free = now >= self._paused_until and self._has_place(lane, now) and self._is_first(lane)
        if free and self._bucket.take(now):
            self._begin(lane)
            return
        self._turn += 1
        waiter = _Waiter(lane, self._turn, asyncio.get_running_loop().create_future())
        self._lines[lane].append(waiter)
        self._stirred.set()  # it may go where the first in line could not
        if self._pump is None or self._pump.done():
            self._pump = asyncio.create_task(self._let_go(), name="kube-limiter")
        try:
            await waiter.go
        except asyncio.CancelledError:
            if waiter.go.done() and not waiter.go.cancelled() and waiter.go.exception() is None:
                self.release(lane)  # it was let go, and did not hear of it
            raise

    def release(self, lane: Lane) -> None:
        """The request that was let go has ended, however it did."""
        if lane is Lane.LEASE:
            return
        self._under_way -= 1
        self._trailing -= lane.trails
        if lane is Lane.TAINT:
            self._tainting -= 1
            self._hurried_until = self._clock() + HURRY
        self._stirred.set()

    def pause(self, seconds: float) -> None:
        """Nobody but a lease goes for so long: the server asked for it (Retry-After)."""
        self._paused_until = max(self._paused_until, self._clock() + seconds)

    def close(self) -> None:
        """End what waits: `acquire` raises Unreachable."""
        for task in (self._pump, self._alarm):
            if task is not None:
                task.cancel()
        for line in self._lines.values():
            for waiter in line:
                if not waiter.go.done():
                    waiter.go.set_exception(Unreachable("the connection to the cluster was closed"))
            line.clear()

    # -- what is under way -----------------------------------------------------------------

    def _begin(self, lane: Lane) -> None:
        self._under_way += 1
        self._tainting += lane is Lane.TAINT
        self._trailing += lane.trails

    def _hurries(self, now: float) -> bool:
        """Whether nodes are on their way to their taint."""
        return bool(self._tainting or self._lines[Lane.TAINT]) or now < self._hurried_until

    def _has_place(self, lane: Lane, now: float) -> bool:
        if self._at_once is None or self._few is None or lane is Lane.RELEASE:
            return True
        if self._under_way >= self._at_once:
            return False
        return not lane.trails or self._trailing < self._few or not self._hurries(now)

    # -- who is next -----------------------------------------------------------------------

    def _is_first(self, lane: Lane) -> bool:
        """Whether one that has just come need not stand in line; it is counted if it overtakes."""
        others = [other for other, line in self._lines.items() if line]
        if not others:
            return True
        if others[0] <= lane or self._unfair + 1 >= FAIR:
            return False
        self._unfair += 1
        return True

    async def _let_go(self) -> None:
        while self._drop_gone():
            now = self._clock()
            delay = max(self._paused_until - now, self._bucket.wait(now))
            if delay > 0:
                await self._sleep(delay)
                continue  # a pause may have come, and somebody more urgent
            waiter = self._next(now)
            if waiter is None:
                await self._until_stirred(self._hurried_until - now)
                continue
            self._lines[waiter.lane].popleft()
            self._bucket.take(now)
            self._begin(waiter.lane)
            waiter.go.set_result(None)

    def _next(self, now: float) -> _Waiter | None:
        """The first of the most urgent lane that has a place; None: nobody has one now."""
        firsts = [line[0] for lane, line in self._lines.items() if line]
        firsts = [one for one in firsts if self._has_place(one.lane, now)]
        if not firsts:
            return None
        chosen = firsts[0]
        if chosen.lane is Lane.RELEASE:
            return chosen
        oldest = min(firsts, key=lambda one: one.turn)
        if chosen is oldest:
            self._unfair = 0
        elif self._unfair + 1 >= FAIR:
            self._unfair, chosen = 0, oldest
        else:
            self._unfair += 1
        return chosen

    async def _until_stirred(self, most: float) -> None:
        """Until a place is free or somebody has come; at most so many seconds, if that is any."""
        self._stirred.clear()
        if most > 0 and (self._alarm is None or self._alarm.done()):
            self._alarm = asyncio.create_task(self._ring(most), name="kube-limiter-alarm")
        await self._stirred.wait()

    async def _ring(self, seconds: float) -> None:
        """One is enough: the hurry only grows, so it may ring too soon, and never too late."""
        await self._sleep(seconds)
        self._stirred.set()

    def _drop_gone(self) -> bool:
        """Drop those who gave up at the head of their line; whether anybody is left."""
        for line in self._lines.values():
            while line and line[0].go.done():
                line.popleft()
        return any(self._lines.values())
