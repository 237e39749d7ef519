"""More agents than a replica can greet within their patience: its queue, in virtual time."""

import heapq
import random
from collections import deque
from dataclasses import dataclass
from itertools import count

from nodeagent.uplink.reconnect import ReconnectPolicy
from nodeagent.uplink.stream import ConnectTimeouts, Ended

LOST = Ended("UNAVAILABLE: connection reset", welcomed=True)
LATE = Ended("no greeting in time", welcomed=False, late=True)

#: The cost of one attempt for a replica, in seconds of its CPU: the handshake; then Hello, Welcome,
#: the snapshot. More than ten times the measured cost, so that a tenth of the agents will do.
HANDSHAKE, GREETING = 0.02, 0.02


class Impatient(ReconnectPolicy):
    """The same patience for every attempt, however many were in vain."""

    @property
    def patience(self) -> ConnectTimeouts:
        return ConnectTimeouts(15.0, 15.0)


@dataclass(slots=True)
class Attempt:
    route: ReconnectPolicy
    lives: bool = False
    over: bool = False


class Door:
    """A replica whose handshakes and greetings take turns, each in the order of their coming.

    It notices a departed agent only when that agent's turn comes: the handshake was in vain.
    """

    def __init__(self, routes: list[ReconnectPolicy]) -> None:
        self.greeted: list[float] = []
        self._events: list[tuple[float, int, str, Attempt]] = []
        self._numbers = count()
        self._handshakes: deque[Attempt] = deque()
        self._greetings: deque[Attempt] = deque()
        self._at_work = False
        for route in routes:
            self._at(route.after(LOST, 1000.0), "come", Attempt(route))

    def play(self, until: float) -> None:
        while self._events and self._events[0][0] < until:
            now, _, what, attempt = heapq.heappop(self._events)
            getattr(self, f"_{what}")(now, attempt)

    def _begin(self, now: float, *, greeting_first: bool) -> None:
        if self._at_work:
            return
        while self._greetings and self._greetings[0].over:
            self._greetings.popleft()
        self._at_work = True
        if self._greetings and (greeting_first or not self._handshakes):
            self._at(now + GREETING, "greet", self._greetings.popleft())
        elif self._handshakes:
            self._at(now + HANDSHAKE, "shake_hands", self._handshakes.popleft())
        else:
            self._at_work = False

    def _come(self, now: float, attempt: Attempt) -> None:
        patience = attempt.route.patience
        self._handshakes.append(attempt)
        self._at(now + patience.life, "doubt", attempt)
        self._at(now + patience.greeting, "leave", attempt)
        self._begin(now, greeting_first=False)

    def _doubt(self, now: float, attempt: Attempt) -> None:
        if not attempt.lives:
            self._leave(now, attempt)

    def _leave(self, now: float, attempt: Attempt) -> None:
        if not attempt.over:
            attempt.over = True
            self._at(now + attempt.route.after(LATE, 0.0), "come", Attempt(attempt.route))

    def _shake_hands(self, now: float, attempt: Attempt) -> None:
        self._at_work = False
        attempt.lives = True
        self._greetings.append(attempt)
        self._begin(now, greeting_first=True)

    def _greet(self, now: float, attempt: Attempt) -> None:
        self._at_work = False
        if not attempt.over:
            attempt.over = True
            self.greeted.append(now)
        self._begin(now, greeting_first=False)

    def _at(self, when: float, what: str, attempt: Attempt) -> None:
        heapq.heappush(self._events, (when, next(self._numbers), what, attempt))


def door(agents: int, kind: type[ReconnectPolicy] = ReconnectPolicy) -> Door:
    rng = random.Random(7)
    return Door([kind(rng.random) for _ in range(agents)])


#: 80 s of work, far more than any first patience: 20,000 agents, of which each stands for ten.
AGENTS = 2_000


def test_all_agents_of_a_replica_that_was_restarted_are_greeted_as_fast_as_it_can() -> None:
    here = door(AGENTS)
    here.play(600.0)
    assert len(here.greeted) == AGENTS
    work = AGENTS * (HANDSHAKE + GREETING)
    assert max(here.greeted) < 3 * work, "of what it does not all that much is in vain"


def test_twice_as_many_are_all_greeted_too() -> None:
    here = door(2 * AGENTS)
    here.play(1800.0)
    assert len(here.greeted) == 2 * AGENTS


def test_with_one_patience_for_all_nobody_would_be_greeted_any_more() -> None:
    """Why patience grows: with one patience, all work is for agents that have left."""
    here = door(AGENTS, Impatient)
    here.play(600.0)
    assert len(here.greeted) < AGENTS / 2
    assert max(here.greeted) < 60.0, "not slow, but never"
