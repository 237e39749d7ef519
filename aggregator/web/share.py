"""What this replica tells the others: its own part, and never what it has from them.

So a question goes no further than one step, however the replicas see each other.
"""

import asyncio
import math

from aiohttp import web

from aggregator.quarantine.fleet import Fleet
from aggregator.web import parts, view
from aggregator.web.desk import TIMELINE, Desk
from aggregator.web.lookout import Lookout, rest, stroll
from aggregator.web.parts import Answer, Part, Past, Story, Told
from aggregator.web.query import Form, Param, read_query
from aggregator.web.whole import Owners

PART, NODE, PAST = "/replica/part", "/replica/node", "/replica/past"


_HAVE = Param("have", Form.TEXT, "The revision that the asker has.", "")
_SEEN = Param("seen", Form.TEXT, "The event that the asker has had last.", "")
_NAME = Param("name", Form.TEXT, "The node.", "")
_PAST = (
    Param("node", Form.TEXT, "Only what is about this node.", ""),
    Param("since", Form.TIME, "Only from then on.", 0.0),
    Param("until", Form.TIME, "Only up to then.", math.inf),
    Param("limit", Form.WHOLE, "Events at most.", TIMELINE, 1000),
)


class Share:
    """Answers the other replicas. Read only, and for whoever may see the page."""

    def __init__(
        self, *, me: str, fleet: Fleet, owners: Owners, lookout: Lookout, desk: Desk
    ) -> None:
        self._me = me
        self._fleet = fleet
        self._owners = owners
        self._lookout = lookout
        self._desk = desk
        self._now = lookout.now
        self._names: list[str] = []
        self._part = Part()
        self._revision = 0
        self._old_at = float("-inf")
        self._looking = asyncio.Lock()

    async def part(self, request: web.Request) -> web.Response:
        """All nodes of ours, unless the asker has them; what happened since; when each was heard.

        Raises BadQuery.
        """
        values = read_query((_HAVE, _SEEN), request.query)
        await self._refresh()
        feed, revision = self._desk.feed, f"{self._desk.feed.epoch}.{self._revision}"
        events, seen, missed = feed.own_since(values["seen"], parts.MOST_EVENTS)
        patients = map(self._fleet.patients.get, self._names)
        return _send(
            Answer(
                name=self._me,
                revision=revision,
                heard=parts.heard(patients, self._now()),
                part=None if values["have"] == revision else self._part,
                seen=seen,
                fresh=bool(values["seen"]),
                events=[parts.happened(one) for one in events],
                missed=missed,
                not_ready=self._desk.ready(),
            )
        )

    async def node(self, request: web.Request) -> web.Response:
        """One node's story, but for its timeline. Raises BadQuery."""
        name = read_query((_NAME,), request.query)["name"]
        patient = self._fleet.patients.get(name)
        moment = self._lookout.moment()
        fleet, told = self._fleet, None
        if patient is not None:
            told = view.node(patient, moment, fleet.mode, how=fleet.how)
        return _send(Story(told))

    async def past(self, request: web.Request) -> web.Response:
        """What our own history knows. Raises BadQuery."""
        values = read_query(_PAST, request.query)
        asked = (values["node"], values["since"], values["limit"], values["until"])
        past = await self._desk.own_past(*asked)
        return _send(Past([parts.happened(one) for one in past.transitions], past.trouble))

    async def _refresh(self) -> None:
        async with self._looking:
            if self._now() < self._old_at:
                return
            moment, fleet = self._lookout.moment(), self._fleet
            names: list[str] = []
            told: list[Told] = []

            def visit(name: str) -> None:
                patient = self._fleet.patients.get(name)
                if patient is not None and self._owners.mine(name):
                    names.append(name)
                    told.append(parts.tell(patient, moment, fleet.mode, fleet.how))

            spent = await stroll(list(self._fleet.patients), visit, self._now)
            fresh = Part(told, [view.lemon(one) for one in self._fleet.lemons])
            if fresh != self._part:
                self._part, self._names = fresh, names
                self._revision += 1
            self._old_at = self._now() + rest(spent)


def _send(told: Answer | Past | Story) -> web.Response:
    return web.Response(body=parts.encode(told), content_type=parts.KIND)
