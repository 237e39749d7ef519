"""The nodes that need attention, one row each, by state: the table of the fleet's page. Pure.

A node's quarantine, its hold and its open incidents are one case. Cases that a person would treat
alike are one row (`equal_rows`).
"""

import datetime as dt
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from aggregator.quarantine.state.fleet import QuarantineSummary
from aggregator.web import models
from aggregator.web.fleet_view import FleetViewFindings

#: The states of the table, worst first.
WORST_FIRST = tuple(reversed(QuarantineSummary))


@dataclass(frozen=True, slots=True)
class Case:
    """All that is open for one node. ``why`` and ``unwell_since`` are of a node with neither
    quarantine, hold nor incident.
    """

    node: str
    state: QuarantineSummary
    quarantine: models.Quarantine | None = None
    hold: models.Hold | None = None
    incidents: tuple[models.Incident, ...] = ()
    why: str = ""
    unwell_since: dt.datetime | None = None

    @property
    def reasons(self) -> tuple[str, ...]:
        """The causes in sentences: the quarantine's reason and the incidents', each once."""
        own = [self.quarantine.reason] if self.quarantine is not None else []
        found = [*own, *(one.summary for one in self.incidents)]
        if not found:
            found = [self.hold.reason if self.hold is not None else self.why]
        return tuple(dict.fromkeys(found))

    @property
    def action(self) -> str:
        """The action that is in force, or that the evidence calls for; empty without one."""
        if self.quarantine is not None:
            return self.quarantine.action
        return self.incidents[0].action if self.incidents else ""

    @property
    def evidence(self) -> Sequence[models.Evidence]:
        """That of the open incidents, else that of which the quarantine was made."""
        if self.incidents:
            return [item for one in self.incidents for item in one.evidence]
        return self.quarantine.evidence if self.quarantine is not None else ()

    @property
    def rule(self) -> str:
        """The rule that decided; empty without one."""
        return deciding_rule(self.evidence, self.action)

    @property
    def advice(self) -> str:
        first = self.incidents[0] if self.incidents else None
        return next((one.advice for one in (self.quarantine, self.hold, first) if one), "")

    @property
    def since(self) -> dt.datetime | None:
        """Since when it is in its phase, is held, or has its first incident."""
        if self.quarantine is not None:
            return self.quarantine.phase_since
        begun = min((one.since for one in self.incidents), default=self.unwell_since)
        return self.hold.since or begun if self.hold is not None else begun

    @property
    def pods_remaining(self) -> int | None:
        return self.quarantine.pods_remaining if self.quarantine is not None else None

    @property
    def pods_total(self) -> int | None:
        return self.quarantine.pods_total if self.quarantine is not None else None

    @property
    def deadline_at(self) -> dt.datetime | None:
        """Of a drain under way."""
        drains = self.quarantine is not None and self.quarantine.phase == "Draining"
        return self.quarantine.deadline_at if self.quarantine is not None and drains else None

    def contains(self, part: str) -> bool:
        """Whether one of its texts contains ``part``, which is in lower case."""
        return any(part in text.lower() for text in self._texts())

    def _texts(self) -> Iterable[str]:
        yield from self.reasons
        yield from (self.why, self.action)
        for item in self.evidence:
            yield from (item.code, item.rule, item.message, item.device, item.component)
        if self.hold is not None:
            yield from (self.hold.limit, self.hold.reason)
        if self.quarantine is not None:
            one = self.quarantine
            yield from (one.phase, one.kind, one.requester, one.message, one.last_error)
            yield from chain.from_iterable((it.pod, it.reason) for it in one.blockers)


def deciding_rule(evidence: Collection[models.Evidence], action: str) -> str:
    """The rule of the first evidence in force that requires this action, else of the first."""
    in_force = [item for item in evidence if not item.over] or list(evidence)
    requesting = [item for item in in_force if item.action == action] or in_force
    return next((item.rule for item in requesting if item.rule), "")


def open_cases(found: FleetViewFindings) -> list[Case]:
    """The worst state first; of each state those that need a person first."""
    quarantines = {one.node: one for one in found.quarantines}
    holds = {one.node: one for one in found.holds}
    incidents: dict[str, list[models.Incident]] = {}
    for one in found.incidents:
        incidents.setdefault(one.node, []).append(one)
    unwell = {one.node: one for one in found.unwell}
    names = dict.fromkeys((*quarantines, *holds, *incidents, *unwell))
    cases = [
        Case(
            node=name,
            state=found.states.get(name, QuarantineSummary.UNKNOWN),
            quarantine=quarantines.get(name),
            hold=holds.get(name),
            incidents=tuple(incidents.get(name, ())),
            why=unwell[name].why if name in unwell else "",
            unwell_since=unwell[name].since if name in unwell else None,
        )
        for name in names
    ]
    cases.sort(key=lambda case: WORST_FIRST.index(case.state))
    return cases


def selected(
    cases: Iterable[Case],
    *,
    state: str = "",
    part: str = "",
    why: str = "",
    has_labels: Callable[[str], bool] | None = None,
) -> list[Case]:
    """The cases in this state whose node's name contains ``part``, of which a text contains
    ``why``, and whose node has the labels.
    """
    part, why = part.lower(), why.lower()
    return [
        case
        for case in cases
        if (not state or case.state == state)
        and part in case.node.lower()
        and (not why or case.contains(why))
        and (has_labels is None or has_labels(case.node))
    ]


def by_state(groups: Iterable[Any]) -> list[tuple[QuarantineSummary, list[Any]]]:
    """Groups of equal cases by the state of their nodes, worst first, without empty states."""
    found: dict[QuarantineSummary, list[Any]] = {}
    for group in groups:
        found.setdefault(group.first.state, []).append(group)
    return [(state, found[state]) for state in WORST_FIRST if state in found]
