"""Puts together what a request asks for: the fleet, history, and what others count."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from aggregator.quarantine.fleet import Fleet, Patient
from aggregator.quarantine.ledger import Transition
from aggregator.web import shapes, survey, view
from aggregator.web.feed import Feed
from aggregator.web.history import HistoryReader
from aggregator.web.lookout import Look, Lookout

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
    """What page and API share. ``ready`` returns what is not, in words; empty: all is."""

    fleet: Fleet
    lookout: Lookout
    feed: Feed
    history: HistoryReader
    version: str
    ready: Callable[[], list[str]]

    async def look(self) -> Look:
        """The fleet, a moment ago at most."""
        return await self.lookout.look()

    def glance(self, look: Look) -> shapes.Fleet:
        """The fleet's numbers."""
        return survey.glance(
            look.found,
            self.lookout.moment(),
            version=self.version,
            revision=look.revision,
            not_ready=self.ready(),
        )

    def patient(self, name: str) -> Patient | None:
        """The node of that name; None where there is none."""
        return self.fleet.patients.get(name)

    async def story(self, patient: Patient) -> shapes.Node:
        """One node with its timeline."""
        past = await self.past(patient.node)
        return view.node(
            patient, self.lookout.moment(), self.fleet.mode, past.transitions, past.trouble
        )

    async def past(self, node: str = "", since: float = 0.0, limit: int = TIMELINE) -> Past:
        """From history, and what history may not have written yet."""
        fresh = [one for one in self.feed.recent(node, limit) if one.at >= since]
        try:
            async with asyncio.timeout(PATIENCE):
                kept = await self.history.recent(node=node, since=since, limit=limit)
        except TimeoutError:
            return Past(fresh, f"history gave no answer in {PATIENCE:g} s")
        except OSError as error:
            return Past(fresh, f"history can't be read: {error}")
        known = {_identity(one) for one in kept}
        merged = [*kept, *(one for one in fresh if _identity(one) not in known)]
        merged.sort(key=lambda one: one.at, reverse=True)
        return Past(merged[:limit])

    async def prime(self) -> None:
        """Let the feed know what was before this process."""
        past = await self.past(limit=100)
        if past.trouble:
            log.warning("the page begins without its past", extra={"reason": past.trouble})
        self.feed.prime(past.transitions)


def _identity(one: Transition) -> tuple[float, str, str, str]:
    # Databases keep times to the microsecond.
    return (round(one.at, 3), one.kind, one.node, one.summary)
