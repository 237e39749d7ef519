"""Decides which request to the API server is sent next: priorities over one token bucket.

The API server stays alive because the requests to it are few. Requests that must not wait go first:
evictions never hold up a release, and a lease does not queue at all. An order exists only because a
limited number of requests is under way at a time: when a hundred nodes fail at once, their taints
go before the first Event about one of them.

An order of the queue is not enough for that. The tasks that send taints are busy: for moments no
taint is queued. The trailing requests of the nodes already tainted would then take the places, and
the time, of the taints still to come. So trailing requests get only a few places while taints are
under way. To prevent starvation in a storm without an end, now and then the request that has waited
longest goes.

What trails about a node that was tainted lately goes in the order of the taints, whatever its kind.
Else all nodes' ends of drains would go before the first node's condition, and of a storm each node
would be complete only at its end. Evictions wait for the begin of a drain: of a burst, the begins
go first.

Lists have places of their own. The server answers a list when its cache has caught up with etcd, up
to a tenth of a second later. It does little for the list until then. In the places of others, the
lists with which many drains begin would leave the server idle while reports wait.
"""

import asyncio
import enum
import heapq
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from attrs import Factory, define, field

from aggregator.cluster.port import Unreachable
from aggregator.runtime.recent import Recent


class Priority(enum.IntEnum):
    """The purpose of a request, most urgent first."""

    STOP = -1  # no limiter at all: the request that waits for it has had its turn
    LEASE = 0  # no limiter at all: a lease that waits is a lease that is lost
    RELEASE = 1
    RECORD = 2  # the admission record: all proposals of a moment wait for it together
    TAINT = 3
    CREATE = 4  # the Quarantine of a node: its taint is next, so those that have one go first
    READ = 5  # after the taints: work that is begun is finished before new work is begun
    EVICTION = 6  # for a drain that is begun, without its retries: before the next is begun
    PHASE = 7  # the next step of a quarantine waits for it
    REPORT = 8  # about a node that was tainted lately, in the order of the taints
    BACKGROUND = 9  # retries, and reads that no new fault waits for
    STATUS = 10
    EVENT = 11

    @property
    def unlimited(self) -> bool:
        """Whether it never queues, and is never counted."""
        return self <= Priority.LEASE

    @property
    def trails(self) -> bool:
        """Whether it is for a node that is marked already: no job is placed there any more."""
        return self > Priority.READ


#: Those of nodes that are on their way to their taint.
_TAINTING = (Priority.TAINT, Priority.CREATE)
#: For this long after a taint (seconds) another is expected: the next ones are on their way to us.
HURRY = 0.05
#: While taints are under way, one place in this number is for what trails, of lists and of others.
SHARE = 16
#: Urgent requests pause for at most this long (seconds), whatever pause the server requested.
URGENT_PAUSE = 5.0
#: One in this number that go is the request that has waited longest, of any priority: one of the
#: lists, and one of the others, and for each of what trails and of what does not.
FAIR = 64
#: The begins of drains go before the reports about nodes tainted up to this long earlier (seconds).
#: Without this bound the first nodes of a storm would wait for the begins of all others.
BEGINS_FIRST = 2.0
#: For this long after its taint (seconds) a node's trailing requests go in the order of the taints,
#: and this number of nodes is remembered.
TRAILS_FOR = 300.0
_MOST_TAINTED = 8192


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
    """``turn``: the order of arrival. ``rank``: that in its line (seconds)."""

    lane: Priority
    is_list: bool
    rank: float
    turn: int
    go: asyncio.Future[None]

    @property
    def group(self) -> tuple[bool, bool]:
        """All of one have a place at the same moments."""
        return self.is_list, self.lane.trails

    def __lt__(self, other: "_Waiter") -> bool:
        return (self.rank, self.turn) < (other.rank, other.turn)


@define(eq=False, repr=False)
class _Line:
    """The waiters of one priority: by rank, and by arrival. Those that went or gave up stay until
    they come to the head of both.
    """

    ranked: list[_Waiter] = Factory(list)
    arrived: deque[_Waiter] = Factory(deque)

    @property
    def first(self) -> _Waiter:
        """The next by rank. `drop_gone` comes before."""
        return self.ranked[0]

    @property
    def oldest(self) -> _Waiter:
        """The one that has waited longest. `drop_gone` comes before."""
        return self.arrived[0]

    def append(self, waiter: _Waiter) -> None:
        heapq.heappush(self.ranked, waiter)
        self.arrived.append(waiter)

    def drop_gone(self) -> None:
        while self.ranked and self.ranked[0].go.done():
            heapq.heappop(self.ranked)
        while self.arrived and self.arrived[0].go.done():
            self.arrived.popleft()

    def clear(self) -> None:
        self.ranked.clear()
        self.arrived.clear()


@define(eq=False, repr=False)
class Slot:
    """One request's. A class, and no generator: there are three for each node that fails."""

    _limiter: "Limiter"
    _lane: Priority
    _node: str
    _is_list: bool = field(kw_only=True)

    async def __aenter__(self) -> None:
        await self._limiter.acquire(self._lane, self._node, is_list=self._is_list)

    async def __aexit__(self, *_: object) -> None:
        self._limiter.release(self._lane, is_list=self._is_list)


@define(eq=False, repr=False, slots=False, kw_only=True)
class Limiter:
    """Lets requests go in order of priority, then of arrival, as the bucket allows.

    Requests of the priority `PHASE` or a lower one about a node whose taint went through here have
    the priority `REPORT`, and go in the order of the taints.

    ``at_once``: how many may be under way, if that is bounded, and as many lists in addition.
    Releases are above it: requests that hang must not hold them up. ``clock`` and ``sleep`` belong
    together; a test gives both.
    """

    _qps: float
    _burst: int
    _at_once: int | None = None
    _clock: Callable[[], float]
    _sleep: Callable[[float], Awaitable[None]] = asyncio.sleep

    def __attrs_post_init__(self) -> None:
        self._few = None if self._at_once is None else max(1, self._at_once // SHARE)
        self._tainting = 0
        #: Of lists (True), and of others. Lists in all of the few places would starve the others.
        self._under_way = {True: 0, False: 0}
        self._trailing = {True: 0, False: 0}
        self._hurried_until = float("-inf")
        self._stirred = asyncio.Event()
        self._bucket = TokenBucket(self._qps, self._burst, self._clock())
        #: In order of priority: the lists of one, and its other requests.
        self._lines = {(lane, is_list): _Line() for lane in Priority for is_list in (False, True)}
        self._turn = 0
        #: By node: when its taint went; the oldest first.
        self._tainted: Recent[str, float] = Recent(_MOST_TAINTED)
        #: By group: how often its oldest was overtaken while it had a place.
        self._unfair: Counter[tuple[bool, bool]] = Counter()
        self._paused_until = self._trailing_paused_until = self._clock()
        self._alarm_at = float("inf")
        self._pump: asyncio.Task[None] | None = None
        self._alarm: asyncio.Task[None] | None = None

    @property
    def waiting(self) -> int:
        """How many requests wait."""
        return sum(not one.go.done() for line in self._lines.values() for one in line.ranked)

    def turn(self, lane: Priority, node: str = "", *, is_list: bool = False) -> "Slot":
        """Around a request: enters when it may be sent. Raises Unreachable when closed."""
        return Slot(self, lane, node, is_list=is_list)

    async def acquire(self, lane: Priority, node: str = "", *, is_list: bool = False) -> None:
        """Return when the request may be sent. Raises Unreachable when the limiter is closed.

        ``node``: the one that it is about, where it taints the node or trails behind its taint. It
        counts as under way until it is released, as a list where it ``is_list``.
        """
        if lane.unlimited:
            return
        now = self._clock()
        self._turn += 1
        turn = self._turn
        lane, rank = self._place_of(lane, node, now)
        has_place = now >= self._paused_until and self._has_place(lane, now, is_list=is_list)
        if has_place and self._is_first(lane, now) and self._bucket.take(now):
            self._begin(lane, is_list=is_list)
            return
        waiter = _Waiter(lane, is_list, rank, turn, asyncio.get_running_loop().create_future())
        self._lines[lane, is_list].append(waiter)
        self._stirred.set()  # it may go where the first in line could not
        if self._pump is None or self._pump.done():
            self._pump = asyncio.create_task(self._let_go(), name="kube-limiter")
        try:
            await waiter.go
        except asyncio.CancelledError:
            if waiter.go.done() and not waiter.go.cancelled() and waiter.go.exception() is None:
                self.release(lane, is_list=is_list)  # it got its place just as it was cancelled
            self._stirred.set()  # it may have been the last on its way to a taint
            raise

    def _place_of(self, lane: Priority, node: str, now: float) -> tuple[Priority, float]:
        """The line of the request, and its rank there."""
        if node and lane is Priority.TAINT:
            self._tainted[node] = now
        elif node and lane >= Priority.PHASE:
            at = self._tainted.get(node)
            if at is not None and now - at < TRAILS_FOR:
                waits = 0.0 if lane is Priority.PHASE else BEGINS_FIRST
                return Priority.REPORT, at + waits
        return lane, now

    def release(self, lane: Priority, *, is_list: bool = False) -> None:
        """The request that had a place has ended, however it did."""
        if lane.unlimited:
            return
        self._under_way[is_list] -= 1
        self._trailing[is_list] -= lane.trails
        if lane in _TAINTING:
            self._tainting -= 1
            self._hurried_until = self._clock() + HURRY
        self._stirred.set()

    def pause(self, seconds: float) -> None:
        """The server requested a pause (Retry-After). Only unlimited requests continue.

        Requests that do not trail (releases, taints, and their prerequisites) pause for
        `URGENT_PAUSE` at most: they are few, and a release must not wait because of the answer to
        an eviction.
        """
        now = self._clock()
        self._trailing_paused_until = max(self._trailing_paused_until, now + seconds)
        self._paused_until = max(self._paused_until, now + min(seconds, URGENT_PAUSE))

    def close(self) -> None:
        """End all waits: `acquire` raises Unreachable."""
        for task in (self._pump, self._alarm):
            if task is not None:
                task.cancel()
        for line in self._lines.values():
            for waiter in line.ranked:
                if not waiter.go.done():
                    waiter.go.set_exception(Unreachable("the connection to the cluster was closed"))
            line.clear()

    # -- requests under way -----------------------------------------------------------------

    def _begin(self, lane: Priority, *, is_list: bool) -> None:
        self._under_way[is_list] += 1
        self._tainting += lane in _TAINTING
        self._trailing[is_list] += lane.trails

    def _hurries(self, now: float) -> bool:
        """Whether nodes are on their way to their taint."""
        waiting = any(self._lines[lane, False].ranked for lane in _TAINTING)
        return bool(self._tainting) or waiting or now < self._hurried_until

    def _has_place(self, lane: Priority, now: float, *, is_list: bool) -> bool:
        if lane.trails and now < self._trailing_paused_until:
            return False
        if self._at_once is None or self._few is None or lane is Priority.RELEASE:
            return True
        if self._under_way[is_list] >= self._at_once:
            return False
        return not lane.trails or self._trailing[is_list] < self._few or not self._hurries(now)

    def _may_go(self, waiter: _Waiter, now: float) -> bool:
        return self._has_place(waiter.lane, now, is_list=waiter.is_list)

    # -- the next request -----------------------------------------------------------------------

    def _is_first(self, lane: Priority, now: float) -> bool:
        """Whether one that has just come need not wait; it is counted if it overtakes."""
        others = [line.first for line in self._lines.values() if line.ranked]
        if not others:
            return True
        if others[0].lane <= lane:
            return False
        of_groups = {other.group: other for other in others}
        overtaken = [group for group, other in of_groups.items() if self._may_go(other, now)]
        if any(self._unfair[group] + 1 >= FAIR for group in overtaken):
            return False
        self._unfair.update(overtaken)
        return True

    async def _let_go(self) -> None:
        while lines := self._waiting_lines():
            now = self._clock()
            delay = max(self._paused_until - now, self._bucket.wait(now))
            if delay > 0:
                await self._sleep(delay)
                continue  # a pause may have come, or a more urgent request
            waiter = self._next(lines, now)
            if waiter is None:
                ends = (self._hurried_until - now, self._trailing_paused_until - now)
                await self._until_stirred(min((end for end in ends if end > 0), default=0.0))
                continue
            self._bucket.take(now)
            self._begin(waiter.lane, is_list=waiter.is_list)
            waiter.go.set_result(None)

    def _waiting_lines(self) -> list[_Line]:
        """The lines with waiters, in order of priority, without those that gave up at the head."""
        lines = [line for line in self._lines.values() if line.ranked]
        for line in lines:
            line.drop_gone()
        return [line for line in lines if line.ranked]

    def _next(self, lines: Sequence[_Line], now: float) -> _Waiter | None:
        """The first waiter of the most urgent priority that has a place, or None while all are
        taken.
        """
        lines = [line for line in lines if self._may_go(line.first, now)]
        if not lines:
            return None
        chosen = min(line.first for line in lines if line.first.lane is lines[0].first.lane)
        if chosen.lane is Priority.RELEASE:
            return chosen
        # Not the oldest of all: while others have no place, lists that go overtake none of them.
        oldest: dict[tuple[bool, bool], _Waiter] = {}
        for one in sorted((line.oldest for line in lines), key=lambda one: one.turn):
            oldest.setdefault(one.group, one)
        for group, one in oldest.items():
            if one.turn < chosen.turn and self._unfair[group] + 1 >= FAIR:
                chosen = one
                break
        for group, one in oldest.items():
            if one is chosen:
                self._unfair[group] = 0
            elif one.turn < chosen.turn:
                self._unfair[group] += 1
        return chosen

    async def _until_stirred(self, most: float) -> None:
        """Until a place is free or a request has come; at most ``most`` seconds."""
        self._stirred.clear()
        at = self._clock() + most
        if most > 0 and (self._alarm is None or self._alarm.done() or at < self._alarm_at):
            if self._alarm is not None:
                self._alarm.cancel()
            self._alarm_at = at
            self._alarm = asyncio.create_task(self._ring(most), name="kube-limiter-alarm")
        await self._stirred.wait()

    async def _ring(self, seconds: float) -> None:
        """One is enough: it may ring too soon, and an earlier one replaces it."""
        await self._sleep(seconds)
        self._stirred.set()
