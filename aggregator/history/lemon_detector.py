"""Searches the history for lemons, now and then; alerts on each, and gives its node evidence.

No other code waits for it. A history that can't be read leaves the last result in force.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from attrs import define, field

from aggregator.clock import Clocks
from aggregator.events import EventKind, EventSink, Transition
from aggregator.health.model import Component
from aggregator.policy.lemons import (
    CHECK,
    WINDOW,
    Lemon,
    LemonEvent,
    LemonThresholds,
    evaluate_past,
    evidence,
)
from aggregator.quarantine.state.fleet import FleetState

log = logging.getLogger("sickbay.lemons")

#: Seconds.
FIRST_AFTER = 60.0
POLL_EVERY = 3600.0
REPORT_EVERY = 60.0
#: The same lemon is reported again after this long.
SAME_EVERY = 7 * 86400.0
#: Nodes that are examined, those with the most quarantines first; and transitions of each.
MOST_NODES = 500
MOST_ROWS = 400

#: Kinds that make a node worth examining: in `observe` mode no node is cordoned.
_ACTED = (EventKind.CORDONED, EventKind.SUPPRESSED)
_PAST = {
    EventKind.INCIDENT_OPENED: "opened",
    EventKind.INCIDENT_CHANGED: "opened",  # it may call for more by now, on other evidence
    EventKind.INCIDENT_CLOSED: "closed",
    EventKind.CORDONED: "quarantined",
    EventKind.RELEASED: "released",
}


class LemonIndex(Protocol):
    """The queries that the detector needs of the history."""

    async def node_transitions(
        self,
        acted: Iterable[EventKind],
        kinds: Iterable[EventKind],
        since: float,
        nodes: int,
        rows: int,
    ) -> dict[str, list[Transition]]:
        """The newest ``rows`` of the kinds ``kinds`` for each of the ``nodes`` with the most
        ``acted``.

        Raises `OSError`.
        """
        ...

    async def of_kinds(
        self, kinds: Iterable[EventKind], since: float, until: float
    ) -> list[Transition]:
        """Those of these kinds from ``since`` to ``until``. Raises `OSError`."""
        ...


@define(eq=False, repr=False, slots=False, kw_only=True)
class LemonDetector:
    """``record_evidence`` gives the controller evidence on a node, in our own name; False: it does
    not know the node.
    """

    _history: LemonIndex
    _fleet: FleetState
    _event_sink: EventSink
    _clocks: Clocks
    _bounds: LemonThresholds
    _record_evidence: Callable[[str, Component], bool]
    _since: dict[str, float] = field(factory=dict, init=False)
    _reported: set[str] = field(factory=set, init=False)
    _checked: bool = field(default=False, init=False)
    _nodes_with_transitions: frozenset[str] = field(default=frozenset(), init=False)

    async def run(self) -> None:
        """Check for ever."""
        await asyncio.sleep(FIRST_AFTER)
        due = self._clocks.now()
        while True:
            if self._clocks.now() >= due:
                await self.check_events()
                due = self._clocks.now() + POLL_EVERY
            self.report_lemons()
            await asyncio.sleep(REPORT_EVERY)

    async def check_events(self) -> None:
        """Read the last weeks again."""
        now = self._clocks.earliest()
        try:
            transitions = await self._history.node_transitions(
                _ACTED, _PAST, now - WINDOW, MOST_NODES, MOST_ROWS
            )
            # Of a node that flaps, the rows above may not reach back for a week.
            lately = await self._history.of_kinds((EventKind.LEMON,), now - SAME_EVERY, now)
        except OSError as error:
            if not self._fleet.lemons_trouble:
                log.warning("the search for lemons failed", extra={"error": str(error)})
            self._fleet.lemons_trouble = f"history can't be read: {error}"
            return
        self._fleet.lemons_trouble = ""
        found = (
            evaluate_past(node, lemon_events(past), self._bounds, now)
            for node, past in transitions.items()
        )
        lemons = sorted(
            (lemon for lemon in found if lemon is not None),
            key=lambda lemon: (-len(lemon.strikes), -lemon.quarantines, lemon.node),
        )
        self._fleet.lemons = tuple(lemons)
        self._checked = True
        self._nodes_with_transitions = frozenset(transitions)
        known = {one.node for one in lately}
        for lemon in lemons:
            if lemon.node not in known:
                self.log_verdict(lemon, now)

    def report_lemons(self) -> None:
        """Emit evidence for every lemon's node, and end it where the node is none any more."""
        if not self._checked:
            return
        lemons = {lemon.node: lemon for lemon in self._fleet.lemons}
        for node, lemon in lemons.items():
            since = self._since.setdefault(node, self._clocks.now())
            if self._record_evidence(node, evidence(lemon, since)):
                self._reported.add(node)
        for node in (self._reported | set(self._remembered())) - lemons.keys():
            if self._is_forgotten(node):
                continue
            self._since.pop(node, None)
            if self._record_evidence(node, evidence(None, self._clocks.now())):
                self._reported.discard(node)

    def _remembered(self) -> Iterable[str]:
        """Nodes whose quarantine rests on a lemon verdict, perhaps from before this process."""
        for node, node_summary in self._fleet.node_summaries.items():
            quarantine = node_summary.quarantine
            items = quarantine.spec.evidence if quarantine is not None else ()
            health = node_summary.agent.health
            is_known = health is not None and (CHECK, "") in health.components
            if not is_known and any(item.code.partition(":")[0] == CHECK for item in items):
                yield node

    def _is_forgotten(self, node: str) -> bool:
        """Whether the history has no record of the quarantine that rests on it: it was lost.

        A lost history is no sign that a node is healthy, and releases no node.
        """
        node_summary = self._fleet.node_summaries.get(node)
        quarantine = node_summary.quarantine if node_summary is not None else None
        if quarantine is None or node in self._nodes_with_transitions:
            return False
        return self._clocks.earliest() - quarantine.status.cordoned_at < WINDOW

    def log_verdict(self, lemon: Lemon, now: float) -> None:
        self._event_sink.record_event(
            Transition(
                at=now,
                kind=EventKind.LEMON,
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


def lemon_events(past: Iterable[Transition]) -> Iterable[LemonEvent]:
    """The transitions that count for a node: not those only watched, nor those many nodes had."""
    for one in past:
        what = _PAST.get(one.kind)
        if what is None or (what == "opened" and not _counts(one.details)):
            continue
        codes = _codes(one.details)
        if what == "opened" and not codes and one.details.get("evidence"):
            continue  # the lemon verdict itself is no event of the node
        yield LemonEvent(one.at, what, one.incident, codes)


def _counts(details: Mapping[str, str]) -> bool:
    return details.get("action", "observe") != "observe" and "cause" not in details


def _codes(details: Mapping[str, str]) -> frozenset[str]:
    """The codes of "xid:79 GPU-1 (gpu-gone); ...", the form of recorded evidence, without the
    lemon's own.
    """
    items = (item.split() for item in details.get("evidence", "").split(";"))
    return frozenset(item[0] for item in items if item and not item[0].startswith(f"{CHECK}:"))
