"""Looks at the fleet for all who ask, once, and says when it has changed.

A look at 10,000 nodes costs tens of milliseconds. So a look serves everybody until it is too old,
lets the event loop go on in between, and is taken as seldom as keeps it below a twentieth of the
processor. While nobody watches, nobody looks.
"""

import asyncio
import contextlib
from dataclasses import dataclass

from aggregator.quarantine.acts import Clocks
from aggregator.quarantine.fleet import Fleet
from aggregator.web import shapes, view
from aggregator.web.feed import Feed
from aggregator.web.survey import Findings, Survey, headline, natural
from aggregator.web.view import Moment

#: Ticks come at most so often, and looks too (seconds).
TICK = 0.25
#: What changes without a transition (a component turns, pods leave) is noticed within this.
ROUND = 1.0
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
    """Keeps the latest look."""

    def __init__(self, fleet: Fleet, clocks: Clocks) -> None:
        self._fleet = fleet
        self._clocks = clocks
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
        moment, fleet = self.moment(), self._fleet
        names = self._ordered()
        survey, spent, began = Survey(fleet, moment), 0.0, self._clocks.now()
        for number, name in enumerate(names, 1):
            patient = fleet.patients.get(name)
            if patient is not None:
                survey.add(patient)
            if number % _CHUNK == 0:
                spent += self._clocks.now() - began
                await asyncio.sleep(0)
                began = self._clocks.now()
        found = survey.conclude(names)
        changed = before is None or before.found != found
        revision = (before.revision if before else 0) + changed
        spent += self._clocks.now() - began
        self._old_at = self._clocks.now() + max(TICK, _SHARE * spent)
        return Look(found, moment, revision)

    def _ordered(self) -> list[str]:
        """The nodes as people read them; sorted anew when one came or went."""
        if self._fleet.patients.keys() != set(self._names):
            self._names = sorted(self._fleet.patients, key=natural)
        return self._names


class Pulse:
    """Ticks on the feed whenever what its subscribers look at has changed."""

    def __init__(self, fleet: Fleet, lookout: Lookout, feed: Feed) -> None:
        self._fleet = fleet
        self._lookout = lookout
        self._feed = feed
        self._revision = 0
        self._nodes: dict[str, shapes.Node] = {}

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(ROUND if self._feed.streams else None):
                    await self._feed.noted()
            if self._feed.streams:
                await self.beat()
                await asyncio.sleep(TICK)

    async def beat(self) -> None:
        """Look once, and tell those whose view has changed."""
        look = await self._lookout.look()
        tick = shapes.Tick(
            at=look.moment.when(look.moment.now),
            revision=look.revision,
            counts=look.found.counts,
            headline=headline(look.found),
        )
        if look.revision != self._revision:
            self._revision = look.revision
            self._feed.tick(tick)
        moment, nodes = self._lookout.moment(), {}
        for name in self._feed.nodes:
            patient = self._fleet.patients.get(name)
            if patient is None:
                continue
            # Heartbeats come all the time, and are no change. Who has just come is told at once:
            # something may have changed since the page was rendered.
            nodes[name] = view.steady(view.node(patient, moment, look.found.mode))
            if self._nodes.get(name) != nodes[name]:
                self._feed.tick(tick, node=name)
        self._nodes = nodes
