"""Looks through the history for lemons, now and then; tells of each, and says so of its node.

Nothing waits for it. A history that can't be read leaves what was found last.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from aggregator.health.model import Component
from aggregator.policy.lemons import CHECK, Bounds, Deed, Lemon, evidence, judge_past
from aggregator.quarantine.acts import Clocks
from aggregator.quarantine.fleet import Fleet
from aggregator.quarantine.ledger import Kind, Ledger, Transition

log = logging.getLogger("sickbay.lemons")

#: Seconds.
FIRST_AFTER = 60.0
LOOK_EVERY = 3600.0
SAY_EVERY = 60.0
#: The same lemon is told of again after so long.
TOLD_EVERY = 7 * 86400.0
#: Nodes that are looked at, those with the most quarantines first; and transitions of each.
MOST_NODES = 500
MOST_ROWS = 400

#: What makes a node worth a look: in `observe` mode nothing is cordoned.
_ACTED = (Kind.CORDONED, Kind.WOULD_ACT)
_PAST = {
    Kind.INCIDENT_OPENED: "opened",
    Kind.INCIDENT_CHANGED: "opened",  # it may ask for more by now, on other evidence
    Kind.INCIDENT_CLOSED: "closed",
    Kind.CORDONED: "quarantined",
    Kind.RELEASED: "released",
}


class Stories(Protocol):
    """What is asked of the history."""

    async def stories(
        self, acted: Iterable[str], kinds: Iterable[str], since: float, nodes: int, rows: int
    ) -> dict[str, list[Transition]]:
        """Of the ``nodes`` that most ``acted`` is about, the newest ``rows`` of these kinds each.

        Raises `OSError`.
        """
        ...


class LemonWatch:
    """``say`` tells the controller of a node, in our own name; False: the node is not heard of.

    ``leads``: whether this replica is the one that tells people, where several read one history.
    Each of them shows the lemons, and says so of the nodes that are its own.
    """

    def __init__(
        self,
        *,
        stories: Stories,
        fleet: Fleet,
        ledger: Ledger,
        clocks: Clocks,
        bounds: Bounds,
        say: Callable[[str, Component], bool],
        leads: Callable[[], bool] = lambda: True,
    ) -> None:
        self._stories = stories
        self._fleet = fleet
        self._ledger = ledger
        self._clocks = clocks
        self._bounds = bounds
        self._say = say
        self._leads = leads
        self._since: dict[str, float] = {}
        self._said: set[str] = set()
        self._looked = False
        self._stories_of: frozenset[str] = frozenset()

    async def run(self) -> None:
        """For ever."""
        await asyncio.sleep(FIRST_AFTER)
        due = self._clocks.now()
        while True:
            if self._clocks.now() >= due:
                await self.look()
                due = self._clocks.now() + LOOK_EVERY
            self.say()
            await asyncio.sleep(SAY_EVERY)

    async def look(self) -> None:
        """Read the last weeks anew."""
        now = self._clocks.earliest()
        kinds = [*_PAST, Kind.LEMON]
        try:
            stories = await self._stories.stories(
                _ACTED, kinds, now - self._bounds.window, MOST_NODES, MOST_ROWS
            )
        except OSError as error:
            if not self._fleet.lemons_trouble:
                log.warning("no lemons are looked for", extra={"error": str(error)})
            self._fleet.lemons_trouble = f"history can't be read: {error}"
            return
        self._fleet.lemons_trouble = ""
        found = (judge_past(node, deeds(past), self._bounds, now) for node, past in stories.items())
        lemons = sorted(
            (lemon for lemon in found if lemon is not None),
            key=lambda lemon: (-len(lemon.strikes), -lemon.quarantines, lemon.node),
        )
        self._fleet.lemons = tuple(lemons)
        self._looked = True
        self._stories_of = frozenset(stories)
        if self._leads():
            for lemon in lemons:
                self._tell(lemon, stories[lemon.node], now)

    def say(self) -> None:
        """Give every lemon's node its evidence, and take it back where it is none any more."""
        if not self._looked:
            return
        lemons = {lemon.node: lemon for lemon in self._fleet.lemons}
        for node, lemon in lemons.items():
            since = self._since.setdefault(node, self._clocks.now())
            if self._say(node, evidence(lemon, since)):
                self._said.add(node)
        for node in (self._said | set(self._remembered())) - lemons.keys():
            if self._is_forgotten(node):
                continue
            self._since.pop(node, None)
            if self._say(node, evidence(None, self._clocks.now())):
                self._said.discard(node)

    def _remembered(self) -> Iterable[str]:
        """Nodes whose quarantine stands on it: of before this process, perhaps."""
        for node, patient in self._fleet.patients.items():
            quarantine = patient.quarantine
            items = quarantine.spec.evidence if quarantine is not None else ()
            health = patient.health
            told = health is not None and (CHECK, "") in health.components
            if not told and any(item.code.partition(":")[0] == CHECK for item in items):
                yield node

    def _is_forgotten(self, node: str) -> bool:
        """Whether the history knows nothing of the quarantine that stands on it: it was lost.

        That a history was lost is no sign that a node is well, and releases nobody.
        """
        patient = self._fleet.patients.get(node)
        quarantine = patient.quarantine if patient is not None else None
        if quarantine is None or node in self._stories_of:
            return False
        return self._clocks.earliest() - quarantine.status.cordoned_at < self._bounds.window

    def _tell(self, lemon: Lemon, past: Iterable[Transition], now: float) -> None:
        lately = (one.at for one in past if one.kind is Kind.LEMON)
        if any(now - at < TOLD_EVERY for at in lately):
            return
        self._ledger.note(
            Transition(
                at=now,
                kind=Kind.LEMON,
                node=lemon.node,
                summary=f"{lemon.node}: {lemon.why}",
                details={
                    "quarantines": str(lemon.quarantines),
                    "codes": " ".join(lemon.codes),
                    "days": str(lemon.days),
                    "returns": str(lemon.returns),
                },
            )
        )


def deeds(past: Iterable[Transition]) -> Iterable[Deed]:
    """What of a node's transitions counts: not what is only watched, nor what many nodes had."""
    for one in past:
        what = _PAST.get(one.kind)
        if what is None or (what == "opened" and not _counts(one.details)):
            continue
        codes = _codes(one.details)
        if what == "opened" and not codes and one.details.get("evidence"):
            continue  # that it is a lemon: no deed of its own
        yield Deed(one.at, what, one.incident, codes)


def _counts(details: Mapping[str, str]) -> bool:
    return details.get("action", "observe") != "observe" and "cause" not in details


def _codes(details: Mapping[str, str]) -> frozenset[str]:
    """Of "xid:79 GPU-1 (gpu-gone); ...", as judging notes evidence. Its own word is none."""
    items = (item.split() for item in details.get("evidence", "").split(";"))
    return frozenset(item[0] for item in items if item and not item[0].startswith(f"{CHECK}:"))
