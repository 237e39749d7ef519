"""Looks at the fleet for all who ask, once, and says when it has changed.

A look at 10,000 nodes costs tens of milliseconds. So a look serves everybody until it is too old,
lets the event loop go on in between, and is taken as seldom as keeps it below a twentieth of the
processor. While nobody watches, nobody looks.
"""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from aggregator.quarantine.acts import Clocks
from aggregator.quarantine.fleet import Fleet
from aggregator.web.survey import Findings, Survey, natural
from aggregator.web.view import Moment
from aggregator.web.whole import Local, Scope

#: Ticks come at most so often, and looks too (seconds).
TICK = 0.25
_SHARE = 20.0
_CHUNK = 250
#: The wall clock may be set. Below this (seconds) it counts as the same, so that the dates of what
#: has not changed don't change.
_STEP = 0.5


@dataclass(frozen=True, slots=True)
class Look:
    """What was seen and when. ``revision`` grows with each look that differs."""

    found: Findings
    moment: Moment
    revision: int


class Lookout:
    """Keeps the latest look at a scope."""

    def __init__(self, fleet: Fleet, clocks: Clocks, scope: Scope | None = None) -> None:
        """``scope``: which nodes, by whose word. Unless given: all that the fleet holds."""
        self._fleet = fleet
        self._clocks = clocks
        self.now = clocks.now
        self._scope = scope or Local(fleet)
        self._look: Look | None = None
        self._old_at = float("-inf")
        self._looking = asyncio.Lock()
        self._names: list[str] = []
        self._offset = clocks.wall() - clocks.now()

    def moment(self) -> Moment:
        """Now, on both clocks."""
        now, wall = self._clocks.now(), self._clocks.wall()
        if abs(wall - now - self._offset) > _STEP:
            self._offset = wall - now
        return Moment(now, now + self._offset)

    async def look(self) -> Look:
        """A look that is a quarter of a second old at most, or somewhat more for a large fleet."""
        async with self._looking:
            if self._look is None or self._clocks.now() >= self._old_at:
                self._look = await self._take(self._look)
            return self._look

    async def _take(self, before: Look | None) -> Look:
        moment, began = self.moment(), self._clocks.now()
        names, survey, scope = self._ordered(), Survey(self._fleet, moment), self._scope
        scope.begin()
        spent = self._clocks.now() - began
        spent += await stroll(names, lambda name: scope.add(survey, name), self._clocks.now)
        began = self._clocks.now()
        found = scope.conclude(survey, names)
        changed = before is None or before.found != found
        revision = (before.revision if before else 0) + changed
        spent += self._clocks.now() - began
        self._old_at = self._clocks.now() + rest(spent)
        return Look(found, moment, revision)

    def _ordered(self) -> list[str]:
        """The nodes as people read them; sorted anew when one came or went."""
        names = self._scope.names()
        if names != set(self._names):
            self._names = sorted(names, key=natural)
        return self._names


async def stroll(
    names: Iterable[str], visit: Callable[[str], None], now: Callable[[], float]
) -> float:
    """Visit each name, letting others work in between; the seconds that the visits took."""
    spent, began = 0.0, now()
    for number, name in enumerate(names, 1):
        visit(name)
        if number % _CHUNK == 0:
            spent += now() - began
            await asyncio.sleep(0)
            began = now()
    return spent + now() - began


def rest(spent: float) -> float:
    """How long (seconds) what took ``spent`` serves before it is done again."""
    return max(TICK, _SHARE * spent)
