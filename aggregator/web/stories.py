"""One node's story, whoever owns it: our own from memory, another's asked of its owner, live.

Where the owner does not answer, it is what was last known: the whole story if somebody has looked
at it lately, else what stands in the owner's part.
"""

from collections import OrderedDict

import msgspec

from aggregator.quarantine.fleet import Fleet, Patient
from aggregator.web import shapes, survey, view
from aggregator.web.courier import NoAnswer
from aggregator.web.lookout import Lookout
from aggregator.web.parts import Telling, Told, faded
from aggregator.web.peers import Peers
from aggregator.web.view import Moment
from aggregator.web.whole import Owners, nobodys, word

#: Stories of others' nodes that are kept for when their owner does not answer.
_KEPT = 64


class Stories:
    """``here`` is this replica's name where there are others, else empty."""

    def __init__(
        self, *, me: str, fleet: Fleet, lookout: Lookout, owners: Owners, peers: Peers
    ) -> None:
        self._me = me
        self._fleet = fleet
        self._lookout = lookout
        self._owners = owners
        self._peers = peers
        self._kept: OrderedDict[str, tuple[shapes.Node, Moment]] = OrderedDict()

    @property
    def here(self) -> str:
        """What this replica is called; empty where it is alone."""
        return self._me if self._peers.others else ""

    def told(self, name: str, telling: Telling) -> Told:
        """What stands in the part that a look went by."""
        return telling.nodes.get(name) or nobodys(name, telling)[0]

    async def of(self, name: str) -> shapes.Node | None:
        """Without its timeline; None where nobody knows of it."""
        patient, tellings = self._fleet.patients.get(name), self._peers.tellings()
        said = word(name, patient, self._owners, tellings) if tellings else None
        if said is None:
            return self._own(patient) if patient is not None else None
        told, telling = said
        if patient is None and name not in telling.nodes:
            return None
        if telling.trouble:
            return self._last_known(told, telling, patient, telling.trouble)
        try:
            found = await self._peers.story(telling.replica, name)
        except NoAnswer as error:
            return self._last_known(told, telling, patient, str(error))
        if found is None:
            return self._last_known(told, telling, patient, "knows of no such node yet")
        found = msgspec.structs.replace(found, replica=telling.replica)
        self._keep(found)
        return found

    def _own(self, patient: Patient) -> shapes.Node:
        fleet = self._fleet
        told = view.node(patient, self._lookout.moment(), fleet.mode, how=fleet.how)
        return msgspec.structs.replace(told, replica=self.here)

    def _keep(self, story: shapes.Node) -> None:
        self._kept[story.node] = (story, self._lookout.moment())
        self._kept.move_to_end(story.node)
        while len(self._kept) > _KEPT:
            self._kept.popitem(last=False)

    def _last_known(
        self, told: Told, telling: Telling, patient: Patient | None, trouble: str
    ) -> shapes.Node:
        moment = self._lookout.moment()
        row = survey.row_told(told, telling, patient, moment)
        kept = self._kept.get(told.node)
        if kept is None:
            story, at = (
                view.node(
                    patient or Patient(told.node), moment, self._fleet.mode, how=self._fleet.how
                ),
                telling.at,
            )
        else:
            story, at = kept[0], kept[1].when(kept[1].now)
        when = f"last known {at:%H:%M} UTC, " if at else ""
        note = f"{when}{telling.replica or 'its replica'} {trouble}"
        quarantine = patient.quarantine if patient is not None else None
        return msgspec.structs.replace(
            story,
            standing=row.standing if quarantine is not None else faded(row.standing),
            why=row.why if telling.trouble else f"{row.why} ({note})" if row.why else note,
            agent="unknown",
            last_heard=row.last_heard,
            incidents=[msgspec.structs.replace(one, doing=note) for one in told.incidents],
            quarantine=view.quarantine(patient, quarantine, self._fleet.how)
            if patient is not None and quarantine is not None
            else None,
            hold=None if quarantine is not None else told.hold,
            exempt=told.exempt,
            wishes=told.wishes,
            last_error=told.last_error,
            replica=telling.replica,
            last_known=at,
        )
