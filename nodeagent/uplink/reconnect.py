"""Decides where the next attempt goes, and after how long. Knows neither gRPC nor a clock.

The configured address may be a name with many replicas behind it, of which each takes any agent. A
replica may send an agent elsewhere (Redirect). The address that welcomed it there is remembered:
when its stream ends, the next attempt goes there once, and then to the configured address again.

When one of three replicas dies under 10,000 agents, 3,333 streams end. Each agent waits below CAP
and connects to one of the others, which takes 0.8 ms of a core for a TLS handshake and Hello, about
1,000 a second. One that is stopped, and not dead, is left when it has not answered a heartbeat for
12 s and then takes no connection for 5, which is 17 to 27 s later.

CAP must be less than WELL_AFTER: two agents that claim one node push each other out, and neither
of them may pass for well.

A replica that is alone has all 10,000 at its door when it is back, within CAP, and takes them one
after the other, for as long as its CPU needs. An agent that gives up meanwhile has cost it a
handshake in vain: with one patience for all, and more agents than can be served within it, all
would be begun and none ended, for ever. So an agent waits for a replica that is late but alive
(`ConnectTimeouts.greeting`), and patience grows with each time that it was in vain. Each agent is
served in the end, for any number of them (tests/agent/test_reconnect_herd.py plays it). Where no
process lives, so that not even a handshake ends, an agent leaves soon: at first.
"""

from collections.abc import Callable

from nodeagent.backoff import Backoff
from nodeagent.uplink.stream import GREETING, ConnectTimeouts, Ended

#: Seconds: the wait before attempt n is drawn from [0, min(CAP, BASE * 2**n)). A lower value is
#: worse: a replica that was restarted is away for seconds, and 10,000 agents would ask seven times
#: instead of four until it is back.
BASE = 0.4
CAP = 8.0
#: The same for an agent that an aggregator refused for good (a bad token, another node's): only a
#: person fixes that, and each attempt costs the aggregator a handshake.
REFUSED_CAP = 30.0
#: Back to the aggregator that had us: all of its agents lost it at the same moment.
RETURN = 1.0
#: How long the aggregator that had us may take to show that it lives. Where its machine is gone no
#: process ever answers, and the configured name has other replicas. One that is only slow, for all
#: came back at once, is tried so impatiently once: the others send us to it again, and then it has
#: more time.
RETURN_WITHIN = 5.0
#: After an aggregator fell silent under us, so many of those that we are sent to have so long to
#: greet us: others may send us to it again, and its kernel takes each connection.
HASTY = 2
SILENT_WITHIN = 5.0
#: How long a live aggregator may take to greet us, at first. Far more than 10,000 agents need to be
#: served. A process that is stuck looks the same, and only a restart fixes it.
LIVING = 60.0
#: However often patience was in vain, it grows no longer than this.
LONGEST = 480.0
#: Times in a row that patience for a sign of life was in vain before it is doubled. Once is too
#: early: that may be a paused replica, whose Lease will have expired when we have been sent there
#: twice.
IN_VAIN = 2
#: The n at which an agent begins that was sent to a dead one, or in a circle: the replica that
#: sent it there has to learn better first.
FUTILE = 4
#: A stream that lived this long was well: the next failure starts from BASE again.
WELL_AFTER = 10.0
#: Redirects in a row before we take it that we are sent in a circle.
HOPS = 4
_MANY = 30  # doublings: any wait doubled so often has passed its bound


class ReconnectPolicy:
    """One agent's way. ``random`` gives a number from [0, 1)."""

    def __init__(self, configured: str, random: Callable[[], float]) -> None:
        #: Where the next attempt goes.
        self.address = configured
        #: The address that sent us there; empty if none did.
        self.sent_by = ""
        #: The way that was gone, if it has just proved to be a circle.
        self.circle = ""
        self._configured = configured
        self._random = random
        self._failures = 0
        self._in_vain = 0
        self._way: list[str] = []
        self._returning = False
        self._hasty = 0

    @property
    def patience(self) -> ConnectTimeouts:
        """How long the aggregator at ``address`` may take."""
        if self._returning:
            life = RETURN_WITHIN
        elif self._hurried:
            life = SILENT_WITHIN
        else:
            life = GREETING * (1 << max(0, self._in_vain - IN_VAIN + 1))
        return ConnectTimeouts(min(life, LONGEST), min(LIVING * (1 << self._in_vain), LONGEST))

    @property
    def _hurried(self) -> bool:
        return bool(self._hasty and self.sent_by)

    def after(self, ended: Ended, lived: float) -> float:
        """The attempt at ``address`` has ended, ``lived`` seconds old: the seconds to wait.

        ``address`` is then where to go next.
        """
        self.circle = ""
        if ended.welcomed and lived >= WELL_AFTER:
            self._failures = 0
            self._way.clear()
        if ended.welcomed:
            self._in_vain = 0
            self._hasty = HASTY if ended.silent else 0
        elif ended.late and not (self._returning or self._hurried):
            self._in_vain = min(self._in_vain + 1, _MANY)
        if ended.redirect:
            return self._sent_to(ended.redirect)
        self._way.clear()
        if ended.silent:
            return self._start_over(CAP, futile=False)
        if self.sent_by:
            self._hasty = max(0, self._hasty - 1)
        cap = REFUSED_CAP if ended.refused else CAP
        if ended.welcomed:
            self._returning = self.address != self._configured
            return self._wait(cap, at_least=RETURN)
        sent_to_nobody = bool(self.sent_by) and not self._returning
        return self._start_over(cap, futile=sent_to_nobody)

    def _sent_to(self, address: str) -> float:
        """Followed at once, unless this goes on and on."""
        self._returning = False
        if len(self._way) < HOPS:
            self._way.append(self.address)
            self.address, self.sent_by = address, self.address
            return 0.0
        self.circle = " -> ".join([*self._way, self.address, address])
        self._way.clear()
        return self._start_over(CAP, futile=True)

    def _start_over(self, cap: float, *, futile: bool) -> float:
        """From the configured address."""
        self.address, self.sent_by, self._returning = self._configured, "", False
        if futile:
            self._failures = max(self._failures, FUTILE)
        return self._wait(cap, spread=0.5 if futile else 1.0)

    def _wait(self, cap: float, *, at_least: float = 0.0, spread: float = 1.0) -> float:
        """Drawn from the last ``spread`` of the longest wait."""
        self._failures = min(self._failures + 1, _MANY)
        backoff = Backoff(first=BASE, most=cap, spread=spread)
        if backoff.longest(self._failures) < at_least:
            backoff = Backoff(first=at_least, most=at_least, spread=spread)
        return backoff.pause(self._failures, self._random)
