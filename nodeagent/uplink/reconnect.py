"""Decides after how long the next attempt begins. Knows neither gRPC nor a clock.

The configured address may be a name with many replicas behind it, of which each takes any agent.
Each attempt resolves it again, and connects to the first of its addresses where a process answers.

When one of three replicas dies under 10,000 agents, 3,333 streams end. Each agent waits below CAP
and connects to one of the others. That takes 0.8 ms of a core for a TLS handshake and Hello, about
1,000 a second. One that is stopped, and not dead, is left after 17 to 27 s: when it has not
answered a heartbeat for 12 s and then accepts no connection for 5.

CAP must be less than WELL_AFTER: two agents that claim one node push each other out, and neither
of them may pass for well.

A replica that is alone gets all 10,000 connections within CAP when it is back, and accepts them one
after the other, as fast as its CPU allows. An agent that gives up meanwhile has cost it a handshake
in vain: with one patience for all, and more agents than can be served within it, all would be begun
and none ended, for ever. So an agent waits for a replica that is late but alive
(`ConnectTimeouts.greeting`), and patience grows with each time that it was in vain. Each agent is
served in the end, for any number of them (tests/agent/test_reconnect_herd.py plays it). Where no
process lives, so that not even a handshake ends, an agent leaves soon: at first.
"""

from collections.abc import Callable

from nodeagent.backoff import Backoff
from nodeagent.uplink.stream import GREETING, ConnectTimeouts, Ended

#: Seconds: the wait before attempt n is drawn from [0, min(CAP, BASE * 2**n)). A replica that was
#: restarted is away for seconds, and all faults of that time wait for it: for the first FEW
#: attempts the longest wait is SOON, and the shortest LEAST of the longest. Of 10,000 agents
#: nearly all come within SOON, with no more attempts a second than from [0, 4). One that is still
#: away after those, some 15 s, may be away for hours; and each attempt resolves the name, with CAP
#: 2,500 times a second for 10,000 agents.
BASE = 0.4
SOON = 3.0
LEAST = 1 / 3
FEW = 10
CAP = 8.0
#: The same for an agent that an aggregator refused for good (a bad token, another node's): only a
#: person fixes that, and each attempt costs the aggregator a handshake.
REFUSED_CAP = 30.0
#: The least bound of the wait after a welcomed stream: all agents of its aggregator lost theirs at
#: the same moment.
RETURN = 1.0
#: How long a live aggregator may take to greet us, at first. Far more than 10,000 agents need to be
#: served. A process that is stuck looks the same, and only a restart fixes it.
LIVING = 60.0
#: However often patience was in vain, it grows no longer than this.
LONGEST = 480.0
#: Times in a row that patience for a sign of life was in vain before it is doubled. Once is too
#: early: the machine may be gone, and the next attempt finds the address of its replacement.
IN_VAIN = 2
#: A stream that lived this long was well: the next failure starts from BASE again.
WELL_AFTER = 10.0
_MANY = 30  # doublings: any wait doubled that often has passed its bound


class ReconnectPolicy:
    """One agent's waits. ``random`` gives a number from [0, 1)."""

    def __init__(self, random: Callable[[], float]) -> None:
        self._random = random
        self._failures = 0
        self._in_vain = 0

    @property
    def patience(self) -> ConnectTimeouts:
        """How long the aggregator may take at the next attempt."""
        life = GREETING * (1 << max(0, self._in_vain - IN_VAIN + 1))
        return ConnectTimeouts(min(life, LONGEST), min(LIVING * (1 << self._in_vain), LONGEST))

    def after(self, ended: Ended, lived: float) -> float:
        """The attempt has ended, ``lived`` seconds old: the seconds to wait before the next."""
        if ended.welcomed:
            self._in_vain = 0
            if lived >= WELL_AFTER:
                self._failures = 0
        elif ended.late:
            self._in_vain = min(self._in_vain + 1, _MANY)
        self._failures = min(self._failures + 1, _MANY)
        few = self._failures <= FEW
        least = LEAST if few and not (ended.welcomed or ended.refused) else 0.0
        most = REFUSED_CAP if ended.refused else SOON if few else CAP
        backoff = Backoff(first=BASE, most=most, least=least)
        if ended.welcomed and backoff.longest(self._failures) < RETURN:
            backoff = Backoff(first=RETURN, most=RETURN)
        return backoff.pause(self._failures, self._random)
