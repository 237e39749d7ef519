"""Whether the wall clock can be trusted: it is compared with the monotonic one.

A wall clock may jump: by a time server's wrong answer, in a machine that was suspended and resumes.
This process can't know which of the two clocks is right then. So a wall clock that has moved
against the monotonic one is doubted until it is back, or has run evenly for `EVEN_FOR`; until then
irreversible acts use the earlier of the two. A clock that was wrong at the start can't be
detected.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from aggregator.rfc3339 import span

#: Seconds that the wall clock may move against the monotonic one within `EVEN_FOR`. A time daemon
#: that corrects it slowly (chrony: a twelfth of the time at most) stays below.
BOUND = 60.0
#: A clock that has moved is trusted again when it has run evenly for this long (seconds).
EVEN_FOR = 600.0
_POLL_EVERY = 1.0

log = logging.getLogger("sickbay.clock")


class ClockGuard:
    """Takes both clocks at each check; the first check is trusted. Pure."""

    def __init__(self) -> None:
        #: The wall clock's lead on the monotonic one: as trusted, and as seen since it last moved.
        self._believed: float | None = None
        self._seen = self._since = 0.0

    def trusted_wall(self, now: float, wall: float) -> float:
        """The wall clock's time; while it is doubted, the time it would show had it not jumped."""
        lead = wall - now
        if self._believed is None:
            self._believed, self._seen, self._since = lead, lead, now
        elif abs(lead - self._seen) > BOUND:
            self._seen, self._since = lead, now
        elif now - self._since >= EVEN_FOR:
            self._believed, self._seen, self._since = lead, lead, now
        return wall if abs(lead - self._believed) <= BOUND else now + self._believed

    def doubt(self, now: float, wall: float) -> str:
        """Why the wall clock is not trusted, in words; empty: it is."""
        trusted = self.trusted_wall(now, wall)
        if trusted == wall:
            return ""
        by = now + self._seen - trusted  # the same words for as long as it runs evenly
        return f"it has moved {'ahead' if by > 0 else 'back'} by {_length(abs(by))}"


@dataclass(frozen=True, slots=True)
class Clocks:
    """Monotonic seconds for decisions, wall clock seconds for people and for durable state.

    While the wall clock is doubted (`ClockGuard`), an irreversible act is not due before it is by
    `earliest`, and counts from `latest`. Where it is trusted both are the wall clock's time.
    """

    now: Callable[[], float]
    wall: Callable[[], float]
    _guard: ClockGuard = field(default_factory=ClockGuard, init=False, repr=False, compare=False)

    def trusted_wall(self) -> float:
        """The wall clock's time, without a jump that is not trusted yet."""
        return self._guard.trusted_wall(self.now(), self.wall())

    def earliest(self) -> float:
        """The earliest time that it may be."""
        wall = self.wall()
        return min(wall, self._guard.trusted_wall(self.now(), wall))

    def latest(self) -> float:
        """The latest time that it may be."""
        wall = self.wall()
        return max(wall, self._guard.trusted_wall(self.now(), wall))

    def doubt(self) -> str:
        """Why the wall clock is not trusted now; empty: it is."""
        return self._guard.doubt(self.now(), self.wall())


async def watch(
    doubt: Callable[[], str],
    report: Callable[[str], None],
    *,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> None:
    """For ever: report each doubt and its end to people, and log it once."""
    reported = ""
    while True:
        found = doubt()
        if found and found != reported:
            log.warning(
                "the wall clock is doubted", extra={"event": "clock.doubted", "reason": found}
            )
        elif reported and not found:
            log.info("the wall clock is believed again", extra={"event": "clock.trusted"})
        reported = found
        report(found)
        await sleep(_POLL_EVERY)


def _length(seconds: float) -> str:
    """Two digits or so, for people."""
    unit = next((one for one in (86400.0, 3600.0, 60.0) if seconds >= 2 * one), 1.0)
    return span(round(seconds / unit) * unit)
