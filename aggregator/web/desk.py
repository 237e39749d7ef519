"""Puts together what a request asks for: the fleet, history, and what others count."""

import asyncio
import logging
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import msgspec

from aggregator.history.repeats import newest_first
from aggregator.quarantine.fleet import Fleet
from aggregator.quarantine.ledger import Transition
from aggregator.web import shapes, survey, view
from aggregator.web.feed import REMEMBERED, Feed
from aggregator.web.glance import glance
from aggregator.web.history import HistoryReader
from aggregator.web.lookout import Look, Lookout
from aggregator.web.peers import Peers
from aggregator.web.stories import Stories
from aggregator.web.whole import lemons

log = logging.getLogger("sickbay.web")

#: A history that takes longer than this (seconds) is shown as out of reach: the page can't wait.
PATIENCE = 3.0
TIMELINE = 200


@dataclass(frozen=True, slots=True)
class Past:
    """Transitions, newest first. ``trouble`` says why some may be missing."""

    transitions: list[Transition] = field(default_factory=list)
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class Desk:
    """What page and API share. ``ready`` returns what is not, in words; empty: all is.

    ``history_shared``: all replicas write the same history, so that the others needn't be asked.
    ``alert_trouble`` returns why alerts don't get out; empty: they do.
    """

    fleet: Fleet
    lookout: Lookout
    feed: Feed
    history: HistoryReader
    version: str
    ready: Callable[[], list[str]]
    peers: Peers
    stories: Stories
    alert_trouble: Callable[[], str]
    history_shared: bool = False

    async def look(self) -> Look:
        """The fleet, a moment ago at most."""
        await self.peers.fresh()
        return await self.lookout.look()

    def glance(self, look: Look) -> shapes.Fleet:
        """The fleet's numbers."""
        return glance(
            look.found,
            self.lookout.moment(),
            version=self.version,
            revision=look.revision,
            not_ready=self.ready(),
            history_trouble=self.history.problem,
            alert_trouble=self.alert_trouble(),
        )

    def rows(self, names: Iterable[str], look: Look) -> list[shapes.NodeRow]:
        """These nodes in a line each, as the look had them; without those that are gone since."""
        moment, found, rows = self.lookout.moment(), look.found, list[shapes.NodeRow]()
        here = self.stories.here
        for name in names:
            telling, patient = found.elsewhere.get(name), self.fleet.patients.get(name)
            if telling is not None:
                told = self.stories.told(name, telling)
                rows.append(survey.row_told(told, telling, patient, moment))
            elif patient is not None:
                row = view.node_row(patient, moment)
                rows.append(msgspec.structs.replace(row, replica=here) if here else row)
        return rows

    def lemons(self) -> list[shapes.Lemon]:
        """Those that any replica's history shows, the worst first."""
        mine = [view.lemon(one) for one in self.fleet.lemons]
        return lemons(mine, self.peers.tellings())

    async def story(self, name: str) -> shapes.Node | None:
        """One node with its timeline; None where nobody knows of it."""
        await self.peers.fresh()
        found, past = await asyncio.gather(self.stories.of(name), self.past(name))
        if found is None:
            return None
        return msgspec.structs.replace(
            found,
            timeline=[view.event(one) for one in past.transitions],
            timeline_trouble=past.trouble,
        )

    async def past(
        self, node: str = "", since: float = 0.0, limit: int = TIMELINE, until: float = math.inf
    ) -> Past:
        """From every history, and what history may not have written yet."""
        own = self.own_past(node, since, limit, until)
        if self.history_shared or not self.peers.up():
            return await own
        asked = self.peers.pasts(node, since, limit, until)
        mine, (theirs, troubles) = await asyncio.gather(own, asked)
        merged = _merged(mine.transitions, theirs, limit)
        return Past(merged, "; ".join(filter(None, [mine.trouble, *troubles])))

    async def own_past(
        self, node: str = "", since: float = 0.0, limit: int = TIMELINE, until: float = math.inf
    ) -> Past:
        """From this replica's history, and what it may not have written yet."""
        most = limit if until == math.inf else REMEMBERED
        lately = self.feed.recent(node, most)
        fresh = [one for one in lately if since <= one.at <= until][:limit]
        try:
            async with asyncio.timeout(PATIENCE):
                kept = await self.history.recent(node, since, limit, until)
        except TimeoutError:
            return Past(fresh, f"history gave no answer in {PATIENCE:g} s")
        except OSError as error:
            return Past(fresh, f"history can't be read: {error}")
        return Past(_merged(kept, fresh, limit))

    async def prime(self) -> None:
        """Let the feed know what was before this process."""
        past = await self.own_past(limit=100)
        if past.trouble:
            log.warning("the page begins without its past", extra={"reason": past.trouble})
        self.feed.prime(past.transitions)


def _merged(one: list[Transition], other: list[Transition], limit: int) -> list[Transition]:
    """The newest of both, each once; and what was said again, by its first word."""
    known = {_identity(each) for each in one}
    merged = [*one, *(each for each in other if _identity(each) not in known)]
    merged.sort(key=lambda each: each.at, reverse=True)
    return newest_first(merged)[:limit]


def _identity(one: Transition) -> tuple[float, str, str, str]:
    # Databases keep times to the microsecond.
    return (round(one.at, 3), one.kind, one.node, one.summary)
